"""The report of `check_env`, as data and as text for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymnast.visible import visible_line

_MAX_LINES = 60  # of a prompt
_MAX_ANSWER = 200


@dataclass(frozen=True)
class ToolTried:
    """A tool that was called, or could not be.

    Attributes:
        call: As a policy would write it; the tool's signature if it was not called.
        answer: What a policy reads; None if it was not called.
        note: Why it was not called, or another remark.
    """

    call: str
    answer: str | None
    note: str = ""


@dataclass(frozen=True)
class Played:
    """An episode of `solve`, or of a policy that does nothing.

    Attributes:
        row: Which of the rows that both play, from 0 on.
        reward: What it earned; None where it cannot be judged.
        messages: How many messages were said.
        stop_reason: Why the episode ended.
    """

    row: int
    reward: float | None
    messages: int
    stop_reason: str

    def __str__(self) -> str:
        reward = "none" if self.reward is None else f"{self.reward:g}"
        return f"{reward} ({self.stop_reason} with message {self.messages})"


@dataclass(frozen=True)
class CheckReport:
    """The report; `print` it.

    Attributes:
        prompt: A prompt as a model reads it: the chat template's text, including the tools.
        prompt_tokens: How many tokens it has.
        tools: Every tool.
        rewards: Of the episodes that called the tools, said random tokens or an empty message, as
            far as they ended and have one.
        idle: Episodes in which nothing was done.
        solved: Episodes that `solve` played, on the same rows; None where the class has none.
        offered: Names of the tools that a program offers in its first request, and runs itself;
            None where no program asks.
        odd: Sentences about what is odd, though it breaks no contract.
        compared: The episodes that had equal results, replies and rewards when they were played
            again: in the same instance, in a second one, and in turns in two.
        missed: Those that were not played again, with the reason.

    That of a mixture has the prompt of its first environment, and the rest of all.
    """

    prompt: str
    prompt_tokens: int
    tools: tuple[ToolTried, ...]
    rewards: tuple[float, ...]
    idle: tuple[Played, ...] = ()
    solved: tuple[Played, ...] | None = None
    offered: tuple[str, ...] | None = None
    odd: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [self._prompt_lines(), self._tool_lines()]
        if self.compared or self.missed:
            parts.append(self._repeat_lines())
        parts.append(self._reward_lines())
        if self.odd:
            parts.append([f"odd: {visible_line(sentence)}" for sentence in self.odd])
        return "\n\n".join("\n".join(lines) for lines in parts)

    def _prompt_lines(self) -> list[str]:
        lines = self.prompt.split("\n")
        if (more := len(lines) - _MAX_LINES) > 0:
            half = _MAX_LINES // 2
            lines = [*lines[:half], f"[... {more} lines left out ...]", *lines[-half:]]
        head = f"A prompt, as a model reads it ({self.prompt_tokens} tokens):"
        return [head, "", *(f"  | {visible_line(line)}".rstrip() for line in lines)]

    def _tool_lines(self) -> list[str]:
        program = [] if self.offered is None else [self._offered_line()]
        if not self.tools:
            return program or ["There are no tools."]
        lines = []
        for tool in self.tools:
            if tool.answer is None:
                lines.append(f"  {tool.call}  was not called: {visible_line(tool.note)}")
                continue
            answer = " ".join(tool.answer.split())
            if len(answer) > _MAX_ANSWER:
                answer = f"{answer[:_MAX_ANSWER]}... ({len(tool.answer)} characters)"
            note = f"  ({tool.note})" if tool.note else ""
            lines.append(visible_line(f"  {tool.call} -> {answer}{note}"))
        head = "Each tool, called with arguments made from its schema:"
        return [head, "", *lines, *(["", *program] if program else [])]

    def _offered_line(self) -> str:
        if not self.offered:
            return "The program offers no tools in its first request."
        names = visible_line(", ".join(self.offered))
        return f"The program runs its own tools, of which none was called here: {names}."

    def _repeat_lines(self) -> list[str]:
        lines = []
        if self.compared:
            head = "Equal when played again, in one instance, in a second one and in turns in two:"
            lines += [head, "", *(f"  {visible_line(each)}" for each in self.compared)]
        if self.missed:
            lines += [""] if lines else []
            lines += ["Not played again:", "", *(f"  {visible_line(each)}" for each in self.missed)]
        return lines

    def _reward_lines(self) -> list[str]:
        low, high = min(self.rewards), max(self.rewards)
        shown = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        said = "each tool called once, random tokens" if self.tools else "random tokens"
        return [
            "Rewards:",
            "",
            f"  solve           {self._solved_line()}",
            f"  doing nothing   {_together(self.idle)}",
            f"  other episodes  {shown} ({said})",
            *self._remarks(),
        ]

    def _solved_line(self) -> str:
        if self.solved is None:
            return "the class has none (docs/demonstrations.md)"
        return _together(self.solved) if self.solved else "has no solution for these rows"

    def _remarks(self) -> list[str]:
        """What may be wrong with the rewards, though it need not be."""
        if not self.solved:
            return self._remarks_without_solution()
        nothing = {each.row: each.reward for each in self.idle}
        equal = sum(each.reward == nothing.get(each.row) for each in self.solved)
        least = min(each.reward or 0.0 for each in self.solved)
        remarks = []
        if equal:
            remarks.append(
                f"warning: doing nothing earns as much as solve on {equal} of {len(self.solved)} "
                "rows; a policy learns there to do nothing"
            )
        if least < 1:
            remarks.append(
                f"solve earns {least:g}; if an episode can earn more, solve must play that one"
            )
        return ["", *remarks] if remarks else []

    def _remarks_without_solution(self) -> list[str]:
        earned = [each.reward or 0.0 for each in self.idle]
        if not earned or min(earned) <= 0 or max(self.rewards) > min(earned):
            return []
        return [
            "",
            f"warning: doing nothing earns {min(earned):g} or more on each row, and nothing played "
            "here earns more; is there a reward for what the policy does?",
        ]


def _together(played: tuple[Played, ...]) -> str:
    """The episodes in one line, in few words where they are alike."""
    texts = [str(each) for each in played]
    alike = len(texts) > 1 and len(set(texts)) == 1
    return f"{texts[0]} on each of {len(texts)} rows" if alike else ", ".join(texts)


def merged(reports: Sequence[CheckReport]) -> CheckReport:
    """The reports of several environments as one."""
    tools = tuple(tool for report in reports for tool in report.tools)
    rewards = tuple(reward for report in reports for reward in report.rewards)
    offered = [name for report in reports for name in report.offered or ()]
    idle, solved = list[Played](), list[Played]()
    for report in reports:
        before = len(idle)  # rows of one environment are not those of another
        idle += [replace(each, row=before + each.row) for each in report.idle]
        solved += [replace(each, row=before + each.row) for each in report.solved or ()]
    return replace(
        reports[0],
        tools=tools,
        rewards=rewards,
        idle=tuple(idle),
        solved=tuple(solved) if any(one.solved is not None for one in reports) else None,
        offered=tuple(offered) if any(one.offered is not None for one in reports) else None,
        odd=tuple(dict.fromkeys(sentence for report in reports for sentence in report.odd)),
        compared=tuple(dict.fromkeys(each for report in reports for each in report.compared)),
        missed=tuple(dict.fromkeys(each for report in reports for each in report.missed)),
    )
