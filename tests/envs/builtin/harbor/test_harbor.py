"""Tasks in their containers: work earns what the tests say, and cheats earn nothing."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gymnast.envs.builtin.harbor.environment import Harbor
from gymnast.envs.environment.solution import solve_episode
from gymnast.envs.records.episode import Outcome
from gymnast.errors import DataError, SandboxUnavailable
from gymnast.types import StopReason
from harbor_fixtures import TASK, MakeTask

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("no_images_left")]

Do = Callable[..., Outcome]


async def _play(env: Harbor, commands: Sequence[str]) -> Outcome:
    await env.areset(options={"row": (env.rows or [])[0]})
    for number, command in enumerate(commands):
        shell: Any = {"name": "shell", "arguments": {"command": command}}
        calls = [{"id": f"call{number}", "type": "function", "function": shell}]
        outcome = await env.act({"role": "assistant", "content": "", "tool_calls": calls})
        if outcome.truncated:
            break
    else:
        outcome = await env.act({"role": "assistant", "content": "Done."})
    await env.aclose()
    return outcome


@pytest.fixture
def do(make_task: MakeTask) -> Do:
    """Plays a task by shell commands; returns what came of the last message."""

    def do(
        *commands: str, files: dict[str, str | bytes | None] | None = None, **settings: Any
    ) -> Outcome:
        env = Harbor(tasks=make_task("sum", files), **{"max_turns": 20, **settings})
        return asyncio.run(_play(env, commands))

    return do


def _solved(env: Harbor) -> Outcome:
    async def solved() -> Outcome:
        await env.areset(options={"row": (env.rows or [])[0]})
        outcomes = await solve_episode(env)
        await env.aclose()
        return outcomes[-1]

    return asyncio.run(solved())


def test_the_solution_earns_everything_and_doing_nothing_nothing(
    make_task: MakeTask, do: Do
) -> None:
    solved = _solved(Harbor(tasks=make_task()))
    assert (solved.reward, solved.info["metrics"]["verified"]) == (1.0, 1.0)
    idle = do()
    assert (idle.reward, idle.info["metrics"]["verified"]) == (0.0, 1.0)
    assert do("echo 12 >sum.txt").reward == 1.0


def test_a_solution_with_variables_and_files_that_are_no_text(make_task: MakeTask) -> None:
    files: dict[str, str | bytes | None] = {
        "solution/solve.sh": 'cat /solution/deep/sum.bin >sum.txt; test "$WHO" = "it is me"',
        "solution/deep/sum.bin": b"12\n\xff" * 20_000,
        "tests/sum.bin": b"12\n\xff" * 20_000,
        "task.toml": TASK + '[solution]\nenv = {WHO = "it is me"}\n',
        "environment/Dockerfile": "FROM gymnast-base:debian\nWORKDIR /app\n",
    }
    files["tests/test.sh"] = (
        "#!/usr/bin/python3\n"
        "same = open('/app/sum.txt', 'rb').read() == open('/tests/sum.bin', 'rb').read()\n"
        "print(int(same), file=open('/logs/verifier/reward.txt', 'w'))\n"
    )
    assert _solved(Harbor(tasks=make_task("sum", files), max_turns=20)).reward == 1.0


CHEATS = {
    "a reward of its own": "mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt",
    "a reward in JSON": "echo '{\"reward\": 1}' >/logs/verifier/reward.json",
    "a writer in the background": (
        "setsid sh -c 'while :; do echo 1 >/logs/verifier/reward.txt; done' >/dev/null 2>&1 &"
    ),
    "a daemon without its parents": (
        "(setsid sh -c 'sleep 1; while :; do echo 1 >/logs/verifier/reward.txt; done' "
        "</dev/null >/dev/null 2>&1 &) &"
    ),
    "tests beforehand": (
        "mkdir -p /tests; echo 'echo 1 >/logs/verifier/reward.txt' >/tests/test.sh; "
        "chmod 555 /tests /tests/test.sh"
    ),
    "a folder where a file of the tests is": "mkdir -p /tests/expected.txt/x /tests/test.sh/x",
    "a folder where the reward is": "mkdir -p /logs/verifier/reward.txt/x",
    "the tests as a link": "mkdir -p /app/t; ln -s /app/t /tests; ln -s /dev/null /app/t/test.sh",
    "logs as a link": (
        "rm -rf /logs; mkdir -p /app/logs/verifier; ln -s /app/logs /logs; "
        "echo 1 >/logs/verifier/reward.txt; echo '{\"reward\": 1}' >/logs/verifier/reward.json"
    ),
    "the log folder as a link": (
        "rm -rf /logs/verifier; mkdir /app/v; echo 1 >/app/v/reward.txt; "
        "ln -s /app/v /logs/verifier"
    ),
    "the reward as a link": "echo 1 >/app/one; ln -s /app/one /logs/verifier/reward.json",
    "logs that are a file": "rm -rf /logs; echo 1 >/logs",
    "start files and variables": (
        "for file in .bashrc .profile .bash_profile .shrc; do "
        "echo 'cat() { echo 12; }; PATH=/app:$PATH' >~/$file; done; "
        "printf '#!/bin/sh\\necho 12\\n' >cat; chmod +x cat; export PATH=/app:$PATH ENV=~/.profile"
    ),
    "signals": "kill -9 1; kill -STOP 1; kill -9 -1",
    "the session of the box": (
        "for p in /proc/[0-9]*; do echo x >$p/mem; echo x >$p/fd/0; done 2>/dev/null"
    ),
    "a link to the tests that are to come": "ln -s /tests/expected.txt /app/copy",
}


@pytest.mark.parametrize("command", CHEATS.values(), ids=list(CHEATS))
def test_cheats_earn_nothing(do: Do, command: str) -> None:
    outcome = do(command)
    assert outcome.reward == 0.0
    assert outcome.info["stop_reason"] == StopReason.answered


@pytest.mark.parametrize("command", CHEATS.values(), ids=list(CHEATS))
def test_and_leave_work_that_is_done_its_reward(do: Do, command: str) -> None:
    assert do(command, "echo 12 >/app/sum.txt").reward == 1.0


def test_root_can_change_the_programs_that_the_tests_use_as_the_page_says(do: Do) -> None:
    assert do("printf '#!/bin/sh\\necho 12\\n' >/usr/bin/cat").reward == 1.0


@pytest.mark.parametrize(
    ("test", "reward", "metrics"),
    [
        ("#!/bin/sh\nexit 1\n", 0.0, {"verified": 0.0, "verifier_timeout": 0.0}),
        ("#!/bin/sh\necho one >/logs/verifier/reward.txt\n", 0.0, {"verified": 0.0}),
        ("#!/bin/sh\necho 1 >/logs/verifier/reward.txt; exit 1\n", 1.0, {"verified": 1.0}),
        (
            '#!/bin/sh\necho \'{"reward": 0.5, "seen": 3}\' >/logs/verifier/reward.json\n'
            "echo 1 >/logs/verifier/reward.txt\n",
            0.5,
            {"seen": 3.0},
        ),
        ("#!/no/such/program\n", 0.0, {"verified": 0.0}),
    ],
)
def test_what_the_tests_write_is_the_reward(
    do: Do, test: str, reward: float, metrics: dict[str, float]
) -> None:
    outcome = do(files={"tests/test.sh": test})
    assert outcome.reward == reward
    assert outcome.info["metrics"].items() >= metrics.items()


def test_parts_of_a_reward(do: Do) -> None:
    test = '#!/bin/sh\necho \'{"right": 1, "short": 0}\' >/logs/verifier/reward.json\n'
    outcome = do(files={"tests/test.sh": test})
    assert outcome.reward == 0.5
    assert outcome.info["reward_parts"] == {"right": 0.5, "short": 0.0}


def test_tests_that_take_too_long_give_no_reward(do: Do) -> None:
    test = "#!/bin/sh\necho 1 >/logs/verifier/reward.txt\nsleep 60\n"
    task = TASK.replace("timeout_sec = 20.0", "timeout_sec = 1.0")
    outcome = do(files={"tests/test.sh": test, "task.toml": task})
    assert outcome.reward == 0.0
    assert outcome.info["metrics"]["verifier_timeout"] == 1.0


def test_the_container_is_as_the_task_says(do: Do) -> None:
    task = TASK + 'workdir = "/srv/here"\nstorage_mb = 1\nenv = {ONE = "1"}\n'
    task = task.replace("timeout_sec = 20.0", 'timeout_sec = 20.0\nenv = {TWO = "2"}')
    test = (
        '#!/bin/sh\n[ "$PWD $ONE $TWO" = "/srv/here 1 2" ] && echo 1 >/logs/verifier/reward.txt\n'
    )
    outcome = do(
        'test "$PWD $ONE $TWO" = "/srv/here 1 " || rm /logs -r',
        "head -c 2000000 /dev/zero >large; test $(stat -c %s large) -le 1048576",
        'python3 -c \'import os; os.chown("/tmp", 9, 9); os.setuid(9); open("/tmp/a", "w")\'',
        files={"task.toml": task, "tests/test.sh": test},
    )
    assert outcome.reward == 1.0


def test_no_network_unless_task_and_run_allow_it(do: Do, make_task: MakeTask) -> None:
    allowed = TASK.replace("allow_internet = false", "allow_internet = true")
    test = (
        "#!/usr/bin/python3\nimport os\n"
        "names = set(os.listdir('/sys/class/net')) - {'lo'}\n"
        "print(int(bool(names)), file=open('/logs/verifier/reward.txt', 'w'))\n"
    )
    for task, network, seen, without in [
        (TASK, "none", 0.0, 0.0),
        (allowed, "none", 0.0, 1.0),
        (TASK, "full", 0.0, 0.0),
    ]:
        files: dict[str, str | bytes | None] = {"task.toml": task, "tests/test.sh": test}
        outcome = do(files=files, sandbox={"network": network})
        assert outcome.reward == seen
        assert outcome.info["metrics"]["without_network"] == without
    env = Harbor(tasks=make_task("sum", {"task.toml": allowed}), sandbox={"network": "full"})
    spec = env.sandbox_spec_for((env.rows or [])[0], env.box_settings.spec)
    assert spec.network == "full"


def test_an_image_that_exists_and_one_that_cannot_be_built(
    make_task: MakeTask, docker_image: str
) -> None:
    named = TASK + f'docker_image = "{docker_image}"\n'
    test = "#!/bin/sh\n[ ! -e /app/numbers.txt ] && echo 1 >/logs/verifier/reward.txt\n"
    env = Harbor(tasks=make_task("sum", {"task.toml": named, "tests/test.sh": test}))
    assert asyncio.run(_play(env, [])).reward == 1.0
    wrong = "FROM gymnast-base:debian\nRUN echo what it says; false\n"
    broken = Harbor(tasks=make_task("broken", {"environment/Dockerfile": wrong}))
    with pytest.raises(
        SandboxUnavailable, match=r"cannot be built(.|\n)*docker build -t(.|\n)*what it says"
    ):
        asyncio.run(_play(broken, []))


def test_an_image_is_built_once_for_the_same_files(make_task: MakeTask) -> None:
    from gymnast.sandboxes.docker.images import built

    folder = make_task() / "environment"
    first = built(folder, timeout_s=60)
    assert built(folder, timeout_s=60) == first
    (folder / "numbers.txt").write_text("1\n")
    assert built(folder, timeout_s=60) != first


def test_a_row_of_no_task(make_task: MakeTask) -> None:
    env = Harbor(tasks=make_task())
    with pytest.raises(DataError, match=r"'task' is 'sums', and there is no such task.* 'sum'"):
        env.reset(options={"row": {"prompt": "Go.", "task": "sums"}})


def test_files_are_read_and_written(make_task: MakeTask) -> None:
    async def play(env: Harbor) -> list[Any]:
        await env.areset(options={"row": (env.rows or [])[0]})
        said = []
        for name, arguments in {
            "read_file": {"path": "numbers.txt"},
            "write_file": {"path": "sum.txt", "text": "12\n"},
            "shell": {"command": "cat sum.txt; sleep 30", "timeout_s": 1},
        }.items():
            function: Any = {"name": name, "arguments": arguments}
            calls = [{"id": "a", "type": "function", "function": function}]
            outcome = await env.act({"role": "assistant", "content": "", "tool_calls": calls})
            said.append(outcome.messages[0]["content"])
        await env.aclose()
        return said

    assert asyncio.run(play(Harbor(tasks=make_task()))) == [
        "3\n4\n5\n",
        "Wrote 3 characters.",
        "12\n[out of time, killed]",
    ]
