"""Tiny random models of the decoder families of Transformers, made from their config classes.

Each is a few thousand parameters with everything that makes its family's forward special: windows
of 8 tokens, sinks, caps, experts, states. What a family shares with others comes from `SHAPE`; its
own part stands in `FAMILIES`.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 100
WINDOW = 8

# Every configuration takes of these what it knows.
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.1,
    **dict.fromkeys(["hidden_size", "intermediate_size", "n_embd", "d_model", "ffn_dim"], 64),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers"], 4),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads"], 4),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "max_seq_len"], 512),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "word_embed_proj_dim": 64,
    "sliding_window": WINDOW,
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 4),
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "state_size": 8,
    "chunk_size": 16,
    "mamba_chunk_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

# The head dimension of latent attention is that of the rotary part; each head has its own keys.
MLA = {"head_dim": 8, "num_key_value_heads": 4}
HYBRID = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
ALTERNATING = ["sliding_attention", "full_attention"] * 2

# Its name: what its configuration takes besides. "type" is the model type where the name is not.
FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {},
    "apertus": {},
    "arcee": {},
    "axk1": MLA,
    "axk2": {**MLA, "index_topk": 8, "index_n_heads": 16, "index_head_dim": 16},
    "bailing_hybrid": {
        **MLA,
        "layer_types": HYBRID,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
    "bamba": {"attn_layer_indices": [1, 3]},
    "beam": {},
    "biogpt": {},
    "bitnet": {},
    "bloom": {},
    "codegen": {"rotary_dim": 8},
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0},
    "cohere2_moe": {"logit_scale": 1.0},
    "ctrl": {"dff": 64},
    "cwm": {},
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "deepseek_v32": {**MLA, "index_topk": 8, "index_n_heads": 16, "index_head_dim": 16},
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
        "index_topk": 8,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {
            "hidden_size": 64,
            "ffn_hidden_size": 64,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    },
    "diffllama": {},
    "dots1": {"layer_types": ALTERNATING, "n_shared_experts": 1},
    "doge": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "exaone4": {},
    "exaone_moe": {},
    "falcon": {},
    "falcon (alibi)": {"type": "falcon", "alibi": True},
    "falcon_h1": {"mamba_d_ssm": 128},
    "falcon_mamba": {},
    "flex_olmo": {},
    "flint": {},
    "gemma": {},
    "gemma2": {"attn_logit_softcapping": 2.0},
    "gemma3_text": {"layer_types": ALTERNATING},
    "gemma3n_text": {
        "layer_types": ALTERNATING,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "activation_sparsity_pattern": None,
        "laurel_rank": 8,
    },
    "gemma4_text": {
        "layer_types": ALTERNATING,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 2,
    },
    "gemma4_unified_text": {},
    "glm": {},
    "glm4": {},
    "glm4_moe": {},
    "glm4_moe_lite": MLA,
    "glm_moe_dsa": {**MLA, "index_topk": 8, "index_n_heads": 16, "index_head_dim": 16},
    "gpt2": {"pad_token_id": None},  # as its checkpoints: with one it looks for padding
    "gpt_bigcode": {},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 2]],
        "num_layers": 4,
        "window_size": WINDOW,
    },
    "gpt_neox": {},
    "gpt_neox_japanese": {},
    "gpt_oss": {},
    "gptj": {"rotary_dim": 8},
    "granite": {},
    "granite_swa": {},
    "granitemoe": {},
    "granitemoe_swa": {},
    "granitemoehybrid": {"layer_types": HYBRID},
    "granitemoeshared": {},
    "helium": {},
    "hrm_text": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {},
    "hy_v3": {},
    "hy_v4": {**MLA, "index_topk": 8, "index_n_heads": 16, "index_head_dim": 16},
    "hyperclovax": {},
    "inkling2_text": {
        "sliding_window_size": WINDOW,
        "layer_types": ["hybrid_sliding", "hybrid"] * 2,
        "moe_intermediate_size": 32,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 16,
        "rel_extent": 64,
    },
    "inkling_text": {
        "sliding_window_size": WINDOW,
        "layer_types": ["hybrid_sliding", "hybrid"] * 2,
        "moe_intermediate_size": 32,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 16,
        "rel_extent": 64,
    },
    "jais2": {},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "jetmoe": {"kv_channels": 16},
    "kimi_linear": {
        "num_key_value_heads": 4,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "layer_types": HYBRID,
        "num_experts_per_tok": 2,
    },
    "kolibri1": {},
    "laguna": {},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "lfm3": {},
    "llama": {},
    "llama (dynamic rope)": {
        "type": "llama",
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    },
    "llama4_text": {"attention_chunk_size": WINDOW, "floor_scale": 8},
    "longcat_flash": {
        **MLA,
        "num_layers": 2,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 32,
        "moe_topk": 2,
        "zero_expert_num": 2,
    },
    "mamba": {},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "mellum": {},
    "mimo_v2_flash": {},
    "minicpm3": MLA,
    "minimax": {},
    "minimax_m2": {},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_block_size": 4,
        "index_topk_blocks": 2,
    },
    "ministral": {},
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 16.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "mistral": {},
    "mixtral": {},
    "modernbert-decoder": {},
    "mpt": {},
    "nanochat": {},
    "nemotron": {},
    "nemotron_h": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "olmo_hybrid": {},
    "olmoe": {},
    "openai-gpt": {},
    "opt": {},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phi3 (longrope)": {
        "type": "phi3",
        "original_max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8,
            "original_max_position_embeddings": 32,
        },
    },
    "phimoe": {},
    "qwen2": {},
    "qwen2 (windows)": {"type": "qwen2", "use_sliding_window": True, "layer_types": ALTERNATING},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_5_text": {"layer_types": HYBRID},
    "qwen3_5_moe_text": {"layer_types": HYBRID},
    "qwen3_moe": {},
    "qwen3_next": {"layer_types": HYBRID},
    "recurrent_gemma": {},
    "rwkv": {},
    "seed_oss": {},
    "smollm3": {},
    "solar_open": {},
    "stablelm": {},
    "starcoder2": {},
    "vaultgemma": {},
    "xglm": {"num_layers": 2, "attention_heads": 4},
    "xlstm": {"num_heads": 4, "hidden_size": 128},
    "youtu": MLA,
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
}


def tiny(family: str, **settings: Any) -> Any:
    """A random model of the family, float32, in evaluation mode; the same at each call.

    Args:
        family: Among `FAMILIES`.
        settings: Of its configuration, before what `FAMILIES` says.
    """
    own = {**FAMILIES[family], **settings}
    config_class = CONFIG_MAPPING[own.pop("type", family)]
    known = config_class().to_dict()
    shape = {name: value for name, value in SHAPE.items() if name in known}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_class(**{**shape, **own}))
    return model.float().eval()
