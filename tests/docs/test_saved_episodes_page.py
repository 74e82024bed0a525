"""docs/saved_episodes.md: its examples read a run, and its table has every column of the files."""

import re
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.trainers import Trainer
from gymnast.trainers.records.columns import SCHEMA
from gymnast.types import Sampling

PAGE = (Path(__file__).parents[2] / "docs/saved_episodes.md").read_text()


class Letters(Environment):
    """Rewards every letter."""

    def reward(self, episode: Any) -> float:
        return float(sum(map(str.isalpha, episode.answer)))


def test_the_examples_read_a_run(
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "Go."}, {"prompt": "Say."}]
    Trainer(
        tiny_model(),
        tokenizer,
        Letters,
        rows,
        eval_rows=rows,
        sampling=Sampling(max_new_tokens=4),
        group_size=2,
        rows_per_step=2,
        steps=1,
        observer=None,
        output_dir="runs/tiny",
    ).train()
    finding, _, loading, reading = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    capsys.readouterr()  # a warning of the optimizer's, once a process
    exec(loading, {})
    *episodes, names = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in episodes] == [
        ["0", "0"],
        ["0", "1"],
        ["1", "0"],
        ["1", "1"],
    ]
    assert names in ("{'eval_00000', 'eval_00001'}", "{'eval_00001', 'eval_00000'}")
    exec(reading, {})
    said = capsys.readouterr().out
    assert "mean" in said and "'role': 'assistant'" in said
    exec(finding, {})
    *found, last = capsys.readouterr().out.splitlines()
    assert found[0].split()[0] == "step_00001/0/0" and "'role': 'assistant'" in last


def test_the_table_has_every_column_with_its_type() -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| .* \|$", PAGE, re.MULTILINE)
    types = {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}
    assert sorted(types) == sorted(SCHEMA.names)
    for field in SCHEMA:
        assert types[field.name].endswith(" null") == field.nullable, field.name
        assert types[field.name].startswith(shown(field.type)), field.name


def shown(kind: Any) -> tuple[str, ...]:
    """A type as the page writes it."""
    text = str(kind).replace("double", "float64").replace("float>", "float32>")
    if text.startswith("list<element: list") or text.startswith("list<item: list"):
        return ("list of [start, end",)
    if "struct<" in text:
        return ("list of structs",)
    if text.startswith("list<"):
        return (f"list of {text.rpartition(': ')[2].rstrip('>')}",)
    return (text, "JSON text") if text == "string" else (text,)
