"""The engine: exact, pays only for what is appended, and lets nobody wait for another."""

import asyncio
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
)

from executor_fixtures import MakeAgent
from gymnast.agents import TransformersAgent
from gymnast.agents.engine.paged_attention import PAGE
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import InfrastructureError, UsageError
from gymnast.types import Completion, Sampling

GREEDY = Sampling(temperature=0.0, max_new_tokens=12)


@pytest.fixture(scope="module")
def model(device: torch.device) -> Any:
    return tiny_model().to(device)


def tokens(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, 500, length)]


def generate(agent: TransformersAgent, *requests: tuple[list[int], Sampling]) -> list[Completion]:
    async def together() -> list[Completion]:
        return list(await asyncio.gather(*(agent.generate(c, s) for c, s in requests)))

    return asyncio.run(together())


def full_forward(model: Any, context: list[int], completion: Completion) -> torch.Tensor:
    """Logits [n, V] that predict the completion's tokens, without any cache."""
    with torch.no_grad():
        ids = torch.tensor([context + completion.ids], device=model.device)
        logits: torch.Tensor = model(ids).logits[0]
    return logits[len(context) - 1 : -1].float().cpu()


def assert_logprobs(model: Any, context: list[int], completion: Completion) -> None:
    logprobs = torch.log_softmax(full_forward(model, context, completion), dim=-1)
    expected = logprobs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, rtol=0, atol=1e-4)


def small(kind: str) -> Any:
    """Decoders whose attention differs from the plain one."""
    shape = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    if kind == "sliding window and softcap":
        config = Gemma2Config(**shape, sliding_window=8, attn_logit_softcapping=2.0)
        return Gemma2ForCausalLM(config).eval()
    if kind == "sinks and experts":
        config = GptOssConfig(
            **shape,
            sliding_window=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            layer_types=["sliding_attention", "full_attention"],
        )
        return GptOssForCausalLM(config).eval()
    return tiny_model(vocab_size=512)


KINDS = ["plain", "sliding window and softcap", "sinks and experts"]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_and_logprobs_are_those_of_the_model_alone(
    device: torch.device, kind: str, make_agent: MakeAgent
) -> None:
    model = small(kind).to(device)
    contexts = [tokens(i, 5 + 7 * i) for i in range(5)]
    completions = generate(make_agent(model), *((c, GREEDY) for c in contexts))
    for context, completion in zip(contexts, completions, strict=True):
        assert_logprobs(model, context, completion)
        logits = full_forward(model, context, completion)
        best, second = logits.topk(2).values.unbind(-1)
        near_tie = best - second < 1e-4
        expected = logits.argmax(-1)
        assert ((expected == torch.tensor(completion.ids)) | near_tie).all()
        assert completion.stop == "length"


