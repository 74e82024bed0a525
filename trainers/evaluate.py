"""An evaluation on its own: nothing is trained, and of an endpoint no model is loaded.

Of several processes each plays its share of the rows, and the first one writes. Each episode is on
the disk as soon as it is over, so that an evaluation that was killed goes on where it was. The
tokenizer of the config's `model` is the policy's; with an endpoint it only shows how long prompts
are.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gymnast.agents import PolicyAgent, place_model
from gymnast.agents.backends import CHAT, agent_for, find_backend
from gymnast.agents.chat import make_chat_agent
from gymnast.agents.loading.load import load_tokenizer
from gymnast.cores import ignore_load
from gymnast.shared_threads import limit_threads
from gymnast.trainers.base.config_errors import in_section
from gymnast.trainers.base.generators import seeded_separately
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.base.stopping import Stopping
from gymnast.trainers.build import longest_context, model_of
from gymnast.trainers.cluster.ray_workers import find_workers
from gymnast.trainers.config.environments import chat_template_text, find_environments
from gymnast.trainers.config.sections import RunConfig, TrainerSection
from gymnast.trainers.config.task import RunTask, prepare_task
from gymnast.trainers.config.task_rows import evaluated_rows
from gymnast.trainers.data.rows import Row
from gymnast.trainers.distributed.processes import launched, together
from gymnast.trainers.evaluating.keeping import OWN, begin, journal, keep
from gymnast.trainers.evaluation.evaluation import Evaluation
from gymnast.trainers.evaluation.progress import EvaluationObserver, Progress, Watched
from gymnast.trainers.evaluation.tags import tag_expressions
from gymnast.trainers.provenance.environment_file import note_start
from gymnast.trainers.rollouts.rewards import load_rewards
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.trainers.rollouts.shared import SharedRollouts
from gymnast.types import Sampling

ANY_LENGTH = 2**31 - 1  # tokens: how many an endpoint takes is not known here


def evaluate(
    config: RunConfig,
    folder: str | Path | None = None,
    *,
    observer: EvaluationObserver | None = None,
) -> dict[str, float]:
    """Evaluate what a config names, on its evaluation rows.

    Args:
        config: That of a `Target` (`trainers/evaluating/targets.py`).
        folder: Where episodes and metrics are kept; None: nowhere. If it holds an evaluation that
            has not ended, that one goes on. That of the first process counts.
        observer: Is told of the evaluation, in the first process.

    Returns:
        The metrics, named `eval/...`, the same in all processes; of an endpoint, `eval/chat/cost`
        and the like are sums over all episodes.

    Raises:
        UsageError: Something does not hold, or an endpoint is not there or refuses the key.
        ConfigError: The evaluation in `folder` is another one.
        TooManyFailures: No episode could be finished.
        UserCodeError: The environment's own code raised in too many episodes.
    """
    folder = None if folder is None else Path(folder).absolute()  # user code may leave this one
    chat = make_chat_agent(config.agent.model_extra or {}) if _is_chat(config) else None
    if chat is None:
        find_backend(config.agent.backend, config.agent.model_extra or {})
    find_environments(config)
    settings = _settings(config)
    workers = find_workers(config.rollouts)
    template = chat_template_text(config.model)
    tokenizer = load_tokenizer(config.model.name, chat_template=template)
    longest = ANY_LENGTH if chat is not None else longest_context(config, tokenizer)
    task = prepare_task(config, tokenizer, longest, evaluated_rows)
    accelerator = launched()
    if config.deterministic:
        ignore_load()
    limit_threads(config.trainer.max_threads)
    kept = together(accelerator, lambda: _begin(config, task, folder))[0]
    if chat is not None:
        chat.check_reached()
    process, processes = accelerator.process_index, accelerator.num_processes
    share = _episodes(task, settings, process, processes)
    at_once = config.trainer.episodes_at_once(share, accelerator.device)
    settings = replace(settings, concurrency=at_once)
    model = place_model(model_of(config, tokenizer), accelerator.device) if chat is None else None
    agent = (
        _policy_agent(config, model, tokenizer, at_once)
        if chat is None
        else cast(PolicyAgent, chat)
    )
    rollouts = SharedRollouts(accelerator, agent, task.make_env, Stopping(), workers)
    if model is not None:
        rollouts.hand_over(model, 0)
    first = accelerator.is_main_process
    if folder is not None and first:
        note_start(folder, model, processes=accelerator.num_processes)
    progress, before = Progress(share, observer if first else None), list[int]()
    with ExitStack() as stack:

        def journaled(name: str) -> Watched:
            own = None if kept is None else journal(config, kept, name, process)
            if own is not None:
                stack.callback(own.close)
                before.append(len(own))
            return Watched(progress, own)

        evaluation = _evaluation(config, task, settings, rollouts, journaled)
        if observer is not None and first and sum(before):
            observer.on_resumed(sum(before), _episodes(task, settings))
        # As in training, where an evaluation changes nothing of what is drawn.
        drawn = seeded_separately(config.seed, "evaluation", process)
        with workers or nullcontext(), drawn:
            found = evaluation.run(task.evaluation_rows, "evaluation")
    if folder is not None and first:
        keep(config, folder, found, tokenizer if chat is None else None)
    if observer is not None and first:
        observer.on_evaluation(0, found.metrics, found.rollouts)
    return found.metrics


def _is_chat(config: RunConfig) -> bool:
    return config.agent.backend == CHAT


def _settings(config: RunConfig) -> RolloutSettings:
    """How episodes are played: with the seeds of a run's evaluations."""
    return RolloutSettings(
        group_size=config.evaluation.group_size,
        sampling=Sampling(**config.evaluation.sampling(config.sampling.model_dump())),
        seed=derive(config.seed, "evaluation"),
        deterministic=config.deterministic,
        rewards=load_rewards([reward.named for reward in config.rewards]),
    )


