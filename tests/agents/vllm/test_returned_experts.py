"""The experts that a vLLM server says it chose become `Completion.experts`, or are refused."""

import asyncio
import base64
import contextlib
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents import Agent, TransformersAgent, VLLMAgent, make_agent
from gymnast.agents.backends import agent_for, check_agent
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.agents.vllm.experts import ExpertLayers, decode
from gymnast.errors import ConfigError, InfrastructureError, ModelError
from gymnast.types import Completion, Sampling
from model_families import tiny
from vllm_fixtures import mixture

LAYERS = ExpertLayers(layers=(0, 2, 3), experts=(8, 8, 8), chosen=2, dtype="int8")
CHOSEN = np.array([[0, 1], [7, 3], [5, 2], [4, 6]])  # of four tokens, in each layer
TOLD = np.stack([CHOSEN, 0 * CHOSEN, CHOSEN[::-1], CHOSEN], axis=1).astype(np.uint8)


def encoded(told: np.ndarray) -> str:
    """As vLLM's `numpy2base64` does."""
    content = io.BytesIO()
    np.save(content, told, allow_pickle=False)
    return base64.b64encode(content.getvalue()).decode()


def changed(told: np.ndarray, *, at: tuple[int, int, int], to: int) -> np.ndarray:
    told = told.copy()
    told[at] = to
    return told


@given(st.data())
def test_what_is_told_is_read_without_the_layers_that_have_no_experts(data: Any) -> None:
    experts, layers = data.draw(st.sampled_from([2, 128, 129, 300])), data.draw(st.integers(1, 6))
    tokens, chosen = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 2))
    kept = sorted(data.draw(st.sets(st.integers(0, layers - 1), min_size=1)))
    told = np.random.default_rng(0).integers(0, experts, (tokens, layers, chosen))
    told[:, [layer for layer in range(layers) if layer not in kept]] = 0
    dtype = data.draw(st.sampled_from(["uint8", "uint16", "int32"][experts > 256 :]))
    narrow = "int8" if experts <= 128 else "int16"
    own = ExpertLayers(tuple(kept), (experts,) * len(kept), chosen, narrow)
    read = own.read(encoded(told.astype(dtype)), tokens)
    assert read.dtype == narrow
    assert np.array_equal(read, told[:, kept])


@given(st.text(st.characters(max_codepoint=127)) | st.binary().map(base64.b64encode))
def test_what_is_no_array_is_refused_with_a_sentence(sent: Any) -> None:
    with pytest.raises(InfrastructureError, match=r"the experts in .* answer cannot be read"):
        decode(sent, 4)


@given(st.integers(0, 200), st.integers(0, 255))
def test_an_array_that_was_changed_on_the_way_is_read_or_refused(at: int, to: int) -> None:
    content = bytearray(base64.b64decode(encoded(TOLD)))
    content[at % len(content)] = to
    with contextlib.suppress(InfrastructureError):
        assert LAYERS.read(base64.b64encode(content).decode(), 4).shape == (4, 3, 2)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (None, "does not say which experts it chose, .* start it with --enable-return-routed"),
        (encoded(TOLD[0]), r"cannot be read \(ValueError\('uint8 of the shape \(4, 2\)'\)\)"),
        (encoded(TOLD.astype(float)), r"cannot be read \(ValueError\('float64 of the shape"),
        (encoded(TOLD)[:60], "cannot be read"),
        (encoded(TOLD[:3]), "for 3 tokens, and it computed 4"),
        (encoded(TOLD[:, :, :1]), "1 experts in each of 4 layers, .* the run 2, up to layer 3;"),
        (encoded(TOLD[:, :3]), "2 experts in each of 3 layers, .* the run 2, up to layer 3;"),
        (encoded(changed(TOLD, at=(1, 2, 0), to=8)), "expert 8 in layer 2, which has 8 in the"),
        (encoded(changed(TOLD.astype(int), at=(1, 0, 0), to=-1)), "expert -1 in layer 0, which"),
        (encoded(changed(TOLD, at=(3, 1, 1), to=1)), "in 1 layers that have none in the model"),
    ],
)
def test_experts_of_other_tokens_or_of_another_model_are_refused(sent: Any, said: str) -> None:
    assert LAYERS.read(encoded(TOLD), 4).shape == (4, 3, 2)
    with pytest.raises(InfrastructureError, match=said):
        LAYERS.read(sent, 4)


