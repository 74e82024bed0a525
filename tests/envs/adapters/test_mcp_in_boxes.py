"""Servers of the Model Context Protocol that run in the boxes of their episodes."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from gymnast.envs import make, tool
from gymnast.envs.adapters.mcp.environment import McpEnvironment
from gymnast.errors import ConfigError, InfrastructureError
from gymnast.types import StopReason
from mcp_fixtures import ODD_FILE, left, play, running_servers, told
from sandbox_fixtures import skip_without_landlock

pytestmark = pytest.mark.adapters
Calls = Callable[..., dict[str, Any]]
END = {"role": "assistant", "content": "Done."}


class Boxed(McpEnvironment):
    """A server whose program is written to the box, and a tool that looks around there."""

    name = "odd"
    command = ("python3", "-S", "odd_server.py")

    def prepare_sandbox(self, sandbox: Any) -> None:
        sandbox.write_file("tools/odd_server.py", ODD_FILE.read_bytes())

    @tool
    async def shell(self, command: str) -> str:
        """Run a command.

        Args:
            command: For a shell.
        """
        return (await self.sandbox.aexec(command)).stdout


@pytest.fixture
def boxed(backend: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes such an environment with settings, in boxes of a backend."""
    made: list[Any] = []
    limits = {}
    if backend == "docker":
        limits["image"] = request.getfixturevalue("docker_image")

    def env(**settings: Any) -> Any:
        given = {"backend": backend, **limits, **settings.pop("sandbox", {})}
        settings = {"instructions": False, "max_turns": 20, "cwd": "tools", **settings}
        made.append(make(Boxed, sandbox=given, **settings))
        return made[-1]

    yield env
    for each in made:
        each.close()
    assert not left(running_servers)


def go_on(env: Any, *messages: dict[str, Any]) -> list[Any]:
    """Take further turns in an episode."""
    return [asyncio.run(env.act(message)) for message in messages]


def test_a_server_answers_from_its_box(
    calls: Calls, boxed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "gold")
    env = boxed(env={"GIVEN": "brass"})
    first, number = play(env, calls(("add", {"a": 1})), calls(("pid", {})))
    variables = f"tr '\\0' ' ' < /proc/{told(number)}/environ"
    looked, big, second = go_on(
        env,
        calls(("shell", {"command": variables})),
        calls(("big", {})),
        calls(("add", {"a": 2})),
    )
    assert (told(first), told(second)) == ("1", "3")
    assert "GIVEN=brass" in told(looked) and "gold" not in told(looked)
    assert "2000000 characters left out" in told(big)
    assert len(running_servers()) == 1
    (fresh,) = play(env, calls(("add", {"a": 5})))
    assert told(fresh) == "5" and len(running_servers()) == 1
    assert go_on(env, END)[0].info["stop_reason"] is StopReason.answered
    assert not left(running_servers)


def test_a_server_that_ends_in_its_box_is_an_observation(calls: Calls, boxed: Any) -> None:
    died, after, looked, end = play(
        boxed(),
        calls(("die", {})),
        calls(("add", {"a": 1})),
        calls(("shell", {"command": "echo still here"})),
        END,
    )
    assert told(died).startswith("Error: die: ToolFailed: mcp:odd: the server ")
    assert "Its process ended with code 3. It wrote to stderr: it hurts" in told(died)
    assert told(after).startswith("Error: add: ToolFailed: mcp:odd: the server ")
    assert told(looked) == "still here\n"
    assert end.info["stop_reason"] is StopReason.answered and "failure" not in end.info


def test_a_box_that_breaks_takes_its_server_with_it(calls: Calls, boxed: Any) -> None:
    env = boxed()
    play(env, calls(("add", {"a": 1})))
    env.sandbox.target().close()
    (broken,) = go_on(env, calls(("add", {"a": 1})))
    assert broken.info["stop_reason"] is StopReason.environment
    assert broken.info["metrics"]["sandbox/broken"] == 1.0


def test_a_call_that_hangs_in_a_box_is_given_up(calls: Calls, boxed: Any) -> None:
    env = boxed(call_timeout_s=1.0)
    hang, looked = play(env, calls(("hang", {})), calls(("shell", {"command": "echo here"})))
    assert "hang was given up after 1 s" in told(hang) and told(looked) == "here\n"


def test_a_server_that_does_not_begin_in_its_box_is_told(boxed: Any) -> None:
    with pytest.raises(ConfigError, match=r"mcp:odd: \['no-such'\] cannot be started in the sand"):
        play(boxed(command=["no-such"]))
    with pytest.raises(InfrastructureError, match="It wrote to stderr: it lacks a key"):
        play(boxed(command=[*Boxed.command, "no start"]))
    with pytest.raises(InfrastructureError, match="does not answer within 1 s"):
        play(boxed(command=[*Boxed.command, "silent"], start_timeout_s=1.0))


def test_a_box_is_for_a_command_of_one_episode() -> None:
    box = {"backend": "local"}
    with pytest.raises(ConfigError, match="session is 'shared', but with a sandbox"):
        make("mcp:odd", command=["odd"], sandbox=box, session="shared")
    with pytest.raises(ConfigError, match="uses no box"):
        make("mcp:odd", url="http://127.0.0.1:1/mcp", sandbox=box)
    assert make("mcp:odd", command=["odd"], sandbox=box).max_boxes is not None


@pytest.fixture
def packages() -> Iterator[Path]:
    """What `pip install --target` makes of mcp-server-time, copied from where this runs."""
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(_needed("mcp-server-time")):
            found = distribution(name)
            for file in found.files or []:
                if file.parts[0] != "..":  # a script
                    target = Path(folder, "packages", file)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file.locate(), target)
        Path(folder).chmod(0o755)
        yield Path(folder, "packages")


def _needed(name: str, extras: Iterable[str] = ()) -> set[str]:
    """A package, and all that it needs."""
    needed = {name}
    for requirement in map(Requirement, distribution(name).requires or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            needed |= _needed(requirement.name, requirement.extras)
    return needed


def test_a_server_of_pypi_runs_in_a_box(calls: Calls, packages: Path) -> None:
    skip_without_landlock()
    env = make(
        "mcp:time",
        command=["python3", "-m", "mcp_server_time", "--local-timezone", "UTC"],
        sandbox={"backend": "landlock", "packages": str(packages)},
    )
    arguments = {"source_timezone": "Asia/Tokyo", "time": "14:30", "target_timezone": "Asia/Dubai"}
    (converted,) = play(env, calls(("convert_time", arguments)))
    assert json.loads(told(converted))["target"]["datetime"].endswith("T09:30:00+04:00")
    env.close()
