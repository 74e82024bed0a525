"""Hints for an unknown key of a run's YAML: the key that was probably meant.

The key is compared with other frameworks' names for the same setting, then with the keys of its
section and their words, then with the keys of the other sections. The caller passes the latter, as
they come from rooms above this one.
"""

from collections.abc import Sequence

from gymnast.lookup import nearest

_ROWS = "trainer.rows_per_step (rows, each with algorithm.group_size episodes)"
_STEPS = "trainer.steps (optimisation steps)"
_OPTIONS = "trainer.optimizer (with its options: {name: adamw, betas: [0.9, 0.95], eps: 1e-8})"
_EXTRA = "model.lora.extra (options of peft: {use_rslora: true})"

# Names of TRL, verl, OpenRLHF, peft and Transformers' Trainer, and Gymnast's for the same.
OTHER_NAMES = {
    "num_generations": "algorithm.group_size",
    "n_samples_per_prompt": "algorithm.group_size",
    "num_samples_per_prompt": "algorithm.group_size",
    "adv_estimator": "algorithm.estimator",
    "advantage_estimator": "algorithm.estimator",
    "loss_type": "algorithm.loss",
    "loss_agg_mode": "algorithm.aggregation",
    "num_iterations": "algorithm.epochs",
    "ppo_epochs": "algorithm.epochs",
    "ppo_mini_batch_size": "algorithm.minibatches",
    "beta": "algorithm.kl.coefficient",
    "kl_coef": "algorithm.kl.coefficient",
    "kl_loss_coef": "algorithm.kl.coefficient",
    "init_kl_coef": "algorithm.kl.coefficient",
    "entropy_coeff": "algorithm.entropy_bonus",
    "entropy_coef": "algorithm.entropy_bonus",
    "epsilon": "algorithm.clip_low",
    "clip_ratio_low": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "clip_ratio_high": "algorithm.clip_high",
    "vllm_importance_sampling_cap": "algorithm.importance_cap",
    "mask_truncated_completions": "algorithm.masked_stop_reasons",
    "filter_groups": "trainer.dynamic_sampling.most_rows",
    "max_num_gen_batches": "trainer.dynamic_sampling.most_rows",
    "dynamic_filtering": "trainer.dynamic_sampling.most_rows",
    "batch_size": _ROWS,
    "train_batch_size": _ROWS,
    "generation_batch_size": _ROWS,
    "per_device_train_batch_size": _ROWS,
    "rollout_batch_size": _ROWS,
    "gradient_accumulation_steps": "trainer.tokens_per_microbatch",
    "gradient_checkpointing": "trainer.activations (keep, recompute or offload)",
    "micro_batch_size": "trainer.tokens_per_microbatch",
    "max_steps": _STEPS,
    "num_train_epochs": _STEPS,
    "total_epochs": _STEPS,
    "total_training_steps": _STEPS,
    "lr": "trainer.learning_rate",
    "lora_lr": "trainer.adapter_learning_rate",
    "lora_learning_rate": "trainer.adapter_learning_rate",
    "lr_scheduler_type": "trainer.schedule",
    "lr_scheduler": "trainer.schedule",
    "lr_scheduler_kwargs": "trainer.schedule (with its options: {name: cosine, final: 0.1})",
    "lr_warmup_steps": "trainer.warmup_steps",
    "optim": "trainer.optimizer",
    "optim_args": _OPTIONS,
    "betas": _OPTIONS,
    "adam_betas": _OPTIONS,
    "adam_beta1": _OPTIONS,
    "adam_beta2": _OPTIONS,
    "adam_epsilon": _OPTIONS,
    "eps": _OPTIONS,
    "warmup_ratio": "trainer.warmup_steps",
    "num_warmup_steps": "trainer.warmup_steps",
    "grad_clip": "trainer.max_grad_norm",
    "max_norm": "trainer.max_grad_norm",
    "save_steps": "trainer.checkpoint_every_steps",
    "save_freq": "trainer.checkpoint_every_steps",
    "save_total_limit": "trainer.keep_checkpoints",
    "max_completion_length": "sampling.max_new_tokens",
    "max_response_length": "sampling.max_new_tokens",
    "generate_max_len": "sampling.max_new_tokens",
    "max_prompt_length": "environment.context_length",
    "max_model_len": "environment.context_length",
    "max_seq_length": "environment.context_length",
    "max_tool_calling_iterations": "environment.max_turns",
    "eval_steps": "evaluation.every_steps",
    "test_freq": "evaluation.every_steps",
    "num_eval_examples": "evaluation.rows",
    "model_name_or_path": "model.name",
    "model_path": "model.name",
    "torch_dtype": "model.dtype",
    "use_liger_kernel": "model.kernels",
    "r": "model.lora.rank",
    "lora_r": "model.lora.rank",
    "lora_rank": "model.lora.rank",
    "lora_alpha": "model.lora.alpha",
    "lora_dropout": "model.lora.dropout",
    "target_modules": "model.lora.target",
    "use_rslora": _EXTRA,
    "use_dora": _EXTRA,
    "modules_to_save": _EXTRA,
    "lora_target_modules": "model.lora.target",
    "dataset": "data.train",
    "dataset_name": "data.train",
    "train_files": "data.train",
    "val_files": "data.evaluation",
    "dataset_config": "data.subset",
    "dataset_train_split": "data.split",
    "reward_funcs": "rewards",
    "reward_functions": "rewards",
    "reward_weights": "rewards",
    "report_to": "trackers",
    "logger": "trackers",
    "default_local_dir": "output_dir",
    "save_path": "output_dir",
    "full_determinism": "deterministic",
}


