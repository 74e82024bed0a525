"""A head with a weight of its own, in the files of a model that has none."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.float32_head import use_float32_head
from gymnast.agents.vllm.weights.heads import is_tied, save_head, trains_tied_head
from gymnast.agents.vllm.weights.start import write_start
from gymnast.errors import ConfigError
from model_families import tiny


@pytest.mark.parametrize("shard", ["50GB", "1MB"])
def test_the_head_is_the_embedding_under_its_own_name(tmp_path: Path, shard: str) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path, max_shard_size=shard)
    save_head(model, tmp_path)
    (head,) = load_file(tmp_path / "head.safetensors").items()
    assert head[0] == "lm_head.weight"
    assert torch.equal(head[1], model.get_input_embeddings().weight)
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() is (shard == "1MB")
    if index.exists():  # what is not in the index is not loaded
        assert json.loads(index.read_text())["weight_map"]["lm_head.weight"] == "head.safetensors"
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_a_head_of_its_own_is_left_alone(tmp_path: Path) -> None:
    model = tiny_model(tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    save_head(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert not is_tied(model) and not trains_tied_head(model)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="servers on a GPU need no such mend")
def test_servers_on_a_cpu_start_with_such_a_head(tmp_path: Path) -> None:
    assert write_start(tiny_model(), tmp_path / "tied")[0] == "--hf-overrides"
    assert (tmp_path / "tied" / "head.safetensors").exists()
    assert write_start(tiny_model(tie_word_embeddings=False), tmp_path / "untied") == ()


def test_servers_compute_logits_in_float32_where_the_model_does(tmp_path: Path) -> None:
    model = tiny_model(tie_word_embeddings=False).to(torch.bfloat16)
    use_float32_head(model)
    name, value = write_start(model, tmp_path / "whole")
    assert (name, json.loads(value)) == ("--hf-overrides", {"head_dtype": "float32"})
    tied, tokenizer = load_model("tiny:", dtype="bfloat16", float32_head=True)
    overrides = json.loads(write_start(tied, tmp_path / "tied")[1])
    on_gpu = torch.accelerator.is_available()
    assert overrides == {"head_dtype": "float32"} | (
        {} if on_gpu else {"tie_word_embeddings": False}
    )
    lora = {"rank": 2}
    adapted, _ = load_model(
        "tiny:", dtype="bfloat16", float32_head=True, lora=lora, tokenizer=tokenizer
    )
    *_, name, value = write_start(adapted, tmp_path / "adapted")
    assert (name, json.loads(value)) == ("--hf-overrides", {"head_dtype": "float32"})


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_servers_start_with_two_matrices_that_will_differ(target: str, tmp_path: Path) -> None:
    """Equal ones at first, of a model that is not tied: the next weights are loaded into both."""
    model, _ = load_model("tiny:", lora={"rank": 2, "target": [target]})
    assert write_start(model, tmp_path / "model") == ()
    started = json.loads((tmp_path / "model" / "config.json").read_text())
    assert started["tie_word_embeddings"] is False
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert not is_tied(model)


@pytest.mark.filterwarnings("ignore")  # of kernels that the family does without
@pytest.mark.parametrize("family", ["gemma2", "cohere2", "gemma3n_text", "lfm2", "zamba2"])
def test_families_that_vllm_ties_are_refused_untied(family: str, tmp_path: Path) -> None:
    write_start(tiny(family, tie_word_embeddings=True), tmp_path / "tied")
    with pytest.raises(ConfigError, match=rf"logits of {family} with the embedding"):
        write_start(tiny(family, tie_word_embeddings=False), tmp_path / "untied")
