r"""A dry run for people: the prompt's tokens in colours, an episode, numbers and sentences.

Tokens of a prompt have two backgrounds in turn, and added tokens a third. Without colours, they are
parted by `|`. A token with a line break is written with `\n`, and the line ends after it.
"""

from collections.abc import Iterator, Sequence

from rich.text import Text

from gymnast.numbers import mean
from gymnast.trainers.dry_runs.costs import Costs
from gymnast.trainers.dry_runs.prompts import Prompt, PromptScan, PromptToken
from gymnast.trainers.dry_runs.report import Report
from gymnast.trainers.reporting.live.durations import duration
from gymnast.trainers.reporting.message_lines import message_lines
from gymnast.trainers.reporting.shown_episodes import first_action
from gymnast.types import Trajectory
from gymnast.visible import visible, visible_line

PLAIN, SPECIAL = ("black on color(153)", "black on color(194)"), "bold black on color(222)"
FIRST, LAST = 500, 300  # tokens of a long prompt that are shown


def prompt_head(prompt: Prompt) -> str:
    """What is said above a prompt: whose it is, its length, and what it leaves."""
    limits = ", ".join(f"{name} {limit:,}" for name, limit in prompt.limits.items())
    return (
        f"the prompt of row {prompt.row} ({prompt.environment}): {len(prompt.tokens):,} tokens, "
        f"{prompt.left:,} left for the episode ({limits or 'no limit'})"
    )


def prompt_text(prompt: Prompt, *, colors: bool, whole: bool = False) -> Text:
    """A prompt token by token.

    Args:
        prompt: Of a row.
        colors: Whether tokens are told apart by colours; else by `|`.
        whole: Whether the middle of a long one is shown too.
    """
    tokens, text = prompt.tokens, Text()
    if whole or len(tokens) <= FIRST + LAST:
        _write(text, tokens, colors=colors)
        return text
    _write(text, tokens[:FIRST], colors=colors)
    text.append(f"\n... {len(tokens) - FIRST - LAST:,} tokens (-v shows them) ...\n")
    _write(text, tokens[-LAST:], colors=colors)
    return text


def _write(text: Text, tokens: Sequence[PromptToken], *, colors: bool) -> None:
    begins = True
    for place, token in enumerate(tokens):
        if not colors and not begins:
            text.append("|")
        style = SPECIAL if token.special else PLAIN[place % 2]
        written = visible_line(token.text) if token.text else f"#{token.id}"
        text.append(written, style=style if colors else "")
        begins = "\n" in token.text
        if begins and place + 1 < len(tokens):
            text.append("\n")


def tools_lines(prompt: Prompt) -> Iterator[str]:
    """The tools of a prompt as the chat template writes them."""
    if not prompt.tools:
        yield "no tools are offered"
        return
    yield f"tools: {', '.join(prompt.tools)}; as the chat template writes them:"
    yield from (f"  {line}" for line in visible(prompt.tools_text).splitlines())


def episode_lines(episode: Trajectory) -> Iterator[str]:
    """An episode after its prompt: how it ended, and what was said."""
    parts = ", ".join(f"{name} {value:g}" for name, value in episode.reward_parts.items())
    turns = f"{episode.steps} turn{'' if episode.steps == 1 else 's'}"
    yield (
        f"an episode: reward {episode.reward:g}{f' ({parts})' if parts else ''}  "
        f"{episode.stop_reason}  {turns}  {episode.action_tokens} tokens sampled"
    )
    for number, context in enumerate(episode.contexts):
        if len(episode.contexts) > 1:
            yield f"context {number}"
        for message in context.messages[first_action(context) :]:
            yield from (f"  {visible(line)}" for line in _lines(message_lines(message)))


def _lines(texts: Iterator[str]) -> Iterator[str]:
    return (line for text in texts for line in text.splitlines() or [""])


def report_lines(report: Report) -> Iterator[str]:
    """The numbers of a dry run, then what is odd."""
    yield prompts_line(report.prompts)
    yield rollouts_line(report)
    yield from cost_lines(report.costs)
    if not report.oddities:
        yield "nothing odd was found"
    yield from (f"odd: {visible_line(str(each))}" for each in report.oddities)
    yield from expected_lines(report)


def expected_lines(report: Report) -> Iterator[str]:
    """What of all that is odd random weights explain, in one line; none where they do not."""
    if causes := report.expected:
        *others, last = causes
        listed = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        yield f"{listed} expected of tiny:, whose weights are random"


def prompts_line(found: PromptScan) -> str:
    """How long prompts are, and of how many rows that is known."""
    if found.of is None:
        rows = f"{found.rows} rows that the environment makes"
    else:
        rows = (
            f"all {found.of} rows" if found.rows == found.of else f"{found.rows} of {found.of} rows"
        )
    lengths = f"{found.shortest:,} to {found.longest:,} tokens" if found.longest else "unknown"
    return f"prompts: {lengths} ({rows}), {len(found.too_long)} too long"


def rollouts_line(report: Report) -> str:
    """The rewards of the episodes that were played together."""
    episodes = report.episodes
    if not episodes:
        return "rollouts: none was finished"
    rewards = [episode.reward for episode in episodes]
    alike = sum(len({episode.reward for episode in group}) == 1 for group in report.groups)
    before = f" before {report.warmup_steps} steps of warm-up" if report.warmup_steps else ""
    average, spread = mean(rewards), f"{min(rewards):g} to {max(rewards):g}"
    return (
        f"rollouts: {len(episodes)} by {report.agent}{before}, reward {average:.3f} ({spread}), "
        f"{alike} of {len(report.groups)} groups alike"
    )


def cost_lines(costs: Costs) -> Iterator[str]:
    """What a step is going to take, and what that is made of."""
    if costs.memory:
        yield f"memory: {costs.memory}"
    if costs.rollout_s is not None:
        yield (
            f"time: {costs.episodes} episodes took {costs.played_s:.1f} s together, the first one "
            f"alone {costs.first_s:.1f} s; {costs.step_episodes} of a step, at that rate, "
            f"{costs.rollout_s:.1f} s"
        )
    if costs.train_s is not None:
        yield (
            f"time: forward and backward passes of {costs.learned} took {costs.learned_s:.1f} s; "
            f"of a step, where each has an advantage, {costs.train_s:.1f} s"
        )
    if costs.step_s is not None and costs.run_s is not None:
        how = "the longer of the two, as they go on together" if costs.ahead else "both"
        yield (
            f"time: a step about {costs.step_s:.1f} s ({how}), all {costs.steps} about "
            f"{duration(costs.run_s)}, without evaluations and checkpoints"
        )
