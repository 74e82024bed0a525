"""The page and its data as one file that needs no server and no network.

The data lie in it as compressed blocks, which the page unpacks when it shows them. A block holds a
group of episodes. Where not all groups fit, each file of rollouts gets its share of the room.
"""

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from gymnast.errors import ConfigError
from gymnast.trainers.inspecting.filters import Filter
from gymnast.trainers.records.json_text import json_line
from gymnast.viewer.runs import Run
from gymnast.viewer.server import STATIC
from gymnast.viewer.wire import episode_of, index_of, overview_of, why_of

LIMIT_MB = 20.0


@dataclass(frozen=True)
class Held:
    """What a file holds.

    Attributes:
        episodes: How many it has.
        of: How many the filter took.
        size: Of the file in bytes.
    """

    episodes: int
    of: int
    size: int


def write_single_file(
    path: str | Path, runs: Sequence[Run], wanted: Filter | None = None, limit_mb: float = LIMIT_MB
) -> Held:
    """Write the page with its data.

    Args:
        path: Of the file; one that is there is replaced.
        runs: That it shows.
        wanted: The episodes that it may hold; by default all.
        limit_mb: What the file may take, in megabytes of 10^6 bytes.

    Raises:
        ConfigError: The page does not fit even without an episode.
        DataError: Rollouts cannot be read.
    """
    limit = room = int(limit_mb * 1e6)
    taken = {run.name: _taken(run, wanted or Filter()) for run in runs}
    of = sum(len(numbers) for files in taken.values() for numbers in files.values())
    while True:
        blocks, held = _blocks(runs, taken, room)
        page = _page(blocks).encode()
        if len(page) <= limit:
            Path(path).write_bytes(page)
            return Held(held, of, len(page))
        if held == 0:
            raise ConfigError(
                f"{path}: the page and its metrics alone take {len(page) / 1e6:.1f} MB, and the "
                f"limit is {limit_mb:g} MB; set a higher limit, or name fewer runs"
            )
        room -= len(page) - limit


Taken = Mapping[str, Sequence[int]]
"""Of each file, by its name, the numbers of the episodes that the filter takes."""


def _taken(run: Run, wanted: Filter) -> Taken:
    found: dict[str, list[int]] = {}
    for entry in run.index().find(wanted) if run.has_episodes else ():
        found.setdefault(entry.file.name, []).append(entry.number)
    return found


def _blocks(
    runs: Sequence[Run], taken: Mapping[str, Taken], room: int
) -> tuple[dict[str, str], int]:
    """The data by name, with at most so many bytes of episodes, and how many episodes these are."""
    blocks: dict[str, str] = {}
    held, files_left = 0, sum(map(len, taken.values()))
    for run in runs:
        blocks[f"metrics {run.name}"] = _packed(run.metrics())
        chosen: dict[str, list[int]] = {}
        for name, numbers in taken[run.name].items():
            share, files_left = max(room, 0) // files_left, files_left - 1
            chosen[name] = []
            for group, members, block in _groups(run, name, numbers):
                share -= len(block)
                if share < 0:
                    break
                blocks[group] = block
                chosen[name] += members
                room -= len(block)
        held += sum(map(len, chosen.values()))
        if run.has_episodes:
            blocks[f"index {run.name}"] = _packed(index_of(run.index(), chosen))
            blocks[f"why {run.name}"] = _packed(why_of(run.index(), held=chosen))
            for name in chosen:
                blocks[f"why {run.name} {name}"] = _packed(why_of(run.index(), name, chosen))
    of = sum(len(numbers) for files in taken.values() for numbers in files.values())
    partial = _partial(held, of, sum(len(run.index()) for run in runs if run.has_episodes))
    blocks["overview"] = _packed(overview_of(runs, live=False, partial=partial))
    return blocks, held


def _partial(held: int, of: int, there: int) -> str | None:
    """What a file does not hold, in words; None where it holds everything.

    Args:
        held: How many episodes it has.
        of: How many were chosen for it.
        there: How many the runs have.
    """
    if held == there:
        return None
    if held == of:
        return f"{held:,} of {there:,} episodes, as chosen for this file"
    chosen = "" if of == there else "chosen "
    return f"{held:,} of {of:,} {chosen}episodes, as many as fit into this file"


def _groups(run: Run, name: str, taken: Sequence[int]) -> Iterator[tuple[str, list[int], str]]:
    """The name of each group's block, the numbers of its episodes that are taken, and the block."""
    file = next(each for each in run.index().files if each.name == name)
    groups = file.column("group")
    loaded = file.load_some(taken)
    for group, members in groupby(loaded, key=lambda pair: groups[pair[0]]):
        numbers, saved = zip(*members, strict=True)
        block = _packed(list(map(episode_of, saved)))
        yield f"group {run.name} {name}/{group}", list(numbers), block


def _packed(value: Any) -> str:
    return base64.b64encode(gzip.compress(json_line(value).encode(), mtime=0)).decode()


def _page(blocks: dict[str, str]) -> str:
    """The page with its script and style in it, which alone it may run, and the blocks."""
    script = (STATIC / "page.js").read_text(encoding="utf-8")
    style = (STATIC / "page.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_hashed(script)}; style-src {_hashed(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    data = "".join(
        f'<script type="application/gzip" data-name="{html.escape(name)}">{block}</script>\n'
        for name, block in blocks.items()
    )
    replaced = {
        '<meta charset="utf-8">': '<meta charset="utf-8">\n'
        f'    <meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="stylesheet" href="page.css">': f"<style>{style}</style>",
        '<script src="page.js"></script>': f"{data}<script>{script}</script>",
    }
    page = (STATIC / "page.html").read_text(encoding="utf-8")
    return re.sub("|".join(map(re.escape, replaced)), lambda found: replaced[found[0]], page)


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
