"""What the page gets, in the shapes of `page/src/data/wire.ts`: plain values for JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gymnast.trainers.inspecting.cause import MEANINGS, cause_of
from gymnast.trainers.inspecting.causes import diagnose, unpaid_up_to
from gymnast.trainers.inspecting.files import EpisodeFile
from gymnast.trainers.inspecting.filters import Filter
from gymnast.trainers.inspecting.index import Entry, Index
from gymnast.trainers.records.json_text import from_json
from gymnast.trainers.saving.rollout_files import SavedBranch, SavedTrajectory
from gymnast.types import Branch, Trajectory
from gymnast.viewer.runs import Run

SNIPPET_CHARACTERS = 120
TAG_CHARACTERS = 40
ERRORS = "tools/errors/"
TOOLS = ("tools/calls/", "tools/failures/")


Chosen = Mapping[str, Sequence[int]]
"""Of each file, by its name, the numbers of the episodes that are shown."""


def index_of(index: Index, chosen: Chosen | None = None) -> dict[str, Any]:
    """Every episode in a few numbers: a list of columns, all of one length.

    Args:
        index: Of a run.
        chosen: The episodes that the page holds; None: all.
    """
    rows: dict[str, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    files = [file for file in index.files if chosen is None or file.name in chosen]
    for place, file in enumerate(files):
        found = _columns(file, rows) | {"file": [place] * len(file)}
        numbers = range(len(file)) if chosen is None else chosen[file.name]
        for name, values in columns.items():
            values.extend(found[name][number] for number in numbers)
    return {
        "files": [
            {"name": file.name, "step": file.file.step, "evaluation": file.file.is_evaluation}
            for file in files
        ],
        "rows": [_row_head(from_json(text)) for text in rows],
        **columns,
    }


COLUMNS = (
    *("file", "group", "member", "row", "reward", "stop", "turns", "tokens", "errors", "tools"),
    *("environment", "alike"),
)


def _columns(file: EpisodeFile, rows: dict[str, int]) -> dict[str, list[Any]]:
    entries = [Entry(file, n) for n in range(len(file))]
    metrics = [from_json(text) for text in file.column("metrics")]
    rewards = [entry.reward for entry in entries]
    return {
        "group": file.column("group"),
        "member": file.column("member"),
        "row": [rows.setdefault(text, len(rows)) for text in file.column("row")],
        "reward": [finite(reward) for reward in rewards],
        "stop": file.column("stop_reason"),
        "turns": [entry.turns for entry in entries],
        "tokens": [turns[-1][1] if turns else 0 for turns in file.column("turns")],
        "errors": [_counted(each, ERRORS) for each in metrics],
        "tools": [sorted({tool for t in TOOLS for tool in _counted(each, t)}) for each in metrics],
        "environment": [entry.environment or None for entry in entries],
        "alike": _alike(file.column("group"), rewards),
    }


def _alike(groups: Sequence[int], rewards: Sequence[float | None]) -> list[bool]:
    """Of each episode, whether all of its group have one reward, which teaches nothing."""
    of_group: dict[int, list[float | None]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        of_group.setdefault(group, []).append(reward)
    return [len(of_group[group]) > 1 and len(set(of_group[group])) == 1 for group in groups]


def _counted(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): n for name, n in metrics.items() if name.startswith(prefix) and n
    }


def _row_head(row: Mapping[str, Any]) -> dict[str, Any]:
    """The beginning of what a row asks, and its short values."""
    texts = [value for value in row.values() if isinstance(value, str)]
    asked = row.get("prompt", row.get("question", max(texts, key=len, default="")))
    words = " ".join(str(asked).split())
    tags = {
        str(key): str(value)
        for key, value in row.items()
        if isinstance(value, str | int | float | bool) and len(str(value)) <= TAG_CHARACTERS
    }
    return {"snippet": words[:SNIPPET_CHARACTERS], "tags": tags}


def episode_of(saved: SavedTrajectory) -> dict[str, Any]:
    """One episode, whole."""
    trajectory = saved.trajectory
    known = [SavedBranch(saved.advantages, saved.text, saved.token_ends), *saved.branches]
    contexts: list[Trajectory | Branch] = [trajectory, *trajectory.branches]
    return {
        "id": f"{saved.name}/{saved.group}/{saved.member}",
        "reward": None if trajectory.no_reward else finite(trajectory.reward),
        "stop_reason": str(trajectory.stop_reason),
        "truncated": trajectory.truncated,
        "seed": None if trajectory.seed is None else str(trajectory.seed),
        "row": trajectory.row,
        "metrics": {name: finite(value) for name, value in sorted(trajectory.metrics.items())},
        "reward_parts": {name: finite(value) for name, value in trajectory.reward_parts.items()},
        "why": _why(trajectory),
        "contexts": [_context(*pair) for pair in zip(contexts, known, strict=True)],
    }


def _why(trajectory: Trajectory) -> dict[str, str] | None:
    """Why an episode earned nothing; None where it earned something."""
    if not trajectory.no_reward and trajectory.reward > 0:
        return None
    found = cause_of(trajectory)
    return {"cause": found.cause, "form": found.form, "meaning": MEANINGS[found.cause]}


def _context(context: Trajectory | Branch, known: SavedBranch) -> dict[str, Any]:
    return {
        "prompt_length": context.prompt_length,
        "ids": context.ids,
        "action_mask": context.action_mask,
        "logprobs": list(map(_rounded, context.logprobs)),
        "advantages": known.advantages and list(map(_rounded, known.advantages)),
        "token_rewards": list(map(_rounded, context.token_rewards)) or None,
        "turns": context.turns,
        "turn_rewards": list(map(finite, context.turn_rewards)),
        "versions": context.versions or None,
        "text": known.text,
        "token_ends": known.token_ends,
        "messages": context.messages,
        "tools": context.tools or None,
    }


def finite(value: float | None) -> float | None:
    """A number that JSON can hold; None in place of NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None


def why_of(
    index: Index, file: str | None = None, held: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Any]:
    """Why episodes earned nothing.

    Args:
        index: Of a run.
        file: Of these rollouts alone; None: of all of training, or of all that there are.
        held: Of each file, by its name, the numbers of the episodes to look at; None: all. What
            counts as nothing does not depend on it.
    """
    if file is None:
        wanted = Filter(evaluations=False if index.has_steps else None)
        entries = list(index.find(wanted))
    else:
        entries = [entry for entry in index.entries() if entry.file.name == file]
    if held is None:
        return asdict(diagnose(entries))
    bar = unpaid_up_to([entry.reward for entry in entries if entry.reward is not None])
    taken = {name: set(numbers) for name, numbers in held.items()}
    looked_at = (entry for entry in entries if entry.number in taken.get(entry.file.name, ()))
    return asdict(diagnose(looked_at, bar=bar))


def overview_of(
    runs: Sequence[Run], *, live: bool = True, partial: str | None = None
) -> dict[str, Any]:
    """What there is to see.

    Args:
        runs: That the page shows.
        live: Whether it is worth asking again.
        partial: What the page does not hold, in words.
    """
    return {
        "live": live,
        "partial": partial,
        "runs": [run.head() for run in runs],
    }


def _rounded(value: float) -> float | None:
    """To the digits that the page shows at most: one number a token is most of what it reads."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
