"""Whole steps with a model that would rather sample ids that are no tokens than any other."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment
from gymnast.trainers import Kl, Teacher, Trainer, make_algorithm
from gymnast.types import Sampling
from padded_vocabulary import LOGITS, UNUSED, padded_model, tokenizer_with_holes

ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.", "Then.")]


class Longer(Environment):
    """The longer the answer, the better."""

    def reward(self, episode: Any) -> float:
        return float(len(episode.answer))


class Keeps:
    """Keeps the metrics of steps, and the ids that were sampled."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []
        self.sampled: set[int] = set()

    def on_start(self, trainer_info: Any) -> None: ...

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        self.steps.append(dict(metrics))
        for trajectory in (each for group in groups for each in group):
            pairs = zip(trajectory.ids, trajectory.action_mask, strict=True)
            self.sampled |= {token for token, ours in pairs if ours}

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_end(self, summary: Any) -> None: ...


def larger_teacher() -> Any:
    """Of the same tokens, with more logits, of which those that are no tokens are the largest."""
    model = tiny_model(LOGITS + 8, seed=1, tie_word_embeddings=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[[*UNUSED, *range(LOGITS, LOGITS + 8)]] *= 10.0
    return model


@pytest.mark.parametrize("estimator", ["sampled", "exact"])
def test_the_learner_finds_what_the_agent_sampled_with(estimator: Any) -> None:
    seen = Keeps()
    teacher = Teacher(larger_teacher(), estimator=estimator)
    Trainer(
        *(padded_model(), tokenizer_with_holes(), Longer, ROWS),
        algorithm=make_algorithm("distillation", teacher=teacher, kl=Kl(0.1)),
        sampling=Sampling(max_new_tokens=12),
        group_size=2,
        rows_per_step=4,
        learning_rate=1e-3,
        steps=2,
        observer=seen,
    ).train()
    assert seen.sampled and not seen.sampled & set(UNUSED)
    for step in seen.steps:
        assert step["engine/logprob_difference_max"] < 1e-4
        assert 0.0 < step["teacher/kl"] < 5.0  # log 398 is 6
