"""How new weights get to servers: what is chosen, and what is refused at once."""

import copy
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from gymnast.agents import load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.float32_head import use_float32_head
from gymnast.agents.vllm.weights.adapters import server_rank, why_merged
from gymnast.agents.vllm.weights.choice import check_servers, check_way, choose_way
from gymnast.agents.vllm.weights.facts import Facts, read_facts
from gymnast.errors import ConfigError
from model_families import tiny

GPU = Facts("cuda", "float32")
URL = "http://server"
# Of vLLM 0.32's answer to GET /server_info?config_format=json, what is read of it.
INFO: dict[str, Any] = {
    "vllm_config": {
        "model_config": {
            "dtype": "torch.bfloat16",
            "hf_overrides": {"tie_word_embeddings": False},
            "enable_sleep_mode": False,
        },
        "device_config": {"device": "cpu"},
        "parallel_config": {"world_size": 1, "data_parallel_size": 1},
        "lora_config": {"max_lora_rank": 16, "max_loras": 1},
        "weight_transfer_config": None,
    },
    "vllm_env": {
        "VLLM_ALLOW_INSECURE_SERIALIZATION": False,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": True,
    },
}


def adapted(**settings: Any) -> Any:
    settings = {"r": 4, "target_modules": ["q_proj"]} | settings
    with warnings.catch_warnings(action="ignore"):  # peft's own business
        return get_peft_model(tiny_model(), LoraConfig(**settings))


def test_a_server_says_how_it_was_started() -> None:
    assert read_facts(INFO) == Facts("cpu", "bfloat16", untied=True, lora_rank=16)
    more = copy.deepcopy(INFO)
    more["vllm_config"]["model_config"]["hf_overrides"] = {"head_dtype": "float32"}
    more["vllm_config"]["lora_config"]["max_loras"] = 3
    assert read_facts(more) == Facts(
        "cpu", "bfloat16", float32_head=True, lora_rank=16, loras_at_once=3
    )
    plain = INFO["vllm_config"] | {
        "lora_config": None,
        "weight_transfer_config": {"backend": "nccl"},
    }
    plain["model_config"] = plain["model_config"] | {"hf_overrides": {}}
    assert read_facts({"vllm_config": plain}) == Facts("cpu", "bfloat16", transfer="nccl")


@pytest.mark.parametrize(
    ("config", "ties"),
    [
        ({"hf_text_config": {"tie_word_embeddings": True}}, True),
        ({"hf_text_config": {"tie_word_embeddings": False}}, False),
        ({"hf_config": 'Qwen3Config {\n  "tie_word_embeddings": true\n}'}, True),
        ({"hf_config": "Qwen3Config {}"}, None),
        ({}, None),
    ],
)
def test_a_server_says_whether_its_head_is_tied(config: Any, ties: bool | None) -> None:
    info = copy.deepcopy(INFO)
    info["vllm_config"]["model_config"] |= config
    assert read_facts(info).ties is ties


def test_a_tied_server_is_refused_for_an_untied_model() -> None:
    tied = {URL: replace(GPU, ties=True)}
    check_servers("folder", tiny_model(), tied)
    model, _ = load_model("tiny:", dtype="float32", lora={"rank": 2, "target": ["lm_head"]})
    check_servers("folder", model, {URL: replace(GPU, ties=False)})
    with pytest.raises(ConfigError, match=r"tie_word_embeddings.*agent\.launch"):
        check_servers("folder", model, tied)


def test_adapters_are_loaded_as_such_where_the_server_can() -> None:
    assert choose_way("auto", adapted(), {URL: replace(GPU, lora_rank=8)})[0] == "adapters"
    assert choose_way("folder", adapted(), {URL: replace(GPU, lora_rank=8)})[0] == "folder"
    assert choose_way("auto", tiny_model(), {URL: replace(GPU, lora_rank=8)})[0] == "folder"


@pytest.mark.parametrize(
    ("rank", "reason"),
    [(0, "start it with --enable-lora --max-lora-rank 4"), (2, "takes ranks up to 2, not 4")],
)
def test_else_they_are_merged_and_the_reason_is_told(rank: int, reason: str) -> None:
    servers = {"http://able": replace(GPU, lora_rank=8), URL: replace(GPU, lora_rank=rank)}
    way, why = choose_way("auto", adapted(), servers)
    assert way == "folder"
    assert URL in why and reason in why
    with pytest.raises(
        ConfigError, match=r"agent\.weights: adapters cannot be served: .*" + reason
    ):
        choose_way("adapters", adapted(), servers)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["norm"]}, "modules that are trained beside"),
        ({"target_modules": ["embed_tokens"]}, "embed_tokens is adapted"),
        ({"target_modules": ["lm_head"]}, "lm_head is adapted"),
        ({"bias": "lora_only"}, "trained biases"),
        ({"init_lora_weights": "pissa"}, "changes the weights of the base"),
        ({"r": 600}, "ranks up to 512, not 600"),
        ({"rank_pattern": {"q_proj": 600}}, "ranks up to 512, not 600"),
        ({"trainable_token_indices": [3]}, "token embeddings"),
    ],
)
def test_adapters_that_vllm_cannot_serve_are_merged(settings: dict[str, Any], reason: str) -> None:
    model = adapted(**settings)
    assert reason in (why_merged(model) or "")
    assert choose_way("auto", model, {URL: replace(GPU, lora_rank=512)})[0] == "folder"


