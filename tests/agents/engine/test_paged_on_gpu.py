"""The engine over pages, on a GPU with its kernels and CUDA graphs: exact, and captured once.

What needs no graph runs on the CPU, too, where the same steps are computed eagerly.
"""

import asyncio
import copy
import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from gymnast.agents import TransformersAgent
from gymnast.agents.engine import paged_attention, static_step
from gymnast.types import Completion, Sampling

VOCABULARY = 1000
CONTEXT, NEW_TOKENS = 40, 3
GRAPHS = ("engine/captures", "time/engine/capture_s")
Request = tuple[list[int], Sampling]


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return torch.device("cuda")


def small_model() -> Any:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():  # as far apart as trained logits
        model.get_output_embeddings().weight.mul_(4)
    return model


def paged(model: Any, **settings: Any) -> TransformersAgent:
    settings = {"kv_budget_bytes": 2**26, "prefill_tokens": 256, **settings}
    agent = TransformersAgent(model, executor="pages", **settings)
    assert agent.executor == "pages"
    return agent


def captures(agent: TransformersAgent) -> float:
    """The graphs captured since the last call."""
    return agent.metrics()["engine/captures"]


def tokens(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, VOCABULARY, length)]


def generate(agent: TransformersAgent, requests: Sequence[Request]) -> list[Completion]:
    return asyncio.run(agent.generate_all(requests))


def short_requests() -> list[Request]:
    """Four that share nothing, so that every call has the same steps."""
    greedy = Sampling(temperature=0.0, max_new_tokens=NEW_TOKENS)
    return [(tokens(seed, CONTEXT), greedy) for seed in range(4)]


def one_step_a_launch(model: Any) -> TransformersAgent:
    """An agent with no room for launches of several steps, whose number depends on time."""
    return paged(model, context_length=CONTEXT + NEW_TOKENS)


@torch.no_grad()
def logits_of(model: Any, context: list[int], completion: Completion) -> torch.Tensor:
    """Logits [n, V] before each token of a completion, by a plain forward."""
    ids = torch.tensor([context + completion.ids], device=model.device)
    logits: torch.Tensor = model(ids, use_cache=False).logits[0, len(context) - 1 : -1]
    return logits.float().cpu()


def own_logprobs(model: Any, context: list[int], completion: Completion) -> torch.Tensor:
    logprobs = torch.log_softmax(logits_of(model, context, completion), dim=-1)
    return logprobs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]


def assert_exact(model: Any, requests: Sequence[Request], found: Sequence[Completion]) -> None:
    for (context, _), completion in zip(requests, found, strict=True):
        expected = own_logprobs(model, context, completion)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, rtol=0, atol=1e-4)


def lines(caplog: pytest.LogCaptureFixture, pattern: str) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if re.search(pattern, message)]


# --- Exactness


def test_shared_and_long_contexts_are_exact(device: torch.device) -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    model = small_model().to(device)
    greedy = Sampling(temperature=0.0, max_new_tokens=24)
    # On a GPU, long enough that the prefix is read once for the group, and the others are divided.
    scale = 10 if device.type == "cuda" else 1
    prefix = tokens(0, 70 * scale)
    contexts = [prefix + tokens(seed, 5 + 7 * seed) for seed in range(1, 8)]
    contexts += [tokens(8, 250 * scale), tokens(9, 1), tokens(10, 120 * scale)]
    requests = [(context, greedy) for context in contexts]
    agent = paged(model)
    found = generate(agent, requests)
    assert_exact(model, requests, found)
    for (context, _), completion in zip(requests, found, strict=True):
        logits = logits_of(model, context, completion)
        best, second = logits.topk(2).values.unbind(-1)
        chosen = logits.argmax(-1) == torch.tensor(completion.ids)
        assert (chosen | (best - second < 1e-4)).all()
    assert (captures(agent) > 0) == (device.type == "cuda")


def test_bfloat16_is_as_near_to_float32_as_a_plain_forward(device: torch.device) -> None:
    model = small_model().bfloat16().to(device)
    exact = copy.deepcopy(model).float()
    requests = [
        (tokens(seed, 20 + seed), Sampling(max_new_tokens=64, seed=seed)) for seed in range(64)
    ]
    found = generate(paged(model), requests)
    ours, eager = [], []
    for (context, _), completion in zip(requests, found, strict=True):
        expected = own_logprobs(exact, context, completion)
        ours.append((torch.tensor(completion.logprobs) - expected).abs())
        eager.append((own_logprobs(model, context, completion) - expected).abs())
    distance, allowed = torch.cat(ours), torch.cat(eager)
    assert len(distance) == 4096
    assert 0 < distance.mean() <= 1.1 * allowed.mean()


def test_a_context_with_one_token_left_to_compute_is_exact(device: torch.device) -> None:
    model = small_model().to(device)
    agent = paged(model, prefill_tokens=16, max_batch=2)
    sampled = Sampling(max_new_tokens=4, seed=0)
    for lengths in ([17], [33, 17], [16, 17], [9, 8]):
        requests = [(tokens(length, length), sampled) for length in lengths]
        assert_exact(model, requests, generate(agent, requests))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7, "top_k": 20},
        {"top_p": 0.9, "min_p": 0.01},
        {"repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_equal_seeds_draw_the_same_on_every_device(
    device: torch.device, settings: dict[str, Any]
) -> None:
    model = small_model()
    requests = [
        (tokens(seed, 10 + seed), Sampling(max_new_tokens=48, seed=seed, **settings))
        for seed in range(8)
    ]
    on_cpu = generate(TransformersAgent(model, executor="rows"), requests)
    found = generate(paged(copy.deepcopy(model).to(device)), requests)
    pairs = zip(found, on_cpu, strict=True)
    # A number may fall between the edges of two tokens as one and the other round them.
    assert sum(one.ids == other.ids for one, other in pairs) >= len(requests) - 1


