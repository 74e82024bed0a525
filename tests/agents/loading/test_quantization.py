"""`load_model(quantization=...)`: what is held in 4 bits, what is not, and what is refused."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.errors import ModelError
from model_families import tiny

bitsandbytes: Any = pytest.importorskip("bitsandbytes")  # GPU machines may lack it
LORA = {"rank": 4}
TOKENIZER = tiny_tokenizer()


def quantized(name: str = "tiny:", **settings: Any) -> Any:
    usual: dict[str, Any] = {"lora": LORA, "quantization": "nf4", "tokenizer": TOKENIZER}
    model, _ = load_model(name, **(usual | settings))
    return model


def refused(name: str = "tiny:", **settings: Any) -> str:
    with pytest.raises(ModelError) as refusal:
        quantized(name, **settings)
    return str(refusal.value)


def saved(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_linear_layers_are_quantised_and_adapters_are_not(dtype: str) -> None:
    model = quantized(dtype=dtype)
    plain, causal = tiny_model().to(getattr(torch, dtype)), model.get_base_model()
    for name, layer in plain.named_modules():
        if name == "lm_head" or not isinstance(layer, torch.nn.Linear):
            continue
        base = causal.get_submodule(name).base_layer
        codes, state = bitsandbytes.functional.quantize_4bit(
            layer.weight.data, compress_statistics=True, quant_type="nf4"
        )
        assert torch.equal(base.weight.data, codes)
        assert base.weight.quant_state.nested  # double quantization
        assert torch.equal(base.weight.quant_state.absmax, state.absmax)
    trained = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    assert trained == {getattr(torch, dtype)} == {model.dtype}


@pytest.mark.parametrize("float32_head", [False, True])
def test_embeddings_head_and_norms_keep_their_weights(float32_head: bool) -> None:
    model = quantized(dtype="bfloat16", float32_head=float32_head).get_base_model()
    plain = tiny_model().bfloat16()
    for name in ("model.embed_tokens", "lm_head", "model.norm", "model.layers.0.input_layernorm"):
        kept = model.get_submodule(name).weight
        assert torch.equal(kept, plain.get_submodule(name).weight), name
    logits = model(torch.tensor([[5, 6, 7]])).logits
    assert logits.dtype == (torch.float32 if float32_head else torch.bfloat16)


def test_adapters_begin_as_those_of_plain_weights() -> None:
    ours, theirs = quantized(), load_model("tiny:", lora=LORA, tokenizer=TOKENIZER)[0]
    others = dict(theirs.named_parameters())
    adapters = {name: weight for name, weight in ours.named_parameters() if "lora_" in name}
    assert adapters and all(torch.equal(w, others[name]) for name, w in adapters.items())


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "qwen2", "gemma2", "qwen3_5_text"])
def test_families_are_loaded_from_a_folder(family: str, tmp_path: Path) -> None:
    """Biases, layers that hold a weight transposed, several products in one layer."""
    model = quantized(saved(tiny(family), tmp_path), dtype="float32")
    layers = [m for m in model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
    assert len(layers) >= 16
    with torch.no_grad():
        assert model(torch.tensor([[5, 6, 7]])).logits.isfinite().all()


# --- Refused by name


def test_an_unknown_name_lists_the_known_ones() -> None:
    message = refused(quantization="nf5")
    assert message.startswith("quantization: ") and "nf4" in message and "'nf5'" in message


def test_weights_without_adapters_are_refused() -> None:
    message = refused(lora=None)
    assert message.startswith("quantization: is nf4") and "lora" in message


@pytest.mark.parametrize("dtype", ["float16", torch.float16])
def test_float16_is_refused(dtype: Any) -> None:
    message = refused(dtype=dtype)
    assert message.startswith("dtype: ") and "float16" in message and "bfloat16" in message


def test_a_checkpoint_in_float16_is_refused(tmp_path: Path) -> None:
    name = saved(tiny_model().half(), tmp_path)
    assert refused(name).startswith("dtype: must be bfloat16 or float32")
    assert quantized(name, dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "dbrx", "falcon"])
def test_models_that_would_stay_large_are_refused(family: str, tmp_path: Path) -> None:
    """Stacked experts, and linear layers of other classes: bitsandbytes leaves both alone."""
    message = refused(saved(tiny(family), tmp_path))
    assert message.startswith("quantization: is nf4") and str(tmp_path) in message


def test_a_checkpoint_that_is_quantised_is_refused(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    name = saved(tiny_model(), tmp_path / "plain")
    how = BitsAndBytesConfig(load_in_4bit=True)
    saved(AutoModelForCausalLM.from_pretrained(name, quantization_config=how), tmp_path / "4bit")
    message = refused(str(tmp_path / "4bit"))
    assert message.startswith("quantization: is nf4") and "already" in message


@pytest.mark.parametrize("modules", ["q_proj", "mlp", "layers"])
def test_quantised_modules_are_not_trained_as_a_whole(modules: str) -> None:
    lora = {"rank": 4, "target": ["o_proj"], "extra": {"modules_to_save": [modules]}}
    assert refused(lora=lora).startswith(f"lora.extra.modules_to_save: has {modules!r}")
    norms = {"rank": 4, "target": ["o_proj"], "extra": {"modules_to_save": ["norm", "lm_head"]}}
    assert quantized(lora=norms) is not None


@pytest.mark.parametrize("begun", ["pissa", "pissa_niter_4", "olora", "loftq"])
def test_starts_that_change_the_base_are_refused(begun: str) -> None:
    message = refused(lora={"rank": 4, "extra": {"init_lora_weights": begun}})
    assert message.startswith(f"lora.extra.init_lora_weights: is {begun!r}")


def test_a_missing_bitsandbytes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymnast.agents.loading.quantization.find_spec", lambda name: None)
    assert "pip install 'gymnast-rl[quantization]'" in refused()


# --- Quiet


def test_loading_prints_nothing() -> None:
    """bitsandbytes misses a kernel that is never used, Transformers draws a bar."""
    code = (
        "from gymnast.agents import load_model\n"
        "load_model('tiny:', lora={'rank': 2}, quantization='nf4')\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if "real_accelerator.py" not in line]
    assert (done.returncode, done.stdout, lines) == (0, "", []), done.stderr


def test_other_warnings_of_bitsandbytes_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    quantized()
    library = logging.getLogger("bitsandbytes.backends.cpu.ops")
    library.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s", "no network")
    assert "no network" in caplog.text
