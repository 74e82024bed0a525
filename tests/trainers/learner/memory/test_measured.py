"""The first update is measured, and what it took corrects the estimate of the next ones."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from accelerate import Accelerator

from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers import make_algorithm
from gymnast.trainers.learner import learner as learner_module
from gymnast.trainers.learner.learner import Learner
from gymnast.trainers.learner.memory.available import Available
from gymnast.trainers.learner.memory.measured import MeasuredPass, correction
from gymnast.trainers.learner.settings import LearnerSettings
from sampled_groups import Groups, random_groups

MIB = 2**20


@pytest.fixture(scope="module")
def groups() -> Groups:
    return random_groups(tiny_model(), [[0.0, 1.0]] * 12)


@pytest.fixture
def make_learner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Learner]:
    """Makes learners of a tiny model with memory to fill, as if it were a GPU's."""

    def make(gauge: Any = None, *, mebibytes: int = 300, **settings: Any) -> Learner:
        found = Available(mebibytes * MIB, "the device")
        monkeypatch.setattr(learner_module, "available", lambda device: found)
        algorithm, learning = make_algorithm("grpo"), LearnerSettings(**settings)
        accelerator = Accelerator(cpu=True)
        given: dict[str, Any] = {"reward_weights": {}, "temperature": 1.0, "seed": 0}
        made = Learner(tiny_model(), accelerator, algorithm, learning, **given)
        made.memory.fills, made.gauge = True, gauge
        return made

    return make


class Measures:
    """A gauge by which every pass takes the same, and leaves nothing.

    Args:
        taken: By a pass, in bytes.
    """

    def __init__(self, taken: int) -> None:
        self.taken, self.asked = taken, 0

    def held(self) -> int:
        return 50 * MIB

    def peak(self) -> int:
        self.asked += 1
        return 50 * MIB + self.taken

    def forget_peak(self) -> None: ...


def measured(tokens: int, *, before: int = 0, peak: int, after: int = 0) -> MeasuredPass:
    return MeasuredPass(tokens, 10, before, peak, after)


def test_a_later_pass_tells_how_much_more_was_taken() -> None:
    assert measured(1000, before=50, peak=170, after=50).off_by(100) == 1.2
    assert measured(1000, before=50, peak=110, after=50).off_by(100) == 0.6


def test_a_first_pass_with_its_gradient_bounds_what_was_taken() -> None:
    """40 bytes of gradients stay: at the peak they were there or not."""
    assert measured(1000, before=50, peak=170, after=90).off_by(100) == 1.0
    assert measured(1000, before=50, peak=240, after=90).off_by(100) == 1.5
    assert measured(1000, before=50, peak=120, after=90).off_by(100) == 0.7


def test_long_passes_correct_and_short_ones_do_not() -> None:
    passes = [measured(1000, peak=120), measured(600, peak=150), measured(500, peak=900)]
    assert correction(passes, lambda each: 100) == 1.5
    assert correction([measured(255, peak=900)], lambda each: 100) is None
    assert correction([], lambda each: 100) is None


@pytest.mark.parametrize(("taken", "factor"), [(10**12, 2.0), (1, 0.5)])
def test_the_first_update_corrects_the_next_choice_within_bounds(
    make_learner: Callable[..., Learner], groups: Groups, taken: int, factor: float
) -> None:
    learner = make_learner(Measures(taken), activations="keep")
    before = learner.prepare(300, 10**6)
    assert learner.update(groups, 0).metrics["updates/taken"] == 1
    after = learner.prepare(300, 10**6)
    assert learner.memory.scale == factor
    assert after.estimate.total <= 0.9 * learner.memory.room.nbytes  # type: ignore[union-attr]
    assert (after.tokens < before.tokens) == (factor > 1) and after.tokens != before.tokens
    weights = ("weights", "optimizer", "gradients")
    fixed = [[getattr(each.estimate, part) for part in weights] for each in (before, after)]
    assert fixed[0] == fixed[1]


def test_one_update_is_measured(make_learner: Callable[..., Learner], groups: Groups) -> None:
    learner = make_learner(gauge := Measures(10**12))
    learner.prepare(300, 10**6)
    asked = []
    for step in range(2):
        learner.update(groups, step)
        asked.append(gauge.asked)
    assert asked[0] >= 1 and asked == [asked[0]] * 2
    assert learner.memory.scale == 2


def test_sizes_that_are_set_are_not_measured(
    make_learner: Callable[..., Learner], groups: Groups
) -> None:
    learner = make_learner(gauge := Measures(10**12), tokens_per_microbatch=1000)
    learner.prepare(300, 10**6)
    learner.update(groups, 0)
    assert (gauge.asked, learner.memory.scale) == (0, 1)


def test_a_line_reports_sizes_that_changed(
    make_learner: Callable[..., Learner], groups: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    learner = make_learner(Measures(10**12), mebibytes=150)
    assert learner.prepare(100, 1000).activations == "keep"
    with caplog.at_level(logging.INFO, logger="gymnast"):
        learner.update(groups, 0)
    (line,) = [each for each in caplog.messages if "micro-batches" in each]
    assert "activations computed again" in line


def test_a_step_is_made_in_micro_batches_of_the_chosen_size(
    make_learner: Callable[..., Learner], groups: Groups
) -> None:
    passes = []
    for mebibytes in (10**5, 60):
        learner = make_learner(gauge := Measures(1), mebibytes=mebibytes, activations="keep")
        learner.prepare(100, 10**6)
        learner.update(groups, 0)
        passes.append(gauge.asked)
    assert passes[0] == 1 < passes[1]
