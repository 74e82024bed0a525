"""Models of public shapes with random weights.

Random weights cost as much as trained ones, need no download, and sample until the limit of tokens.
"""

import gc
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from gymnast.agents import place_model
from gymnast.agents.models.kernel_choice import request_kernels


def _qwen3(hidden: int, layers: int, heads: int, intermediate: int) -> Qwen3Config:
    return Qwen3Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=intermediate,
        vocab_size=151936,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
    )


def _smollm2() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )


def _tiny() -> Qwen3Config:
    return Qwen3Config(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=1000,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


TINY = "tiny"
SMOLLM2 = "SmolLM2-135M"
SHAPES: dict[str, Callable[[], Any]] = {
    TINY: _tiny,
    SMOLLM2: _smollm2,
    "Qwen3-0.6B": lambda: _qwen3(1024, 28, 16, 3072),
    "Qwen3-1.7B": lambda: _qwen3(2048, 28, 16, 6144),
    "Qwen3-4B": lambda: _qwen3(2560, 36, 32, 9728),
}


def random_model(name: str, device: str) -> Any:
    """Build a model of `SHAPES`, in evaluation mode.

    The weights are bfloat16 on a GPU, and float32 on the CPU, where bfloat16 is slow.
    """
    config = SHAPES[name]()
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None  # nothing ends early
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    request_kernels(model, "auto")  # as load_model does
    return place_model(model, device).eval()


def card_name(device: str) -> str:
    """Return the name of the device, for goals and notes."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def synchronize(device: str) -> None:
    """Wait until the device has computed everything it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def release_memory(device: str) -> None:
    """Return the memory of deleted models to the device, and reset its peak."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