def test_memory_for_two_finishes_eight(device: torch.device) -> None:
    model = small_model().to(device)
    sampled = Sampling(max_new_tokens=50)
    requests = [(tokens(seed, 30), sampled) for seed in range(8)]
    page = 16 * 2 * 2 * 2 * 64 * 4  # tokens, layers, keys and values, heads, width, bytes
    agent = paged(model, kv_budget_bytes=11 * page)
    found = generate(agent, requests)
    assert_exact(model, requests, found)
    assert agent.metrics()["engine/preempted"] > 0


def test_the_agent_names_its_executor_and_counts_its_time(device: torch.device) -> None:
    model, requests = small_model().to(device), short_requests()
    rows = TransformersAgent(model, executor="rows")
    chosen = TransformersAgent(model, kv_budget_bytes=2**26)
    pages = paged(model)
    on_gpu = device.type == "cuda"
    assert [rows.executor, chosen.executor] == ["rows", "pages" if on_gpu else "rows"]
    assert (pages.self_check_nats is not None) == on_gpu
    for agent in (rows, pages):
        before = agent.metrics()
        generate(agent, requests)
        metrics = agent.metrics()
        assert metrics["time/engine/device_s"] > 0 and metrics["time/engine/host_s"] > 0
        graphs = [before.get(name, 0) + metrics.get(name, 0) for name in GRAPHS]
        assert all(graphs) if on_gpu and agent is pages else graphs == [0, 0]
        assert set(agent.metrics().values()) == {0}


# --- CUDA graphs


@pytest.mark.gpu
def test_new_weights_in_place_need_no_new_capture(cuda: torch.device) -> None:
    model, requests = small_model().to(cuda), short_requests()
    agent = one_step_a_launch(model)
    before = generate(agent, requests)
    assert captures(agent) > 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    agent.weights_changed()
    after = generate(agent, requests)
    assert captures(agent) == 0
    assert_exact(model, requests, after)
    assert [each.logprobs for each in after] != [each.logprobs for each in before]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft's own
def test_folded_adapters_need_no_new_capture(cuda: torch.device) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    model, requests = peft.get_peft_model(small_model(), config).to(cuda), short_requests()
    agent = one_step_a_launch(model)
    with agent.awake():
        generate(agent, requests)
    captures(agent)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.mul_(1.5)
    with agent.awake():
        found = generate(agent, requests)
    assert captures(agent) == 0
    assert_exact(model, requests, found)


@pytest.mark.gpu
def test_weights_that_move_are_captured_again(cuda: torch.device) -> None:
    model, requests = small_model().to(cuda), short_requests()
    agent = one_step_a_launch(model)
    generate(agent, requests)
    captures(agent)
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.5
    agent.weights_changed()
    found = generate(agent, requests)
    assert captures(agent) > 0
    assert_exact(model, requests, found)


class _ReadsAValue(nn.Module):
    """An MLP that computes as before, but depends on a value that Python reads."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(hidden)
        return out if hidden.abs().amax().item() >= 0 else -out


@pytest.mark.gpu
def test_a_model_that_cannot_be_captured_samples_eagerly(
    cuda: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    model, requests = small_model().to(cuda), short_requests()
    model.model.layers[0].mlp = _ReadsAValue(model.model.layers[0].mlp)
    with caplog.at_level(logging.INFO, logger="gymnast"):
        agent = one_step_a_launch(model)
        for _ in range(2):
            assert_exact(model, requests, generate(agent, requests))
    assert captures(agent) == 0
    assert len(lines(caplog, "without CUDA graphs")) == 1


# --- What the paged engine cannot serve


@pytest.mark.gpu
def test_without_triton_rows_sample(
    cuda: torch.device, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "find_spec", lambda _: None)
    model, requests = small_model().to(cuda), short_requests()
    agent = TransformersAgent(model, kv_budget_bytes=2**26)
    assert agent.executor == "rows"
    assert len(lines(caplog, "slower.*Triton is not installed")) == 1
    assert_exact(model, requests, generate(agent, requests))


@pytest.mark.gpu
def test_a_wrong_kernel_does_not_sample(
    cuda: torch.device, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = paged_attention.attend_pages
    monkeypatch.setattr(static_step, "attend_pages", lambda *args: 1.2 * right(*args))
    model, requests = small_model().to(cuda), short_requests()
    agent = TransformersAgent(model, kv_budget_bytes=2**26)
    assert agent.executor == "rows"
    assert (agent.self_check_nats or 0.0) > 1e-3
    assert len(lines(caplog, "self-check.*nats")) == 1
    assert_exact(model, requests, generate(agent, requests))


@pytest.mark.gpu
def test_a_kernel_that_does_not_compile_leaves_rows(
    cuda: torch.device, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise TypeError("no such instruction")

    monkeypatch.setattr(static_step, "attend_pages", fail)
    agent = TransformersAgent(small_model().to(cuda), kv_budget_bytes=2**26)
    assert agent.executor == "rows"
    assert len(lines(caplog, "slower.*no such instruction")) == 1
