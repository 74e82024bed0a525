"""`gymnast schema` says of a YAML what `load_config` says, as far as a schema can."""

import contextlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from command_fixtures import RUN, CommandLine
from gymnast.errors import ConfigError
from gymnast.trainers.base.config_errors import section_in
from gymnast.trainers.config.files import load_config, parse_config, save_config
from gymnast.trainers.config.sections import RunConfig, run_keys
from gymnast.trainers.config.yaml_reader import read_yaml, with_overrides
from gymnast.trainers.schema.run_schema import run_schema

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
SCHEMA = run_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def problems(settings: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(settings)]


def overridden(*overrides: str) -> dict[str, Any]:
    return with_overrides(yaml.safe_load(RUN.replace("1e-3", "0.001")), overrides)


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert not {"ge", "gt", "le", "lt"} & {*json.dumps(SCHEMA).replace('"', " ").split()}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_fits(path: Path) -> None:
    assert problems(read_yaml(path)) == []


@pytest.mark.parametrize(
    "override",
    [
        "trainer.stepz=3",
        "trainer.steps=0",
        "trainer.steps=1.5",
        "trainer.steps=many",
        "trainer.learning_rate=-1",
        "algorithm.name=grop",
        "algorithm.clip_hgih=0.3",
        "algorithm.loss=clippd",
        "model.name=3",
        "model.dtype=float8",
        "model.lora.rank=0",
        "evaluation.rows=-1",
        "evaluation.by=operation",
        "environment.max_turns=0",
        "environment.id=null",
        "rollouts.keep=some",
        "sampling.top_p=2",
        "trackers=[tensorbord]",
        "seeds=3",
        "format_version=9",
    ],
)
def test_what_is_wrong_is_refused_by_both(override: str) -> None:
    wrong = overridden(override)
    if override.startswith("environment.id"):
        del wrong["environment"]["id"]
    assert problems(wrong)
    with pytest.raises(ConfigError):
        parse_config(wrong)


@pytest.mark.parametrize("override", ["rewards=[{function: exactt}]", "agent.backend=vlm"])
def test_so_are_names_that_a_run_looks_up_when_it_is_built(override: str) -> None:
    assert problems(overridden(override))


@pytest.mark.parametrize(
    "override",
    [
        "trainer.steps=1e3",
        "algorithm.name=my_code:estimator",
        "algorithm={name: 'my_code:estimator', my_option: 3}",
        "algorithm.clip_high=0.3",
        "environment.my_setting=3",
        "environment.id=my_envs:Shop",
        "environment.wrappers=[ClipReward, {id: TimeLimit, max_episode_steps: 3}]",
        "environment={mixture: [gymnast/Arithmetic-v0, {id: gymnast/Python-v0, weight: 2}]}",
        "environment.sandbox={backend: docker, image: python}",
        "evaluation.by=[operation]",
        "evaluation.by={large: 'a > `50`'}",
        "trackers=[tensorboard]",
        "trackers={tensorboard: {}}",
        "warmup=null",
        "trainer.schedule={name: linear}",
        "model.lora={target: [q_proj]}",
        "format_version=1",
    ],
)
def test_what_is_right_fits(override: str) -> None:
    assert problems(overridden(override)) == []


def test_every_key_is_there_with_its_meaning() -> None:
    def check(model: type[BaseModel], schema: dict[str, Any], place: str) -> None:
        for name, field in model.model_fields.items():
            key = schema["properties"][name]
            meaning = " ".join((field.description or "").split())
            inner = section_in(field.annotation)
            said = key.get("description") or (inner and " ".join((inner.__doc__ or "").split()))
            assert not meaning or said == meaning, f"{place}{name}"
            if inner is not None:
                check(inner, SCHEMA["$defs"][inner.__name__], f"{place}{name}.")

    check(RunConfig, SCHEMA, "")


def test_what_a_run_writes_fits(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    save_config(load_config(tmp_path / "run.yaml"), tmp_path / "config.yaml")
    assert problems(read_yaml(tmp_path / "config.yaml")) == []


def test_what_the_config_takes_the_schema_takes() -> None:
    """It may let through what only `load_config` knows to be wrong, and refuses nothing right."""
    values = [*range(-3, 4), True, False, -1.5, 0.25, 1.5, "text", "a:b", [], ["text"], {}, None]
    refused = set()
    for key in run_keys():
        for value in map(json.dumps, values):
            settings = overridden(f"{key}={value}")
            with contextlib.suppress(ConfigError):
                parse_config(settings)
                if problems(settings):
                    refused.add(f"{key}={value}")
    # Names that are looked up when the run is built.
    assert refused == {'agent.backend="text"', 'environment.sandbox="text"'}


def test_the_command_writes_it(gymnast: CommandLine) -> None:
    assert json.loads(gymnast("schema").output) == run_schema()
    ran = gymnast("schema", "--output", "run.schema.json")
    assert "# yaml-language-server: $schema=run.schema.json" in ran.output
    assert json.loads(Path("run.schema.json").read_text()) == run_schema()
    refused = gymnast("schema", "--output", "nowhere/x.json")
    assert refused.code == 2 and "nowhere/x.json cannot be written" in refused.errors
