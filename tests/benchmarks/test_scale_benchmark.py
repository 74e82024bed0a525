"""The scale benchmark plays what it says, and docs/scaling.md has the numbers that it prints."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scale import RESULTS, SIZES, cases, cpu_ms, kb_beyond_ids, misses, table
from scale_plan import Plan, plan
from scale_play import CALLS, LEAST_S, MOST_S, measure, wait_s

PAGE = Path(__file__).parents[2] / "docs/scaling.md"


def test_waits_have_a_heavy_tail_and_stay_the_same() -> None:
    waits = sorted(wait_s(seed) for seed in range(2000))
    assert waits[0] == LEAST_S and waits[-1] == MOST_S
    assert 0.4 < waits[1000] < 0.6
    assert sum(waits) / len(waits) > 1.4 * waits[1000]
    assert wait_s(7) == wait_s(7)


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["async", "sync"])
def test_a_case_is_played_whole(tools: str) -> None:
    found = measure({"tools": tools, "episodes": 10, "workers": 0})
    assert 1900 < found["tokens"] < 2100
    assert found["wall_s"] > found["waits_s"] > 5 * LEAST_S
    assert found["bytes"] > 10 * 8 * found["tokens"]
    assert (found["threads"] >= 10) == (tools == "sync")


def case(size: int, cpu_ms_a_turn: float, kb: float) -> dict[str, Any]:
    return {
        "episodes": size,
        "cpu_s": cpu_ms_a_turn * size * (CALLS + 1) / 1000,
        "tokens": 2000,
        "bytes": (kb * 1000 + 16_000) * size,
    }


def test_growth_that_is_not_linear_and_missed_targets_are_told() -> None:
    good = {f"async-{size}": case(size, 1.2, 45.0) for size in SIZES}
    assert misses(good) == []
    assert cpu_ms(good["async-1000"]) == pytest.approx(1.2)
    assert kb_beyond_ids(good["async-1000"]) == pytest.approx(45.0)
    (grows,) = misses(good | {"async-10000": case(10_000, 1.9, 45.0)})
    assert "grows from 1000 to 10000" in grows
    assert len(misses(good | {"async-10000": case(10_000, 2.5, 60.0)})) == 3


def test_the_figures_are_of_all_sizes_and_the_page_has_the_numbers_of_the_plan() -> None:

    results = json.loads(RESULTS.read_text())
    assert {"async-1000", "async-10000"} <= set(results) <= set(cases())
    assert plan() in PAGE.read_text()
    assert len(table(results).splitlines()) == len(results) + 2


def test_the_slower_side_of_a_split_is_as_quick_as_it_can_be() -> None:
    eight = Plan(8, 512, cpu_ms=1.0, episode_kb=60.0)
    sampling, training = eight.split()
    assert sampling + training == 8
    assert all(eight.step_s(n, 8 - n) >= eight.step_s(sampling, training) for n in range(1, 8))
    # Sampling that is ten times slower gets more GPUs.
    assert replace(eight, sampling_share=0.016).split()[0] > sampling
