"""What is evaluated: from a run's folder, a YAML, a model or an endpoint to a config.

    runs/arithmetic                      a run's folder: its trained model, on its evaluation rows
    runs/arithmetic/best                 the model of its best evaluation, likewise
    runs/arithmetic/evaluations/001      an evaluation's folder: the same once more
    run.yaml                             a YAML: the model that it names
    org/model, ./weights, pypi:..., ...  a model by its name, on an environment that is named too

An endpoint takes the place of the model of any of these.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnast.agents.backends import CHAT
from gymnast.errors import ConfigError
from gymnast.lookup import nearest_file
from gymnast.trainers.config.files import load_config, parse_config
from gymnast.trainers.config.sections import (
    AlgorithmSection,
    ModelSection,
    RunConfig,
    SamplingSection,
)
from gymnast.trainers.config.yaml_reader import with_overrides
from gymnast.trainers.saving.best import run_of
from gymnast.trainers.saving.run_folder import CONFIG_FILE, EVALUATIONS, MODEL
from gymnast.trainers.saving.saved_runs import EVALUATION_FILE

TOKENIZER = "tiny:"  # for environments that a model behind an endpoint plays without a YAML


@dataclass(frozen=True)
class Endpoint:
    """A model behind an OpenAI-compatible endpoint.

    Attributes:
        url: Of the endpoint.
        model: The model's name there.
        api_key_env: The environment variable that holds its key; None where it asks for none.
    """

    url: str
    model: str
    api_key_env: str | None = "OPENAI_API_KEY"

    def __str__(self) -> str:
        return f"{self.model} at {self.url}"

    @property
    def settings(self) -> dict[str, Any]:
        """The section `agent` that asks it."""
        named = {"model": self.model, "base_url": self.url, "api_key_env": self.api_key_env}
        return {"backend": CHAT, **named}


@dataclass(frozen=True)
class Wanted:
    """What is to be evaluated, and on what.

    Attributes:
        target: A run's folder, an evaluation's, a YAML, or the name of a model; None only with an
            endpoint.
        endpoint: Who answers in place of the target's model.
        environment: What names the environment; None: that of the target.
        data: A file or hub dataset of its rows; None: those of the target, or its own.
        overrides: `dotted.key=value`; they come last.
    """

    target: str | None = None
    endpoint: Endpoint | None = None
    environment: str | None = None
    data: str | None = None
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Target:
    """What is evaluated.

    Attributes:
        config: That of its evaluation.
        name: What names it, for people.
        evaluations: The folder in which its evaluations are numbered.
        repeats: The folder of the evaluation that it is; None where it is no evaluation.
    """

    config: RunConfig
    name: str
    evaluations: Path
    repeats: Path | None = None


def find_target(wanted: Wanted) -> Target:
    """The config of what is to be evaluated.

    Raises:
        ConfigError: It is nothing that can be evaluated, or a setting does not hold.
    """
    endpoint, target = wanted.endpoint, None
    if wanted.target is not None:
        target = Path(wanted.target).expanduser()
        target = target.parent if target.name == CONFIG_FILE else target
    agent = [] if endpoint is None else [f"agent={json.dumps(endpoint.settings)}"]
    given = [*agent, *_named(wanted), *wanted.overrides]
    if target is None or not _has_config(wanted, target):
        return _of_model(wanted, given)
    if not is_evaluation(target):
        path = str(wanted.target)
        config = _of_run(path, given, trained=endpoint is None)
        name = path if endpoint is None else str(endpoint)
    else:
        here = str(target)
        config = load_config(target / CONFIG_FILE, [f"output_dir={json.dumps(here)}", *given])
        name = evaluated_name(config)
        if config.output_dir == here:
            config = _for_evaluation(_checked(config, wanted))
            own = target if target.name else target.absolute()
            return Target(config, name, own.parent, own)
    config = _for_evaluation(_checked(config, wanted))
    return Target(config, name, Path(config.output_dir or ".") / EVALUATIONS)


def _named(wanted: Wanted) -> list[str]:
    """The environment and data of options, as overrides."""
    given = []
    if wanted.environment is not None:
        given += [
            f"environment={json.dumps({'id': wanted.environment})}",
            "rewards=[]",
            "data=null",
        ]
        given += ["evaluation.by=[]", "evaluation.environments={}", "evaluation.rows=null"]
    if wanted.data is not None:
        # Of a hub dataset its test split, unless data.split says otherwise.
        data = {"train": wanted.data, "evaluation": wanted.data, "split": "test"}
        given += [f"data={json.dumps(data)}", "evaluation.rows=null"]
    return given


def _has_config(wanted: Wanted, target: Path) -> bool:
    """Whether a target must be a folder or a file with a config, not the name of a model."""
    if wanted.environment is None:
        return True
    if target.is_dir():
        return (target / CONFIG_FILE).exists()
    return target.suffix in (".yaml", ".yml") or target.is_file()


def evaluation_config(path: str | Path, overrides: Sequence[str]) -> RunConfig:
    """The config that evaluates a run's trained model, or the untrained one of a YAML.

    Args:
        path: A run's folder, or a YAML.
        overrides: `dotted.key=value`.

    Returns:
        The config; its `output_dir` is the run's folder, in which the evaluation is to be kept.

    Raises:
        ConfigError: The folder is not one of a run that ended, or the config does not hold.
    """
    return _for_evaluation(_checked(_of_run(path, overrides), Wanted(str(path))))


def _of_run(path: str | Path, overrides: Sequence[str], *, trained: bool = True) -> RunConfig:
    """The config of a run's folder, with its trained model if that is wanted, or of a YAML."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        _check_is_yaml(path, folder)
        return load_config(path, overrides)
    run = run_of(folder)
    _check_run_folder(path, run, folder, trained=trained)
    # A folder may have been moved since its config was written, which may name no model.
    place = str(path) if run == folder else str(run)
    moved = {"output_dir": place} | ({"model.name": str(folder / MODEL)} if trained else {})
    known = [f"{key}={json.dumps(place)}" for key, place in moved.items()]
    config = load_config(run / CONFIG_FILE, [*known, *overrides])
    if not trained:
        return config
    return config.model_copy(update={"model": _trained(config.model, folder / MODEL)})


