"""What the endpoint costs: a turn of a program, beside the same turn without one.

    python benchmarks/programs.py            256 programs at once, 20 turns each
    python benchmarks/programs.py --quick    8 of 4 turns: does everything run?

The programs run in a process of their own, on raw connections that they keep, so that the figures
are those of this process: the endpoint, the environment and the driver. Each sends its whole
conversation with every request, as programs do. `alone` plays the same messages in an environment
that answers by `respond`. The sides take turns in three rounds, and each has its lowest figure,
since other work on a machine only adds.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Program, Renderer
from rollout import conditions

QUESTION = "What comes after this? " * 8
ANSWER = "Something else comes after this, and then another thing. " * 4
PROGRAMS, TURNS, ROUNDS = 256, 20, 3


async def ask(base_url: str, key: str, turns: int) -> None:
    """One program: so many questions, on one connection."""
    host, _, port = base_url.removeprefix("http://").removesuffix("/v1").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    messages = [{"role": "user", "content": QUESTION}]
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {key}"
    )
    for _ in range(turns):
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        kind = "Content-Type: application/json"
        writer.write(f"{head}\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        assert b" 200 " in status, status
        length = 0
        while (line := await reader.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        answer = json.loads(await reader.readexactly(length))
        messages += [answer["choices"][0]["message"], {"role": "user", "content": QUESTION}]
    writer.close()


def serve_programs(pipe: Connection, turns: int) -> None:
    """The other process: runs all programs that it is told of, then says so."""

    async def run(given: Sequence[tuple[str, str]]) -> None:
        await asyncio.gather(*(ask(*each, turns) for each in given))

    asyncio.run(run(pipe.recv()))
    pipe.send("done")


class Alone(Environment):
    """The same conversation, where the environment has the loop."""

    def respond(self, message: Any) -> Any:
        """The next question."""
        return [{"role": "user", "content": QUESTION}]


def program_cpu_s(renderer: Renderer, programs: int, turns: int) -> float:
    """CPU seconds of this process for a turn of a program."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve_programs, args=(there, turns)
    )
    process.start()
    given: list[tuple[str, str]] = []

    async def wait(base_url: str, api_key: str, task: Any) -> None:
        given.append((base_url, api_key))
        while not here.poll():
            await asyncio.sleep(0.5)

    action = np.array(renderer.encode({"role": "assistant", "content": ANSWER}))
    environments = [Program(renderer, function=wait, max_turns=turns) for _ in range(programs)]

    async def play(environment: Program) -> None:
        await environment.areset(options={"row": {"prompt": QUESTION}, "branches": True})
        ended = False
        while not ended:
            *_, terminated, truncated, _ = await environment.astep(action)
            ended = terminated or truncated

    async def play_all() -> float:
        playing = [asyncio.create_task(play(each)) for each in environments]
        while len(given) < programs:
            await asyncio.sleep(0.01)
        before = time.process_time()
        here.send(given)
        await asyncio.gather(*playing)
        return time.process_time() - before

    spent = asyncio.run(play_all())
    process.join()
    for environment in environments:
        environment.close()
    return spent / (programs * turns)


def alone_cpu_s(renderer: Renderer, programs: int, turns: int) -> float:
    """CPU seconds of this process for the same turn without a program."""
    action = np.array(renderer.encode({"role": "assistant", "content": ANSWER}))
    environments = [Alone(renderer, max_turns=turns) for _ in range(programs)]

    async def play(environment: Alone) -> None:
        await environment.areset(options={"row": {"prompt": QUESTION}})
        ended = False
        while not ended:
            *_, terminated, truncated, _ = await environment.astep(action)
            ended = terminated or truncated

    async def play_all() -> float:
        before = time.process_time()
        await asyncio.gather(*map(play, environments))
        return time.process_time() - before

    return asyncio.run(play_all()) / (programs * turns)


def main() -> None:
    """Measure both sides, and print a line of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    programs, turns, rounds = (8, 4, 1) if quick else (PROGRAMS, TURNS, ROUNDS)
    renderer = Renderer(tiny_tokenizer())
    print(conditions("cpu", torch.get_num_threads()))
    print(f"{programs} programs at once, {turns} turns each")
    sides = {"program": program_cpu_s, "alone": alone_cpu_s}
    rounds_of = [
        {name: measure(renderer, programs, turns) for name, measure in sides.items()}
        for _ in range(rounds)
    ]
    found = {name: min(each[name] for each in rounds_of) for name in sides}
    for name, seconds in found.items():
        print(f"{name:8} {1000 * seconds:.2f} ms of CPU a turn")
    print(f"overhead {1000 * (found['program'] - found['alone']):.2f} ms of CPU a turn")


if __name__ == "__main__":
    main()
