"""A real training as a person sees it: at a terminal, in a pipe, stopped, resumed, colourless."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from terminals import Terminal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no pty"),
]

ROOT = Path(__file__).parents[3]
TRAIN = [sys.executable, "-m", "gymnast", "train", str(ROOT / "examples/tiny.yaml")]
STEP = r"step \d+/\d+ [━─#.]+"


def train(folder: Path, *overrides: str) -> list[str]:
    return [*TRAIN, f"output_dir={folder / 'run'}", "evaluation.rows=2", *overrides]


def colours(raw: bytes) -> set[bytes]:
    """The colours that were asked for, of letters and of what is behind them."""
    codes = {code for found in re.findall(rb"\x1b\[([\d;]*)m", raw) for code in found.split(b";")}
    return {code for code in codes if re.fullmatch(rb"[349]\d|10\d", code) and code != b"39"}


def test_a_run_at_a_terminal_is_looked_at_stopped_and_resumed(tmp_path: Path) -> None:
    with Terminal(train(tmp_path, "trainer.steps=100"), columns=60) as terminal:
        terminal.until("reward ▁")
        lines = terminal.until("s: the last sample")
        assert any(re.match(STEP, line) for line in lines)
        assert all(len(line) <= 60 for line in lines)
        terminal.type("s")
        shown = "\n".join(terminal.until("[assistant]"))
        assert re.search(r"step_0000\d/3/3: reward", shown)
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "interrupted" in terminal.lines
        assert terminal.is_cooked and terminal.cursor_is_shown
        assert not any(re.match(STEP, line) for line in terminal.lines), "the region is gone"
        assert colours(terminal.raw)
    with Terminal(train(tmp_path, "trainer.steps=101", "--resume")) as terminal:
        lines = terminal.until(lambda lines: any(re.match(STEP, line) for line in lines))
        assert any(line.startswith("reward ") and "lowest" in line for line in lines), "history"
        terminal.send(signal.SIGTERM)
        assert terminal.end() == -signal.SIGTERM
        assert terminal.is_cooked and terminal.cursor_is_shown


def test_without_colours_the_layout_stays(tmp_path: Path) -> None:
    with Terminal(train(tmp_path), env={"NO_COLOR": "1"}) as terminal:
        terminal.until("█ model")
        assert terminal.end() == 0
        assert colours(terminal.raw) == set()
        assert any(re.match(r"reward of 3 steps: [▁-█]+ last \d", line) for line in terminal.lines)


def test_an_encoding_without_blocks_gets_ascii(tmp_path: Path) -> None:
    with Terminal(train(tmp_path), env={"PYTHONIOENCODING": "ascii:replace"}) as terminal:
        terminal.until("# model")
        assert terminal.end() == 0
        assert not any("?" in line for line in terminal.lines if line.startswith("reward of"))


@pytest.mark.parametrize("dumb", [True, False])
def test_where_nothing_can_move_each_step_is_a_line(dumb: bool, tmp_path: Path) -> None:
    if dumb:
        with Terminal(train(tmp_path), columns=200, env={"TERM": "dumb"}) as terminal:
            assert terminal.end() == 0
            written = "\n".join(terminal.lines)
            raw = terminal.raw
    else:
        env = os.environ | {"FORCE_COLOR": "1"}  # which asks for colours, not for motion
        raw = subprocess.run(train(tmp_path), env=env, capture_output=True, check=True).stdout
        written = re.sub(r"\x1b\[[\d;]*m", "", raw.decode())
    steps = re.findall(r"^\d\d:\d\d:\d\d (step \d/3)  reward .*  left \d:\d\d$", written, re.M)
    assert steps == ["step 1/3", "step 2/3", "step 3/3"]
    assert "━" not in written
    assert not re.search(rb"\x1b\[[\d;?]*[^m\d;?]", raw), "nothing moves"
