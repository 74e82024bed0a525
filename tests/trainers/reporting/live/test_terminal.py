"""The region at the bottom of a real terminal, its keys, and how the terminal is left."""

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from terminals import Terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no pty")

PROGRAM = [sys.executable, str(Path(__file__).with_name("region_program.py"))]
HINT = "s: shout"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal(PROGRAM) as terminal:
        terminal.until("begun")
        terminal.until(HINT)
        yield terminal


def test_what_is_printed_stands_above_the_region(terminal: Terminal) -> None:
    terminal.type("s")
    lines = [line for line in terminal.until("s was pressed") if line]
    wide = "columns 99 ".ljust(99, "=")
    assert lines[:4] == ["begun", "a tool prints", "a tool complains", "s was pressed"]
    assert terminal.until(HINT)[4:7] == [wide, "the second line", HINT]
    assert terminal.cursor_is_shown


def test_the_terminal_is_as_before_once_the_region_is_removed(terminal: Terminal) -> None:
    assert not terminal.is_cooked
    terminal.type("e")
    assert terminal.end() == 0
    assert [line for line in terminal.lines if line] == ["begun", "over"]
    assert terminal.is_cooked and terminal.cursor_is_shown


def test_after_an_exception_the_terminal_is_as_before(terminal: Terminal) -> None:
    terminal.type("x")
    assert terminal.end() == 1
    assert [line for line in terminal.lines if line] == ["begun", "it failed"]
    assert terminal.is_cooked


def test_ctrl_c_is_a_signal_and_leaves_the_terminal_as_before(terminal: Terminal) -> None:
    terminal.type("\x03")
    assert terminal.end() == -signal.SIGINT
    assert "KeyboardInterrupt" in terminal.lines
    assert terminal.is_cooked and terminal.cursor_is_shown


def test_a_signal_that_ends_the_process_at_once_gives_the_terminal_back_first(
    terminal: Terminal,
) -> None:
    terminal.send(signal.SIGTERM)
    assert terminal.end() == 3
    assert terminal.is_cooked and terminal.cursor_is_shown


def test_a_notice_stands_in_place_of_the_hint(terminal: Terminal) -> None:
    terminal.type("n")
    assert HINT not in terminal.until("the run stops")


def test_other_keys_do_nothing(terminal: Terminal) -> None:
    terminal.type("qwrty\x1b[A\n\n s")
    lines = [line for line in terminal.until("s was pressed") if line]
    assert lines[0] == "begun"
    assert "q" not in "".join(lines[1:4]).replace("complains", "")


def test_a_terminal_of_another_size_gets_another_region(terminal: Terminal) -> None:
    terminal.resize(60, 20)
    lines = terminal.until("columns 59 ".ljust(59, "="))
    assert all(len(line) <= 60 for line in lines)


def test_a_terminal_of_three_lines_shows_what_it_can() -> None:
    with Terminal(PROGRAM, lines=3) as terminal:
        terminal.until("columns 99")
        terminal.type("e")
        assert terminal.end() == 0


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again() -> None:
    if (bash := shutil.which("bash")) is None:
        pytest.skip("there is no bash")
    with Terminal([bash, "--norc", "--noprofile", "-i"], env={"PS1": "shell> "}) as terminal:
        terminal.until("shell>")
        terminal.type(" ".join(PROGRAM) + "\n")
        terminal.until("begun")
        terminal.until(HINT)
        terminal.type("\x1a")
        terminal.until("Stopped")
        assert HINT not in terminal.until("shell>")
        terminal.type("stty -a | grep -o 'susp = ..'\n")
        terminal.until("susp = ^Z")
        terminal.type("fg\n")
        terminal.until(HINT)
        terminal.type("s")
        terminal.until("s was pressed")
        terminal.type("\x1a")
        terminal.until(lambda lines: HINT not in lines)
        terminal.type("bg; echo in the background\n")
        terminal.until("in the background")
        terminal.type("echo $((6 * 7))\n")
        terminal.until("42")
        terminal.type("fg\n")
        terminal.until(HINT)
        terminal.type("e")
        terminal.until("over")
        terminal.type("exit\n")
        assert terminal.end() == 0


def test_without_a_terminal_to_type_at_no_key_is_offered(tmp_path: Path) -> None:
    command = f"{' '.join(PROGRAM)} < /dev/null"
    with Terminal(["/bin/sh", "-c", command]) as terminal:
        assert HINT not in "\n".join(terminal.until("the second line"))
        assert terminal.is_cooked


def test_what_goes_to_a_file_goes_there(tmp_path: Path) -> None:
    with Terminal(["/bin/sh", "-c", f"{' '.join(PROGRAM)} 2> {tmp_path}/log"]) as terminal:
        terminal.until(HINT)
        terminal.type("s")
        terminal.until("s was pressed")
        terminal.type("e")
        assert terminal.end() == 0
        assert (tmp_path / "log").read_text() == "a tool complains\n"
        assert "a tool complains" not in terminal.lines
