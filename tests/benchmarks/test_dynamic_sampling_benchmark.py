"""The benchmark of dynamic sampling: every variant samples as much, and half of the rows pay."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynamic_sampling
from gymnast.agents import ScriptedAgent
from gymnast.envs import Renderer, make
from gymnast.trainers import rollout
from gymnast.types import Sampling

TASKS = Path(dynamic_sampling.__file__).parent / "tasks"


@pytest.mark.parametrize("variant", ["8 rows", "4 rows, both"])
def test_a_run_ends_where_it_has_sampled_enough(variant: str) -> None:
    curve = dynamic_sampling.run(variant, seed=0, most_tokens=700)
    assert curve.tokens[-2] < 700 <= curve.tokens[-1]
    assert 0 < curve.updates <= len(curve.tokens)
    assert 0.2 < curve.alike < 0.8 and 0 < curve.before < 0.5 and curve.after > 0
    row = dynamic_sampling.table({variant: [curve, curve]}).splitlines()[-1]
    assert row.startswith(f"| {variant} | {curve.updates} |")


def test_hopeless_rows_pay_nothing_for_the_right_answer(renderer: Renderer) -> None:
    env: Any = make(f"{TASKS / 'hopeless.py'}:HalfHopeless", renderer)
    rows = [env.sample_row(np.random.default_rng(seed)) for seed in range(40)]
    assert 10 < sum(row["hopeless"] for row in rows) < 30
    for row in rows[:6]:
        said = {"role": "assistant", "content": f"It is {row['answer']}."}
        agent = ScriptedAgent([renderer.encode(said)])
        played = asyncio.run(rollout(env, agent, row, sampling=Sampling()))
        assert played.reward == (0.0 if row["hopeless"] else 1.0)
