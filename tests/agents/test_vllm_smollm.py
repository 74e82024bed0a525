"""SmolLM2-135M on a vLLM server beside this process: the same weights, and rounding alone differs.

`benchmarks/served_exactness.py` prints the figures.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from gymnast.agents import TransformersAgent, VLLMAgent, load_model
from served_exactness import CASES, MODEL, greedy, questions, sampled
from vllm_fixtures import Serve

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.network]


class Within(NamedTuple):
    """In nats.

    Attributes:
        mean: Of the differences of log-probabilities; layers in bfloat16 make a hundredth.
        gap: How far logits may be apart and be a tie. In bfloat16 the numbers next to one between
            16 and 32 are 0.125 from it.
    """

    mean: float
    gap: float


WITHIN = {
    "bfloat16": Within(3e-2, 0.25),
    "float32_heads": Within(2e-2, 0.1),
    "float32": Within(1e-4, 1e-3),
}


@pytest.fixture(scope="module", params=WITHIN)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def model_and_tokenizer(case: str) -> tuple[Any, Any]:
    return load_model(MODEL, **CASES[case])


@pytest.fixture(scope="module")
def served(serve: Serve, model_and_tokenizer: tuple[Any, Any]) -> Iterator[VLLMAgent]:
    model, tokenizer = model_and_tokenizer
    servers = serve(model, tokenizer)
    with closing(VLLMAgent(servers.urls, tokenizer=tokenizer)) as agent:
        yield agent
    servers.end()


def test_log_probabilities_are_those_that_the_learner_computes(
    case: str, model_and_tokenizer: tuple[Any, Any], served: VLLMAgent
) -> None:
    model, tokenizer = model_and_tokenizer
    found = sampled(model, served, *questions(tokenizer))
    here = sampled(model, TransformersAgent(model, tokenizer), *questions(tokenizer))
    print(f"{case}: server {found}, engine {here}")
    assert min(found.tokens, here.tokens) > 500
    assert found.mean < WITHIN[case].mean
    if case != "float32":  # there both are as good as none
        assert found.mean < 2 * here.mean


def test_most_likely_tokens_are_equal_up_to_ties(
    case: str, model_and_tokenizer: tuple[Any, Any], served: VLLMAgent
) -> None:
    model, tokenizer = model_and_tokenizer
    here = TransformersAgent(model, tokenizer)
    found = greedy(model, here, served, *questions(tokenizer))
    print(f"{case}: greedy {found}")
    assert found.difference.tokens > 100
    assert found.difference.mean < WITHIN[case].mean
    assert all(gap <= WITHIN[case].gap for gap in found.gaps)
