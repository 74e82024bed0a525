"""The box of an episode: who has one, for how long, and what its breaking means."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gymnast.envs import Environment, make, tool
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
    assert (last.reward, last.info["metrics"]["sandbox/broken"]) == (1.0, 0.0)
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


BREAKS_LATER = "import os, threading; threading.Timer(0.1, os.kill, (os.getppid(), 9)).start()"


def check_broken(outcome: Any) -> None:
    """The episode is over with reward 0, which counts, and is not tried again."""
    assert outcome.info["stop_reason"] not in (None, StopReason.error)
    assert outcome.terminated and not outcome.truncated
    assert str(outcome.reward) != "-0.0"
    assert outcome.info["metrics"]["sandbox/broken"] == 1.0
    assert "failure" not in outcome.info


def test_a_policy_that_breaks_its_box_while_a_process_is_read_has_broken_it(
    play: Play, calls: Calls
) -> None:
    class Served(Boxed):
        def setup(self, row: Any) -> None:
            self.server = self.sandbox.start(["cat"])

        @tool
        def ask(self, text: str) -> str:
            """Ask the server, which answers what it is sent, and then waits.

            Args:
                text: What to ask.
            """
            self.server.stdin.write(text + "\n")
            answer = self.server.stdout.readline(timeout_s=20)
            return answer.decode() + self.server.stdout.readline(timeout_s=20).decode()

    (outcome,) = play(
        Served(), calls(("python", {"code": BREAKS_LATER}), ("ask", {"text": "What?"}))
    )
    check_broken(outcome)
    assert outcome.reward == 0.0


@pytest.mark.parametrize("name", ["python", "later"])
def test_a_policy_that_breaks_its_box_has_ended_its_episode(
    play: Play, calls: Calls, name: str
) -> None:
    env = Boxed()
    (outcome,) = play(env, calls((name, {"code": KILLS_THE_WORKER}), (name, {"code": "1"})))
    check_broken(outcome)
    assert outcome.reward == 0.0 and outcome.info["stop_reason"] is StopReason.environment
    assert outcome.messages[0]["content"].startswith("dead ")
    assert outcome.messages[1]["content"].endswith("the box broke, and the episode is over")
    assert len(env.seen) == 1


class Files(Boxed):
    @tool
    async def read(self, path: str) -> str:
        """Read a file."""
        return (await self.sandbox.aread_file(path)).decode()

    @tool
    def write(self, path: str, text: str) -> str:
        """Write a file."""
        try:
            self.sandbox.write_file(path, text)
        except Exception as error:  # what a tool makes of it changes nothing
            return f"failed: {error}"
        return "written"


@pytest.mark.parametrize(
    "after",
    [
        ("python", {"code": "1"}),
        ("later", {"code": "1"}),
        ("read", {"path": "start.txt"}),
        ("write", {"path": "mine.txt", "text": "x"}),
        None,
    ],
)
def test_a_box_that_the_policy_breaks_between_two_calls_is_no_infrastructure(
    calls: Calls, after: Any
) -> None:
    """Else a policy could choose to be sampled again; None: only `reward` comes after it."""

    async def run() -> Any:
        env = Files()
        await env.areset(options={"row": {"prompt": "Go."}})
        await env.act(calls(("python", {"code": BREAKS_LATER})))
        await asyncio.sleep(0.6)
        outcome = await env.act(ANSWER if after is None else calls(after))
        await env.aclose()
        return outcome

    outcome = asyncio.run(run())
    check_broken(outcome)
    assert outcome.reward == 0.0
    assert len(outcome.messages) == (after is not None)


@pytest.mark.parametrize("first", [True, False])
def test_what_a_policy_that_breaks_its_box_was_paid_is_taken_back(
    play: Play, calls: Calls, first: bool
) -> None:
    class Paid(Boxed):
        def turn_reward(self, turn: Any) -> float:
            return 0.5 if first else -0.5

    good, bad = (calls(("python", {"code": code})) for code in ("1", KILLS_THE_WORKER))
    paid, ended = play(Paid(), good, bad)
    check_broken(ended)
    assert paid.reward + ended.reward == (0.0 if first else -0.5)


HOOKS = ["turn_reward", "reward", "metrics"]


@pytest.mark.parametrize("how", ["raises", "goes on", "says infrastructure"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_box_that_breaks_while_an_episode_is_scored_is_the_policys_doing(
    play: Play, calls: Calls, hook: str, how: str
) -> None:
    """Whatever the hook makes of it, it is neither the user's error nor the infrastructure's."""

    def scores(self: Any, of: Any) -> Any:
        result = self.sandbox.python("breaks()")
        if how == "goes on":
            return {"fine": 1.0} if hook == "metrics" else 1.0
        if how == "raises":
            return float(result.stdout)
        raise SandboxDead("the box broke")

    env = type("Scores", (Boxed,), {hook: scores})()
    plants = f"def breaks(): {KILLS_THE_WORKER}"
    *_, outcome = play(env, calls(("python", {"code": plants})), *([ANSWER][hook == HOOKS[0] :]))
    check_broken(outcome)
    assert outcome.reward == 0.0


def test_code_of_the_answer_that_breaks_the_box_in_reward_is_the_policys_doing(play: Play) -> None:
    class Runs(Boxed):
        def reward(self, episode: Any) -> float:
            return float(self.sandbox.python(episode.answer).verdict != "ok")

    (outcome,) = play(Runs(), {"role": "assistant", "content": KILLS_THE_WORKER})
    check_broken(outcome)
    assert outcome.reward == 0.0


@pytest.mark.parametrize("first", ["tool", "reward", "hidden"])
def test_a_box_that_broke_before_the_policy_acted_is_infrastructure(
    calls: Calls, first: str
) -> None:
    class Hides(Boxed):
        def reward(self, episode: Any) -> float:
            try:
                return super().reward(episode)
            except SandboxDead:
                return 1.0

    async def run() -> Any:
        env = (Hides if first == "hidden" else Boxed)()
        await env.areset(options={"row": {"prompt": "Go."}})
        env.seen[0].close()  # as the engine would, from outside
        outcome = await env.act(calls(("python", {"code": "2"})) if first == "tool" else ANSWER)
        await env.aclose()
        return outcome

    outcome = asyncio.run(run())
    assert (outcome.info["stop_reason"], outcome.reward) == (StopReason.error, 0.0)
    assert "SandboxDead" in outcome.info["failure"]
    assert outcome.info["metrics"]["sandbox/broken"] == 0.0


def test_a_box_that_broke_along_with_its_engine_is_infrastructure(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.sandboxes.host.local.LocalSandbox.engine_lost", lambda self: True)

    async def run() -> Any:
        env = Boxed()
        await env.areset(options={"row": {"prompt": "Go."}})
        outcome = await env.act(calls(("python", {"code": KILLS_THE_WORKER})))
        await env.aclose()
        return outcome

    outcome = asyncio.run(run())
    assert outcome.info["stop_reason"] is StopReason.error


def test_a_box_that_breaks_in_setup_is_infrastructure() -> None:
    class Breaks(Boxed):
        def setup(self, row: Any) -> None:
            assert self.sandbox.python(KILLS_THE_WORKER).verdict == "dead"
            self.sandbox.python("1")

    with pytest.raises(SandboxDead):
        Breaks().reset(options={"row": {"prompt": "Go."}})


def test_a_box_that_the_policy_breaks_for_cleanup_does_not_undo_the_episode(calls: Calls) -> None:
    class Cleans(Environment):
        sandbox_spec = SandboxSpec()

        @tool
        def python(self, code: str) -> str:
            """Run code."""
            return self.sandbox.python(code).stdout

        def reward(self, episode: Any) -> float:
            return 1.0

        def cleanup(self) -> None:
            time.sleep(0.5)
            int(self.sandbox.python("1").stdout)

    async def run() -> Any:
        env = Cleans(sandbox="local")
        await env.areset(options={"row": {"prompt": "Go."}})
        await env.act(calls(("python", {"code": BREAKS_LATER})))
        return await env.act(ANSWER)

    assert asyncio.run(run()).reward == 1.0


@pytest.mark.parametrize("hook", [*HOOKS, "cleanup"])
@pytest.mark.parametrize("what", ["file", "command", "process"])
def test_what_the_policy_left_or_said_does_not_raise_in_hooks(
    play: Play, calls: Calls, hook: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing file, a NUL in a command, a process that is gone: the hook's value is 0."""

    class Careless(Boxed):
        def reward(self, episode: Any) -> float:
            return 1.0

    def careless(self: Any, *arguments: Any) -> Any:
        if what == "file":
            return float(len(self.sandbox.read_file("start.txt")))
        if what == "process":
            with self.sandbox.start("test -e start.txt && cat") as process:
                process.wait(timeout_s=20)
                process.stdin.write("more")
        return float(self.sandbox.exec(["echo", "a\0b"]).exit_code)  # as the answer has it

    setattr(Careless, hook, careless)
    removes = calls(("python", {"code": "import os; os.remove('start.txt')"}))
    *_, outcome = play(Careless(), removes, ANSWER)
    assert outcome.info["stop_reason"] is StopReason.answered
    assert outcome.reward == (0.0 if hook == "reward" else 1.0)
    if hook != "cleanup":
        assert outcome.info["metrics"]["sandbox/unusable"] == 1.0
        assert f"Careless.{hook}" in caplog.text


@pytest.mark.parametrize("where", ["setup", "prepare_sandbox"])
def test_a_file_that_is_missing_before_the_policy_acts_is_the_users_to_mend(where: str) -> None:
    def look(self: Any, *arguments: Any) -> None:
        (arguments[0] if where == "prepare_sandbox" else self.sandbox).read_file("no_such.txt")

    env = type("Looks", (Boxed,), {where: look})()
    with pytest.raises(UserCodeError, match=rf"Looks.{where}: .*no_such.txt"):
        env.reset(options={"row": {"prompt": "Go."}})


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
        ("dokcer", "sandbox.backend: there is no sandbox backend 'dokcer'. Did you mean 'docker'"),
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