def unknown_key(
    section: str, key: object, known: Sequence[str], run_keys: Sequence[str] = ()
) -> str:
    """The error message for a key that a section does not have.

    Args:
        section: Its dotted name; "" for the whole YAML.
        key: The unknown key.
        known: The section's keys.
        run_keys: Every dotted key of a run's YAML, if the caller knows them.
    """
    dotted = f"{section}.{key}" if section else str(key)
    if str(key) in OTHER_NAMES:
        hint = meant_elsewhere(str(key), run_keys)
    elif sections := _sections_of(str(key), run_keys):  # said before a key that is only alike
        hint = f"did you mean {' or '.join(sections)}?"
    elif near := nearest(key, known):
        hint = f"did you mean {near}?"
    elif longer := [name for name in known if f"_{key}_" in f"_{name}_"]:
        hint = f"did you mean {' or '.join(longer[:2])}?"
    else:
        hint = meant_elsewhere(str(key), run_keys) or f"the keys are {', '.join(known)}"
    return f"{dotted}: unknown key; {hint}"


def meant_elsewhere(key: str, run_keys: Sequence[str]) -> str:
    """A hint for a key of another framework or another section; "" for any other key."""
    if key in OTHER_NAMES:
        return f"Gymnast calls it {OTHER_NAMES[key]}"
    places = places_of(key, run_keys)
    return f"did you mean {' or '.join(places)}?" if places else ""


def setting_meant(name: str, run_keys: Sequence[str]) -> str | None:
    """The dotted key that an option such as `--steps` or `--learning-rate` stands for, if any."""
    key = name.lstrip("-").replace("-", "_")
    if key in OTHER_NAMES:
        return OTHER_NAMES[key].split()[0]
    if key in run_keys:
        return key
    firsts: dict[str, str] = {}  # a section stands for its first key: model for model.name
    for other in run_keys:
        for section in other.split(".")[:-1]:
            firsts.setdefault(section, other)
    if key not in firsts and (places := places_of(key, run_keys)):
        return places[0]
    names = dict(firsts)
    for other in run_keys:
        names.setdefault(other.rpartition(".")[2], other)
    near = nearest(key, names)
    return names[near] if near is not None else None


def _sections_of(name: str, run_keys: Sequence[str]) -> list[str]:
    """The dotted sections of this name in a run's YAML; two at most."""
    parts = [dotted.split(".")[:-1] for dotted in run_keys]
    sections = {".".join(of[:end]) for of in parts for end in range(1, len(of) + 1)}
    return sorted(each for each in sections if each.rpartition(".")[2] == name)[:2]


def places_of(key: str, run_keys: Sequence[str]) -> list[str]:
    """The dotted keys of this name in a run's YAML, those of training before `evaluation`."""
    matches = [dotted for dotted in run_keys if dotted.rpartition(".")[2] == key]
    return sorted(matches, key=lambda dotted: dotted.startswith("evaluation."))[:2]
