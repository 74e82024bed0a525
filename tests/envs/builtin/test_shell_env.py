"""Shell-v0: files, commands, and a check that the policy cannot have changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gymnast.envs import Renderer, check_env, make
from gymnast.envs.builtin.shell import Shell
from gymnast.errors import DataError

ROW = {
    "prompt": "Write the number of lines of data.txt into answer.txt.",
    "files": {"data.txt": "a\nb\nc\n"},
    "check": "sh check.sh",
    "check_files": {"check.sh": '[ "$(cat answer.txt)" = 3 ]'},
}
DONE = {"role": "assistant", "content": "Done."}


def test_check_env_passes(renderer: Renderer) -> None:
    check_env(make("gymnast/Shell-v0", renderer, sandbox="local"))


def test_a_task_is_done_with_commands_and_files(play: Callable[..., Any], calls: Any) -> None:
    told, last = play(
        Shell(sandbox="local"),
        calls(
            ("shell", {"command": "ls; wc -l < data.txt"}),
            ("shell", {"command": "cat nothing.txt"}),
            ("write_file", {"path": "answer.txt", "text": "3"}),
            ("read_file", {"path": "answer.txt"}),
            ("read_file", {"path": "nothing.txt"}),
        ),
        DONE,
        row=ROW,
    )
    texts = [message["content"] for message in told.messages]
    assert texts[0] == "data.txt\n3"
    assert texts[1].endswith("[exit code 1]") and "No such file" in texts[1]
    assert texts[2:4] == ["Wrote 1 characters.", "3"]
    assert "nothing.txt: No such file or directory" in texts[4]
    assert (last.reward, last.info["metrics"]["checked"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "echo 4 > answer.txt",
        "echo true > check.sh",  # written over by the real one
        "mkdir check.sh",  # which then cannot be
        "mkdir bin; printf '#!/bin/sh\\nexit 0' > bin/sh; chmod +x bin/sh; PATH=$PWD/bin:$PATH",
        "echo 'exit 0' > .profile; echo 'exit 0' > .bashrc; echo 'exit 0' > .shrc",
        "(while true; do echo true > check.sh; done) & exit 0",  # ends with the command
    ],
)
def test_a_task_not_done_is_worth_nothing(
    command: str, play: Callable[..., Any], calls: Any
) -> None:
    *_, last = play(Shell(sandbox="local"), calls(("shell", {"command": command})), DONE, row=ROW)
    assert last.reward == 0.0


def test_the_check_is_not_in_the_box_before_the_end(play: Callable[..., Any], calls: Any) -> None:
    told, _ = play(Shell(sandbox="local"), calls(("shell", {"command": "ls -a"})), DONE, row=ROW)
    assert "check.sh" not in told.messages[0]["content"]


def test_own_rows_can_be_solved(play: Callable[..., Any], calls: Any) -> None:
    env, rng = Shell(sandbox="local"), np.random.default_rng(0)
    rows = [env.sample_row(rng) for _ in range(30)]
    row = next(row for row in rows if "number of lines" in row["prompt"])
    solve = calls(("shell", {"command": "wc -l < words.txt > answer.txt"}))
    assert play(env, solve, DONE, row=row)[-1].reward == 1.0
    assert play(env, DONE, row=row)[-1].reward == 0.0


@pytest.mark.parametrize(
    "command",
    ["mkdir b; ln -s b/check.sh a.sh", "mkdir b; touch b/check.sh; ln b/check.sh a.sh", "true"],
)
def test_a_file_of_the_check_cannot_be_made_another_one(
    play: Callable[..., Any], calls: Any, command: str
) -> None:
    row = {"prompt": "Make done.", "check": "sh a.sh && sh b/check.sh"}
    row["check_files"] = {"a.sh": "[ -e done ]", "b/check.sh": "true"}  # type: ignore[assignment]
    env = Shell(sandbox="local")
    assert play(env, calls(("shell", {"command": command})), DONE, row=row)[-1].reward == 0.0
    done = f"{command}; touch done"
    right = play(Shell(sandbox="local"), calls(("shell", {"command": done})), DONE, row=row)
    assert right[-1].reward == 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"check": None}, "'check' is None"),
        ({"files": ["data.txt"]}, "'files' is"),
        ({"check_files": {"a": 1}}, "'check_files' is"),
        ({"files": {"/proc/x": ""}}, "'/proc/x' cannot be written"),
        ({"check": "true\0"}, r"'check' is 'true.x00'; .* without NUL"),
        ({"check": "echo \ud800"}, "'check' is .* without NUL and halves of characters"),
        ({"files": {"a\0": ""}}, r"'files' has the path 'a.x00'"),
        ({"check_files": {"a\0": ""}}, r"'check_files' has the path 'a.x00'"),
        ({"check_files": {"": ""}}, "'check_files' has the path ''"),
    ],
)
def test_a_wrong_row_is_named(change: dict[str, Any], words: str) -> None:
    env = Shell(sandbox="local")
    with pytest.raises(DataError, match=words):
        env.reset(options={"row": {**ROW, **change}})
    env.close()
