"""A step of the engine on a CUDA device: nothing on the CPU meets it, and it is waited for once.

Shapes alone are computed (`fake_cuda.py`), so no GPU is needed; the values are those of the tests
marked `gpu`.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from transformers import Gemma2Config, Gemma2ForCausalLM

from fake_cuda import fake_cuda, moved, waits
from gymnast.agents.engine import static_step
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.paged_executor import PagedExecutor
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


class Event:
    """An event of the device, which is reached when it is waited for."""

    waited = 0  # how often the host had to, over all events

    def __init__(self) -> None:
        self.pending = False

    def record(self) -> None:
        self.pending = True

    def query(self) -> bool:
        return not self.pending

    def synchronize(self) -> None:
        Event.waited += self.pending
        self.pending = False

    def elapsed_time(self, other: "Event") -> float:
        return 1.0


class Staging(static_step._Staging):
    """Host memory that is not pinned, and results that are zeros."""

    def __init__(self, numbers: int, results: int, *_: Any) -> None:
        self.inputs = torch.zeros(numbers, dtype=torch.int32)
        self.numbers = np.zeros(numbers, dtype=np.int32)
        self.results = torch.zeros(results, dtype=torch.float64)
        self.experts = None
        self.began, self.ended = Event(), Event()


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


@pytest.mark.parametrize("kind", MODELS)
def test_a_launch_over_pages_is_waited_for_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from the device within a step, and the next one is launched before."""
    monkeypatch.setattr(static_step, "_Staging", Staging)
    # Fake tensors have no address.
    monkeypatch.setattr(static_step.StaticStep, "_where_weights_are", lambda _: ())
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=4)
    )
    monkeypatch.setattr(FakeTensor, "numpy", lambda tensor: np.zeros(tensor.shape))
    with torch.device("meta"):
        model = MODELS[kind]().eval()
    contexts = [list(range(1, 40)), list(range(1, 45)), list(range(9, 30)), [5]]
    futures: list[Future[Completion]] = [Future() for _ in contexts]
    with fake_cuda():
        executor = PagedExecutor(
            moved(model),
            max_rows=4,
            kv_budget_bytes=2**22,
            context_length=128,
            prefill_tokens=16,
            attention="plain",
            use_graphs=False,
        )
        engine = Engine(executor, prefill_tokens=16)
        for context, future in zip(contexts, futures, strict=True):
            sampling = replace(SAMPLING, max_new_tokens=30)
            engine.waiting.append(Request(context, sampling, future, limit=90))
        launches = 0
        launch = executor.launch

        def counting(*given: Any) -> Any:
            nonlocal launches
            launches += 1
            return launch(*given)

        monkeypatch.setattr(executor, "launch", counting)
        before, ahead = waits(), 0
        Event.waited = 0
        while not engine.idle:
            waited, launched = Event.waited, launches
            engine.step()
            assert Event.waited - waited <= 1
            ahead += launches - launched == Event.waited - waited == 1
        assert waits() == before, "values are read from what was copied to the host alone"
        assert Event.waited == launches > 10
        assert ahead >= launches - 3, "each step waits for the launch before its own"
    assert all(len(future.result().ids) == 30 for future in futures)
