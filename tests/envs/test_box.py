"""The box of an episode: who has one, for how long, and what its breaking means."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gymnast.envs import Environment, make, tool
from gymnast.envs.box import REPLACED
from gymnast.errors import ConfigError, SandboxDead, SandboxUnavailable, UserCodeError
from gymnast.sandboxes import Sandbox, SandboxSpec
from gymnast.types import StopReason

KILLS_THE_WORKER = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"


class Boxed(Environment):
    """Runs what the policy says; each case below changes one thing."""

    sandbox_spec = SandboxSpec(timeout_s=5.0)

    def __init__(self, renderer: Any = None, **settings: Any) -> None:
        super().__init__(renderer, **{"sandbox": "local", **settings})
        self.seen: list[Sandbox] = []

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        sandbox.write_file("start.txt", str(self.row["prompt"]))
        self.seen.append(sandbox)

    @tool
    def python(self, code: str) -> str:
        """Run code."""
        result = self.sandbox.python(code)
        return f"{result.verdict} {result.stdout}{result.stderr}"

    @tool
    async def later(self, code: str) -> str:
        """Run code without blocking."""
        result = await self.sandbox.apython(code)
        return f"{result.verdict} {result.stdout}{result.stderr}"

    def reward(self, episode: Any) -> float:
        return float(self.sandbox.read_file("start.txt") == b"Go.")


Play = Callable[..., list[Any]]
Calls = Callable[..., Mapping[str, Any]]
ANSWER = {"role": "assistant", "content": "Done."}


def test_a_box_is_there_in_setup_tools_reward_and_cleanup_and_closed_after(
    play: Play, calls: Calls
) -> None:
    class Everywhere(Boxed):
        def setup(self, row: Any) -> None:
            self.said = [self.sandbox.exec(["cat", "start.txt"]).stdout]

        def cleanup(self) -> None:
            self.said.append(self.sandbox.exec(["cat", "start.txt"]).stdout)

    env = Everywhere()
    first, last = play(
        env, calls(("python", {"code": "x = 41"}), ("later", {"code": "x + 1"})), ANSWER
    )
    assert first.messages[1]["content"] == "ok 42\n"
    assert (last.reward, last.info["metrics"]["sandbox/replaced"]) == (1.0, 0.0)
    assert env.said == ["Go.", "Go."]
    with pytest.raises(SandboxDead):
        env.seen[0].exec(["true"])
    with pytest.raises(SandboxDead, match="no episode"):
        env.sandbox.exec(["true"])


def test_every_episode_has_a_fresh_box(calls: Calls) -> None:
    code = "import os; left = sorted(os.listdir()); open('mine', 'w').close(); left"

    async def run() -> list[Any]:
        env, said = Boxed(), []
        for _ in range(2):
            await env.areset(options={"row": {"prompt": "Go."}})
            outcome = await env.act(calls(("python", {"code": code})))
            said.append(outcome.messages[0]["content"])
        await env.aclose()
        return said

    assert asyncio.run(run()) == ["ok ['start.txt']\n"] * 2


@pytest.mark.parametrize("name", ["python", "later"])
def test_a_box_that_the_policys_code_breaks_is_replaced(
    play: Play, calls: Calls, name: str
) -> None:
    env = Boxed()
    broken, after, last = play(
        env,
        calls((name, {"code": KILLS_THE_WORKER})),
        calls((name, {"code": "open('start.txt').read()"})),
        ANSWER,
    )
    assert broken.messages[0]["content"].startswith("dead ")
    assert REPLACED.strip() in broken.messages[0]["content"]
    assert after.messages[0]["content"] == "ok 'Go.'\n"
    assert (last.reward, last.info["stop_reason"]) == (1.0, StopReason.answered)
    assert last.info["metrics"]["sandbox/replaced"] == 1.0
    assert len(env.seen) == 2


def test_calls_at_the_same_time_after_a_break_share_one_new_box(calls: Calls) -> None:
    class AtOnce(Boxed):
        @tool(concurrent=True)
        async def both(self, code: str) -> str:
            """Run code beside another."""
            return (await self.sandbox.apython(code)).stdout

    async def run() -> Any:
        env = AtOnce(sandbox={"backend": "local", "max_boxes": 1})
        await env.areset(options={"row": {"prompt": "Go."}})
        await env.act(calls(("python", {"code": KILLS_THE_WORKER})))
        one, other = ("both", {"code": "x = 41"}), ("both", {"code": "x = 42"})
        await asyncio.wait_for(env.act(calls(one, other)), 60)
        found = await env.act(calls(("both", {"code": "x in (41, 42)"})))
        await env.aclose()
        return found.messages[0]["content"], len(env.seen)

    assert asyncio.run(run()) == ("True\n", 2)


def test_a_box_that_breaks_between_calls_is_infrastructure(calls: Calls) -> None:
    async def run() -> Any:
        env = Boxed()
        await env.areset(options={"row": {"prompt": "Go."}})
        await env.act(calls(("python", {"code": "1"})))
        env.seen[0].close()  # as the engine would, from outside
        outcome = await env.act(calls(("python", {"code": "2"})))
        await env.aclose()
        return outcome

    outcome = asyncio.run(run())
    assert (outcome.info["stop_reason"], outcome.reward) == (StopReason.error, 0.0)
    assert "SandboxDead" in outcome.info["failure"]


def test_a_box_that_breaks_in_a_hook_is_not_replaced(play: Play) -> None:
    class Breaks(Boxed):
        def reward(self, episode: Any) -> float:
            assert self.sandbox.python(KILLS_THE_WORKER).verdict == "dead"
            return float(self.sandbox.python("1").exit_code == 0)

    (outcome,) = play(Breaks(), ANSWER)
    assert outcome.info["stop_reason"] is StopReason.error


@pytest.mark.parametrize("where", ["setup", "reward", "cleanup", "prepare_sandbox"])
def test_a_box_is_closed_when_a_hook_raises(play: Play, where: str) -> None:
    class Raises(Boxed):
        box: Sandbox

    def raises(self: Any, *arguments: Any) -> Any:
        self.box = arguments[0] if where == "prepare_sandbox" else self.sandbox
        raise KeyError("typo")

    setattr(Raises, where, raises)
    env = Raises()
    with pytest.raises(UserCodeError, match="typo") as caught:
        play(env, ANSWER)
    assert caught.value.hook == where
    with pytest.raises(SandboxDead):
        env.box.exec(["true"])


def test_a_box_is_closed_when_the_episode_is_cancelled(calls: Calls) -> None:
    async def run() -> Boxed:
        env = Boxed()
        await env.areset(options={"row": {"prompt": "Go."}})
        act = asyncio.create_task(
            env.act(calls(("later", {"code": "import time; time.sleep(60)"})))
        )
        await asyncio.sleep(0.3)
        act.cancel()
        with pytest.raises(asyncio.CancelledError):
            await act
        return env

    env = asyncio.run(run())
    with pytest.raises(SandboxDead):
        env.seen[0].exec(["true"])


def test_without_a_spec_the_error_says_what_to_declare(play: Play, calls: Calls) -> None:
    class Forgot(Environment):
        @tool
        def look(self) -> str:
            """Look."""
            return self.sandbox.exec(["ls"]).stdout

    with pytest.raises(UserCodeError, match=r"Forgot .* sandbox_spec = SandboxSpec\(\)"):
        play(Forgot(), calls(("look", {})))


def test_no_box_to_be_had_is_infrastructure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "carrier-pigeon://loft")
    env = Boxed(sandbox={"backend": "docker", "image": "no-such-image:at-all"})
    with pytest.raises(SandboxUnavailable, match="carrier-pigeon"):
        env.reset(options={"row": {"prompt": "Go."}})
    env.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("dokcer", "sandbox.backend must be one of auto, docker, .*'dokcer'"),
        ({"backend": None}, "sandbox.backend must be"),
        ({"memory": 1}, "no field 'memory'. Did you mean 'memory_bytes'"),
        ({"memory_bytes": "512M"}, "memory_bytes is '512M'"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"max_boxes": 0}, "max_boxes is 0"),
        ({"warm": "all"}, "warm is 'all'"),
        ({"env": "A=1"}, "sandbox"),
        (["docker"], "must be a backend's name or a mapping"),
    ],
)
def test_a_wrong_setting_is_named_when_the_environment_is_made(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(Boxed, sandbox=given)


def test_a_setting_without_a_spec_is_refused() -> None:
    with pytest.raises(ConfigError, match="uses no box"):
        Environment(sandbox="local")


def test_fields_of_the_setting_replace_those_of_the_spec(play: Play, calls: Calls) -> None:
    env = Boxed(sandbox={"backend": "local", "timeout_s": 0.3, "env": {"COLOUR": "red"}})
    code = "import os, time; print(os.environ['COLOUR'], flush=True); time.sleep(9)"
    (outcome,) = play(env, calls(("python", {"code": code})))
    assert outcome.messages[0]["content"].startswith("timeout red")


def test_closing_an_environment_amid_an_episode_closes_its_box(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    env = Boxed()
    env.reset(options={"row": {"prompt": "Go."}})
    env.close()
    with pytest.raises(SandboxDead):
        env.seen[0].exec(["true"])
