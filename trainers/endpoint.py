"""An evaluation of a model behind an endpoint: no model is loaded, and nothing is trained.

Of several processes each plays its share of the rows, and the first one writes. The tokenizer of
the config's `model` only shows how long prompts are; `Trainer.evaluate` is the evaluation of a
policy that has token ids.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from accelerate import Accelerator

from gymnast.agents import PolicyAgent
from gymnast.agents.chat import make_chat_agent
from gymnast.agents.loading.load import load_tokenizer
from gymnast.shared_threads import limit_threads
from gymnast.trainers.base.observer import Observer
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.base.stopping import Stopping
from gymnast.trainers.cluster.ray_workers import RayWorkers, find_workers
from gymnast.trainers.config.environments import chat_template_text, find_environments
from gymnast.trainers.config.files import save_config
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task import RunTask, prepare_task
from gymnast.trainers.distributed.processes import launched
from gymnast.trainers.evaluation.evaluation import Evaluated, Evaluation
from gymnast.trainers.evaluation.tags import tag_expressions
from gymnast.trainers.provenance.environment_file import note_start
from gymnast.trainers.reporting.trackers import as_json
from gymnast.trainers.rollouts.rewards import load_rewards
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.trainers.rollouts.shared import SharedRollouts
from gymnast.trainers.saving.kept_rollouts import KeptRollouts
from gymnast.trainers.saving.run_folder import CONFIG_FILE, RunFolder
from gymnast.types import Sampling

CHAT = "chat"
ANY_LENGTH = 2**31 - 1  # tokens: how many the endpoint takes is not known here


def evaluate_endpoint(config: RunConfig, *, observer: Observer | None = None) -> dict[str, float]:
    """Evaluate what `agent: {backend: chat, ...}` names on a run's evaluation rows.

    Args:
        config: As `evaluation_config` returns it. Its `output_dir` is the folder for metrics and
            episodes; None in all processes but the first.
        observer: Is told of the evaluation, in the first process.

    Returns:
        The metrics, named `eval/...`, the same in all processes; `eval/chat/cost` and the like are
        sums over all episodes.

    Raises:
        UsageError: Something does not hold, or the endpoint refuses the key.
        TooManyFailures: No episode could be finished.
    """
    agent = make_chat_agent(config.agent.model_extra or {})
    find_environments(config)
    rewards = load_rewards([reward.named for reward in config.rewards])
    folder = None if config.output_dir is None else RunFolder(config.output_dir)
    if folder is not None:
        save_config(config, folder.path / CONFIG_FILE)
        note_start(folder.path)
    template = chat_template_text(config.model)
    tokenizer = load_tokenizer(config.model.name, chat_template=template)
    task = prepare_task(config, tokenizer, ANY_LENGTH)
    settings = RolloutSettings(
        group_size=config.evaluation.group_size,
        sampling=Sampling(**config.evaluation.sampling(config.sampling.model_dump())),
        concurrency=config.trainer.concurrency,
        seed=derive(config.seed, "evaluation"),
        rewards=rewards,
    )
    accelerator = launched()
    limit_threads(config.trainer.max_threads)
    workers = find_workers(config.rollouts)
    evaluation = _evaluation(config, task, settings, agent, accelerator, workers)
    with workers or nullcontext():
        found = evaluation.run(task.evaluation_rows, "evaluation")
    if folder is not None:
        _keep(config, folder.path, found)
        folder.add_metrics(as_json({"step": 0, **found.metrics}))
    if observer is not None and accelerator.is_main_process:
        observer.on_evaluation(0, found.metrics, found.rollouts)
    accelerator.end_training()
    return found.metrics


def _evaluation(
    config: RunConfig,
    task: RunTask,
    settings: RolloutSettings,
    agent: Any,
    accelerator: Accelerator,
    workers: RayWorkers | None,
) -> Evaluation:
    def playing(make_env: Any) -> SharedRollouts:
        return SharedRollouts(accelerator, cast(PolicyAgent, agent), make_env, Stopping(), workers)

    return Evaluation(
        playing(task.make_env),
        settings,
        pass_reward=config.evaluation.pass_reward,
        tags=tag_expressions(config.evaluation.by),
        others={
            name: (playing(environment), rows)
            for name, (environment, rows) in task.evaluation_environments.items()
        },
    )


def _keep(config: RunConfig, folder: Path, found: Evaluated) -> None:
    KeptRollouts(folder, config.rollouts, None, config.seed).save_evaluation(
        0, found.rollouts, found.others
    )
