"""Schedules: what share of a learning rate is left, by how much of a run is done."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from gymnast.errors import ConfigError
from gymnast.trainers.learner.optimizers.schedules import named_schedule

STEPS = 10


def shares(given: Any) -> list[float]:
    schedule = named_schedule(given)
    return [schedule(step / STEPS) for step in range(STEPS)]


def transformers_shares(make: Any) -> list[float]:
    """Those of Transformers' schedules without a warm-up."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer, 0, STEPS)
    found = []
    for _ in range(STEPS):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


def test_by_default_all_of_it_stays() -> None:
    assert shares("constant") == [1.0] * STEPS


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)],
)
def test_linear_and_cosine_are_those_of_transformers(name: str, theirs: Any) -> None:
    assert shares(name) == pytest.approx(transformers_shares(theirs))
    assert shares(name)[0] == 1.0 and shares(name)[-1] > 0


@given(name=st.sampled_from(["linear", "cosine"]), final=st.floats(0, 1), done=st.floats(0, 0.999))
def test_they_fall_and_stay_above_the_final_share(name: str, final: float, done: float) -> None:
    schedule = named_schedule({"name": name, "final": final})
    assert final - 1e-9 <= schedule(done) <= 1.0
    assert schedule(done) <= schedule(done / 2) + 1e-9


def test_one_of_your_own_is_named_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def halves(done, *, of=1.0):\n    return of / 2 if done >= 0.5 else of\n")
    assert shares({"name": f"{file}:halves", "of": 0.5}) == [0.5] * 5 + [0.25] * 5


WRONG: dict[str, tuple[Any, str]] = {
    "a typo": ("cosin", r"there is no schedule 'cosin'. Did you mean 'cosine'\?"),
    "an option's typo": (
        {"name": "cosine", "finl": 0},
        "has no option 'finl'. Did you mean 'final",
    ),
    "a share above one": ({"name": "linear", "final": 2}, "final must be a share .* got 2"),
    "text for a share": ({"name": "linear", "final": "0"}, "final must be a share .* got '0'"),
    "no name": ({"final": 0.1}, "a mapping must have a name beside its options"),
}


@pytest.mark.parametrize(("spec", "message"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_with_a_schedule(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        named_schedule(spec)


@pytest.mark.parametrize("returned", ["-1.0", "float('nan')", "None", "True"])
def test_a_schedule_that_returns_no_share_is_refused(returned: str, tmp_path: Path) -> None:
    file = tmp_path / f"wrong_{abs(hash(returned))}.py"
    file.write_text(f"def late(done):\n    return {returned} if done > 0.5 else 1.0\n")
    schedule = named_schedule(f"{file}:late")
    assert math.isfinite(schedule(0.5))
    with pytest.raises(
        ConfigError, match=r"where 0\.75 of the run is done; it must be a number >= 0"
    ):
        schedule(0.75)
