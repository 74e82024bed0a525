"""From a config to a trainer, with everything checked that can be before weights are loaded."""

import os
from pathlib import Path
from typing import Any

from gymnast.agents.backends import VLLM, check_agent, find_backend, not_on_servers
from gymnast.agents.loading.adapters import check_lora
from gymnast.agents.loading.load import as_dtype, load_model, load_tokenizer, model_context_length
from gymnast.agents.loading.quantization import check_quantization
from gymnast.errors import ConfigError
from gymnast.trainers.base.config_errors import in_section
from gymnast.trainers.base.observer import Observer
from gymnast.trainers.base.settings import RunSettings, check_sampling
from gymnast.trainers.cluster.ray_workers import find_workers
from gymnast.trainers.config.environments import (
    chat_template_text,
    find_environments,
    own_environments,
    parts_of,
)
from gymnast.trainers.config.files import save_config
from gymnast.trainers.config.resuming import check_output_folder, check_same_run
from gymnast.trainers.config.sections import (
    ModelSection,
    RolloutsSection,
    RunConfig,
    TrainerSection,
)
from gymnast.trainers.config.task import RunTask, prepare_task
from gymnast.trainers.config.warmup import check_demonstrations, prepare_warmup
from gymnast.trainers.data.input_paths import absolute
from gymnast.trainers.distributed.divided import asked_to_divide
from gymnast.trainers.evaluation.settings import EvaluationSettings
from gymnast.trainers.learner.model_checks import check_divided
from gymnast.trainers.reporting.trackers import make_trackers
from gymnast.trainers.rollouts.rewards import load_rewards
from gymnast.trainers.saving.run_folder import CONFIG_FILE
from gymnast.trainers.teachers import check_teacher
from gymnast.trainers.trainer import Trainer
from gymnast.types import Sampling


def build_trainer(
    config: RunConfig, *, observer: Observer | None = None, resume: bool = False
) -> Trainer:
    """Make the trainer of a run: check everything, load the model, write `config.yaml`.

    Args:
        config: The run. Without an `output_dir` nothing is written.
        observer: Receives the events of the run.
        resume: Whether the run goes on in its folder; else the folder must hold no run yet.

    Raises:
        UsageError: Something does not hold; each kind of mistake has its own subclass.
        UserCodeError: The environment's own code raised.
    """
    if config.output_dir is not None:  # the user's code, run below, may change the working folder
        folder = str(absolute(config.output_dir, Path.cwd()))
        config = config.model_copy(update={"output_dir": folder})
    find_environments(config)
    check_demonstrations(config)
    _check_adapters(config)
    _check_quantization(config)
    check_sampling(config.sampling.make())
    find_backend(config.agent.backend, config.agent.model_extra or {})
    load_rewards([reward.named for reward in config.rewards])
    find_workers(config.rollouts)
    make_trackers(config.trackers, config.output_dir)  # whether they can be made
    template = chat_template_text(config.model)
    if config.output_dir is not None:
        _enter(Path(config.output_dir), config, resume=resume)
    tokenizer = load_tokenizer(config.model.name, chat_template=template)
    teacher, sampling = config.algorithm.make().teacher, config.sampling.make()
    for environment in own_environments(config):
        check_teacher(teacher, tokenizer, environment, temperature=sampling.temperature)
    task = prepare_task(config, tokenizer, longest_context(config, tokenizer))
    warmup = prepare_warmup(config, task)
    model = model_of(config, tokenizer)
    with in_section("trainer", TrainerSection.model_fields):
        trainer = Trainer(
            model,
            tokenizer,
            task.make_env,
            task.training_rows,
            **trainer_settings(config, task),
            warmup=warmup,
            observer=observer,
        )
    trainer.longest_episode = _longest_episode(config)
    if resume and config.output_dir is not None and trainer.accelerator.is_main_process:
        save_config(config, Path(config.output_dir) / CONFIG_FILE)
    return trainer


