"""Episodes over pages by Triton's kernels, in its interpreter, against attention in plain torch."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from transformers import GptOssConfig, GptOssForCausalLM

from gymnast.agents.engine import paged_executor, work_items
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.paged_executor import PagedExecutor
from gymnast.agents.engine.request import Request
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Sampling

LONGEST = 256


@dataclass(frozen=True)
class Played:
    """What some requests sampled, and what the steps were like."""

    completions: list[tuple[list[int], list[float]]]
    joined: bool
    mixed: bool
    steps: set[int]
    preempted: int


def model(kind: str) -> Any:
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16}
    if kind == "plain":
        return tiny_model(200, initializer_range=0.2, **shape)
    config = GptOssConfig(
        vocab_size=200,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=40,
        layer_types=["sliding_attention", "full_attention"],
        pad_token_id=0,
        initializer_range=0.2,
        **shape,
    )
    import torch

    torch.manual_seed(0)
    return GptOssForCausalLM(config).eval()


def requests(load: str) -> list[tuple[list[int], Sampling]]:
    """Groups that begin alike, at two levels, and one long context; or some that grow long."""
    random = np.random.default_rng(0)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in random.integers(3, 200, count)]

    if load == "growing":
        return [(tokens(20), Sampling(max_new_tokens=30, seed=number)) for number in range(2)]
    system = tokens(34)
    groups = [system + tokens(20) for _ in range(2)]
    contexts = [groups[0], groups[0], [*groups[1], 9], tokens(100)]
    return [
        (
            context,
            Sampling(
                max_new_tokens=5 + 2 * number,
                seed=number,
                temperature=[1.0, 0.0, 0.7][number % 3],
                top_k=[0, 0, 5][number % 3],
                repetition_penalty=[1.0, 1.1][number // 2],
            ),
        )
        for number, context in enumerate(contexts)
    ]


def played(kind: str, attention: Any, load: str, pages: int) -> Played:
    """Play all requests; short rows are divided, and short prefixes shared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_executor, "WORTH_JOINING", 0)
        patch.setattr(work_items, "WORTH_SHARING", 16)
        patch.setattr(paged_executor, "CPU_PROCESSORS", 1)  # an item takes the interpreter long
        for module in (paged_executor, work_items):
            patch.setattr(module, "SHORTEST_PIECE", 48)
        made = model(kind)
        page_bytes = 2 * 16 * 2 * (16 + 16) * 4
        executor = PagedExecutor(
            made,
            max_rows=6,
            kv_budget_bytes=pages * page_bytes,
            context_length=LONGEST,
            prefill_tokens=64,
            attention=attention,
        )
        assert executor.page_bytes == page_bytes
        engine = Engine(executor, prefill_tokens=64)
        asked = [
            Request(context, sampling, Future(), limit=LONGEST - len(context))
            for context, sampling in requests(load)
        ]
        shapes = []
        launch = executor.static.launch

        def noting(shape: Any, *rest: Any) -> Any:
            shapes.append(shape)
            return launch(shape, *rest)

        patch.setattr(executor.static, "launch", noting)
        engine.waiting += asked
        while not engine.idle:
            engine.step()
    done = [request.future.result() for request in asked]
    return Played(
        [(each.ids, each.logprobs) for each in done],
        any(shape.joined for shape in shapes),
        any(shape.tokens > 6 for shape in shapes),
        {shape.steps for shape in shapes},
        engine.preempted,
    )


@pytest.mark.triton
@pytest.mark.parametrize(
    ("kind", "load", "pages"),
    [("plain", "groups", 64), ("windows and sinks", "groups", 64), ("plain", "growing", 6)],
)
def test_kernels_sample_what_plain_torch_samples(
    interpreted: Callable[..., Any], kind: str, load: str, pages: int
) -> None:
    found: Played = interpreted(played, kind, "kernels", load, pages)
    expected = played(kind, "plain", load, pages)
    assert found.joined and found.mixed and found.steps >= {1, 4}
    assert (found.preempted > 0) == (load == "growing")
    for (ids, logprobs), (own_ids, own_logprobs) in zip(
        found.completions, expected.completions, strict=True
    ):
        assert ids == own_ids
        assert logprobs == pytest.approx(own_logprobs, abs=1e-5)
