"""Programs that do anything at random, over real connections: every context is exact, none is lost.

A program appends, goes back, compacts, runs sub-agents at once, changes harmlessly what it sends
back, breaks connections off and asks again. It remembers what it asked and what it read.
"""

import http.client
import json
import os
import random
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from gymnast.envs import Program, Renderer, make
from gymnast.envs.environment.environment import Environment
from gymnast.envs.programs.serving.endpoint import Endpoint
from gymnast.types import Message
from program_fixtures import left_behind, script

pytestmark = pytest.mark.usefixtures("only_of_programs")

ROW = {"prompt": "go"}


class RandomProgram:
    """A function that does things at random.

    Attributes:
        asked: The contents of the messages of each request, by the text that is new in it.
        read: Which answer was read to it, by the same text.
        new: How many requests should open a context.
        uncertain: How many were broken off for good: nobody knows whether they were answered.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.asked: dict[str, list[str]] = {}
        self.read: dict[str, str] = {}
        self.new = self.uncertain = self._count = 0
        self._lock = threading.Lock()

    def __call__(self, base_url: str, api_key: str, task: Any) -> None:
        chance = random.Random(self.seed)
        self.url, self.key = urlsplit(base_url), api_key
        if chance.random() < 0.5:
            self.talks(chance.randrange(2**32))
        else:
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(self.talks, [chance.randrange(2**32) for _ in range(3)]))

    def talks(self, seed: int) -> None:
        """One conversation, of one agent."""
        chance = random.Random(seed)
        messages = [self.user()]
        self.asks(chance, messages, opens=True)
        for _ in range(chance.randrange(6)):
            doing = chance.random()
            if doing < 0.6:
                messages.append(self.user())
                self.asks(chance, messages, opens=False)
            elif doing < 0.75:
                messages = [self.user(), *messages[-1:], self.user()]
                self.asks(chance, messages, opens=True)
            elif doing < 0.9:
                messages = [*messages[: chance.randrange(len(messages))], self.user()]
                if messages[-2:-1] and messages[-2]["role"] == "assistant":
                    messages.insert(0, {"role": "system", "content": self.text()})
                self.asks(chance, messages, opens=True)
            else:
                with self._lock:
                    self.uncertain += 1
                self.sends(chance, [self.user()], breaks=True)

    def asks(self, chance: random.Random, messages: list[Message], *, opens: bool) -> None:
        """Ask, perhaps with a connection that breaks at first; then remember the answer."""
        with self._lock:
            self.new += opens
        text = messages[-1]["content"]
        self.asked[text] = [message["content"].strip() for message in messages]
        retries = chance.random() < 0.3
        if retries:
            self.sends(chance, messages, breaks=True)
        said = self.sends(chance, messages, retries=retries)
        self.read[text] = said["content"]
        if chance.random() < 0.5:
            said = {"role": "assistant", "content": f" {said['content']}\n", "tool_calls": None}
        messages.append(said)  # type: ignore[arg-type]

    def sends(
        self,
        chance: random.Random,
        messages: list[Message],
        *,
        breaks: bool = False,
        retries: bool = False,
    ) -> dict[str, Any]:
        body = json.dumps({"messages": messages}).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        if retries:
            headers["x-stainless-retry-count"] = "1"
        assert self.url.hostname is not None
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=30)
        try:
            connection.request("POST", self.url.path + "/chat/completions", body, headers)
            if breaks:
                time.sleep(chance.choice([0, 0.001, 0.02]))
                reset = struct.pack("ii", 1, 0)
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                return {}
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == 200, answer
            message: dict[str, Any] = answer["choices"][0]["message"]
            return message
        finally:
            connection.close()

    def user(self) -> Message:
        return {"role": "user", "content": self.text()}

    def text(self) -> str:
        with self._lock:
            self._count += 1
            return f"text {self._count}."


def play(env: Environment, renderer: Renderer) -> tuple[dict[int, list[int]], dict[str, Any]]:
    """Play an episode; return the ids of its contexts, and the last info."""
    ids, info = env.reset(options={"row": ROW, "branches": True})
    contexts = {0: ids.tolist()}
    over, count = False, 0
    while not over:
        action = renderer.encode({"role": "assistant", "content": f"said {count}."})
        contexts[info["branch"]] += action
        ids, _, terminated, truncated, info = env.step(np.array(action))
        over, count = terminated or truncated, count + 1
        if not over:
            contexts.setdefault(info["branch"], list(info.get("prompt_ids", ())))
            contexts[info["branch"]] += ids.tolist()
    return contexts, info


def check_episode(seed: int, renderer: Renderer) -> None:
    program = RandomProgram(seed)
    env: Any = make(Program, renderer, function=program, max_turns=200)
    contexts, info = play(env, renderer)
    assert env.result.exit_code == 0, env.result.stderr
    turns = env.episode.turns
    read = set(program.read.values())
    assert {turn.text for turn in turns} >= read and len(read) == len(program.read)
    unread = [turn.index for turn in turns if turn.text not in read]
    assert info.get("unreceived", []) == unread
    assert len(unread) <= program.uncertain
    assert program.new <= env.branches <= program.new + program.uncertain
    for branch, ids in contexts.items():
        messages, prompt = env.messages_of(branch), list(env.episode.branches[branch])
        rebuilt, before = renderer.prompt(prompt), len(prompt)
        for turn in (turn for turn in turns if turn.branch == branch):
            asked = program.asked.get(messages[before - 1]["content"])
            if asked is not None:
                assert program.read[asked[-1]] == turn.text
                assert [each["content"].strip() for each in messages[:before]] == asked
            rebuilt += renderer.encode(turn.message)
            rebuilt += renderer.observe(rebuilt, turn.results) if turn.results else []
            before += 1 + len(turn.results)
        assert ids == rebuilt
    env.close()


@pytest.mark.parametrize("seed", range(8))
def test_every_context_of_a_random_program_is_exact(seed: int, renderer: Renderer) -> None:
    check_episode(seed, renderer)


@pytest.mark.slow
def test_every_context_of_many_random_programs_is_exact(renderer: Renderer) -> None:
    for seed in range(8, 2000):
        check_episode(seed, renderer)


@pytest.mark.slow
def test_programs_that_are_killed_leave_nothing_behind(renderer: Renderer) -> None:
    command = script("""
    import subprocess
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    while True: said.append(ask(said)); said.append({"role": "user", "content": "on"})
    """)
    chance = random.Random(0)

    def episode(seed: int) -> int:
        env: Any = make(Program, renderer, command=command, max_turns=1000)
        env.reset(options={"row": ROW, "branches": True})
        process = env._answering.program._process
        killer = threading.Timer(delays[seed], os.kill, (process.pid, signal.SIGKILL))
        killer.start()
        over = False
        while not over:
            action = renderer.encode({"role": "assistant", "content": "on"})
            *_, terminated, truncated, _ = env.step(np.array(action))
            over = terminated or truncated
        killer.join()
        code: int = env.result.exit_code
        env.close()
        return code

    delays = [chance.random() * 0.3 for _ in range(200)]
    lines = len(Endpoint.shared()._lines)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(episode, range(200))) == {137}
    assert not left_behind() and len(Endpoint.shared()._lines) == lines
