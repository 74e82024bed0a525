"""A step of the engine on a CUDA device: nothing on the CPU meets it, and it is waited for once.

Shapes alone are computed (`fake_cuda.py`), so no GPU is needed; the values are those of the tests
marked `gpu`.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from fake_cuda import fake_cuda, moved, waits
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.rows_executor import RowsExecutor
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Completion, Sampling

WINDOWS = Gemma2Config(
    vocab_size=200,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    pad_token_id=0,
    sliding_window=20,
    attn_logit_softcapping=2.0,
)
MODELS: dict[str, Callable[[], Any]] = {
    "plain": tiny_model,
    "windows and softcaps": lambda: Gemma2ForCausalLM(WINDOWS),
}
SAMPLING = Sampling(max_new_tokens=4, top_k=5, top_p=0.9, repetition_penalty=1.1)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("plain", torch.bfloat16), ("windows and softcaps", torch.float32)]
)
def test_a_step_waits_for_the_device_once(kind: str, dtype: torch.dtype) -> None:
    with torch.device("meta"):
        model = MODELS[kind]().to(dtype).eval()
    contexts = [list(range(1, 40)), list(range(1, 45)), list(range(9, 30))]
    futures: list[Future[Completion]] = [Future() for _ in contexts]
    with fake_cuda():
        executor = RowsExecutor(moved(model), max_rows=4, budget_tokens=4096)
        engine = Engine(executor, prefill_tokens=64)
        for context, future in zip(contexts, futures, strict=True):
            engine.waiting.append(Request(context, SAMPLING, future, limit=100))
        steps = 0
        while not engine.idle:
            before = waits()
            engine.step()
            assert waits() - before <= 1
            steps += 1
    assert steps >= 4
    assert all(len(future.result().ids) == 4 for future in futures)
