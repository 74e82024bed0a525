"""What adapters train is what every model without adapters computes, in all families.

The adapters get large random weights, as after a long training. Then the logits of the model with
adapters are compared with those of the saved model, of the base with the saved adapters around it,
and of a model that takes the weights that agents are handed.
"""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from gymnast.agents import PolicyWeights
from gymnast.agents.loading.adapters import adapter_settings, with_adapters
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.adapters import folded
from gymnast.agents.models.copies import copied, take_weights
from gymnast.agents.models.double_precision import in_float64
from gymnast.agents.models.mergeable import untie
from gymnast.agents.models.merging import save_merged
from gymnast.errors import ModelError
from model_families import FAMILIES, VOCABULARY, tiny

EXACT = 1e-5  # of the largest logit
IDS = torch.tensor([[3, 17, 42, 8, 5, 60, 33, 9]])
SCALED = ["gemma3_text", "granite", "cohere2", "biogpt"]  # embeddings or logits
EACH_KIND = [*SCALED, "llama", "gpt2", "gemma3n_text", "phi", "qwen3_5_text", "qwen3_moe", "zamba2"]
TARGETS = ["all-linear", "embedding", "head", "both", "DoRA of the head", "rsLoRA of both"]
# peft renames the adapters of their shared experts as if they were those of stacked ones, and so
# does not find them in a saved file; it warns.
LOST_BY_PEFT = {"laguna", "inkling2_text"}
BESIDE = ["the embedding", "the head", "both", "both as one", "tokens", "tokens of the head"]


@pytest.fixture(autouse=True)
def _no_warnings_of_other_peoples_code() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"):  # of tied weights, and of missing kernels
        yield


def lora_of(what: str, causal: Any) -> dict[str, Any]:
    names = {id(module): name for name, module in causal.named_modules()}
    embedding = names[id(causal.get_input_embeddings())]
    head = names[id(causal.get_output_embeddings())]
    both, extra = [embedding, head], dict[str, Any]
    known: dict[str, dict[str, Any]] = {
        "all-linear": {"target": "all-linear"},
        "embedding": {"target": [embedding]},
        "head": {"target": [head]},
        "both": {"target": both},
        "DoRA of the head": {"target": [head], "extra": extra(use_dora=True)},
        "rsLoRA of both": {"target": both, "extra": extra(use_rslora=True)},
        "beside: the embedding": {"extra": extra(modules_to_save=[embedding])},
        "beside: the head": {"extra": extra(modules_to_save=[head])},
        "beside: both": {"extra": extra(modules_to_save=both)},
        "beside: both as one": {"extra": extra(modules_to_save=both, ensure_weight_tying=True)},
        "beside: tokens": {"extra": extra(trainable_token_indices=[3, 5, 60])},
        "beside: tokens of the head": {"extra": extra(trainable_token_indices={head: [5, 60]})},
    }
    return known[what]


def trained(model: Any) -> Any:
    """Give adapters the weights that a long training would."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn(weight.shape, generator=generator).to(weight.dtype)
    return model.eval()


def adapted(base: Any, lora: dict[str, Any]) -> Any:
    return trained(with_adapters(copy.deepcopy(base), adapter_settings({"rank": 4} | lora), 0))


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS).logits
    return found


def differ(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Their largest difference, relative to the largest logit."""
    return ((ours - theirs).abs().max() / ours.abs().max()).item()


def compute_same(ours: Any, theirs: Any) -> bool:
    """Two models have the same logits, computed in float32 or, against its rounding, in float64."""
    if differ(logits(ours), logits(theirs)) < EXACT:
        return True
    with in_float64(ours), in_float64(theirs):
        return differ(logits(ours), logits(theirs)) < EXACT


def check_every_way(base: Any, lora: dict[str, Any], folder: Path) -> None:
    model = adapted(base, lora)
    expected = logits(model)
    assert differ(logits(base), expected) > 100 * EXACT, "the adapters do something"

    save_merged(model, folder / "model")
    saved = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    assert differ(expected, logits(saved)) < EXACT, "saved"

    model.save_pretrained(folder / "adapters")
    around: Any = PeftModel.from_pretrained(copy.deepcopy(base), folder / "adapters").eval()
    assert differ(expected, logits(around)) < EXACT, "base and adapters"

    own = AutoModelForCausalLM.from_config(model.config).eval()
    take_weights(own, PolicyWeights(model))
    assert differ(expected, logits(own)) < EXACT, "handed to an agent"

    assert differ(expected, logits(copied(model, "cpu"))) < EXACT, "copied for an agent"
    with folded(model):
        assert differ(expected, logits(model)) < EXACT, "sampled from"
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_what_is_saved(target: str, tied: bool, tmp_path: Path) -> None:
    base = tiny("llama", tie_word_embeddings=tied)
    check_every_way(base, lora_of(target, base), tmp_path)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("what", BESIDE)
def test_what_is_trained_beside_is_what_is_saved(what: str, tied: bool, tmp_path: Path) -> None:
    base = tiny("llama", tie_word_embeddings=tied)
    check_every_way(base, lora_of(f"beside: {what}", base), tmp_path)


