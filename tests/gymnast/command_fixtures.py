"""The command line in this process, in a folder with a run, an environment and its rows."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymnast.cli import main

RUN = """\
model: {name: "tiny:"}
environment: {id: gymnast/Arithmetic-v0, max_turns: 2, context_length: 700, worked_turns: 1}
algorithm: {group_size: 2}
sampling: {max_new_tokens: 8}
trainer: {steps: 2, rows_per_step: 2, learning_rate: 1e-3}
evaluation: {rows: 3}
output_dir: out
"""
SHOP = '''\
from gymnast.envs import Environment, tool

class Shop(Environment):
    """Buy things.

    More about it.
    """

    @tool
    def buy(self, what: str) -> str:
        """Buy something."""
        return f"one {what}"

    def reward(self, episode):
        return price(self.row)

def price(row):
    return row["price"]
'''
ROWS = [{"q": {"text": "Buy a pear."}, "price": 1.0}, {"q": {"text": "Buy a plum."}, "price": 2.0}]


@pytest.fixture
def shop_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN)
    Path("shop.py").write_text(SHOP)
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return tmp_path


class Ran:
    """A command that ended: its exit code and what it wrote."""

    def __init__(self, code: int, output: str, errors: str) -> None:
        self.code, self.output, self.errors = code, output, errors


class CommandLine:
    """Runs `gymnast ...` in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capture = patch, capture

    def __call__(self, *arguments: str) -> Ran:
        self._patch.setattr(sys, "argv", ["gymnast", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        written = self._capture.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, written.out, written.err)


@pytest.fixture
def gymnast(
    shop_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandLine]:
    yield CommandLine(monkeypatch, capsys)
    logger = logging.getLogger("gymnast")  # a process of its own would end here
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
