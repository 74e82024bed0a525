"""Experts that were chosen while sampling: kept by the engine, chosen again in training."""

import asyncio
from typing import Any

import pytest
import torch

from engine_mismatch import EXPERTS, experts, in_bfloat16, mismatch, trajectory
from executor_fixtures import MakeAgent
from gymnast.agents import TransformersAgent
from gymnast.agents.caches.continuation import Continuation
from gymnast.agents.engine import kv_cache
from gymnast.agents.engine.state_engine import StateEngine
from gymnast.agents.models.routing import Routers
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.micro_batches import (
    CreditedTrajectory,
    MicroBatch,
    micro_batch,
)
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Completion, Sampling
from model_families import tiny

# Scores of softmax, sigmoid and logits; groups; routers in other modules; two kinds in one layer.
PACKED = [
    "deepseek_v3",
    *(
        pytest.param(family, marks=pytest.mark.slow)
        for family in ("gpt_oss", "granitemoe", "hunyuan_v1_moe", "jetmoe", "qwen3_moe")
    ),
]
# Continued by chunks; one token at a time; in passes of one sequence; by both.
STATES = [
    "lfm2_moe",
    *(
        pytest.param(family, marks=pytest.mark.slow)
        for family in (
            "bailing_hybrid", "deepseek_v4", "granitemoehybrid", "inkling2_text", "inkling_text",
            "jamba", "kimi_linear", "llama4_text", "minimax", "minimax_m3_vl_text", "nemotron_h",
            "qwen3_5_moe_text", "qwen3_next",
        )
    ),
]  # fmt: skip
PADDED = ["qwen3_5_moe_text", pytest.param("kimi_linear", marks=pytest.mark.slow)]
PROMPT = list(range(3, 43))


def own_experts(model: Any, ids: list[int], routers: Routers | None = None) -> torch.Tensor:
    """What a model chooses for a sequence alone, [tokens, layers, chosen], in ascending order."""
    routers = routers or Routers(model)
    with torch.no_grad(), routers.recording() as chosen:
        model(input_ids=torch.tensor([ids]), use_cache=False)
    return chosen[0].sort(dim=-1).values


def as_chosen(completion: Completion) -> torch.Tensor:
    assert completion.experts is not None
    return torch.tensor(completion.experts).sort(dim=-1).values.to(torch.int16)


