"""What is written of a run in lines that stay: steps, the warm-up, episodes in short."""

import shlex
from collections.abc import Mapping
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from gymnast.envs.boxes.box import BROKEN
from gymnast.trainers.reporting.shown_episodes import ShownEpisode
from gymnast.visible import visible_line

_LONGEST_PROMPT = 120
_LONGEST_EVENT = 160


_RATES = (
    ("perf/mfu", "MFU", "{:.1%}"),
    ("perf/waiting_share", "idle", "{:.0%}"),
)


def step_line(
    step: int, steps: int, metrics: Mapping[str, float], *, is_logged: bool = False
) -> str:
    """A step in one line; what was not measured is left out.

    The loss is not shown: it is about zero wherever each episode is trained on once.

    Args:
        step: Its number.
        steps: Of the run.
        metrics: The step's.
        is_logged: True in a log, where no region shows the rest and lines have any length.
    """
    parts = [f"step {step}/{steps}"]
    for name, label, form in (
        ("reward/mean", "reward", "{:.3f}"),
        ("reward/std", "std", "{:.3f}"),
        ("grad_norm", "grad", "{:.3g}"),
        ("tools/calls", "calls", "{:.0f}"),
        ("tools/errors", "errors", "{:.0f}"),
        ("tokens/per_s", "tokens/s", "{:.0f}"),
        *(_RATES if is_logged else ()),
        ("time/step_s", "seconds", "{:.1f}"),
    ):
        if name in metrics:
            parts.append(f"{label} {form.format(metrics[name])}")
    if metrics.get("grad_norm") == 0:  # advantages compare the episodes of a row
        why = "the rewards of each row are alike"
        if metrics.get("episodes/masked") and not metrics.get("tokens/trained"):
            why = "every episode ended in a way that masked_stop_reasons leaves out"
        parts.append(f"nothing learned: {why}")
    return "  ".join(parts) + missing(metrics)


def warmup_line(step: int, steps: int, metrics: Mapping[str, float]) -> str:
    """A step of the warm-up in one line of a terminal."""
    parts = [f"warm-up {step}/{steps}"]
    for name, label, form in (
        ("warmup/loss", "loss", "{:.3f}"),
        ("warmup/grad_norm", "grad", "{:.3g}"),
        ("warmup/episodes", "demonstrations", "{:.0f}"),
        ("warmup/tokens/trained", "tokens", "{:.0f}"),
        ("time/step_s", "seconds", "{:.1f}"),
    ):
        if name in metrics:
            parts.append(f"{label} {form.format(metrics[name])}")
    return "  ".join(parts)


def missing(metrics: Mapping[str, float], area: str = "") -> str:
    """What a step or an evaluation lacks, or has of what should not be; "" where all is well."""
    return _left_out(metrics, area) + _broken_boxes(metrics, area) + _bugs(metrics, area)


def _broken_boxes(metrics: Mapping[str, float], area: str) -> str:
    """How many episodes have reward 0 because the policy broke their box."""
    share = metrics.get(f"{area}{BROKEN}", 0.0)
    number = round(share * metrics.get(f"{area}episodes/finished", 0))
    return f"  boxes that the policy broke {number}" if number else ""


def _bugs(metrics: Mapping[str, float], area: str) -> str:
    """How many calls failed because of bugs, which a tool's author has to fix."""
    calls = metrics.get(f"{area}tools/errors/bug", 0)
    return f"  calls that failed because of bugs in tools {calls:.0f}" if calls else ""


def _left_out(metrics: Mapping[str, float], area: str) -> str:
    """The episodes and rows that a step or an evaluation had to leave out, if any."""
    left_out = metrics.get(f"{area}episodes/left_out", 0)
    skipped = metrics.get(f"{area}episodes/rows_skipped", 0)
    prefix = f"{area}episodes/left_out/"
    reasons = [
        f"{number:.0f} {name.removeprefix(prefix).replace('_', ' ')}"
        for name, number in metrics.items()
        if name.startswith(prefix) and number
    ]
    why = f" ({', '.join(reasons)})" if reasons else ""
    parts = [f"  episodes left out {left_out:.0f}{why}"] if left_out else []
    parts += [f"  rows with too long a prompt {skipped:.0f}"] if skipped else []
    return "".join(parts)


def best_line(summary: Mapping[str, Any]) -> str:
    """One line on the best evaluation of a run and its weights; "" if the last was as good.

    Args:
        summary: As `Trainer.train` returns it.
    """
    best, latest = summary.get("best"), summary.get("latest")
    if best is None or latest is None or latest.reward >= best.reward:
        return ""
    line = f"best evaluation: {best.reward:.3f} {best.when}; the last, {latest.when}, is worse"
    if folder := summary.get("best_folder"):
        command = shlex.join(["gymnast", "eval", folder])
        return f"{line}. Its weights are in {folder}; to evaluate them: {command}"
    if not best.is_trained:
        return f"{line}. No evaluation was better than that of the untrained model"
    return f"{line}. Its weights are not kept (evaluation.keep_best, output_dir)"


def episode_line(episode: ShownEpisode) -> str:
    """An episode in one line."""
    events = " | ".join(_clipped(event, _LONGEST_EVENT) for event in episode.events)
    prompt = _tail(episode.prompt, _LONGEST_PROMPT)
    return f"reward {episode.reward:.2f}  {episode.stop_reason}  {prompt} | {events}"


def episode_table(episodes: list[ShownEpisode]) -> Table:
    """Episodes as a table; text of a model or a tool is never interpreted as rich's markup."""
    table = Table(show_lines=True)
    for name in ("prompt", "episode", "reward", "stop"):
        side: Literal["left", "right"] = "right" if name == "reward" else "left"
        table.add_column(name, justify=side, overflow="fold")
    for episode in episodes:
        events = "\n".join(_clipped(event, _LONGEST_EVENT) for event in episode.events)
        prompt = Text(_tail(episode.prompt, _LONGEST_PROMPT))
        table.add_row(prompt, Text(events), f"{episode.reward:.2f}", episode.stop_reason)
    return table


def _clipped(text: str, longest: int) -> str:
    text = _printable(text)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _tail(text: str, longest: int) -> str:
    text = _printable(text)
    return text if len(text) <= longest else "..." + text[3 - longest :]


def _printable(text: str) -> str:
    """One line, in which nothing steers a terminal."""
    return visible_line(" ".join(text.split()))
