"""The page as one file: what it holds, how large it gets, and that nothing in it can be markup."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gymnast.errors import ConfigError
from gymnast.trainers.inspecting.filters import Filter
from gymnast.viewer.runs import named_runs
from gymnast.viewer.single_file import write_single_file
from viewer_fixtures import episode, plain_run, write_run

BLOCK = re.compile(r'<script type="application/gzip" data-name="([^"]*)">([^<]*)</script>')


def blocks(page: Path) -> dict[str, Any]:
    return {
        name: json.loads(gzip.decompress(base64.b64decode(block)))
        for name, block in BLOCK.findall(page.read_text())
    }


def test_it_holds_all_that_the_page_asks_for(tmp_path: Path, tokenizer: Any) -> None:
    runs = named_runs([plain_run(tmp_path / "shop", tokenizer)])
    page = tmp_path / "shop.html"
    held = write_single_file(page, runs)
    assert (held.episodes, held.of, held.size) == (8, 8, page.stat().st_size)
    found = blocks(page)
    assert set(found) == {
        *("overview", "metrics shop", "index shop"),
        *("why shop", "why shop step_00001", "why shop step_00002"),
        *(f"group shop step_0000{step}/{group}" for step in (1, 2) for group in (0, 1)),
    }
    assert found["overview"]["live"] is False and found["overview"]["partial"] is None
    ids = [each["id"] for each in found["group shop step_00002/1"]]
    assert ids == ["step_00002/1/0", "step_00002/1/1"]
    assert len(found["index shop"]["group"]) == 8


def test_a_filter_leaves_the_others_out(tmp_path: Path, tokenizer: Any) -> None:
    runs = named_runs([plain_run(tmp_path / "shop", tokenizer)])
    page = tmp_path / "shop.html"
    held = write_single_file(page, runs, Filter(min_reward=0.5))
    assert (held.episodes, held.of) == (3, 3)
    index = blocks(page)["index shop"]
    assert index["reward"] == [1.0, 1.0, 1.0] and index["member"] == [0, 0, 0]
    assert [index["files"][n]["name"] for n in index["file"]] == ["step_00001", *["step_00002"] * 2]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Filter(), None),
        (Filter(steps=range(2, 3)), "4 of 8 episodes, as chosen for this file"),
        (Filter(max_reward=0.0, steps=range(1, 2)), "3 of 8 episodes, as chosen for this file"),
    ],
)
def test_what_earned_nothing_is_said_of_the_episodes_that_it_holds(
    tmp_path: Path, tokenizer: Any, wanted: Filter, said: str | None
) -> None:
    page = tmp_path / "shop.html"
    held = write_single_file(page, named_runs([plain_run(tmp_path / "shop", tokenizer)]), wanted)
    found = blocks(page)
    assert found["overview"]["partial"] == said
    ids = {one["id"] for name in found if name.startswith("group ") for one in found[name]}
    assert found["why shop"]["episodes"] == held.episodes == len(ids)
    for name in (name for name in found if name.startswith("why ")):
        for cause in found[name]["causes"]:
            assert ids >= {*cause["examples"], *(each["example"] for each in cause["mistakes"])}


def test_what_counts_as_nothing_does_not_depend_on_what_is_held(
    tmp_path: Path, tokenizer: Any
) -> None:
    rewards = (0.2, 0.4, 1.0)
    groups = [[episode(tokenizer, reward=reward) for reward in rewards]]
    page = tmp_path / "shop.html"
    runs = named_runs([write_run(tmp_path / "shop", tokenizer, [groups])])
    write_single_file(page, runs, Filter(min_reward=0.3))
    why = blocks(page)["why shop"]
    assert (why["episodes"], why["unpaid"], why["bar"]) == (2, 0, 0.2)


def test_a_file_is_never_larger_than_its_limit(tmp_path: Path, tokenizer: Any) -> None:
    groups = [[episode(tokenizer, f"{n} {'word ' * 300}")] for n in range(60)]
    runs = named_runs([write_run(tmp_path / "shop", tokenizer, [groups, groups])])
    page = tmp_path / "shop.html"
    whole = write_single_file(page, runs)
    bare = write_single_file(page, runs, Filter(min_reward=2.0)).size
    limit_mb = (whole.size + bare) / 2e6
    held = write_single_file(page, runs, limit_mb=limit_mb)
    assert 30 < held.episodes < held.of == 120 and held.size <= limit_mb * 1e6
    found = blocks(page)
    fit = f"{held.episodes} of 120 episodes, as many as fit into this file"
    assert found["overview"]["partial"] == fit
    files = found["index shop"]["file"]
    assert abs(files.count(0) - files.count(1)) <= 12  # each step has its share
    with pytest.raises(ConfigError, match="set a higher limit, or name fewer runs"):
        write_single_file(page, runs, limit_mb=bare / 2e6)


def test_what_a_run_says_is_no_markup(tmp_path: Path, tokenizer: Any) -> None:
    attack = "</script><script>alert(1)</script>"
    folder = tmp_path / '"><img src=x onerror=alert(1)>'
    said = [[episode(tokenizer, attack, asked=attack, result=attack, tool=attack)]]
    page = tmp_path / "shop.html"
    write_single_file(page, named_runs([write_run(folder, tokenizer, [said])]))
    text = page.read_text()
    assert "alert(1)" not in re.sub(r'data-name="[^"]*"', "", text)
    assert '"><img' not in text


def test_only_its_own_script_may_run(tmp_path: Path, tokenizer: Any) -> None:
    page = tmp_path / "shop.html"
    write_single_file(page, named_runs([plain_run(tmp_path / "shop", tokenizer)]))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page.read_text())
    assert policy is not None
    assert re.fullmatch(
        r"default-src 'none'; script-src 'sha256-\S+'; style-src 'sha256-\S+'; img-src data:; "
        r"base-uri 'none'; form-action 'none'",
        policy[1],
    )
    assert "http://" not in re.sub(r"http://www\.w3\.org/\S+", "", page.read_text())