def _rows(task: RunTask) -> dict[str, Sequence[Row]]:
    """The rows of each environment."""
    others = task.evaluation_environments.items()
    return {OWN: task.evaluation_rows} | {name: other.rows for name, other in others}


def _begin(config: RunConfig, task: RunTask, folder: Path | None) -> Path | None:
    """The folder, in which the evaluation has begun; None in all processes but the first."""
    if folder is not None:
        begin(config, _rows(task), folder)
    return folder


def _episodes(
    task: RunTask, settings: RolloutSettings, process: int = 0, processes: int = 1
) -> int:
    """How many episodes one of several processes plays, or all of them."""
    return settings.group_size * sum(
        len(range(process, len(rows), processes)) for rows in _rows(task).values()
    )


def _policy_agent(config: RunConfig, model: Any, tokenizer: Any, concurrency: int) -> PolicyAgent:
    """Make the agent that samples from a model."""
    limits = config.trainer
    with in_section("trainer", TrainerSection.model_fields):
        return agent_for(
            model,
            tokenizer,
            config.agent.model_dump(),
            concurrency,
            kv_budget_bytes=limits.kv_budget_bytes,
            deterministic=config.deterministic,
        )


def _evaluation(
    config: RunConfig,
    task: RunTask,
    settings: RolloutSettings,
    rollouts: SharedRollouts,
    journaled: Callable[[str], Watched],
) -> Evaluation:
    def playing(name: str, make_env: Any) -> SharedRollouts:
        return replace(rollouts, make_env=make_env, journal=journaled(name))

    return Evaluation(
        playing(OWN, task.make_env),
        settings,
        config.trainer,
        pass_reward=config.evaluation.pass_reward,
        tags=tag_expressions(config.evaluation.by),
        others={
            name: (playing(name, environment), rows)
            for name, (environment, rows) in task.evaluation_environments.items()
        },
    )
