"""When fused modules are used: where they are as exact, and an error or a message where not."""

import logging
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from fake_cuda import fake_cuda, moved
from gymnast.agents import TransformersAgent, load_model, place_model
from gymnast.agents.loading.load import load_tokenizer
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.copies import copied
from gymnast.agents.models.fused import Kernels, has_fused_modules, use_fused_modules
from gymnast.agents.models.kernel_choice import (
    distances_from_float64,
    fuse_as_requested,
    request_kernels,
    requested_kernels,
    require_kernels,
    try_kernels,
)
from gymnast.errors import ModelError
from model_families import tiny
from plain_kernels import gate, normalize, plain_kernels

LOGGER = "gymnast.agents.models.kernel_choice"


def half_precision_model() -> Any:
    return load_model("tiny:", dtype="bfloat16")[0]


def noisy(noise: float) -> Kernels:
    """Kernels that are wrong by this factor, more or less."""

    def gate_noisily(*args: Any) -> torch.Tensor:
        found = gate(*args)
        return found * (1 + noise * torch.sign(torch.cos(1e3 * found.float()))).to(found.dtype)

    return replace(plain_kernels(), gate=gate_noisily)


def failing(*_: Any) -> Any:
    raise RuntimeError("ptxas fatal: no such architecture")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(1, 20)[None], use_cache=False).logits
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_exact_kernels_are_used(dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    model, _ = load_model("tiny:", dtype=dtype)
    with caplog.at_level(logging.INFO, LOGGER):
        try_kernels(model, plain_kernels())
    assert has_fused_modules(model)
    (record,) = caplog.records
    assert record.levelno == logging.INFO and "norms" in record.message


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_inexact_kernels_are_dropped(dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    model, _ = load_model("tiny:", dtype=dtype)
    expected = logits(model)
    kernels = noisy(0.1)
    use_fused_modules(model, kernels)
    plain, fused = distances_from_float64(model)
    assert fused > max(1.1 * plain, 1e-4)
    with caplog.at_level(logging.INFO, LOGGER):
        try_kernels(model, kernels)
    assert not has_fused_modules(model)
    assert torch.equal(logits(model), expected)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{fused:.2g}" in record.message and f"{plain:.2g}" in record.message


def test_kernels_that_give_nan_are_dropped() -> None:
    model = half_precision_model()
    kernels = replace(plain_kernels(), normalize=lambda *args: normalize(*args) * torch.nan)
    try_kernels(model, kernels)
    assert not has_fused_modules(model)


def test_failing_kernels_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    model = half_precision_model()
    try_kernels(model, replace(plain_kernels(), rotate=failing))
    assert not has_fused_modules(model)
    (record,) = caplog.records
    assert "no such architecture" in record.message


def test_a_decision_is_made_once() -> None:
    model = half_precision_model()
    try_kernels(model, replace(plain_kernels(), rotate=failing))
    assert requested_kernels(model) == "none"
    model = half_precision_model()
    try_kernels(model, plain_kernels())
    fuse_as_requested(model)  # on a CPU: it has fused modules already
    assert has_fused_modules(model)


def test_models_without_known_modules_stay_plain() -> None:
    model = tiny("gpt2")
    try_kernels(model, plain_kernels())
    assert not has_fused_modules(model)
    with pytest.raises(ModelError, match=r"^model.kernels: .*GPT2LMHeadModel"):
        require_kernels(model, plain_kernels())


def test_required_kernels_that_fail_are_an_error() -> None:
    model = half_precision_model()
    with pytest.raises(ModelError, match=r"^model.kernels: .*liger.*no such architecture"):
        require_kernels(model, replace(plain_kernels(), gate=failing))
    assert not has_fused_modules(model)


def test_required_kernels_are_used_though_inexact(caplog: pytest.LogCaptureFixture) -> None:
    model = half_precision_model()
    require_kernels(model, noisy(0.1))
    assert has_fused_modules(model)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_comparison_leaves_modes_and_random_state() -> None:
    model = half_precision_model()
    weights = [weight.clone() for weight in model.parameters()]
    state = torch.get_rng_state()
    try_kernels(model, plain_kernels())
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)
    for before, weight in zip(weights, model.parameters(), strict=True):
        assert torch.equal(before, weight) and weight.grad is None


@pytest.mark.parametrize("kernels", ["auto", "none"])
def test_models_on_a_cpu_stay_plain(kernels: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        model, _ = load_model("tiny:", kernels=kernels)
        place_model(model, "cpu")
        TransformersAgent(model)
    assert not has_fused_modules(model)
    assert requested_kernels(model) == kernels
    assert [record for record in caplog.records if record.name == LOGGER] == []


def test_models_made_elsewhere_stay_plain() -> None:
    model = tiny_model()
    assert requested_kernels(model) == "none"
    fuse_as_requested(model)
    assert not has_fused_modules(model)


def test_copies_and_adapters_keep_the_request() -> None:
    model, _ = load_model("tiny:", lora={"rank": 2}, kernels="auto")
    assert requested_kernels(model) == requested_kernels(copied(model, "cpu")) == "auto"


@pytest.mark.parametrize("kernels", ["fast", "", None, True])
def test_unknown_kernels_are_refused(kernels: Any) -> None:
    with pytest.raises(ModelError, match=r"^kernels: must be one of auto, liger, none, got"):
        load_model("tiny:", kernels=kernels, tokenizer=load_tokenizer("tiny:"))


def test_required_kernels_need_a_gpu() -> None:
    model = half_precision_model()
    request_kernels(model, "liger")
    for use in (lambda: place_model(model, "cpu"), lambda: TransformersAgent(model)):
        with pytest.raises(ModelError, match=r"^model.kernels: .*liger.* cpu"):
            use()
    assert not has_fused_modules(model)


def test_required_kernels_have_to_be_installed() -> None:
    if find_spec("liger_kernel") is not None:
        pytest.skip("liger-kernel is installed")
    with pytest.raises(ModelError, match=r"^kernels: liger .*pip install gymnast-rl\[gpu\]"):
        load_model("tiny:", kernels="liger")


def test_a_gpu_without_liger_is_told_of_it_once(caplog: pytest.LogCaptureFixture) -> None:
    if find_spec("liger_kernel") is not None:
        pytest.skip("liger-kernel is installed")
    with torch.device("meta"):
        model = tiny_model()
    request_kernels(model, "auto")
    with fake_cuda(), caplog.at_level(logging.INFO, LOGGER):
        moved(model)
        fuse_as_requested(model)
        fuse_as_requested(model)
    (record,) = caplog.records
    assert record.levelno == logging.INFO and "gymnast-rl[gpu]" in record.message
    assert not has_fused_modules(model)


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["auto", "liger", "none"])
def test_models_on_a_gpu_are_fused_as_requested(kernels: str) -> None:
    pytest.importorskip("liger_kernel")
    model, _ = load_model("tiny:", dtype="bfloat16", kernels=kernels)
    place_model(model, "cuda")
    assert has_fused_modules(model) is (kernels != "none")
    other = copied(model, "cpu")
    TransformersAgent(other)
    assert torch.equal(logits(other), logits(load_model("tiny:", dtype="bfloat16")[0]))


@pytest.mark.gpu
def test_graphs_of_fused_modules_repeat_the_logits() -> None:
    pytest.importorskip("liger_kernel")
    model, _ = load_model("tiny:", dtype="bfloat16", kernels="liger")
    place_model(model, "cuda")
    ids = torch.arange(1, 20, device="cuda")[None]

    def step() -> Any:
        return model(input_ids=ids, use_cache=False).logits

    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        ids += 3
        graph.replay()
        torch.testing.assert_close(captured, step())
