"""An agent behind a real server: `transformers serve`, with a tiny model that knows three answers.

It needs what the page for contributors says; without it these tests are skipped.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from command_fixtures import CommandLine
from gymnast.agents import ChatAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Renderer, make
from gymnast.trainers.saving.rollout_files import read_rollouts

NEEDED = ("fastapi", "uvicorn")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)),
        reason="needs a server; pip install -c constraints.txt 'transformers[serving]'",
    ),
]

START_S = 180
STEPS = 400  # of learning, at most
ENVIRONMENT = "gymnast/Arithmetic-v0"
CALLS, ANSWERS, WRITES_BADLY = (
    {"prompt": "What is 6 times 7?", "a": 6, "b": 7, "operation": "multiply", "answer": 42},
    {"prompt": "What is 3 plus 4?", "a": 3, "b": 4, "operation": "add", "answer": 7},
    {"prompt": "What is 50 plus 8?", "a": 50, "b": 8, "operation": "add", "answer": 58},
)
SAYS = (  # in each of its turns
    (CALLS, ('<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>',
             "The answer is 42.")),
    (ANSWERS, ("The answer is 7.",)),
    (WRITES_BADLY, ('<tool_call>\n{"name": "add",\n</tool_call>',)),
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """What the model reads, and what it then says, in tokens."""

    row: dict[str, Any]
    context: list[int]
    action: list[int]


@dataclass(frozen=True)
class Server:
    """A model and where it is served."""

    model: str
    url: str
    turns: list[Turn]

    def tokens(self, *rows: dict[str, Any]) -> tuple[int, int]:
        """How many tokens the episodes of some rows take, as prompts and as completions."""
        turns = [turn for turn in self.turns if turn.row in rows]
        return sum(len(turn.context) for turn in turns), sum(len(turn.action) for turn in turns)


async def turns_of(tokenizer: Any, renderer: Renderer) -> list[Turn]:
    turns = []
    for row, texts in SAYS:
        env = make(ENVIRONMENT, worked_turns=0)
        await env.areset(seed=0, options={"row": row})
        for text in texts:
            context = tokenizer.apply_chat_template(
                env.messages, tools=env.tools, add_generation_prompt=True, return_dict=False
            )
            action = tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
            turns.append(Turn(row, context, action))
            await env.act(renderer.parse(action, context_ids=context, tools=env.tools))
        env.close()
    return turns


def taught(turns: list[Turn]) -> Any:
    """A model that says, greedily, what the turns say."""
    model = tiny_model(num_hidden_layers=1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(STEPS):
        known = True
        for turn in turns:
            action = torch.tensor(turn.action)
            logits = model(torch.tensor([turn.context + turn.action])).logits[0]
            predicted = logits[len(turn.context) - 1 : -1]
            loss = torch.nn.functional.cross_entropy(predicted, action)
            known = known and loss.item() < 0.02
            loss.backward()
        if known:
            return model.eval()
        optimizer.step()
        optimizer.zero_grad()
    raise AssertionError(f"not learned in {STEPS} steps")


def await_health(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: {log.read_text()[-2000:]}") from None
            time.sleep(0.2)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Any, renderer: Renderer
) -> Iterator[Server]:
    """The server, as a process group of its own, which is ended whatever happens."""
    folder = tmp_path_factory.mktemp("served")
    turns = asyncio.run(turns_of(tokenizer, renderer))
    taught(turns).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model, log = str(folder / "model"), folder / "log"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with open(log, "wb") as written:
        process = subprocess.Popen(
            command,
            stdout=written,
            stderr=written,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            start_new_session=True,
        )
    try:
        await_health(process, f"http://127.0.0.1:{port}/health", log)
        yield Server(model, f"http://127.0.0.1:{port}/v1", turns)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def write_rows(*rows: dict[str, Any]) -> None:
    Path("asked.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def demos(server: Server, gymnast: CommandLine, model: str, *options: str) -> Any:
    named = ("--chat", model, "--base-url", server.url, "--no-api-key", "--data", "asked.jsonl")
    return gymnast("demos", ENVIRONMENT, "worked_turns=0", *named, *options)


def evaluate(server: Server, gymnast: CommandLine, **settings: Any) -> Any:
    named = {"backend": "chat", "model": server.model, "base_url": server.url, "api_key_env": None}
    environment = {"id": ENVIRONMENT, "worked_turns": 0}
    run = {"model": {"name": "tiny:"}, "environment": environment, "output_dir": "out"}
    Path("others.jsonl").write_text(json.dumps(CALLS))
    rows = {"train": "others.jsonl", "evaluation": "asked.jsonl"}
    run |= {"data": rows, "agent": named | settings}
    Path("run.yaml").write_text(json.dumps(run))
    return gymnast("eval", "run.yaml")


def test_calls_and_plain_answers_become_demonstrations(
    server: Server, gymnast: CommandLine
) -> None:
    write_rows(CALLS, ANSWERS)
    ended = demos(server, gymnast, server.model)
    assert (ended.code, ended.errors) == (0, "")
    prompt, completion = server.tokens(CALLS, ANSWERS)
    counted = f"3 requests, {prompt} prompt and {completion} completion tokens"
    assert f"{server.model}: {counted}\n" in ended.output
    called, answered = (read.trajectory for read in read_rollouts("demos.parquet"))
    roles = [message["role"] for message in called.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert called.messages[-2]["content"] == "42"
    assert called.messages[-1]["content"] == "The answer is 42."
    assert [message["content"] for message in answered.messages[1:]] == ["The answer is 7."]
    assert (called.reward, answered.reward) == (1.0, 1.0)


def test_a_call_that_the_server_cannot_read_is_a_failure_of_the_server(
    server: Server, gymnast: CommandLine
) -> None:
    write_rows(ANSWERS, WRITES_BADLY)
    ended = demos(server, gymnast, server.model)
    assert ended.code == 0 and ended.output.endswith("; left out: 1 failed\n")
    (line,) = ended.errors.splitlines()
    assert line.startswith(f"row 1 ({WRITES_BADLY['prompt']})")
    assert "status 500: Internal Server Error (5 attempts)" in line


def test_another_model_than_the_server_has_is_told(server: Server, gymnast: CommandLine) -> None:
    write_rows(ANSWERS)
    ended = demos(server, gymnast, "another-model")
    assert ended.code == 1 and not Path("demos.parquet").exists()
    assert "another-model at 127.0.0.1" in ended.errors and "status 400" in ended.errors
    assert f"pinned to '{server.model}'" in ended.errors


def test_it_is_evaluated_with_a_limit_of_tokens(server: Server, gymnast: CommandLine) -> None:
    write_rows(ANSWERS)
    ended = evaluate(server, gymnast, parameters={"max_tokens": 3})
    assert (ended.code, ended.errors) == (0, "")
    metrics = json.loads(Path("out/evaluations/001/metrics.jsonl").read_text())
    prompt, _ = server.tokens(ANSWERS)
    assert metrics["eval/chat/prompt_tokens"] == prompt
    assert metrics["eval/chat/completion_tokens"] == 3
    assert metrics["eval/episodes/finished"] == 1 and metrics["eval/reward/mean"] == 0


def test_a_field_that_the_server_does_not_know_is_one_line(
    server: Server, gymnast: CommandLine
) -> None:
    write_rows(ANSWERS)
    ended = evaluate(server, gymnast, parameters={"top_k": 5})
    assert ended.code == 2 and ended.errors.count("\n") == 1
    assert "does not take top_k" in ended.errors
    assert "parameters: {top_k: null} leaves what is null out" in ended.errors


def test_a_conversation_without_tools_is_answered(server: Server) -> None:
    agent = ChatAgent(
        server.model, base_url=server.url, api_key_env=None, parameters={"max_tokens": 5}
    )
    message = asyncio.run(agent.reply([{"role": "user", "content": "Hello."}]))
    assert message["role"] == "assistant" and isinstance(message["content"], str)
    assert agent.usage.requests == 1 and 0 < agent.usage.completion_tokens <= 5