def try_family(family: str, folder: Path) -> None:
    settings = {} if family == "dbrx" else {"tie_word_embeddings": True}  # it cannot
    base = tiny(family, **settings)
    tried = 0
    for target in ("all-linear", "embedding", "head", "beside: tokens"):
        try:
            model = adapted(base, lora_of(target, base))
        except ModelError:
            continue  # which says why
        tried += 1
        save_merged(model, folder / target)
        saved = AutoModelForCausalLM.from_pretrained(folder / target).eval()
        assert compute_same(model, saved), target
        model.save_pretrained(folder / "adapters")
        if family in LOST_BY_PEFT and target in ("all-linear", "beside: tokens"):
            with pytest.warns(UserWarning, match="missing adapter keys"):
                PeftModel.from_pretrained(copy.deepcopy(base), folder / "adapters")
            continue
        around: Any = PeftModel.from_pretrained(copy.deepcopy(base), folder / "adapters").eval()
        assert compute_same(model, around), target
    assert tried


@pytest.mark.parametrize("family", EACH_KIND)
def test_every_family_saves_what_it_trains(family: str, tmp_path: Path) -> None:
    try_family(family, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(EACH_KIND)))
def test_the_other_families_do(family: str, tmp_path: Path) -> None:
    try_family(family, tmp_path)


def saved_weights(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_only_adapters_at_the_ends_untie(family: str, tmp_path: Path) -> None:
    base = tiny(family, tie_word_embeddings=True)
    for target, untied in {
        "all-linear": False,
        "beside: tokens": False,
        "head": True,
    }.items():
        model = adapted(base, lora_of(target, base))
        save_merged(model, tmp_path / target)
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / target)
        assert saved.config.tie_word_embeddings is not untied
        assert saved.config.get_text_config().tie_word_embeddings is not untied
        assert ("lm_head.weight" in saved_weights(tmp_path / target)) is untied


def test_a_nested_configuration_is_untied_at_both_levels(tmp_path: Path) -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    seen = {"num_attention_heads": 4, "image_size": 28, "patch_size": 14} | shape
    config = Gemma3Config(
        text_config={"vocab_size": VOCABULARY, **shape, **heads},
        vision_config=seen,
        mm_tokens_per_image=4,
    )
    torch.manual_seed(0)
    base = Gemma3ForConditionalGeneration(config).eval()
    model = adapted(base, lora_of("head", base))
    save_merged(model, tmp_path / "model")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert saved.config.tie_word_embeddings is False
    assert saved.config.get_text_config().tie_word_embeddings is False
    assert differ(logits(model), logits(saved)) < EXACT


def test_adapters_of_ones_own_are_untied_where_they_are_saved(tmp_path: Path) -> None:
    model = trained(get_peft_model(tiny_model(), LoraConfig(r=4, target_modules=["lm_head"])))
    expected = logits(model)
    save_merged(model, tmp_path / "model")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert differ(expected, logits(saved)) < EXACT
    assert torch.equal(logits(model), expected)
    assert untie(model) == []  # it is


@pytest.mark.parametrize("target", ["embedding", "head", "both"])
def test_one_adapter_for_both_ends_is_refused(target: str) -> None:
    """peft keeps it twice, and each of two updates would overwrite the other."""
    base = tiny("llama", tie_word_embeddings=True)
    lora = lora_of(target, base) | {"extra": {"ensure_weight_tying": True}}
    with pytest.raises(ModelError, match=r"^lora\.extra\.ensure_weight_tying: is true"):
        adapted(base, lora)


def test_adapters_that_begin_with_a_shared_weight_are_refused() -> None:
    base = tiny("llama", tie_word_embeddings=True)
    lora = {"target": ["lm_head"], "extra": {"init_lora_weights": "pissa"}}
    with pytest.raises(ModelError, match=r"init_lora_weights: is 'pissa'.*lm_head\.weight"):
        adapted(base, lora)


def test_tokens_and_a_head_with_lora_are_refused() -> None:
    base = tiny("llama", tie_word_embeddings=True)
    lora = {"target": ["lm_head"], "extra": {"trainable_token_indices": [3, 5]}}
    with pytest.raises(ModelError, match="lm_head"):
        adapted(base, lora)


@pytest.mark.parametrize(
    ("family", "lora"),
    [
        ("inkling_text", {"target": ["embed_tokens"]}),  # which it normalises
        ("inkling_text", {"extra": {"trainable_token_indices": [3, 5]}}),
        ("deepseek_v4", {"target": ["o_a_proj"]}),  # a product for each group
    ],
)
def test_adapters_that_cannot_be_merged_are_refused(family: str, lora: dict[str, Any]) -> None:
    name = "embed_tokens" if family == "inkling_text" else "o_a_proj"
    with pytest.raises(ModelError, match=rf"{name}.* cannot be merged"):
        adapted(tiny(family), lora)


def test_layers_that_are_never_called_get_no_adapters() -> None:
    """Mamba multiplies by the weight of dt_proj itself."""
    model = adapted(tiny("jamba"), {"target": "all-linear"})
    assert not [name for name, _ in model.named_parameters() if "dt_proj.lora" in name]
    with pytest.raises(ModelError, match="dt_proj"):
        adapted(tiny("jamba"), {"target": ["dt_proj"]})
