"""How a run looks while it goes on: progress, reward, numbers, where the time goes."""

from typing import Any

import pytest

from gymnast.trainers.reporting.live.run_view import RunView

STEP = {
    "reward/mean": 0.5,
    "loss": -0.00001,
    "entropy": 1.25,
    "kl": 0.0012,
    "engine/kl": 0.00031,
    "grad_norm": 0.126,
    "tokens/per_s": 812.4,
    "tokens/trained_per_s": 5210.4,
    "perf/mfu": 0.4123,
    "perf/waiting_share": 0.2,
    "time/step_s": 10.0,
    "time/rollout_s": 6.0,
    "time/train_s": 4.0,
    "time/model_s": 15.0,
    "time/waiting_s": 3.0,
    "time/environment_s": 12.0,
    "time/environment/tools_s": 9.0,
}


class Clock:
    """Time that passes where a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def begun(steps: int = 100, done: int = 0, **given: Any) -> tuple[RunView, Clock]:
    clock = Clock()
    view = RunView(clock)
    view.begin(steps, done, **given)
    return view, clock


def text(view: RunView, width: int = 100, height: int = 20, **given: Any) -> list[str]:
    return [line.plain for line in view.lines(width, height, **given)]


def test_a_run_that_has_just_begun_shows_how_far_it_is() -> None:
    view, clock = begun(steps=10)
    clock.now += 65
    assert text(view) == [f"step 0/10 {'─' * 40}  1:05"]


def test_a_step_shows_all_that_was_measured() -> None:
    view, clock = begun(steps=10)
    for step, reward in enumerate((0.1, 0.2, 0.8, 0.5), start=1):
        clock.now += 10
        view.step(step, STEP | {"reward/mean": reward})
    view.played(5, 16, 64)
    clock.now += 5
    assert text(view) == [
        f"step 5/10 {'━' * 17}{'─' * 23}  16/64 episodes  0:45  0:55 left",
        "reward ▁▂█▅ 0.500  lowest 0.100  highest 0.800",
        "loss 0.0000  entropy 1.250  KL 0.0012  mismatch 0.00031  gradient 0.126",
        "tokens/s 812  trained tokens/s 5210  MFU 41.2%  idle 20%",
        f"last step 10.0 s {'█' * 18}{'▓' * 11}{'▒' * 3}{'░' * 4}{'─' * 24}",
        "█ model 30%  ▓ tools 18%  ▒ environment 6%  ░ waiting 6%  ─ training 40%",
    ]


def test_what_is_played_is_learned_from() -> None:
    view, _ = begun()
    view.played(1, 64, 64)
    assert "  training  " in text(view)[0]


def test_a_resumed_run_begins_with_the_rewards_in_its_folder() -> None:
    earlier = [
        {"step": 0, "eval/reward/mean": 0.9},
        {"step": 1, "reward/mean": 0.0},
        {"step": 2, "reward/mean": None},
        {"step": 3, "reward/mean": 0.25},
        {"step": 4, "reward/mean": 0.75},  # after the checkpoint
    ]
    view, _ = begun(done=3, earlier=earlier)
    assert view.rewards == [0.0, 0.25]
    view.step(4, STEP)
    assert view.rewards == [0.0, 0.25, 0.5]
    view.begin(200, 4)  # the same trainer goes on
    assert view.rewards == [0.0, 0.25, 0.5]


def test_a_warm_up_shows_its_loss_and_then_the_run_begins() -> None:
    view, _ = begun(steps=3)
    view.warm_up(20, 0)
    for step, loss in enumerate((2.0, 1.0), start=1):
        view.warmup_step(step, {"warmup/loss": loss, "warmup/grad_norm": 1.5})
    assert [line.split("  ")[0] for line in text(view)] == [
        f"warm-up 2/20 {'━' * 4}{'─' * 36}",
        "loss █▁ 1.000",
        "gradient 1.5",
    ]
    view.played(1, 1, 2)
    assert text(view)[0].startswith("step 1/3 ")


@pytest.mark.parametrize("width", [1, 10, 20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [0, 1, 3, 20])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_it_fits_every_terminal(width: int, height: int, ascii_only: bool) -> None:
    view, _ = begun(steps=100000)
    for step in range(99990, 100000):
        view.step(step, STEP | {"reward/mean": 1e30 * step})
    view.played(100000, 99999, 100000)
    lines = view.lines(width, height, ascii_only=ascii_only)
    assert len(lines) <= height
    assert all(line.cell_len <= width and "\n" not in line.plain for line in lines)
    if ascii_only:
        assert all(line.plain.isascii() for line in lines)


def test_sixty_columns_hold_the_legend_in_two_lines() -> None:
    view, _ = begun()
    view.step(1, STEP)
    assert text(view, 60)[-2:] == [
        "█ model 30%  ▓ tools 18%  ▒ environment 6%  ░ waiting 6%",
        "─ training 40%",
    ]
