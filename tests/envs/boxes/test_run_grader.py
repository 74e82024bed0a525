"""`Environment.run_grader`: a program that grades, in a box that the policy has never been in."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gymnast.envs import Environment, tool
from gymnast.errors import UsageError, UserCodeError
from gymnast.sandboxes import ExecResult, SandboxSpec
from gymnast.types import ToolCall


class Graded(Environment):
    """Keeps what the grader came to."""

    sandbox_spec = SandboxSpec()
    command: Any = ""
    given: Mapping[str, Any] = {}
    result: ExecResult | None = None

    @tool
    async def shell(self, command: str) -> str:
        """Run a command.

        Args:
            command: For the shell.
        """
        return (await self.sandbox.aexec(command)).stdout

    async def reward(self, episode: Any) -> float:
        self.result = await self.run_grader(self.command, **self.given)
        return 0.0


def graded(did: str, command: Any, sandbox: Any = "local", **given: Any) -> ExecResult | None:
    """What the grader came to after the policy has done something."""

    async def play() -> ExecResult | None:
        env = Graded(sandbox=sandbox)
        env.command, env.given = command, given
        await env.areset(options={"row": {"prompt": "Go."}})
        call = ToolCall("", "shell", {"command": did})
        await env.act({"role": "assistant", "content": "", "tool_calls": [call]})
        await env.act({"role": "assistant", "content": "Done."})
        await env.aclose()
        return env.result

    return asyncio.run(play())


def test_it_finds_the_files_of_the_working_folder_and_those_given() -> None:
    found = graded(
        "mkdir out; echo 3 > out/answer; echo mine > wanted",
        ["sh", "-c", "cat out/answer wanted -"],
        files={"wanted": "4\n"},
        stdin="5\n",
    )
    assert found is not None and found.stdout == "3\n4\n5\n"


def test_modules_come_from_the_given_files_and_not_from_the_folder() -> None:
    program = "import helper, json; print(helper.WANTED, json.dumps(1))"
    found = graded(
        "echo 'WANTED = 0' > helper.py; echo 'dumps = repr' > json.py",
        ["python3", "-c", program],
        files={"helper.py": "WANTED = 3"},
    )
    assert found is not None and found.stdout == "3 1\n", found


def test_no_program_of_the_folder_is_asked_for_its_version(
    backend: str, request: pytest.FixtureRequest
) -> None:
    image = request.getfixturevalue("docker_image") if backend == "docker" else None
    did = "mkdir bin; printf '#!/bin/sh\\necho 3.5' > bin/python3; chmod +x bin/python3"
    env = {"PATH": "bin:/usr/local/bin:/usr/bin:/bin"}
    box = {"backend": backend, "image": image, "env": env, "warm": 1}
    found = graded(did, "true", sandbox=box)
    assert found is not None and found.verdict == "ok"


def test_its_home_is_empty_and_how_it_ends_is_said() -> None:
    found = graded('echo x > "$HOME/.profile"', "ls -A $HOME; exit 3")
    assert found is not None and (found.stdout, found.exit_code) == ("", 3)


def test_what_cannot_be_carried_has_no_result() -> None:
    assert graded("truncate -s 60M a; truncate -s 60M b", "true") is None


def test_an_environment_without_a_box_is_told_what_to_declare() -> None:
    class Boxless(Environment):
        async def reward(self, episode: Any) -> float:
            await self.run_grader("true")
            return 1.0

    env = Boxless()
    env.reset(options={"row": {"prompt": "Go."}})
    with pytest.raises(UserCodeError, match="sandbox_spec"):
        asyncio.run(env.act({"role": "assistant", "content": "Done."}))


@pytest.mark.parametrize(
    ("command", "given", "says"),
    [
        (17, {}, "run_grader: command is 17; it must be a shell command"),
        ([], {}, r"run_grader: command is \[\]"),
        (["head", "-n", 3, "a"], {}, "command is .*a list of texts"),
        ("true", {"files": ["a"]}, r"run_grader: files is \['a'\]; it must be {path: text}"),
        ("true", {"files": {"a": 1}}, "run_grader: files is {'a': 1}"),
        ("true", {"stdin": b"x"}, "run_grader: stdin is b'x'; it must be a text"),
        ("true", {"files": {"a": "", "a/b": ""}}, "file 'a/b' for the grading.*below another file"),
        ("true", {"files": {"a\0": ""}}, r"file 'a.x00' for the grading.*without NUL"),
        ("true", {"files": {".": ""}}, "file '.' for the grading.*neither a folder"),
    ],
)
def test_a_mistake_of_the_authors_is_said_and_not_scored(
    command: Any, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        graded("true", command, **given)


@pytest.mark.parametrize("sync", [True, False])
def test_who_does_not_await_it_is_told_to(sync: bool) -> None:
    def forgets(env: Graded) -> float:
        started: Any = env.run_grader("true")
        try:
            return float(started.verdict == "ok")
        finally:
            started.close()  # else Python warns of it, some time later

    class Sync(Graded):
        def reward(self, episode: Any) -> Any:
            return forgets(self)

    class Async(Graded):
        async def reward(self, episode: Any) -> float:
            return forgets(self)

    env = (Sync if sync else Async)(sandbox="local")
    env.reset(options={"row": {"prompt": "Go."}})
    with pytest.raises(UserCodeError, match="write `async def` and `await`"):
        asyncio.run(env.act({"role": "assistant", "content": "Done."}))
    env.close()
