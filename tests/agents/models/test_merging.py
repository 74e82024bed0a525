"""A model with adapters, saved as one without: the same weights, and no second copy of it."""

import copy
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.merging import save_merged


def trained(model: Any) -> Any:
    """Give adapters the weights that training would; fresh ones change nothing."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn(weight.shape, generator=generator).to(weight.dtype)
    return model


def adapted(**settings: Any) -> Any:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft's own business
        return trained(get_peft_model(tiny_model(), LoraConfig(r=4, lora_alpha=8, **settings)))


ALL = "all-linear"
MODELS = {
    "all layers": lambda: adapted(target_modules=ALL),
    "some layers": lambda: adapted(target_modules=["q_proj", "down_proj"]),
    "DoRA": lambda: adapted(target_modules=ALL, use_dora=True),
    "embeddings": lambda: adapted(target_modules=["embed_tokens", "q_proj"]),
    "the head": lambda: adapted(target_modules=["lm_head", "q_proj"]),
    "a whole module beside": lambda: adapted(target_modules=["q_proj"], modules_to_save=["norm"]),
    "bfloat16": lambda: trained(load_model("tiny:", dtype="bfloat16", lora={"rank": 4})[0]),
}


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`")
@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_the_saved_weights_are_those_that_peft_merges(make: Any, tmp_path: Path) -> None:
    model = make()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    save_merged(model, tmp_path / "ours")
    copy.deepcopy(model).merge_and_unload().save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / n / "model.safetensors") for n in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that were made within it and are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            each.untyped_storage()._cdata
            for each in tree_leaves((args, kwargs))
            if isinstance(each, torch.Tensor)
        }
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given | self._known:
                    self._count(storage)
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def test_at_most_one_layer_is_there_twice(tmp_path: Path) -> None:
    """A layer is copied with its adapters, whose product takes its size twice while it is made."""
    model, _ = load_model("tiny:", lora={"rank": 4})
    layers = [m for m in model.modules() if hasattr(m, "lora_A")]
    largest = max(weight.nbytes for layer in layers for weight in layer.parameters())
    whole = sum(weight.nbytes for weight in model.parameters())
    with Live() as live:
        save_merged(model, tmp_path / "ours")
    with Live() as before:
        copy.deepcopy(model).merge_and_unload().save_pretrained(tmp_path / "theirs")
    assert largest <= live.most <= 3.5 * largest < whole / 4
    assert before.most >= whole, "as it was done before"
