"""Gymnast's side of `server_rollout.py`: `collect` with a `VLLMAgent`; and the server alone.

    python server_side_gymnast.py SETTINGS.json

The settings are those of `server_rollout.Settings`. Prints one line of JSON a measurement.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
from transformers import AutoTokenizer

from gymnast.agents import VLLMAgent
from gymnast.envs import Environment, Renderer
from gymnast.trainers import collect
from gymnast.types import Sampling, Trajectory
from rollout_measure import cpu_seconds
from server_tools import TOOLS


def main() -> None:
    """Play the episodes, then send the same requests without tools."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    renderer = Renderer(AutoTokenizer.from_pretrained(settings["model"]))
    environment = Environment.from_tools([TOOLS[settings["tool"]]], reward=lambda episode: 0.0)
    agent = VLLMAgent([settings["url"]])
    rows = [{"prompt": prompt} for prompt in settings["prompts"]]

    async def play() -> Any:
        return await collect(
            lambda: environment(renderer, max_turns=100),
            agent,
            rows,
            group_size=settings["group_size"],
            sampling=Sampling(max_new_tokens=settings["max_new_tokens"]),
        )

    for number in range(settings["repetitions"] + 1):  # the first one warms up
        wall, cpu = time.perf_counter(), cpu_seconds()
        episodes = asyncio.run(play()).trajectories
        spent = {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds() - cpu}
        wall = time.perf_counter()
        asyncio.run(sample_alone(settings["url"], episodes))
        spent["sampling_s"] = time.perf_counter() - wall
        if number:
            found = [[each.ids, each.action_mask] for each in episodes]
            print(json.dumps({**spent, "conversations": found}), flush=True)
    agent.close()


async def sample_alone(url: str, episodes: list[Trajectory]) -> None:
    """Send every request of some episodes, each as soon as the one before is answered."""
    salt = str(time.time())  # nothing is cached from a run before, as in the sides' own

    async def one(session: aiohttp.ClientSession, episode: Trajectory) -> None:
        for start, end in episode.turns:
            body = {
                "token_ids": episode.ids[:start],
                "sampling_params": {"max_tokens": end - start, "logprobs": 0, "ignore_eos": True},
                "cache_salt": salt,
            }
            async with session.post(f"{url}/inference/v1/generate", json=body) as answer:
                await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(one(session, episode) for episode in episodes))


if __name__ == "__main__":
    main()
