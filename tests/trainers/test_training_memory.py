"""A run tells what a step takes of memory before its first one, and is refused if it would not fit.

The estimates themselves are tested in `tests/trainers/learner/memory`.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.errors import ConfigError, NotEnoughMemory
from gymnast.trainers import Kl, Trainer, load_config, make_algorithm
from gymnast.trainers.build import build_trainer
from gymnast.trainers.learner import learner
from gymnast.trainers.learner.memory.available import Available
from gymnast.trainers.reporting.console import RunConsole
from gymnast.types import Sampling

TINY = Path(__file__).parents[2] / "examples" / "tiny.yaml"
ROWS = [{"prompt": "Go."}, {"prompt": "Say."}]
MIB = 2**20

Give = Callable[[float], None]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Sets how many MiB are free."""

    def give(mebibytes: float) -> None:
        found = Available(int(mebibytes * MIB), "the machine")
        monkeypatch.setattr(learner, "available", lambda device: found)

    return give


class Silence(Environment):
    """Long answers are bad."""

    def reward(self, episode: Any) -> float:
        return 1 / (1 + len(episode.answer))


def make_trainer(tokenizer: Any, rows: Any = ROWS, **settings: Any) -> Trainer:
    chosen = {"steps": 1, "rows_per_step": 2, "group_size": 2, "observer": None} | settings
    model = tiny_model(num_hidden_layers=2)
    return Trainer(model, tokenizer, Silence, rows, sampling=Sampling(max_new_tokens=8), **chosen)


def test_the_console_says_before_the_first_step_what_a_step_takes(tokenizer: Any) -> None:
    told = io.StringIO()
    make_trainer(tokenizer, observer=RunConsole(Console(file=told, width=80))).train()
    first, *_ = told.getvalue().splitlines()
    assert "memory: a step takes up to" in first
    assert "in micro-batches of up to 2,048 tokens, activations kept" in first
    assert "weights 2 MiB, optimizer 4 MiB, gradients 2 MiB, activations" in first
    assert "of keys and values instead" in first


def test_keys_and_values_beside_a_step_have_a_quarter_of_what_is_left(
    tokenizer: Any, free: Give
) -> None:
    free(1000)
    told = io.StringIO()
    console = RunConsole(Console(file=told, width=200))
    trainer = make_trainer(tokenizer, observer=console, max_staleness=1)
    fixed = trainer.learner.memory.fixed
    left = 1000 * MIB + fixed.held - fixed.weights - fixed.optimizer - fixed.gradients
    budget = trainer.agent.kv_budget_bytes  # type: ignore[attr-defined]
    assert budget == pytest.approx(left / 4, rel=0.01)
    trainer.train()
    assert f"keys and values up to {budget // MIB} MiB" in told.getvalue()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_staleness": 1, "kv_budget_bytes": 30 * MIB}, 30 * MIB),
        ({"max_staleness": 1, "agent": {"kv_budget_bytes": 30 * MIB}}, 30 * MIB),
        ({"max_staleness": 1, "agent": {"device": "cpu"}}, 0),
        ({"kv_budget_bytes": 30 * MIB}, 0),
    ],
)
def test_a_step_counts_keys_and_values_that_stay_beside_it(
    tokenizer: Any, free: Give, settings: dict[str, Any], expected: int
) -> None:
    free(1000)
    trainer = make_trainer(tokenizer, **settings)
    assert trainer.learner.prepare(100, 1000).estimate.kv == expected


def test_a_budget_that_leaves_a_step_no_room_is_refused(tokenizer: Any, free: Give) -> None:
    free(60)
    settings = {"max_staleness": 1, "kv_budget_bytes": 40 * MIB}
    with pytest.raises(NotEnoughMemory, match=r"Lower trainer.kv_budget_bytes from \d+ to \d+"):
        make_trainer(tokenizer, **settings).train()
    make_trainer(tokenizer, **settings | {"max_staleness": 0}).train()


def test_a_step_that_would_not_fit_is_refused_before_anything_is_played(
    tokenizer: Any, free: Give
) -> None:
    free(20)
    trainer = make_trainer(tokenizer)
    with pytest.raises(NotEnoughMemory, match="tokens_per_microbatch from 2048 to"):
        trainer.train()
    assert trainer.agent.tokens_pushed == 0  # type: ignore[attr-defined]


def test_with_little_memory_layers_are_computed_again_to_the_same_weights(
    tokenizer: Any, free: Give
) -> None:
    weights = []
    for room in (1000, 45):
        free(room)
        trainer = make_trainer(tokenizer, deterministic=True, learning_rate=1e-3)
        trainer.learner.prepare(0, 10**9)
        assert trainer.learner.memory.policy.activations == "keep" or room == 45
        trainer.train()
        weights.append([weight.detach().clone() for weight in trainer.model.parameters()])
    assert all((kept == again).all() for kept, again in zip(*weights, strict=True))


def test_an_episode_that_is_too_long_for_the_memory_is_refused_before_its_step(
    tokenizer: Any, free: Give
) -> None:
    free(16)
    rows = [{"prompt": "Go. " * 400}]
    trainer = make_trainer(tokenizer, rows, tokens_per_microbatch=64, rows_per_step=1)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    with pytest.raises(NotEnoughMemory):
        trainer.train()
    assert trainer.step == 0
    assert all((a == b).all() for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_a_yaml_says_how_long_its_episodes_may_be(free: Give) -> None:
    overrides = ["output_dir=null", "environment.context_length=2000"]
    trainer = build_trainer(load_config(TINY, overrides).model_copy(update={"output_dir": None}))
    assert trainer.longest_episode == 2000
    free(30)
    with pytest.raises(NotEnoughMemory, match=r"environment.context_length to \d+"):
        trainer.train()


@pytest.mark.parametrize("adapters", [False, True])
def test_a_reference_that_is_refreshed_is_in_memory_twice_and_not_from_the_start(
    adapters: bool, tokenizer: Any
) -> None:
    """Its last weights are kept until the step's end; under adapters it has none at first."""
    found = []
    for every in (0, 1):
        lora = {"rank": 4} if adapters else None
        model, _ = load_model("tiny:", lora=lora)
        algorithm = make_algorithm("grpo", kl=Kl(0.1, refresh_every_steps=every))
        trainer = Trainer(model, tokenizer, Silence, ROWS, algorithm=algorithm, observer=None)
        found.append(trainer.learner.memory.fixed)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    once = sum(weight.nbytes for weight in weights)
    never, refreshed = found
    assert refreshed.weights - never.weights == once
    assert refreshed.held == never.held
    assert never.weights - never.held == (once if adapters else 0), "a warm-up refreshes once"


def test_nothing_is_offloaded_from_a_cpu(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="activations: must be auto, keep or recompute on a CPU"):
        make_trainer(tokenizer, activations="offload")