def test_logprobs_stay_exact_over_turns_whatever_joins_or_leaves(
    model: Any, make_agent: MakeAgent
) -> None:
    agent = make_agent(model, max_batch=3)
    system = tokens(0, 60)

    seen: list[tuple[list[int], Completion]] = []

    async def episode(number: int) -> None:
        context = system + tokens(number // 2, 10)
        for turn in range(3):
            sampling = Sampling(max_new_tokens=1 + (3 * number + 5 * turn) % 11, seed=number)
            completion = await agent.generate(context, sampling)
            seen.append((context, completion))
            context = context + completion.ids + tokens(turn, number % 4)
            await asyncio.sleep(0.001 * (number % 3))

    async def all_episodes() -> None:
        await asyncio.gather(*(episode(number) for number in range(12)))

    asyncio.run(all_episodes())
    assert len(seen) == 36
    for context, completion in seen:
        assert_logprobs(model, context, completion)


def test_a_turn_pushes_only_what_was_appended(
    model: Any, make_agent: MakeAgent, executor: str
) -> None:
    agent = make_agent(model)
    context = tokens(1, 100)
    (first,) = generate(agent, (context, GREEDY))
    pushed = agent.tokens_pushed
    assert pushed == 100 + 11  # the last sampled token is not pushed
    observation = tokens(2, 7)
    generate(agent, (context + first.ids + observation, GREEDY))
    kept = {"rows": 111, "pages": 111 // PAGE * PAGE}[executor]
    assert agent.tokens_pushed - pushed == (112 - kept + 7) + 11


def test_a_shared_prompt_is_computed_once_even_when_all_ask_at_once(
    model: Any, make_agent: MakeAgent, executor: str
) -> None:
    agent = make_agent(model)
    system = tokens(1, 100)
    groups = [system + tokens(2, 20), system + tokens(3, 20)]
    generate(agent, *((prompt, GREEDY) for prompt in groups for _ in range(4)))
    # The second group shares the system prompt, and the other six members all of the prompt but
    # the last token, which gives their own logits. Pages are shared when they are full.
    shared_system, shared_prompt = {"rows": (100, 119), "pages": (96, 112)}[executor]
    prompts = 120 + (120 - shared_system)
    assert agent.tokens_pushed == prompts + 6 * (120 - shared_prompt) + 8 * 11


@pytest.mark.parametrize("length", [17, 18, 33, 34])
def test_prompts_of_any_number_of_chunks_are_exact(
    model: Any, make_agent: MakeAgent, length: int
) -> None:
    agent = make_agent(model, prefill_tokens=16)
    contexts = [tokens(1, length), tokens(2, 16), tokens(3, length)]
    completions = generate(agent, *((context, GREEDY) for context in contexts))
    for context, completion in zip(contexts, completions, strict=True):
        assert_logprobs(model, context, completion)


def test_stop_ids_end_a_completion_and_are_kept(model: Any, make_agent: MakeAgent) -> None:
    agent = make_agent(model)
    context = tokens(4, 9)
    (free,) = generate(agent, (context, GREEDY))
    stop = free.ids[4]
    at = free.ids.index(stop)
    (stopped,) = generate(
        agent, (context, Sampling(temperature=0.0, max_new_tokens=12, stop_ids=(stop,)))
    )
    assert stopped.ids == free.ids[: at + 1]
    assert stopped.stop == "stop"


def test_a_seeded_request_samples_the_same_alone_and_in_company(
    model: Any, make_agent: MakeAgent
) -> None:
    sampling = Sampling(max_new_tokens=10, seed=7)
    context = tokens(5, 30)
    (alone,) = generate(make_agent(model), (context, sampling))
    others = [(tokens(i, 10 + i), Sampling(max_new_tokens=15, seed=i)) for i in range(6)]
    in_company = generate(make_agent(model), *others, (context, sampling))[-1]
    assert in_company.ids == alone.ids
    (other_seed,) = generate(make_agent(model), (context, Sampling(max_new_tokens=10, seed=8)))
    assert other_seed.ids != alone.ids


def test_samples_follow_the_models_distribution(model: Any, make_agent: MakeAgent) -> None:
    context = tokens(6, 12)
    agent = make_agent(model)
    requests = [(context, Sampling(max_new_tokens=1, top_k=3, seed=i)) for i in range(600)]
    drawn = [completion.ids[0] for completion in generate(agent, *requests)]
    with torch.no_grad():
        top = model(torch.tensor([context], device=model.device)).logits[0, -1].topk(3)
    shares = torch.softmax(top.values, dim=-1)
    assert set(drawn) == set(top.indices.tolist())
    for token, share in zip(top.indices.tolist(), shares.tolist(), strict=True):
        assert drawn.count(token) / 600 == pytest.approx(share, abs=0.08)  # 4 standard deviations


def test_logprobs_are_those_of_the_tempered_and_filtered_distribution(
    model: Any, make_agent: MakeAgent
) -> None:
    context = tokens(7, 12)
    sampling = Sampling(temperature=0.7, top_k=5, max_new_tokens=8, seed=1)
    (completion,) = generate(make_agent(model), (context, sampling))
    logits = full_forward(model, context, completion) / 0.7
    kept = logits.topk(5)
    for step, token in enumerate(completion.ids):
        place = kept.indices[step].tolist().index(token)
        expected = torch.log_softmax(kept.values[step], dim=-1)[place].item()
        assert completion.logprobs[step] == pytest.approx(expected, abs=1e-4)


def test_cancelling_a_request_frees_its_place(model: Any, make_agent: MakeAgent) -> None:
    agent = make_agent(model, max_batch=1)

    async def scenario() -> Completion:
        slow = asyncio.create_task(agent.generate(tokens(8, 5), Sampling(max_new_tokens=1500)))
        await asyncio.sleep(0.05)
        slow.cancel()
        return await agent.generate(tokens(9, 5), GREEDY)

    assert len(asyncio.run(scenario()).ids) == 12


def test_new_weights_are_used_after_weights_changed(make_agent: MakeAgent) -> None:
    model = tiny_model()
    agent = make_agent(model)
    context = tokens(10, 40)
    generate(agent, (context, GREEDY))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    agent.weights_changed()
    (completion,) = generate(agent, (context, GREEDY))
    assert_logprobs(model, context, completion)


def test_an_agent_serves_one_event_loop_after_another(model: Any, make_agent: MakeAgent) -> None:
    agent = make_agent(model)
    for seed in range(3):
        assert len(generate(agent, (tokens(seed, 4), GREEDY))[0].ids) == 12


def test_a_context_that_leaves_no_room_is_refused_before_sampling(
    model: Any, make_agent: MakeAgent
) -> None:
    agent = make_agent(model, context_length=32)
    for length in (0, 32, 40):
        with pytest.raises(UsageError, match=f"has {length} tokens"):
            generate(agent, (tokens(0, length), GREEDY))
    (completion,) = generate(agent, (tokens(0, 30), GREEDY))
    assert len(completion.ids) == 2


def test_an_engine_that_breaks_fails_its_requests_and_serves_the_next(
    make_agent: MakeAgent,
) -> None:
    model = tiny_model()
    agent = make_agent(model)
    with pytest.raises(InfrastructureError, match="the engine failed"):
        generate(agent, ([10**9], GREEDY))
    assert len(generate(agent, ([5], GREEDY))[0].ids) == 12


def test_a_model_that_diverged_samples_nothing(make_agent: MakeAgent) -> None:
    model = tiny_model()
    agent = make_agent(model)
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(InfrastructureError, match="diverged"):
        generate(agent, ([5, 6], GREEDY))


def test_its_thread_ends_before_python_does_also_amid_a_completion() -> None:
    code = """if True:
        import asyncio, atexit, threading
        from gymnast.agents import TransformersAgent
        from gymnast.agents.loading.tiny import tiny_model
        from gymnast.types import Sampling

        def running():
            return [t.name for t in threading.enumerate() if t.name == "gymnast-engine"]

        async def begin(agent):
            task = asyncio.create_task(agent.generate([5], Sampling(max_new_tokens=1500)))
            await asyncio.sleep(0.05)
            print(running(), task.done())

        atexit.register(lambda: print(running()))
        asyncio.run(begin(TransformersAgent(tiny_model())))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['gymnast-engine'] False", "[]"]