def test_a_server_that_numbers_its_layers_otherwise_is_refused_at_the_start() -> None:
    """Layers without experts are 0 for it."""
    LAYERS.check(encoded(TOLD), 4)
    dense = TOLD.copy()
    dense[:, 2] = 0
    with pytest.raises(InfrastructureError, match="chooses an expert of layer 2 twice for a token"):
        LAYERS.check(encoded(dense), 4)


def test_the_layers_of_a_model_are_those_that_have_experts() -> None:
    model = mixture()
    assert ExpertLayers.of(model.train()) == ExpertLayers((0, 2, 3), (8, 8, 8), 2, "int8")
    assert model.training
    deepseek = tiny("deepseek_v3", first_k_dense_replace=1, num_hidden_layers=3)
    assert ExpertLayers.of(deepseek).layers == (1, 2)
    with pytest.raises(ModelError, match="has no experts whose choice could be replayed"):
        ExpertLayers.of(tiny_model())


def sample(agent: Agent, contexts: list[list[int]], sampling: Sampling) -> list[Completion]:
    async def together() -> list[Completion]:
        return list(await asyncio.gather(*(agent.generate(each, sampling) for each in contexts)))

    return asyncio.run(together())


def test_no_server_is_started_for_a_model_without_experts() -> None:
    settings = {"backend": "vllm", "launch": {"command": ["false"]}}
    with pytest.raises(ModelError, match="has no experts whose choice could be replayed"):
        agent_for(tiny_model(), tiny_tokenizer(), settings, 1, None, keep_experts=True)


@pytest.mark.vllm
def test_experts_are_those_that_are_chosen_in_this_process(vllm_experts: VLLMAgent) -> None:
    """Of prompts, of prefixes that are cached, and of several turns; in float32."""
    here = TransformersAgent(mixture(), tiny_tokenizer(), context_length=1024, keep_experts=True)
    contexts = [[5, 6, 7, 8], [300, 2, 9] * 100, [*([300, 2, 9] * 100), 4], [1000]]
    for turn in range(3):
        sampling = Sampling(temperature=0.0, max_new_tokens=8 + turn)
        theirs, ours = (sample(each, contexts, sampling) for each in (vllm_experts, here))
        for context, told, own in zip(contexts, theirs, ours, strict=True):
            assert told.ids == own.ids
            assert told.experts is not None and own.experts is not None
            assert told.experts.dtype == own.experts.dtype
            assert told.experts.shape == own.experts.shape == (len(context + told.ids) - 1, 3, 2)
            same = np.sort(told.experts) == np.sort(own.experts)
            assert same.all(axis=-1).mean() > 0.99  # scores may be equal up to rounding
        contexts = [
            context + told.ids + [60 + turn] for context, told in zip(contexts, theirs, strict=True)
        ]


@pytest.mark.vllm
def test_a_server_that_does_not_say_what_it_chose_is_refused_at_the_start(vllm_url: str) -> None:
    model, tokenizer = mixture(), tiny_tokenizer()
    said = f"urls: {vllm_url}: .* start it with --enable-return-routed-experts, or set replay_rou"
    with pytest.raises(ConfigError, match=said):
        VLLMAgent([vllm_url], experts_of=model)
    settings: dict[str, Any] = {"backend": "vllm", "urls": [vllm_url], "keep_experts": True}
    with pytest.raises(ConfigError, match=f"agent.{said}"):
        check_agent(tokenizer, **settings)  # before the model is loaded
    with pytest.raises(ConfigError, match=f"agent.{said}"):
        make_agent(model, tokenizer, **settings)
