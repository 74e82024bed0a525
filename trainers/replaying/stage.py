"""The environment that saved episodes were played in, made again: as a run says, or by its name."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gymnast.agents.loading.load import load_tokenizer, model_context_length
from gymnast.envs import make
from gymnast.errors import ConfigError
from gymnast.trainers.config.environments import chat_template_text
from gymnast.trainers.config.files import load_config
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.config.task import RunTask, prepare_task
from gymnast.trainers.data.rows import DatasetRows
from gymnast.trainers.inspecting.index import Entry
from gymnast.trainers.records.token_text import fingerprint
from gymnast.trainers.rollouts.rewards import Reward, load_rewards
from gymnast.trainers.saving.run_folder import CONFIG_FILE, MODEL

_ANY_LENGTH = 2**31 - 1  # tokens: an endpoint says none


@dataclass(frozen=True)
class Stage:
    """Where saved episodes were played.

    Attributes:
        task: The environments.
        rewards: The run's reward functions.
        tokenizer: Of the run's model; None where no run is known, so that messages are played.
        mark: The fingerprint of that.
    """

    task: RunTask
    rewards: list[Reward]
    tokenizer: Any = None
    mark: str = ""

    def make_env(self, entry: Entry) -> Any:
        """The environment of an episode; of a mixture, its row says which one plays.

        Raises:
            ConfigError: It is of an evaluation in an environment that the config does not name.
        """
        further = entry.file.further
        if not further:
            return self.task.make_env()
        others = self.task.evaluation_environments
        if further not in others:
            raise ConfigError(
                f"{entry.id}: is of an evaluation in {further!r}, and the run's {CONFIG_FILE} has "
                "no evaluation.environments of that name"
            )
        make_env = others[further].environment
        assert callable(make_env), "as `prepare_task` makes them"
        return make_env()


def stage_of(environment: str, entries: Sequence[Entry]) -> Stage:
    """An environment with its defaults, for episodes that no run has played.

    Args:
        environment: Its name, as `gymnast demos` takes it.
        entries: The episodes.

    Raises:
        UnknownEnvironment: There is no such environment.
        UserCodeError: The environment's own code raised.
    """
    make_env = partial(make, environment)
    make_env().close()  # raises now where it cannot be made
    rows = DatasetRows([entry.row for entry in entries], seed=0)
    return Stage(RunTask(make_env, rows, [], {}), [])


def set_stage(run: Path) -> Stage:
    """Make the environments of a run again, which tries an episode in each.

    Args:
        run: Its folder, or one file of its rollouts.

    Raises:
        ConfigError: There is no config, or it does not hold any more.
        ModelError: The tokenizer of the run's model cannot be had.
        UserCodeError: An environment's own code raised.
    """
    folder = run if run.is_dir() else run.parent.parent
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ConfigError(
            f"{run}: has no {CONFIG_FILE} beside its rollouts, which says in which environment to "
            "play; name the folder of a run, or the environment: --environment FILE.py:Class"
        )
    config = load_config(file)
    name, template = config.model.name, chat_template_text(config.model)
    if (folder / MODEL).is_dir():  # the folder may have been moved, and the model's source be gone
        config = config.model_copy(
            update={"model": config.model.model_copy(update={"name": str(folder / MODEL)})}
        )
        name, template = str(folder / MODEL), None
    tokenizer = load_tokenizer(name, chat_template=template)
    task = prepare_task(config, tokenizer, _context_length(config))
    rewards = load_rewards([reward.named for reward in config.rewards])
    return Stage(task, rewards, tokenizer, fingerprint(tokenizer))


def _context_length(config: RunConfig) -> int | None:
    return (
        _ANY_LENGTH if config.agent.backend == "chat" else model_context_length(config.model.name)
    )
