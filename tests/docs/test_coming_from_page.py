"""docs/coming_from.md: what it calls Gymnast's exists, and its snippets run."""

import asyncio
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from gymnast.trainers.base.key_hints import OTHER_NAMES
from page_names import codes, unknown
from pages import ROOT

PAGE = (ROOT / "docs/coming_from.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.M)[1:]}
OTHERS = {  # said within a row to be somebody else's, or not here
    "gymnasium.Env",  # Gymnasium's
    "file.py:Class",
    "reasoning_content",
    "self",
    "prompt",
    "weight: 0",
    "extract=",
    'options={"row": {...}}',
    "rollouts/",
}


def rows(section: str) -> list[list[str]]:
    """The cells of the tables of a section, their heads left out."""
    lines = re.findall(r"^\| (.*) \|$", SECTIONS[section], re.MULTILINE)
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]
    return [row for row in cells if row[0] != section and not set(row[0]) <= {"-"}]


def python(first: str) -> list[str]:
    """The blocks of Python whose first line begins so."""
    return re.findall(rf"```python\n(# {first}.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_name_of_gymnasts_exists(section: str) -> None:
    listed = rows(section)
    assert len(listed) > 20 and all(len(row) == 3 for row in listed)
    assert all(row[1] for row in listed), "an empty cell; a dash says that there is none"
    assert not unknown([code for row in listed for code in codes(row[1])], OTHERS)


def test_the_keys_of_trl_are_those_that_a_wrong_key_is_answered_with() -> None:
    checked = 0
    for theirs, ours, _ in rows("TRL"):
        for name in codes(theirs):
            if name in OTHER_NAMES and ours != "-":
                checked += 1
                assert OTHER_NAMES[name].split()[0] in ours, name
    assert checked > 20


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (theirs,) = python("TRL: counter.py")
    (tmp_path / "counter.py").write_text(theirs)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    for source in python("Gymnast"):
        exec(compile(source, "docs/coming_from.md", "exec", dont_inherit=True), found)
    for environment in (found["theirs"], found["ours"]):
        assert counts(environment) == 1.0
    answer = found["environment"]
    answer.reset(options={"row": answer.rows[0]})
    assert says(answer, "It is 84.") == 1.0
    capitals = found["Capitals"]()
    capitals.reset(seed=0, options={"row": {"prompt": "Of Japan?", "target": "Tokyo"}})
    assert says(capitals, "It is Tokyo.") == 1.0
    found["env"].close()


def test_a_snippet_is_gymnasts_or_says_whose_it_is() -> None:
    """Others' are Python, and run where a test has their library."""
    others = ("TRL: counter.py", "verifiers (v0)", "Gymnasium", "inspect_ai")
    shown = re.findall(r"```python\n# (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == PAGE.count("```python\n")
    for first, source in shown:
        assert first in others or first.partition(": ")[0] == "Gymnast"
        compile(source, first, "exec", dont_inherit=True)
    (source,) = python("Gymnasium")
    found: dict[str, Any] = {"gymnasium": gymnasium}
    exec(compile(source, "docs/coming_from.md", "exec", dont_inherit=True), found)
    assert found["info"]["prob"] == 1.0


def counts(environment: Any) -> float:
    """What is earned by counting to the target."""
    row = {"prompt": "Count to 3.", "target": 3}
    environment.reset(options={"row": row})
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "increment", "arguments": {"by": 3}},
    }
    said(environment, {"role": "assistant", "content": "", "tool_calls": [call]})
    reward = says(environment, "Done.")
    environment.close()
    return reward


def says(environment: Any, text: str) -> float:
    """What the last message earns."""
    return float(said(environment, {"role": "assistant", "content": text}).reward)


def said(environment: Any, message: dict[str, Any]) -> Any:
    return asyncio.run(environment.act(message))
