"""The report of `check_env`, as data and as text for a terminal."""

from dataclasses import dataclass

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
class Solved:
    """An episode that `solve` played.

    Attributes:
        reward: What it earned.
        messages: How many messages it said.
        stop_reason: Why the episode ended.
    """

    reward: float
    messages: int
    stop_reason: str


@dataclass(frozen=True)
class CheckReport:
    """The report; `print` it.

    Attributes:
        prompt: A prompt as a model reads it: the chat template's text, including the tools.
        prompt_tokens: How many tokens it has.
        tools: Every tool.
        rewards: The rewards of the episodes that ended and have one.
        solved: Episodes that `solve` played; None where the class has none.
    """

    prompt: str
    prompt_tokens: int
    tools: tuple[ToolTried, ...]
    rewards: tuple[float, ...]
    solved: tuple[Solved, ...] | None = None

    def __str__(self) -> str:
        lines = [*self._prompt_lines(), "", *self._tool_lines(), "", self._reward_line()]
        return "\n".join([*lines, *self._solved_lines()])

    def _prompt_lines(self) -> list[str]:
        lines = self.prompt.split("\n")
        if (more := len(lines) - _MAX_LINES) > 0:
            half = _MAX_LINES // 2
            lines = [*lines[:half], f"[... {more} lines left out ...]", *lines[-half:]]
        head = f"A prompt, as a model reads it ({self.prompt_tokens} tokens):"
        return [head, "", *(f"  | {visible_line(line)}".rstrip() for line in lines)]

    def _tool_lines(self) -> list[str]:
        if not self.tools:
            return ["There are no tools."]
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
        return ["Each tool, called once with arguments made from its schema:", "", *lines]

    def _reward_line(self) -> str:
        low, high = min(self.rewards), max(self.rewards)
        shown = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        return f"Rewards of the {len(self.rewards)} episodes that ended: {shown}"

    def _solved_lines(self) -> list[str]:
        if self.solved is None:
            return []
        if not self.solved:
            return ["solve has no solution for the rows that were tried."]
        played = ", ".join(
            f"{each.reward:g} ({each.stop_reason} with message {each.messages})"
            for each in self.solved
        )
        doubt = (
            ""
            if min(each.reward for each in self.solved) >= 1
            else "; if an episode can earn more, solve must play that one"
        )
        return [f"Rewards of what solve plays: {played}{doubt}"]