@pytest.mark.parametrize(
    "settings",
    [{}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 8}}, {"init_lora_weights": "gaussian"}],
)
def test_adapters_that_vllm_can_serve_are_not(settings: dict[str, Any]) -> None:
    assert why_merged(adapted(**settings)) is None


def test_two_sets_of_adapters_are_merged() -> None:
    model = adapted()
    model.add_adapter("another", LoraConfig(r=4, target_modules=["q_proj"]))
    assert why_merged(model) == "the model has 2 sets of adapters"


def test_servers_are_started_for_a_rank_that_vllm_knows() -> None:
    assert [server_rank(rank) for rank in (1, 8, 9, 300, 512)] == [8, 8, 16, 320, 512]


def test_a_server_of_another_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weights of bfloat16, .* in float32; .*--dtype float32"):
        check_servers("folder", tiny_model(), {URL: Facts("cuda", "bfloat16")})


def test_a_head_that_would_never_be_new_is_refused() -> None:
    cpu = Facts("cpu", "float32")
    with pytest.raises(ConfigError, match=r"--hf-overrides '\{\"tie_word_embeddings\": false\}'"):
        check_servers("folder", tiny_model(), {URL: cpu})
    check_servers("folder", tiny_model(), {URL: replace(cpu, untied=True)})
    check_servers("folder", tiny_model(), {URL: GPU})
    check_servers("folder", adapted(), {URL: cpu})  # trains neither embedding nor head
    with pytest.raises(ConfigError, match="--hf-overrides"):
        check_servers("folder", adapted(target_modules=["embed_tokens"]), {URL: cpu})


def test_a_server_on_a_cpu_that_takes_two_adapters_at_once_is_refused() -> None:
    cpu = Facts("cpu", "float32", lora_rank=8, loras_at_once=2)
    with pytest.raises(ConfigError, match=rf"{URL}: .* two adapters in one .* --max-loras 1, or"):
        check_servers("adapters", adapted(), {URL: cpu})
    check_servers("folder", adapted(), {URL: cpu})
    check_servers("adapters", adapted(), {URL: replace(cpu, loras_at_once=1)})
    check_servers("adapters", adapted(), {URL: replace(cpu, device="cuda")})


def test_a_head_in_another_precision_is_refused() -> None:
    model = tiny_model().to(torch.bfloat16)
    use_float32_head(model)
    gpu = Facts("cuda", "bfloat16")
    said = r"logits in bfloat16, .*--hf-overrides '\{\"head_dtype\": \"float32\"\}', or leave"
    with pytest.raises(ConfigError, match=said):
        check_servers("folder", model, {URL: gpu})
    check_servers("folder", model, {URL: replace(gpu, float32_head=True)})
    in_float32 = tiny_model()
    use_float32_head(in_float32)  # as all of it is
    check_servers("folder", in_float32, {URL: GPU})


def test_experts_that_would_never_be_new_are_refused() -> None:
    cpu = Facts("cpu", "float32", untied=True)
    with pytest.raises(ConfigError, match=f"{URL}: .* on a CPU does not take new weights for exp"):
        check_servers("folder", tiny("qwen3_moe"), {URL: cpu})
    check_servers("folder", tiny("qwen3_moe"), {URL: GPU})
    check_servers("folder", tiny("qwen3"), {URL: cpu})


@pytest.mark.parametrize("way", ["nccl", "ipc"])
def test_an_engine_needs_a_model_on_a_gpu(way: str) -> None:
    with pytest.raises(ConfigError, match=rf"agent\.weights: {way} is not open: .* is on cpu"):
        choose_way(way, tiny_model(), {URL: replace(GPU, transfer=way)})


def test_a_way_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"agent\.weights: must be one of auto, folder, .* 'disk'"
    ):
        check_way("disk")


def test_facts_are_of_the_type_that_they_are_compared_with() -> None:
    assert str(torch.bfloat16).removeprefix("torch.") == read_facts(INFO).dtype
