"""Grading in a fresh box: what the program finds there, and whose fault it is if it fails."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Environment, make
from gymnast.envs.builtin.shell import Shell
from gymnast.errors import ConfigError, DataError

DONE = {"role": "assistant", "content": "Done."}
ANSWERED = '[ "$(cat answer.txt)" = 3 ]'


@pytest.fixture
def last(play: Callable[..., Any], calls: Any) -> Callable[..., Any]:
    """The last outcome of an episode with one command."""

    def last(row: dict[str, Any], command: str, **settings: Any) -> Any:
        env = Shell(sandbox={"backend": "local", "timeout_s": 20.0, "warm": 1, **settings})
        row = {"prompt": "Write 3 into answer.txt.", **row}
        return play(env, calls(("shell", {"command": command})), DONE, row=row)[-1]

    return last


def counted(outcome: Any) -> tuple[float, float, float]:
    metrics = outcome.info["metrics"]
    return outcome.reward, metrics["checked"], metrics["grading_failed"]


HONEST = "echo 3 > answer.txt"
KILLS_ITS_BOX = "kill -9 $PPID; sleep 5"


def test_a_folder_of_which_the_box_breaks_is_worth_nothing(last: Callable[..., Any]) -> None:
    row = {"check": f"if [ -e trap ]; then {KILLS_ITS_BOX}; fi; {ANSWERED}"}
    trapped = last(row, f"{HONEST}; touch trap")
    assert counted(trapped) == (0.0, 0.0, 1.0)
    assert str(trapped.info["stop_reason"]) == "answered"
    assert counted(last(row, HONEST)) == (1.0, 1.0, 0.0)


def test_a_box_that_breaks_once_is_an_accident(last: Callable[..., Any], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    row = {"check": f"if ! [ -e {seen} ]; then touch {seen}; {KILLS_ITS_BOX}; fi; {ANSWERED}"}
    assert counted(last(row, HONEST)) == (1.0, 1.0, 0.0)


def test_a_box_that_breaks_without_the_policy_is_no_fault_of_its(last: Callable[..., Any]) -> None:
    outcome = last({"check": KILLS_ITS_BOX}, HONEST)
    assert str(outcome.info["stop_reason"]) == "error"
    assert "broke while it graded" in outcome.info["failure"]


@pytest.mark.parametrize(
    ("check", "limits"),
    [
        ("[ -e trap ] && sleep 60", {"timeout_s": 1.0}),
        ("[ -e trap ] && yes", {"max_output_bytes": 100}),
    ],
)
def test_a_check_that_is_killed_is_counted(
    check: str, limits: dict[str, Any], last: Callable[..., Any]
) -> None:
    row = {"check": f"{check}; {ANSWERED}"}
    assert counted(last(row, f"{HONEST}; touch trap", **limits)) == (0.0, 0.0, 1.0)
    assert counted(last(row, HONEST, **limits)) == (1.0, 1.0, 0.0)


def test_a_folder_that_cannot_be_carried_is_counted(last: Callable[..., Any]) -> None:
    row = {"check": ANSWERED}
    assert counted(last(row, f"{HONEST}; truncate -s 60M a b")) == (0.0, 0.0, 1.0)


def test_a_folder_that_could_not_be_carried_in_the_beginning_is_the_users(
    last: Callable[..., Any],
) -> None:
    row = {"check": ANSWERED, "files": {"a": "x" * 40_000, "b": "x" * 40_000}}
    with pytest.raises(DataError, match="cannot be graded: it has more than 65536 bytes"):
        last(row, HONEST, disk_bytes=1 << 16)


def test_files_of_the_check_that_do_not_fit_are_the_users(last: Callable[..., Any]) -> None:
    row = {"check": ANSWERED, "check_files": {"large": "x" * 200_000}}
    with pytest.raises(DataError, match=r"cannot be written: .*large"):
        last(row, HONEST, disk_bytes=1 << 16)


@pytest.mark.parametrize(
    "paths", [["a", "a/b"], ["a", "./a"], ["."], ["a/b", "a"], ["a/../b", "b"]]
)
def test_files_of_the_check_that_are_in_each_others_way_are_named(
    paths: list[str], last: Callable[..., Any]
) -> None:
    with pytest.raises(DataError, match="cannot all be there"):
        last({"check": "true", "check_files": dict.fromkeys(paths, "")}, "true")


def test_the_grading_program_finds_nothing_but_the_folder(last: Callable[..., Any]) -> None:
    row = {
        "check": '[ -z "$(ls -A "$HOME")" ] && [ -z "$(ls -A "$TMPDIR")" ] && '
        '[ "$(ls -A)" = "$(printf ".hidden\\nanswer.txt\\ncheck")" ] && '
        '[ "$(ls -A "$GYMNAST_CHECK_FILES")" = check ] && '
        'case "$HOME$TMPDIR$PATH$PYTHONPATH" in *"$PWD"*) exit 1;; esac; ' + ANSWERED,
        "check_files": {"check": ""},
    }
    assert last(row, f"touch .hidden $HOME/.hidden; {HONEST}").reward == 1.0


def test_search_paths_into_the_folder_are_not_searched(last: Callable[..., Any]) -> None:
    shadow = "printf '#!/bin/sh\\necho 3' > cat; chmod +x cat; mkdir bin; cp cat bin"
    shadow += "; echo 'raise SystemExit(0)' > json.py; touch answer.txt"
    env = {"PATH": ".:bin::/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": ".:"}
    for check in (
        ANSWERED,
        "python3 -c 'import json; assert json.load(open(\"answer.txt\")) == 3'",
    ):
        assert last({"check": check}, shadow, env=env).reward == 0.0
        assert last({"check": check}, HONEST, env=env).reward == 1.0


def test_programs_and_modules_that_the_box_is_given_are_found(
    last: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "answered").write_text(f"#!/bin/sh\n{ANSWERED}")
    (tmp_path / "answered").chmod(0o755)
    (tmp_path / "given.py").touch()
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    row = {"check": "python3 -c 'import given, own' && answered", "check_files": {"own.py": ""}}
    assert last(row, HONEST, env=env).reward == 1.0


def test_an_older_python_is_refused(last: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("python3", "python"):  # as old ones answer
        (tmp_path / name).write_text("#!/bin/sh\necho 3.9\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with pytest.raises(ConfigError, match=r"python3 in the box is Python 3\.9; it must be 3\.11"):
        last({"check": "true"}, "true", env=env)
    (tmp_path / "python3").unlink()
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ConfigError, match="python in the box is Python of no known version"):
        last({"check": "true"}, "true", env=env)


DROPS_TESTS = "def pytest_collection_modifyitems(items): items[:] = items[1:]"
CHEATS_PYTEST = (
    f"echo '{DROPS_TESTS}' > conftest.py; printf '[pytest]\\naddopts = --co\\n' > pytest.ini; "
    "printf '[tool.pytest.ini_options]\\naddopts = \"--co\"\\n' > pyproject.toml; mkdir _pytest; "
    "echo 'raise SystemExit(0)' | tee _pytest/__init__.py sitecustomize.py plugin.py > pytest.py"
)


def test_pytest_takes_nothing_of_the_policys(last: Callable[..., Any]) -> None:
    test = "def test():\n    assert open('answer.txt').read().strip() == '3'\n"
    row = {
        "check": "python3 -m pytest -q -p plugin test_it.py",
        "check_files": {
            "test_it.py": f"{test}def test_fixture(fixed):\n    assert fixed == 3\n",
            "plugin.py": "import pytest\n@pytest.fixture\ndef fixed():\n    return 3\n",
        },
    }
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # of those that are installed here
    assert last(row, f"{CHEATS_PYTEST}; echo 4 > answer.txt", env=env).reward == 0.0
    assert last(row, f"{CHEATS_PYTEST}; {HONEST}", env=env).reward == 1.0


def test_a_copy_of_a_git_repository_runs_nothing_of_the_policys(last: Callable[..., Any]) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    copied = 'git clone -q --no-local repo "$TMPDIR/copy" && cd "$TMPDIR/copy"'
    row = {"check": f'here=$PWD; {copied} && git cat-file -e HEAD:a && [ ! -e "$here/ran" ]'}
    work = "git init -q repo; cd repo; echo > {0}; git add {0}; "
    work += "git -c user.name=a -c user.email=a@b commit -qm {0}"
    runs = (
        "; printf '#!/bin/sh\\ntouch ../ran ../../ran\\n' > ../run; chmod +x ../run; "
        "for name in core.fsmonitor uploadpack.packObjectsHook filter.x.smudge core.sshCommand; do "
        "git config $name ../run; git config --global $name ../run; done; "
        "echo '* filter=x' > .gitattributes; "
        "for name in post-checkout reference-transaction; do cp ../run .git/hooks/$name; done"
    )
    assert last(row, work.format("b") + runs).reward == 0.0
    assert last(row, work.format("a") + runs).reward == 1.0


def test_episodes_at_once_need_one_box_of_a_kind(tmp_path: Path) -> None:
    """One that waits for a box of a kind holds none that those before it in line may need."""
    tool = {"name": "go", "description": "Go.", "parameters": {"type": "object", "properties": {}}}
    said = {"protocol": 1, "tools": [tool], "setup": True, "reward": True}
    program = tmp_path / "tools.py"
    program.write_text(
        "import json, os, sys\n"
        f"if sys.argv[1] == 'describe': print(json.dumps({said!r}))\n"
        "if sys.argv[1] == 'call': os.unlink('there')\n"
        "if sys.argv[1] == 'setup': open('there', 'w')\n"
        "if sys.argv[1] == 'reward': open('there'); print(1)\n"
    )

    def opened() -> Environment:
        limits = {"backend": "local", "max_boxes": 1}
        return make(
            "gymnast/Container-v0", None, sandbox=limits, program=[sys.executable, str(program)]
        )

    async def episode() -> Any:
        env = opened()
        await env.areset(options={"row": {"prompt": "Go."}})
        call = {"id": "a", "type": "function", "function": {"name": "go", "arguments": {}}}
        await env.act({"role": "assistant", "content": "", "tool_calls": [call]})
        outcome = await env.act(DONE)
        await env.aclose()
        return outcome.reward, outcome.info["metrics"]["grading_failed"]

    async def run() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*(episode() for _ in range(3))), 120)

    assert asyncio.run(run()) == [(0.0, 1.0)] * 3
