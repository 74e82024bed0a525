"""The scenario of the loop itself: what `collect` costs per step of an episode, without a model."""

import asyncio
from typing import Any

import gymnasium

from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment, Renderer, tool
from gymnast.trainers import collect
from gymnast.types import Sampling, ToolCall
from rollout_measure import Cost, Meter, in_turns
from rollout_report import HEAD, Report, Target
from rollout_script import tokenizer

CALLS = 8
TARGET_MS = 1.0


class SyncNoop(Environment):
    """A tool that does nothing, on the environment's thread."""

    @tool
    def nothing(self, n: int) -> str:
        """Do nothing.

        Args:
            n: Any number.
        """
        return "ok"


class AsyncNoop(Environment):
    """A tool that does nothing, on the event loop."""

    @tool
    async def nothing(self, n: int) -> str:
        """Do nothing.

        Args:
            n: Any number.
        """
        return "ok"


def overhead(quick: bool, device: str) -> Report:
    """Measure milliseconds per step of an episode."""
    report = Report(
        f"The loop itself: a ScriptedAgent, a no-op tool, {CALLS} calls and an answer", [HEAD]
    )
    renderer = Renderer(tokenizer())
    for episodes in (8, 16) if quick else (64, 1000):
        for name, environment in (("sync", SyncNoop), ("async", AsyncNoop)):
            cost = _cost(environment, renderer, episodes, 1 if quick else 3)
            steps = episodes * (CALLS + 1)
            wall_ms, cpu_ms = cost.wall_s / steps * 1e3, cost.cpu_s / steps * 1e3
            report.add(f"{episodes} at once, {name} tool", cost)
            report.lines.append(f"{'':30} | {wall_ms:.2f} ms a step, {cpu_ms:.2f} of CPU")
            if episodes == 1000:
                report.targets.append(
                    Target(f"CPU ms a step, {name} tool", cpu_ms, "<=", TARGET_MS)
                )
    return report


def _cost(
    environment: type[Environment], renderer: Renderer, episodes: int, repetitions: int
) -> Cost:
    meter = Meter()
    one = ToolCall("", "nothing", {"n": 1})
    call = renderer.encode({"role": "assistant", "tool_calls": [one]})
    answer = renderer.encode({"role": "assistant", "content": "Done."})
    env = environment(renderer)
    prompt, _ = env.reset(options={"row": {"prompt": "Row 0"}})
    observed, *_ = env.step(call)
    env.close()
    longest = len(prompt) + CALLS * (len(call) + len(observed))

    def run() -> Cost:
        agent = ScriptedAgent(lambda ids: answer if len(ids) >= longest else call)
        with meter.measure() as cost:
            found = asyncio.run(_collect(environment, renderer, agent, episodes))
        assert [len(t.turns) for t in found.trajectories] == [CALLS + 1] * episodes
        return cost

    run()
    return in_turns([run], repetitions)[0]


async def _collect(
    environment: type[Environment], renderer: Renderer, agent: ScriptedAgent, episodes: int
) -> Any:
    def make_env() -> gymnasium.Env[Any, Any]:
        return environment(renderer, max_turns=100)

    return await collect(
        make_env,
        agent,
        [{"prompt": "Row 0"}] * (episodes // 8),
        group_size=8,
        sampling=Sampling(),
        concurrency=episodes,
    )
