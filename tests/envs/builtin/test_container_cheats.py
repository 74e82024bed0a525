"""Container-v0: ways to be paid without doing the task, by class. None is worth anything.

What the policy makes the program do is the policy's fault; what it does by itself is the user's.
"""

import asyncio
import functools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from gymnast.envs import Environment, make
from gymnast.errors import UserCodeError

pytestmark = pytest.mark.attacks

ROW = {"prompt": "Write 3 into answer.txt.", "wanted": 3}

TOOLS = [
    {
        "name": "shell",
        "description": "Run a shell command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    }
]
# The program of an image. It reads what it finds in ways that good programs avoid, too.
PROGRAM = f"""
import json, os, subprocess, sys
operation = sys.argv[1]
if operation == "describe":
    print({json.dumps(json.dumps({"protocol": 1, "tools": TOOLS, "setup": True, "reward": True}))})
elif operation == "setup":
    open("answer.txt", "w").write("0")
elif operation == "call":
    command = json.load(sys.stdin)["command"]
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    print(ended.stdout + ended.stderr)
else:
    told = json.load(sys.stdin)
    if os.path.exists("log.txt"):
        print(open("log.txt").read(), file=sys.stderr)
    answer = json.load(open("answer.txt"))
    import statistics
    subprocess.run(["true"], check=True)
    print(json.dumps(answer if answer == "said" else float(answer == told["row"]["wanted"])))
"""
HONEST = "echo 3 > answer.txt"
FORGED = (
    "import sys\\nif 'reward' in getattr(sys, 'orig_argv', []) + sys.argv: print(1.0); sys.exit(0)"
)
KILLS = (
    "(while true; do for p in /proc/[0-9]*; do "
    "grep -aq 'reward' $p/cmdline 2>/dev/null && kill -9 ${p#/proc/}; done; done)"
)

# What the policy runs in place of solving the task.
CHEATS = {
    "nothing": "true",
    "a path file": "for v in 8 9 10 11 12 13 14; do "
    "d=$HOME/.local/lib/python3.$v/site-packages; mkdir -p $d; "
    "echo \"import sys; 'reward' in sys.orig_argv and (print(1.0), sys.exit(0))\" > $d/x.pth; "
    f'printf "{FORGED}" > $d/usercustomize.py; done',
    "modules in the working folder": "for name in json os subprocess statistics sitecustomize "
    f'usercustomize encodings site codecs; do printf "{FORGED}" > $name.py; done',
    "programs in the working folder": "printf '#!/bin/sh\\necho 1.0' > true; chmod +x true; "
    "mkdir bin; cp true bin/true; cp true bin/python3",
    "the program killed": f"{KILLS} >/dev/null 2>&1 & true",
    "the program killed by what stays": f"setsid sh -c '{KILLS}' >/dev/null 2>&1 </dev/null & true",
    "an answer that is no JSON": "echo nonsense > answer.txt",
    "an answer that is gone": "rm answer.txt",
    "an answer that is a folder": "rm answer.txt; mkdir answer.txt",
    "an answer that is a pipe": "rm answer.txt; mkfifo answer.txt",
    "an answer without end": "rm answer.txt; ln -s /dev/zero answer.txt",
    "an answer nested too deeply": "head -c 200000 /dev/zero | tr '\\0' '[' > answer.txt",
    "an answer of many digits": "(printf 1; head -c 100000 /dev/zero | tr '\\0' '0') > answer.txt",
    "what it prints is no number": "echo '\"said\"' > answer.txt",
    "too much output": "yes | head -c 5000000 > log.txt",
    "too many files": "for i in $(seq 17000); do : > f$i; done",
    "an argument that is no text": "echo \ud800",
    "too much in the folder": "truncate -s 60M a; truncate -s 60M b",
}
# Where the program fails and would not have without the policy.
FAILS = {
    "an answer that is no JSON",
    "an answer that is gone",
    "an answer that is a folder",
    "an answer that is a pipe",
    "an answer without end",
    "an answer nested too deeply",
    "an answer of many digits",
    "what it prints is no number",
    "too much output",
    "too many files",
    "too much in the folder",
}
ON_DOCKER = (
    "a path file",
    "modules in the working folder",
    "the program killed",
    "too much output",
)


def opened(backend: str, image: str | None, program: Sequence[str]) -> Environment:
    limits = {"backend": backend, "image": image, "timeout_s": 5.0, "warm": 1}
    return make("gymnast/Container-v0", None, sandbox=limits, program=list(program))


def played(env: Environment, *commands: str) -> Any:
    """The last outcome of an episode."""

    async def run() -> Any:
        await env.areset(seed=1, options={"row": ROW})
        for command in commands:
            function = {"name": "shell", "arguments": {"command": command}}
            call = {"id": "a", "type": "function", "function": function}
            await env.act({"role": "assistant", "content": "", "tool_calls": [call]})
        return await env.act({"role": "assistant", "content": "Done."})

    try:
        return asyncio.run(run())
    finally:
        env.close()


@pytest.fixture
def image(backend: str, request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("docker_image") if backend == "docker" else None


@functools.cache
def outcome_of_honest_work(backend: str, image: str | None) -> tuple[float, float]:
    last = played(opened(backend, image, ["python3", "-c", PROGRAM]), HONEST)
    return last.reward, last.info["metrics"]["grading_failed"]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "landlock") for name in CHEATS),
        *(pytest.param(name, "docker", marks=pytest.mark.docker) for name in ON_DOCKER),
    ],
    indirect=["backend"],
)
def test_a_cheat_is_worth_nothing_and_stops_nothing(
    name: str, backend: str, image: str | None
) -> None:
    program = ["python3", "-c", PROGRAM]
    last = played(opened(backend, image, program), CHEATS[name])
    assert last.reward == 0.0 and str(last.info["stop_reason"]) == "answered"
    assert not last.info.get("no_reward")
    assert last.info["metrics"]["grading_failed"] == float(name in FAILS)
    assert outcome_of_honest_work(backend, image) == (1.0, 0.0)


# What the program does by itself.
BROKEN = {
    "it ends with an error": "sys.exit('no such thing')",
    "it prints no JSON": "print('well done')",
    "it prints null": "print('null')",
    "it prints no finite number": "print('NaN')",
    "it prints a number that none can hold": "print('1' + 400 * '0')",
    "it prints parts that are no numbers": "print('{\"a\": null}')",
    "it prints without end": "print('1' * 5000000)",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_program_that_is_itself_broken_is_the_users(name: str) -> None:
    described = json.dumps({"protocol": 1, "tools": TOOLS, "reward": True})
    program = (
        f"import sys\nif sys.argv[1] == 'describe': print({described!r})\nelse: {BROKEN[name]}"
    )
    with pytest.raises(UserCodeError, match=r"reward: .*Write 3 into"):
        played(opened("local", None, ["python3", "-c", program]))