def longest_context(config: RunConfig, tokenizer: Any) -> int | None:
    """How many tokens the model was made for, or the agent takes; None: any number.

    Raises:
        ConfigError: The agent cannot be used, or takes fewer than the environment has.
    """
    own = model_context_length(config.model.name)
    settings = {"keep_experts": config.trainer.replay_routing} | config.agent.model_dump()
    with in_section("trainer", ["max_staleness"]):
        agent = check_agent(
            tokenizer,
            deterministic=config.deterministic,
            max_staleness=config.trainer.max_staleness,
            **settings,
        )
    longest = _longest_episode(config)
    if agent is not None and longest > agent:
        raise ConfigError(
            f"environment.context_length: must be <= {agent}, the longest context of the servers "
            f"that sample, got {longest}; lower it, or start them with --max-model-len {longest}"
        )
    return own if agent is None or (own is not None and own < agent) else agent


def _longest_episode(config: RunConfig) -> int:
    """The longest `context_length` of the run's environments; 0 where one has none set."""
    sections = parts_of(config.environment).values()
    lengths = [int(section.settings.get("context_length", 0)) for section in sections]
    return max(lengths) if all(lengths) else 0


def _check_adapters(config: RunConfig) -> None:
    """Check their settings, and that there are any where they have a learning rate."""
    rate, lora = config.trainer.adapter_learning_rate, config.model.lora
    if lora is not None:
        with in_section("model", ModelSection.model_fields):
            check_lora(lora.model_dump())
    elif rate is not None:
        raise ConfigError(
            f"trainer.adapter_learning_rate: is {rate:g}, and there are no adapters; set "
            "trainer.learning_rate, or add adapters (model.lora={rank: 16})"
        )


def _check_quantization(config: RunConfig) -> None:
    """Check that weights can be quantised, and that whoever samples and trains can use them."""
    section = config.model
    if section.quantization is None:
        return
    lora = None if section.lora is None else section.lora.model_dump()
    with in_section("model", ModelSection.model_fields):
        check_quantization(section.quantization, lora=lora, dtype=as_dtype(section.dtype))
    check_divided(asked_to_divide())
    if config.agent.backend == VLLM:
        raise not_on_servers()


def _enter(folder: Path, config: RunConfig, *, resume: bool) -> None:
    """Check a run's folder, and write or compare its config.

    The config of a new run is written before anything is loaded, so that a run killed meanwhile can
    be resumed. A resumed run keeps its config until the new one has been checked.
    """
    check_output_folder(folder, resume=resume)
    if resume and (folder / CONFIG_FILE).exists():
        check_same_run(config, folder)
    elif os.environ.get("RANK", "0") == "0":  # the processes are not joined yet
        save_config(config, folder / CONFIG_FILE)


def trainer_settings(config: RunConfig, task: RunTask) -> dict[str, Any]:
    """The keywords of `Trainer` that a config stands for."""
    evaluation_sampling = config.evaluation.sampling(config.sampling.model_dump())
    return {
        "agent": config.agent.model_dump(),
        "algorithm": config.algorithm.make(),
        "group_size": config.algorithm.group_size,
        "rewards": load_rewards([reward.named for reward in config.rewards]),
        "sampling": config.sampling.make(),
        **config.trainer.model_dump(),
        **RolloutsSection.keywords(config.rollouts),
        **EvaluationSettings.keywords(config.evaluation),
        "eval_rows": task.evaluation_rows,
        "eval_sampling": Sampling(**evaluation_sampling),
        "eval_environments": task.evaluation_environments,
        **RunSettings.keywords(config),
        "trackers": config.trackers,
        "hyperparameters": config.model_dump(
            mode="json", exclude_none=True, exclude={"trackers", "output_dir"}
        ),
    }


def model_of(config: RunConfig, tokenizer: Any) -> Any:
    """The model of a config, with its adapters if it has any.

    Raises:
        ConfigError: A key of `model` is wrong.
    """
    lora = config.model.lora
    with in_section("model", ModelSection.model_fields):
        model, _ = load_model(
            config.model.name,
            dtype=config.model.dtype,
            float32_head=config.model.float32_head,
            kernels=config.model.kernels,
            lora=lora.model_dump() if lora is not None else None,
            quantization=config.model.quantization,
            tokenizer=tokenizer,
            seed=config.seed,
        )
    return model
