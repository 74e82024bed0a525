"""The figures of a step's speed are those of what was played and learned in it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gymnast.agents import TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.trainers import Trainer, make_algorithm
from gymnast.trainers.learner.flops import ModelFlops
from gymnast.types import Sampling

SLEPT_S = 1.5
SHARES = {"perf/sampling_share", "perf/waiting_share", "perf/training_share"}


class Counts(Environment):
    """The reward differs from episode to episode, so that all of them are learned from."""

    played = 0

    def reward(self, episode: Any) -> float:
        Counts.played += 1
        return float(Counts.played)


class Sleeps(Counts):
    """Waits at its beginning, as for a slow service."""

    async def setup(self, row: Any) -> None:
        await asyncio.sleep(SLEPT_S)


class Keeps:
    """An observer that keeps the metrics and the episodes of steps."""

    def __init__(self) -> None:
        self.metrics: list[Mapping[str, float]] = []
        self.episodes: list[list[Any]] = []

    def on_start(self, trainer_info: Any) -> None: ...

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_end(self, summary: Any) -> None: ...

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self.metrics.append(metrics)
        self.episodes.append([episode for group in groups for episode in group])


def trained(tokenizer: Any, environment: type[Environment], **settings: Any) -> tuple[Keeps, Any]:
    keeps = Keeps()
    given: dict[str, Any] = {
        "group_size": 2,
        "rows_per_step": 1,
        "steps": 2,
        "sampling": Sampling(max_new_tokens=8),
        "observer": keeps,
    }
    rows = [{"prompt": "Go on, and say something of some length."}]
    model = settings.pop("model", None) or tiny_model()
    trainer = Trainer(model, tokenizer, environment, rows, **given | settings)
    trainer.train()
    return keeps, trainer


@pytest.mark.parametrize("environment", [Counts, Sleeps])
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_step_divides_into_sampling_training_and_waiting(
    environment: type[Environment], max_staleness: int, tokenizer: Any
) -> None:
    keeps, _ = trained(tokenizer, environment, max_staleness=max_staleness)
    first = keeps.metrics[0]
    for metrics in keeps.metrics:
        assert sum(metrics[name] for name in SHARES) <= 1 + 1e-9
        assert all(metrics[name] >= 0 for name in SHARES)
    waited_s = first["perf/waiting_share"] * first["time/step_s"]
    assert first["perf/sampling_share"] > 0
    assert (waited_s >= 0.9 * SLEPT_S) == (environment is Sleeps)


def test_waiting_of_an_agent_beside_the_learner_is_measured_too(tokenizer: Any) -> None:
    agent = {"backend": "transformers", "device": "cpu"}  # a copy, which samples meanwhile
    keeps, _ = trained(tokenizer, Sleeps, max_staleness=1, agent=agent, steps=3)
    for metrics in keeps.metrics:
        shares = [metrics[name] for name in SHARES if name in metrics]
        assert metrics["perf/training_share"] in shares
        assert sum(shares) <= 1 + 1e-9


def test_an_agent_that_counts_no_time_leaves_the_training_share(tokenizer: Any) -> None:
    class Silent(TransformersAgent):
        sampling_s = None  # type: ignore[assignment]

    model = tiny_model()
    keeps, _ = trained(tokenizer, Counts, model=model, agent=Silent(model, tokenizer))
    assert SHARES & set(keeps.metrics[0]) == {"perf/training_share"}


@pytest.mark.parametrize("epochs", [1, 2])
def test_figures_are_those_of_the_trained_episodes(epochs: int, tokenizer: Any) -> None:
    algorithm = make_algorithm("grpo", epochs=epochs)
    keeps, trainer = trained(tokenizer, Counts, algorithm=algorithm, peak_tflops=0.25)
    model = ModelFlops.of(trainer.model, packed=True)
    widths = sum(6 * layer.heads * layer.widths for layer in model.layers)
    for metrics, episodes in zip(keeps.metrics, keeps.episodes, strict=True):
        lengths = [len(episode.ids) for episode in episodes]
        train_s = metrics["time/train_s"]
        assert metrics["tokens/trained_per_s"] * train_s == pytest.approx(epochs * sum(lengths))
        attended = sum(length * (length + 1) // 2 for length in lengths)
        nominal = epochs * (6 * model.parameters * sum(lengths) + widths * attended)
        assert metrics["perf/mfu_nominal"] * train_s * 0.25e12 == pytest.approx(nominal)
        assert 0 < metrics["perf/mfu"] < metrics["perf/mfu_nominal"], "a prompt counts once"


def test_a_step_that_teaches_nothing_has_no_rate_of_training(tokenizer: Any) -> None:
    class Alike(Environment):
        def reward(self, episode: Any) -> float:
            return 1.0

    keeps, _ = trained(tokenizer, Alike, peak_tflops=0.25)
    absent = {"perf/mfu", "perf/mfu_nominal", "tokens/trained_per_s"}
    assert not absent & set(keeps.metrics[0])
    assert set(keeps.metrics[0]) >= SHARES


def test_a_device_of_unknown_rate_has_no_utilization(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keeps, _ = trained(tokenizer, Counts)
    assert "perf/mfu" not in keeps.metrics[0]
    assert keeps.metrics[0]["tokens/trained_per_s"] > 0
    assert not [text for text in caplog.messages if "mfu" in text]
