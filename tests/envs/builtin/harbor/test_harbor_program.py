"""Tasks that a program plays in their containers."""

import asyncio
from typing import Any

import pytest

from gymnast.envs.builtin.harbor.program import HarborProgram
from gymnast.errors import ConfigError
from harbor_fixtures import TASK, MakeTask

PROGRAM = """
import json, os, urllib.request
prompt = json.load(open(os.environ["GYMNAST_TASK"]))["prompt"]
numbers = open("numbers.txt").read()
messages = [{"role": "user", "content": prompt + numbers}]
for _ in range(2):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
         "Content-Type": "application/json"},
    )
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages += [{"role": "assistant", "content": answer["content"]}]
    messages += [{"role": "user", "content": "Now the sum alone."}]
open("sum.txt", "w").write(answer["content"])
"""
FILES: dict[str, str | bytes | None] = {
    "environment/Dockerfile": "FROM gymnast-base:debian\nWORKDIR /app\nCOPY . .\n",
    "environment/agent.py": PROGRAM,
}


async def _play(env: HarborProgram, answers: list[str]) -> Any:
    await env.areset(options={"row": (env.rows or [])[0]})
    try:
        for answer in answers:
            outcome = await env.act({"role": "assistant", "content": answer})
        return outcome
    finally:
        await env.aclose()


@pytest.mark.docker
def test_a_program_plays_a_task_and_the_tests_say_what_it_is_worth(
    no_images_left: None, make_task: MakeTask
) -> None:
    env = HarborProgram(tasks=make_task("sum", FILES), command=["python3", "/app/agent.py"])
    for last, reward in (("12", 1.0), ("13", 0.0)):
        outcome = asyncio.run(_play(env, ["Let me see.", last]))
        assert (outcome.terminated, outcome.reward) == (True, reward)
        assert outcome.info["metrics"]["verified"] == 1.0


@pytest.mark.docker
def test_the_program_reaches_nothing_but_the_endpoint(
    no_images_left: None, make_task: MakeTask
) -> None:
    allowed = TASK.replace("allow_internet = false", "allow_internet = true")
    env = HarborProgram(
        tasks=make_task("sum", {**FILES, "task.toml": allowed}),
        command="python3 /app/agent.py; ls /sys/class/net >/app/sum.txt",
    )
    outcome = asyncio.run(_play(env, ["one", "two"]))
    assert outcome.info["metrics"]["without_network"] == 1.0
    assert env.row["task"] == "sum"


def test_a_full_network_is_refused(make_task: MakeTask) -> None:
    with pytest.raises(ConfigError, match=r"HarborProgram: sandbox\.network is 'full'.*endpoint"):
        HarborProgram(tasks=make_task(), command=["agent"], sandbox={"network": "full"})


def test_without_a_command_there_is_no_program(make_task: MakeTask) -> None:
    with pytest.raises(ConfigError, match="command"):
        HarborProgram(tasks=make_task())
