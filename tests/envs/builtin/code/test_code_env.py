"""Code-v0: from an answer to its reward, on the local backend."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from gymnast.envs import Renderer, check_env, make
from gymnast.envs.builtin.code.environment import Code, code_in
from gymnast.envs.builtin.code.grading import GradingLimits, Tests, grade
from gymnast.envs.builtin.code.tasks import LEVELS, WORKED, tasks
from gymnast.errors import ConfigError, DataError, SandboxBroken, SandboxDead, UserCodeError
from gymnast.sandboxes import Sandbox, open_sandbox

ROW = {"prompt": "Write half(n).", "test_list": ["assert half(4) == 2", "assert half(1) == 0.5"]}


def answer(code: str) -> Mapping[str, Any]:
    return {"role": "assistant", "content": f"Here:\n```python\n{code}\n```\nDone."}


def test_check_env_passes(renderer: Renderer) -> None:
    check_env(make("gymnast/Code-v0", renderer, sandbox="local", worked_turns=1))


def test_the_reward_is_the_share_of_tests(play: Callable[..., Any]) -> None:
    env = Code(sandbox="local")
    for code, share in (("n / 2", 1.0), ("n // 2", 0.5), ("n", 0.0), ("", 0.0)):
        (outcome,) = play(env, answer(f"def half(n): return {code}"), row=ROW)
        assert outcome.reward == share
        assert outcome.info["metrics"]["solved"] == float(share == 1.0)
    (outcome,) = play(env, answer("def half(n) return"), row=ROW)
    assert (outcome.reward, outcome.info["metrics"]["loaded"]) == (0.0, 0.0)
    (outcome,) = play(env, {"role": "assistant", "content": ""}, row=ROW)
    assert (outcome.reward, outcome.info["metrics"]["submitted"]) == (0.0, 0.0)


def test_code_is_tried_out_and_submitted(play: Callable[..., Any], calls: Any) -> None:
    code = "def half(n): return n / 2"
    tried, ended = play(
        Code(sandbox="local"),
        calls(("python", {"code": f"{code}\nhalf(3)"})),
        calls(("submit", {"code": code})),
        row=ROW,
    )
    assert tried.messages[0]["content"] == "1.5"
    assert (ended.reward, ended.info["stop_reason"]) == (1.0, "stop_tool")


def test_variables_of_the_session_are_not_there_when_code_is_graded(
    play: Callable[..., Any], calls: Any
) -> None:
    *_, ended = play(
        Code(sandbox="local"),
        calls(("python", {"code": "two = 2"})),
        calls(("submit", {"code": "def half(n): return n / two"})),
        row=ROW,
    )
    assert ended.reward == 0.0


def test_episodes_that_all_hold_a_box_do_not_wait_for_one_another() -> None:
    envs = [Code(sandbox={"backend": "local", "max_boxes": 2}) for _ in range(2)]
    said = answer("def half(n): return n / 2")

    async def both() -> list[float]:
        for env in envs:
            await env.areset(options={"row": ROW})
        ended = await asyncio.gather(*(env.act(said) for env in envs))
        return [outcome.reward for outcome in ended]

    async def in_time() -> list[float]:
        return await asyncio.wait_for(both(), 60)

    assert asyncio.run(in_time()) == [1.0, 1.0]
    for env in envs:
        env.close()


KILLS_THE_WORKER = "__import__('os').kill(__import__('os').getppid(), 9)"


@pytest.mark.parametrize(
    "code",
    [
        f"{KILLS_THE_WORKER}\ndef half(n): return n / 2",
        f"def half(n):\n    {KILLS_THE_WORKER}",
        f"def half(n):\n    n == 1 and {KILLS_THE_WORKER}\n    return n / 2",
    ],
    ids=["when it is loaded", "when it is called", "when it is called for the last time"],
)
def test_code_that_breaks_its_box_scores_nothing_and_is_counted(
    play: Callable[..., Any], code: str
) -> None:
    (outcome,) = play(Code(sandbox="local"), answer(code), row=ROW)
    assert (outcome.reward, outcome.info["stop_reason"]) == (0.0, "answered")
    assert outcome.info["metrics"]["sandbox/broken"] == 1.0


def test_tools_are_offered_as_asked(play: Callable[..., Any]) -> None:
    env = Code(sandbox="local", offer=[])
    env.reset(options={"row": ROW})
    assert env.tools == []
    env.close()


def test_worked_turns_show_solved_tasks_that_are_never_asked() -> None:
    env = Code(sandbox="local", worked_turns=2)
    env.reset(options={"row": ROW})
    assert [m["role"] for m in env.messages] == ["user", "assistant"] * 2 + ["user"]
    assert env.messages[1]["content"] == f"```python\n{WORKED[0].solution}\n```"
    env.close()
    assert not {task.name for task in WORKED} & {task.name for task in tasks(3)}


@pytest.mark.parametrize("level", LEVELS)
def test_own_rows_are_those_up_to_the_level_and_differ(level: int) -> None:
    env, rng = Code(sandbox="local", level=level), np.random.default_rng(0)
    rows = [env.sample_row(rng) for _ in range(2000)]
    assert {row["level"] for row in rows} == set(range(1, level + 1))
    assert len({row["prompt"] for row in rows}) == len(tasks(level))


def test_every_own_task_is_solved_by_its_solution_and_by_no_constant() -> None:
    async def run() -> None:
        with open_sandbox("local") as box, open_sandbox("local") as other:
            for task in tasks(3)[::6]:  # the others differ in a number
                tests = _tests_of(task.row)
                found = await grade(tests, "", task.solution, box, _lend(other), GradingLimits())
                assert found.share == 1.0, (task, found)
                code = f"def {task.signature}: return None"
                found = await grade(tests, "", code, box, _lend(other), GradingLimits())
                assert found.share == 0.0, (task, found)

    asyncio.run(run())


def _tests_of(row: Mapping[str, Any]) -> Tests:
    return Tests("", (row["entry_point"],), tuple((text, True) for text in row["test_list"]))


def _lend(box: Sandbox) -> Any:
    """Gives one box again and again, in an empty session."""

    class Lent:
        def __getattr__(self, name: str) -> Any:
            return getattr(box, name)

        async def aclose(self) -> None:
            await box.apython("import os; os._exit(0)")

    async def take() -> Any:
        return Lent()

    return take


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with open_sandbox("local") as box:
        yield box


async def _open() -> Sandbox:
    return open_sandbox("local")


def test_a_function_may_raise_what_a_test_expects(box: Sandbox) -> None:
    expects = "try:\n    f(0)\nexcept ZeroDivisionError:\n    pass\nelse:\n    raise AssertionError"
    tests = Tests("", ("f",), ((expects, True),))
    for code, passed in (("1 / n", 1), ("n", 0), ("__import__('time').sleep(60)", 0)):
        found = asyncio.run(
            grade(tests, "", f"def f(n): return {code}", box, _open, GradingLimits(0.5, 20.0))
        )
        assert found.passed == passed


@pytest.mark.parametrize("error", ["StopIteration", "StopAsyncIteration"])
def test_code_cannot_end_the_loop_of_a_test(error: str, box: Sandbox) -> None:
    steps = ("assert all(map(f, [1, 3]))", "assert list(filter(f, [2])) == []")
    tests = Tests("", ("f",), tuple((step, True) for step in steps))
    code = f"def f(n): raise {error}"
    assert asyncio.run(grade(tests, "", code, box, _open, GradingLimits())).passed == 0


def test_a_box_that_breaks_after_the_last_tool_call_scores_nothing(calls: Any) -> None:
    later = "import os, threading\n"
    later += "threading.Timer(0.1, os.kill, (os.getppid(), 9)).start()"
    answered = {"role": "assistant", "content": "```python\ndef half(n): return n / 2\n```"}

    async def run() -> Any:
        env = Code(sandbox="local")
        await env.areset(options={"row": ROW})
        await env.act(calls(("python", {"code": later})))
        await asyncio.sleep(0.6)
        outcome = await env.act(answered)
        await env.aclose()
        return outcome

    outcome = asyncio.run(run())
    assert (outcome.reward, outcome.info["metrics"]["sandbox/broken"]) == (0.0, 1.0)


def test_broken_tests_are_the_users_to_mend(box: Sandbox) -> None:
    tests = Tests("import no_such_module", ("f",), (("assert f(1) == 1", True),))
    with pytest.raises(UserCodeError, match="no_such_module"):
        asyncio.run(grade(tests, "", "def f(n): return n", box, _open, GradingLimits()))


def test_a_broken_box_of_the_tests_is_infrastructure(box: Sandbox) -> None:
    kill = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    tests = Tests(kill, ("f",), (("assert f(1) == 1", True),))
    with pytest.raises(SandboxDead):
        asyncio.run(grade(tests, "", "def f(n): return n", box, _open, GradingLimits()))


def test_a_box_of_the_tests_that_breaks_on_an_answer_is_the_codes_doing(box: Sandbox) -> None:
    kill = "f(1) == 1 and __import__('os').kill(__import__('os').getppid(), 9)"
    tests = Tests("", ("f",), ((f"assert not ({kill})", True),))
    with pytest.raises(SandboxBroken):
        asyncio.run(grade(tests, "", "def f(n): return n", box, _open, GradingLimits()))


def test_tests_out_of_time_have_failed_and_those_before_count(box: Sandbox) -> None:
    tests = Tests("", ("f",), (("assert f(1) == 1", True), ("while True: pass", True)))
    limits = GradingLimits(1.0, 2.0)
    found = asyncio.run(grade(tests, "", "def f(n): return n", box, _open, limits))
    assert (found.passed, found.total) == (1, 2)


def test_the_wait_for_a_box_is_not_the_codes_time(box: Sandbox) -> None:
    async def after_a_while() -> Sandbox:
        await asyncio.sleep(2.5)
        return open_sandbox("local")

    tests = Tests("", ("f",), (("assert f(1) == 1", True),))
    code = "def f(n): return n"
    found = asyncio.run(grade(tests, "", code, box, after_a_while, GradingLimits(2.0, 2.0)))
    assert (found.passed, found.why) == (1, "")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\ndef f(): pass\n```", "def f(): pass"),
        ("```\ndef f(): pass\n```\nUse:\n```python\nf()\n```", "def f(): pass"),
        ("```python\ndef f(): 1\n```\nor\n```py\ndef f(): 2\n```", "def f(): 2"),
        ("```python\ng = 1\n```\n```bash\nls\n```", "g = 1"),
        ("```python\ndef f():\n    pass", "def f():\n    pass"),
        ("def f(): pass", "def f(): pass"),
        ("", ""),
    ],
)
def test_the_code_of_an_answer(text: str, code: str) -> None:
    assert code_in(text, "f") == code


@pytest.mark.parametrize("said", ["`", "```", "```a", "```\n", "\n", " ", "\n ", "```py x\n"])
def test_the_code_of_a_long_answer_is_found_at_once(said: str) -> None:
    """All episodes of a process wait meanwhile: it must not take the square of the length."""
    for text in ("```" + said * 300_000, "```" + "a" * 1_000_000):
        assert code_in(text, "f") in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"level": 4}, "level must be"),
        ({"worked_turns": 5}, "worked_turns must be <= 4"),
        ({"offer": ["bash"]}, "offer must be"),
        ({"call_timeout_s": 0}, "call_timeout_s must be"),
        ({"sandbox": "nowhere"}, "sandbox.backend: there is no sandbox backend"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Code(**settings)


def test_a_row_without_tests_is_named() -> None:
    env = Code(sandbox="local")
    with pytest.raises(DataError, match="neither 'test_list' nor 'test'"):
        env.reset(options={"row": {"prompt": "Hi."}})
    env.close()