def _for_evaluation(config: RunConfig) -> RunConfig:
    """A config without what training alone needs, which may take memory or be gone."""
    # Nothing is trained, so `sampling` may be greedy or filtered too: evaluation takes it over.
    sampled = config.evaluation.sampling(config.sampling.model_dump())
    update: dict[str, Any] = {
        "trackers": {},
        "algorithm": AlgorithmSection(),
        "trainer": config.trainer.model_copy(update={"max_staleness": 0}),  # any agent can evaluate
        "warmup": None,
        "evaluation": config.evaluation.model_copy(update=sampled),
        "sampling": SamplingSection(),
    }
    return config.model_copy(update=update)


def evaluated_name(config: RunConfig) -> str:
    """What names the model of a config, for people."""
    agent = config.agent.model_extra or {}
    return str(agent["model"]) if config.agent.backend == CHAT else config.model.name


def is_evaluation(folder: Path) -> bool:
    """Whether a folder is that of an evaluation on its own; earlier versions left no mark in it."""
    known = (folder / EVALUATION_FILE).exists()
    return known or (
        folder.absolute().parent.name == EVALUATIONS
        and (folder / CONFIG_FILE).exists()
        and not (folder / MODEL).exists()
    )


def _of_model(wanted: Wanted, overrides: Sequence[str]) -> Target:
    """A model that is named without a YAML."""
    if wanted.environment is None:
        raise ConfigError(
            "--environment: is required to evaluate a model that no run names; name one (`gymnast "
            "envs` lists some)"
        )
    endpoint, named = wanted.endpoint, wanted.target
    if named is not None and endpoint is not None:
        raise ConfigError(
            f"{named}: is neither a run nor a YAML, and --endpoint is what is evaluated; leave "
            "one of them out"
        )
    settings = with_overrides({"model": {"name": named or TOKENIZER}}, overrides)
    model = endpoint.model if endpoint is not None else str(named)
    folder = f"{EVALUATIONS}/{short_name(model)}_{short_name(wanted.environment)}"
    evaluations = Path(folder)
    if settings.get("output_dir") is None:
        settings["output_dir"] = folder
    else:
        evaluations = Path(str(settings["output_dir"])) / EVALUATIONS
    config = _for_evaluation(_checked(parse_config(settings), wanted))
    return Target(config, str(endpoint or named), evaluations)


def short_name(name: str) -> str:
    """What a folder can be called after a model or an environment."""
    last = re.split(r"[/:]", name.rstrip("/:"))[-1]
    if last == MODEL and "/" in name:  # of a run
        last = name.rstrip("/").split("/")[-2]
    return re.sub(r"[^\w.+-]+", "-", last).strip("-.") or "model"


def _checked(config: RunConfig, wanted: Wanted) -> RunConfig:
    """Check that rows are held out, or that the environment is to be evaluated alone."""
    alone = wanted.environment is not None and config.evaluation.rows is None
    if not config.has_rows_to_evaluate and not alone:
        raise ConfigError(
            "evaluation.rows: is required to evaluate; add evaluation.rows=128, for example"
        )
    return config


def _check_is_yaml(path: str | Path, file: Path) -> None:
    """Refuse what can only be the name of a model, without an environment."""
    if file.suffix not in (".yaml", ".yml") and not file.exists():
        near = nearest_file(path)
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            f"{path}: there is no such folder or YAML; {hint}to evaluate a model by its name, add "
            "an environment: --environment gymnast/Arithmetic-v0"
        )


def _check_run_folder(path: str | Path, run: Path, folder: Path, *, trained: bool) -> None:
    """Check that a folder is that of a run, or its best; with a model, if that is evaluated."""
    if not (run / CONFIG_FILE).exists():
        if (folder.parent / CONFIG_FILE).exists():
            hint = f"did you mean {Path(path).parent}, the run it belongs to?"
        elif (folder / "config.json").exists():
            hint = (
                "to evaluate the model in it, add an environment: --environment "
                "gymnast/Arithmetic-v0"
            )
        else:
            hint = "name the output_dir of a run, or a run's YAML"
        raise ConfigError(f"{path}: has no {CONFIG_FILE}, so it is not a run's folder; {hint}")
    if trained and not (folder / MODEL).exists():
        raise ConfigError(
            f"{path}: has no {MODEL}, so the run has not ended; continue it with `gymnast train "
            f"{Path(path) / CONFIG_FILE} --resume`, or evaluate the untrained model that its "
            f"{CONFIG_FILE} names"
        )


def _trained(model: ModelSection, folder: Path) -> ModelSection:
    """The saved model: plain, its adapters merged, with the chat template in its tokenizer."""
    update = {"name": str(folder), "lora": None, "quantization": None, "chat_template": None}
    return model.model_copy(update=update)
