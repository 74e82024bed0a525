"""`trainer.replay_routing`: a run in which training chooses the experts that the engine chose."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from engine_mismatch import EXPERTS, in_bfloat16
from gymnast.agents import ScriptedAgent, TransformersAgent
from gymnast.envs import Environment
from gymnast.errors import ConfigError, ModelError, UsageError
from gymnast.trainers import Trainer, load_rollouts
from gymnast.types import Sampling


class Letters(Environment):
    """Rewards different letters."""

    def reward(self, episode: Any) -> float:
        return len(set(episode.answer)) / 10


ROWS = [{"prompt": word} for word in ("Go.", "Say.")]


def mixture() -> Any:
    """In bfloat16, with experts that are nearly equal and logits that are far apart."""
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=1030,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=32,
        num_experts_per_tok=4,
        max_position_embeddings=512,
        initializer_range=0.1,
        sliding_window=None,
    )
    model = MixtralForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model


def hybrid() -> Any:
    """Its like with convolutions, which is sampled through its own forward."""
    return in_bfloat16("lfm2_moe", vocab_size=1030, **EXPERTS)


def trained(
    make: Callable[[], Any], tokenizer: Any, folder: Path, **settings: Any
) -> dict[str, Any]:
    """The metrics of one step, whose episodes are the same with all settings."""
    trainer = Trainer(
        make(),
        tokenizer,
        Letters,
        ROWS,
        steps=1,
        rows_per_step=2,
        group_size=4,
        sampling=Sampling(max_new_tokens=16),
        deterministic=True,
        output_dir=folder,
        observer=None,
        **settings,
    )
    trainer.train()
    (line,) = (folder / "metrics.jsonl").read_text().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("make", [mixture, pytest.param(hybrid, marks=pytest.mark.slow)])
def test_the_trainer_agrees_better_with_the_engine(
    make: Callable[[], Any], tokenizer: Any, tmp_path: Path
) -> None:
    own = trained(make, tokenizer, tmp_path / "own")
    replayed = trained(make, tokenizer, tmp_path / "replayed", replay_routing=True)
    assert own["reward/mean"] == replayed["reward/mean"]
    assert own["engine/logprob_difference_max"] > 2 * replayed["engine/logprob_difference_max"]
    assert replayed["engine/logprob_difference"] < own["engine/logprob_difference"]
    saved = load_rollouts(tmp_path / "replayed", step=1)
    assert saved and all(each.trajectory.experts is None for each in saved)


def test_agents_that_keep_no_experts_are_refused_at_the_start(tokenizer: Any) -> None:
    model = mixture()

    def start(agent: Any) -> None:
        Trainer(model, tokenizer, Letters, ROWS, agent=agent, replay_routing=True, observer=None)

    scripted: Any = ScriptedAgent([[5, 2]])
    scripted.context_length, scripted.awake, scripted.update_weights = 512, None, None
    with pytest.raises(ConfigError, match="ScriptedAgent does not say which experts"):
        start(scripted)
    with pytest.raises(ConfigError, match="make it with keep_experts=True"):
        start(TransformersAgent(model, tokenizer))


def test_a_model_without_experts_is_refused(tokenizer: Any) -> None:
    from gymnast.agents.loading.tiny import tiny_model

    with pytest.raises(ModelError, match="has no experts whose choice could be replayed"):
        Trainer(tiny_model(), tokenizer, Letters, ROWS, replay_routing=True, observer=None)


def test_an_agent_that_says_so_and_keeps_none_is_told(tokenizer: Any) -> None:
    class Forgetful(TransformersAgent):
        """Claims what its completions do not have."""

    model = mixture()
    agent = Forgetful(model, tokenizer)
    agent.keeps_experts = True
    trainer = Trainer(
        model,
        tokenizer,
        Letters,
        ROWS,
        agent=agent,
        replay_routing=True,
        observer=None,
        sampling=Sampling(max_new_tokens=2),
        rows_per_step=1,
        group_size=2,
        steps=1,
    )
    with pytest.raises(UsageError, match="the agent's completions have no experts"):
        trainer.train()
