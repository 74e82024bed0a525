"""`page_names` tells what exists here from what does not."""

import pytest

from page_names import codes, unknown

KNOWN = [
    "trainer.steps",
    "algorithm.kl: {coefficient: 0.01, estimator: k1}",
    "algorithm.clip_high",
    "agent.launch: {servers: 2}",
    "environment.worked_turns: 2",
    "rollouts: {backend: ray, workers: 4}",
    "gymnast rollouts RUN --why --step 3",
    "gymnast train RUN.yaml trainer.steps=2 --resume",
    "engine/kl",
    "eval/pass@4",
    "episodes/stop/context",
    "engine/...",
    "entropy",
    "Environment.solve",
    "Environment.max_turns",
    "Trajectory.branches",
    "collect(...)",
    "rubrics.judge",
    "self.sandbox",
    "gymnast.agents.VLLMAgent",
    "Diverged",
    "two_sided",
    "max_tokens",
    "landlock",
    "mcp:NAME",
    "gymnast/SQL-v0",
    "examples/tiny.yaml",
]
UNKNOWN = [
    "trainer.step",
    "algorithm.kl: {coefficent: 0.01}",
    "algorithm.clip",
    "agent.launch: {server: 2}",
    "rollouts: {backend: ray, worker: 4}",
    "gymnast rollout RUN",
    "gymnast rollouts RUN --reason",
    "gymnast train RUN.yaml trainer.step=2",
    "engine/klx",
    "episode/turns",
    "motor/...",
    "Environment.solves",
    "Trajectory.branch",
    "collected(...)",
    "self.box",
    "gymnast.agents.Agents",
    "vmp:NAME",
    "gymnast/SQL-v9",
    "examples/small.yaml",
]


@pytest.mark.parametrize("code", KNOWN)
def test_it_knows(code: str) -> None:
    assert unknown([code]) == []


@pytest.mark.parametrize("code", UNKNOWN)
def test_it_does_not_know(code: str) -> None:
    assert unknown([code]) == [code]
    assert unknown([code], foreign=[code]) == []


def test_blocks_are_left_out() -> None:
    assert codes("A `b c` and\n```sh\nd `e`\n```\n`f\ng`.") == ["b c", "f g"]