@pytest.mark.parametrize("family", PACKED)
def test_completions_say_what_the_model_chose(
    family: str, make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through shared prefixes, turns, rows that grow and prompts that are computed in parts."""
    monkeypatch.setattr(kv_cache, "FIRST_CAPACITY", 32)
    model = tiny(family)
    agent = make_agent(model, max_batch=4, prefill_tokens=16, keep_experts=True)
    contexts = [[*PROMPT, 50 + i] for i in range(6)] + [PROMPT[:9], PROMPT[5:]]
    for turn in range(3):
        sampling = [Sampling(max_new_tokens=4 + 4 * turn, seed=i) for i in range(len(contexts))]
        made = asyncio.run(agent.generate_all(list(zip(contexts, sampling, strict=True))))
        for context, completion in zip(contexts, made, strict=True):
            ids = context + completion.ids
            ours, theirs = as_chosen(completion), own_experts(model, ids)[:-1]
            assert ours.shape == theirs.shape
            # Sums in another order: of many thousand choices one in a hundred may be nearly equal.
            assert (ours == theirs).all(dim=-1).float().mean() > 0.99
        contexts = [
            context + completion.ids + [60 + turn, 7]
            for context, completion in zip(contexts, made, strict=True)
        ]


@pytest.mark.parametrize("family", STATES)
def test_states_carry_what_the_model_chose_for_their_tokens(family: str) -> None:
    """Through shared prompts, turns, chunks, padding and passes of one sequence or several."""
    model = tiny(family)
    agent = TransformersAgent(model, max_batch=4, prefill_tokens=16, keep_experts=True)
    assert agent.path == "states"
    check_episodes(model, agent)


def test_contexts_that_are_computed_anew_have_their_experts_anew() -> None:
    model = tiny("lfm2_moe")
    agent = TransformersAgent(model, max_batch=4, prefill_tokens=16, keep_experts=True)
    assert isinstance(agent._engine, StateEngine)
    forward = agent._engine.forward
    forward.continuation, forward.batching = Continuation.NOTHING, None
    agent._engine.passes.clear()
    check_episodes(model, agent)


def check_episodes(model: Any, agent: TransformersAgent) -> None:
    """Three turns of episodes whose prompts begin alike or not, several at once."""
    contexts = [*([*PROMPT, 50 + i] for i in range(3)), PROMPT, PROMPT, PROMPT[:9], PROMPT[:1]]
    routers = Routers(model)
    for turn in range(3):
        sampling = [Sampling(max_new_tokens=2 + 3 * turn, seed=i) for i in range(len(contexts))]
        made = asyncio.run(agent.generate_all(list(zip(contexts, sampling, strict=True))))
        contexts = [c + done.ids for c, done in zip(contexts, made, strict=True)]
        for ids, completion in zip(contexts, made, strict=True):
            assert torch.equal(as_chosen(completion), own_experts(model, ids, routers)[:-1])
        contexts = [[*context, 60 + turn, 7] for context in contexts]


def batch(model: Any, chosen: Any = own_experts) -> MicroBatch:
    """Members of a group and one alone, with the experts that a function gives."""
    episodes = []
    for prompt, actions in ((PROMPT, 7), (PROMPT, 30), (PROMPT, 1), ([3, 4, 5], 5)):
        ids = [3 + (7 * len(prompt) + 3 * i) % 90 for i in range(actions)]
        kept = None if chosen is None else chosen(model, prompt + ids)[:-1].numpy()
        done = Completion(ids, [0.0] * actions, "length", experts=kept)
        episodes.append(CreditedTrajectory(trajectory(prompt, done), torch.ones(1)))
    return micro_batch(episodes, torch.device("cpu"))


def other_experts(model: Any, ids: list[int]) -> torch.Tensor:
    """Experts that the model would not choose; the same for the tokens of a shared prompt."""
    layers, chosen = Routers(model).shape
    first = torch.tensor(ids)[:, None, None] + torch.arange(layers)[:, None]
    return (first + torch.arange(chosen)) % 4


def outcome(model: Any, data: MicroBatch, **settings: Any) -> list[torch.Tensor]:
    """Log-probabilities and gradients."""
    model.zero_grad()
    logprobs = Policy(model, **settings).train()(data)
    (logprobs * torch.arange(len(logprobs))).sum().backward()
    return [logprobs.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("family", ["deepseek_v3", *PADDED])
def test_replaying_ones_own_choice_changes_nothing(family: str) -> None:
    model = tiny(family)
    plain = outcome(model, batch(model, None))
    again = outcome(model, batch(model), replay_routing=True)
    torch.testing.assert_close(again, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_5_moe_text"])
def test_the_policy_computes_with_what_is_replayed(family: str) -> None:
    """As the model does by itself, for each trajectory alone."""
    model = tiny(family)
    data = batch(model, other_experts)
    ours = Policy(model, replay_routing=True)(data)
    assert (ours - Policy(model)(data)).abs().max() > 1e-2
    routers, expected = Routers(model), []
    for index in data.packed.index:
        ids = data.packed.ids[index].tolist()
        with torch.no_grad(), routers.replaying(other_experts(model, ids)):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits[:-1], dim=-1)
        expected.append(logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0])
    sizes = torch.bincount(data.sequences).tolist()
    kept = [each[-size:] for each, size in zip(expected, sizes, strict=True)]
    torch.testing.assert_close(ours.detach(), torch.cat(kept), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_5_moe_text"])
def test_layers_that_are_computed_again_choose_the_same(family: str) -> None:
    model = tiny(family)
    data = batch(model, other_experts)
    kept = outcome(model, data, replay_routing=True)
    again = outcome(model, data, replay_routing=True, activations="recompute")
    torch.testing.assert_close(again, kept, rtol=1e-5, atol=1e-6)


def test_gradients_reach_the_router_through_the_experts_that_are_replayed() -> None:
    model = tiny("mixtral").double()
    model.config._experts_implementation = "eager"
    data = batch(model, other_experts)
    weight = model.model.layers[1].mlp.gate.weight
    policy = Policy(model, replay_routing=True)
    (slope,) = torch.autograd.grad(policy(data).sum(), weight)
    step = torch.zeros_like(weight)
    step[2, 5] = 1e-3  # the router rounds to float32
    with torch.no_grad():
        weight += step
        above = policy(data).sum()
        weight -= 2 * step
        below = policy(data).sum()
    assert abs(slope[2, 5].item()) > 1e-3
    assert (above - below).item() / 2e-3 == pytest.approx(slope[2, 5].item(), rel=0.01)


def test_experts_of_any_group_can_be_replayed() -> None:
    """DeepSeek-V2 chooses among the experts of the best groups alone, and masks the others."""
    model = tiny(
        "deepseek_v2",
        topk_method="group_limited_greedy",
        n_group=2,
        topk_group=1,
        n_routed_experts=4,
    )
    gate = model.model.layers[1].mlp.gate
    seen: list[torch.Tensor] = []
    gate.register_forward_hook(lambda module, given, made: seen.append(made))
    for group in ([0, 1], [2, 3]):
        forced = torch.tensor(group).expand(8, *Routers(model).shape)
        seen.clear()
        with torch.no_grad(), Routers(model).replaying(forced):
            seen.clear()
            model(input_ids=torch.arange(1, 9)[None])
        floats = [t for t in seen[0] if t.is_floating_point() and t.shape == (8, 2)]
        assert all((weights > 0).all() for weights in floats)
        assert floats


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixtral", "granitemoe", "lfm2_moe"])
def test_in_bfloat16_the_largest_mismatch_is_gone(family: str) -> None:
    """All tokens and weights are the same; `python benchmarks/engine_mismatch.py` has more."""
    own = mismatch(in_bfloat16(family, **EXPERTS))
    replayed = mismatch(in_bfloat16(family, **EXPERTS), replay_routing=True)
    assert own.largest > 0.5
    assert replayed.largest < 0.15
    assert replayed.mean < own.mean


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(ModelError, match=r"Llama.* has no experts"):
        Routers(tiny("llama"))
    with pytest.raises(ModelError, match=r"chooses experts by torch.topk\); set replay_routing"):
        Routers(tiny("phimoe"))
    with pytest.raises(ModelError, match=r"Zaya.* chooses experts by torch.topk\)"):
        TransformersAgent(tiny("zaya"), keep_experts=True)


def test_experts_are_those_of_the_last_computation_after_preemption() -> None:
    """A small pool: contexts give their pages back, and others take these in the same step."""
    model = tiny("mixtral")
    token_bytes = 4 * 2 * (16 + 16) * 4
    agent = TransformersAgent(
        model,
        prefill_tokens=16,
        keep_experts=True,
        executor="pages",
        kv_budget_bytes=13 * 16 * token_bytes,
    )
    contexts = [[*PROMPT[: 20 + i], 50 + i] for i in range(6)]
    made = asyncio.run(
        agent.generate_all([(each, Sampling(max_new_tokens=50, seed=1)) for each in contexts])
    )
    assert agent.metrics()["engine/preempted"] > 0
    for context, completion in zip(contexts, made, strict=True):
        theirs = own_experts(model, context + completion.ids)[:-1]
        assert (as_chosen(completion) == theirs).all(dim=-1).float().mean() > 0.99


def test_nothing_is_kept_unless_it_is_asked_for(make_agent: MakeAgent) -> None:
    done = asyncio.run(make_agent(tiny("mixtral")).generate(PROMPT, Sampling(max_new_tokens=2)))
    assert done.experts is None
    assert experts(done) is None
