"""examples/coding_agent.py and repair.py: an agent in a box, paid by cases that it never sees."""

import asyncio
import json
import runpy
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from gymnast.envs import call
from gymnast.errors import SandboxUnavailable
from gymnast.trainers import play_solution
from sandbox_fixtures import ISOLATING

EXAMPLES = Path(__file__).parent.parent / "examples"
EXAMPLE = runpy.run_path(str(EXAMPLES / "repair.py"))
TASKS, function = EXAMPLE["TASKS"], EXAMPLE["function"]
Repair: Any = EXAMPLE["Repair"]

ROW = {
    "prompt": "The function double should return n times 2.",
    "file": "repair.py",
    "name": "double",
    "code": function("double", "n times 2", "n + 2"),
    "test": EXAMPLE["TEST"].format(name="double", argument=5, expected=10),
    "repaired": function("double", "n times 2", "n * 2"),
    "failing": [("3", "6"), ("-4", "-8"), ("7", "14"), ("10", "20")],
    "working": [("2", "4")],
}


@pytest.fixture
def sandbox(backend: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """A backend whose boxes reach an endpoint, as the setting of an environment."""
    if backend != "docker":
        return {"backend": backend}
    image: str = request.getfixturevalue("docker_image")
    return {"backend": backend, "image": image}


def write(text: str, path: str = "repair.py") -> Any:
    return call("write_file", path=path, text=text)


def played(env: Any, *messages: Any, row: Any = ROW) -> Any:
    """The outcome of the last message."""

    async def play() -> Any:
        try:
            await env.areset(options={"row": row, "branches": True})
            for message in messages:
                said = {"role": "assistant", "content": message}
                outcome = await env.act(said if isinstance(message, str) else message)
            return outcome
        finally:
            await env.aclose()

    try:
        outcome = asyncio.run(play())
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    assert outcome.terminated
    return outcome


def told(env: Any) -> list[str]:
    return [each["content"] for each in env.messages if each["role"] == "tool"]


def test_a_repair_earns_all(sandbox: dict[str, str]) -> None:
    env = Repair(sandbox=sandbox)
    messages = [call("run_test"), write(ROW["repaired"]), call("run_test"), "The test passes."]
    assert played(env, *messages).reward == 1.0
    assert told(env) == ["AssertionError: double(5) is 7, not 10", "written", "passed"]
    assert ROW["code"] in env.messages[1]["content"]


@pytest.mark.parametrize(
    "body, reward",
    [
        ("n * 3", 0.0),  # what had worked fails
        ("n * 2 if n > 0 else 0", 0.75),  # three of four
        ("{5: 10, 2: 4}.get(n)", 0.0),  # the case that is shown
        ("(_ for _ in ()).throw(ValueError)", 0.0),
        ("__import__('os')._exit(0)", 0.0),
        ("open('repair.py').read()", 0.0),
        ("True if n == 0.5 else float(n * 2)", 0.0),  # 6.0 for 6
    ],
)
def test_another_function_earns_what_it_does(body: str, reward: float) -> None:
    env = Repair(sandbox="local")
    wrong = function("double", "n times 2", body)
    assert played(env, write(wrong), "Done.").reward == reward


@pytest.mark.parametrize("text", ["", "def double(n", "import time\ntime.sleep(60)\n", "\0"])
def test_a_file_that_does_not_run_earns_nothing(text: str) -> None:
    env = Repair(sandbox={"backend": "local", "timeout_s": 2})
    assert played(env, write(text), "Done.").reward == 0.0


def test_an_answer_without_a_repair_earns_nothing() -> None:
    env = Repair(sandbox="local")
    assert played(env, "It is repaired.").reward == 0.0


def test_a_test_that_was_edited_passes_and_earns_nothing(sandbox: dict[str, str]) -> None:
    env = Repair(sandbox=sandbox)
    messages = [write("print('passed')", "test.py"), call("run_test"), "The test passes."]
    assert played(env, *messages).reward == 0.0
    assert told(env) == ["written", "passed"]


@pytest.mark.parametrize("path", ["json.py", "sitecustomize.py", "usercustomize.py"])
def test_a_module_beside_the_file_does_not_reach_the_grader(path: str) -> None:
    env = Repair(sandbox="local")
    cheat = "def dumps(value): return '6'\ndef load(file): return []\nprint('6\\n-8\\n14\\n20\\n4')"
    assert played(env, write(cheat, path), "Done.").reward == 0.0


def test_calls_that_fail_are_told_to_the_model() -> None:
    env = Repair(sandbox="local")
    messages = [
        call("write_file", path="repair.py"),
        call("remove_file", path="repair.py"),
        write(ROW["repaired"]),
        "Done.",
    ]
    assert played(env, *messages).reward == 1.0
    assert told(env) == ["KeyError: 'text'", "there is no tool remove_file", "written"]


SEARCH = """
import os
exec(open("agent.py").read().rpartition("if __name__")[0])
sought = ask([{"role": "user", "content": "What is sought?"}])["content"].encode()[::-1]
places = [os.getcwd(), "/"] if WHOLE else [os.getcwd(), "/tmp", "/dev/shm"]
paths = [f"/proc/{pid}/{name}" for pid in os.listdir("/proc") if pid.isdigit()
         for name in ("environ", "cmdline")]
for place in places:
    for folder, folders, names in os.walk(place):
        folders[:] = [each for each in folders if os.path.join(folder, each)
                      not in ("/proc", "/sys", "/usr/lib", "/usr/share")]
        paths += [os.path.join(folder, name) for name in names]
for path in paths:
    try:
        if os.path.isfile(path) and sought in open(path, "rb").read():
            print(os.path.basename(path))
    except OSError:
        pass
"""


@pytest.mark.parametrize("where", ["code", "failing", "repaired"])
def test_the_hidden_cases_are_nowhere_in_the_box(
    backend: str, sandbox: dict[str, str], where: str
) -> None:
    if backend not in ISOLATING:
        pytest.skip("it shows the whole machine")
    sought = uuid4().hex
    mark = [(json.dumps(sought), json.dumps(sought))] if where == "failing" else f"# {sought}"
    search = SEARCH.replace("WHOLE", str(backend == "docker"))
    env = Repair(sandbox=sandbox, command=["python3", "-c", search])
    outcome = played(env, sought[::-1], row={**ROW, where: mark})
    assert outcome.reward == 0.0 and env.result.exit_code == 0, env.result.stderr
    assert {*env.result.stdout.split()} == ({"repair.py"} if where == "code" else set())


def test_the_grader_is_told_no_expected_result_and_not_before_the_end() -> None:
    expected, given = uuid4().hex, []

    class Watched(Repair):  # type: ignore[misc]
        async def run_grader(self, command: Any, **more: Any) -> Any:
            given.append((command, more, self.result.exit_code))
            return await super().run_grader(command, **more)

    row = {**ROW, "failing": [("3", json.dumps(expected))]}
    assert played(Watched(sandbox="local"), write(ROW["repaired"]), "Done.", row=row).reward == 0.0
    assert len(given) == 1 and expected not in repr(given)
    assert given[0][2] == 0


def test_each_task_is_broken_until_it_is_solved() -> None:
    env = Repair(sandbox="local")
    rows = {}
    for seed in range(200):
        row = env.sample_row(np.random.default_rng(seed))
        assert len({expected for _, expected in row["failing"]}) > 1
        shown = row["test"].split("(")[1].split(")")[0]
        assert shown not in {argument for argument, _ in row["failing"]}
        for cases, code in ("failing", "repaired"), ("working", "repaired"), ("working", "code"):
            scope: dict[str, Any] = {}
            exec(row[code], scope)
            for argument, expected in row[cases]:
                assert json.dumps(scope[row["name"]](json.loads(argument))) == expected
        rows[row["name"]] = row
    assert len(rows) == len(TASKS)
    for row in list(rows.values())[:2]:
        assert asyncio.run(play_solution(env, row)).reward == 1.0
    asyncio.run(env.aclose())
