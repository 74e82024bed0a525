"""What an evaluation on its own keeps: when it begins, while it plays, and at its end."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnast.errors import ConfigError
from gymnast.trainers.config.files import load_config, save_config
from gymnast.trainers.config.resuming import differences
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.data.input_paths import shown_path
from gymnast.trainers.data.rows import Row, canonical
from gymnast.trainers.evaluating.targets import evaluated_name
from gymnast.trainers.evaluation.evaluation import Evaluated
from gymnast.trainers.reporting.trackers import as_json
from gymnast.trainers.saving.durable import sweep, write_text
from gymnast.trainers.saving.episode_journal import FOLDER as EPISODES
from gymnast.trainers.saving.episode_journal import EpisodeJournal
from gymnast.trainers.saving.kept_rollouts import KeptRollouts
from gymnast.trainers.saving.run_folder import CONFIG_FILE, RunFolder
from gymnast.trainers.saving.saved_runs import EVALUATION_FILE

FORMAT_VERSION = 1  # of evaluation.json
OWN = ""  # the name of the config's own environment, among those that are evaluated
# What an evaluation that goes on may change: none of it says what is played.
MAY_CHANGE = ("agent.", "data.", "rollouts.", "trackers", "trainer.")
BUT_NOT = ("agent.backend", "agent.model", "agent.parameters")

RowSets = Mapping[str, Sequence[Row]]  # by environment


def begin(config: RunConfig, rows: RowSets, folder: Path) -> None:
    """Write down what is evaluated, or check that it is what the evaluation in a folder began with.

    Args:
        config: Of the evaluation.
        rows: That it plays.
        folder: Its own.

    Raises:
        ConfigError: Another evaluation began there.
    """
    digests = {name: _digest(own) for name, own in rows.items()}
    mark = folder / EVALUATION_FILE
    known = json.loads(mark.read_text(encoding="utf-8")) if mark.exists() else None
    if known is not None:
        _check_same(config, folder)
        if known.get("rows") != digests:
            raise _other_rows(len(rows[OWN]), folder)
        return
    count = len(rows[OWN])  # so that the config says what was played
    update = {"evaluation": config.evaluation.model_copy(update={"rows": count})}
    save_config(config.model_copy(update=update), folder / CONFIG_FILE)
    written = {"format_version": FORMAT_VERSION, "model": evaluated_name(config), "rows": digests}
    write_text(mark, json.dumps(written, indent=1) + "\n")


def journal(config: RunConfig, folder: Path, name: str, process: int) -> EpisodeJournal | None:
    """The journal of an environment's episodes; None where no episodes are to be kept.

    Args:
        config: Of the evaluation.
        folder: Its own.
        name: Of the environment.
        process: The number of this process.
    """
    if config.rollouts.keep == "none":
        return None
    return EpisodeJournal(folder / EPISODES / ("eval" if name == OWN else f"eval_{name}"), process)


def keep(config: RunConfig, folder: Path, found: Evaluated, tokenizer: Any) -> None:
    """Write the episodes of an evaluation that has ended, and then its metrics.

    Args:
        config: Of the evaluation.
        folder: Its own.
        found: What it came to.
        tokenizer: Of the episodes' ids; None where they have none.

    Raises:
        DiskFull: There is no room for them.
    """
    sweep(folder / "rollouts", "*.parquet")
    kept = KeptRollouts(folder, config.rollouts, tokenizer, config.seed)
    kept.save_evaluation(0, found.rollouts, found.others)
    RunFolder(folder).add_metrics(as_json({"step": 0, **found.metrics}))


def _check_same(config: RunConfig, folder: Path) -> None:
    lines = []
    for key, theirs, ours in differences(load_config(folder / CONFIG_FILE), config):
        free = key.startswith(MAY_CHANGE) and not key.startswith(BUT_NOT)
        if not free and key != "evaluation.rows":  # of which `_check_rows` says more
            lines.append(
                f"{key}: is {ours}, and the evaluation in {shown_path(folder)} began with {theirs}"
            )
    if lines:
        lines[-1] += f"; set what it began with, {_as_it_began(folder)}, or leave --resume out"
        raise ConfigError("\n".join(lines))


def _other_rows(count: int, folder: Path) -> ConfigError:
    """Why an evaluation does not go on with these rows, of which the config's own are so many."""
    began, place = load_config(folder / CONFIG_FILE).evaluation.rows, shown_path(folder)
    if began != count:
        return ConfigError(
            f"--resume: the evaluation in {place} began with {began} rows, now there are {count}: "
            f"say --rows {began}, or {_as_it_began(folder)}"
        )
    return ConfigError(
        f"--resume: the evaluation in {place} began with other rows: the data is not as it was; "
        "leave --resume out to evaluate anew"
    )


def _as_it_began(folder: Path) -> str:
    return f"go on with `{shlex.join(['gymnast', 'eval', shown_path(folder), '--resume'])}`"


def _digest(rows: Sequence[Row]) -> str:
    """A text that equal lists of rows share."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(canonical(row).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
