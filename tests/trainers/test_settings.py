"""A setting is declared once: `Trainer`'s keywords are compared with the settings of each room."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from gymnast.errors import ConfigError
from gymnast.trainers import Trainer
from gymnast.trainers.base.settings import Settings
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.evaluation.settings import EvaluationSettings
from gymnast.trainers.settings import TrainerSettings

SETTINGS: list[type[Settings]] = list(TrainerSettings.__annotations__.values())
# The keywords that are no settings: a YAML can only name what Python passes.
OBJECTS = {
    "agent",
    "algorithm",
    "rewards",
    "warmup",
    "sampling",
    "eval_rows",
    "eval_sampling",
    "eval_environments",
    "observer",
    "trackers",
    "hyperparameters",
}


def keywords() -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(Trainer).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def test_every_keyword_of_the_trainer_is_a_setting_or_an_object() -> None:
    names = {cls.prefix + name for cls in SETTINGS for name in cls.model_fields}
    assert names | OBJECTS == set(keywords())
    assert not names & OBJECTS


@pytest.mark.parametrize("cls", SETTINGS)
def test_keywords_have_the_types_and_defaults_of_their_settings(cls: type[Settings]) -> None:
    ours, theirs = get_type_hints(cls), get_type_hints(Trainer.__init__)
    for name, field in cls.model_fields.items():
        keyword = keywords()[cls.prefix + name]
        assert keyword.default == field.default
        # Python may pass a path as a `Path`, and settings within settings as a dict.
        types = {*get_args(theirs[keyword.name])} - {Path, Mapping[str, Any]}
        assert types == {*get_args(ours[name])} and (types or ours[name] == theirs[keyword.name])


@pytest.mark.parametrize("cls", SETTINGS)
def test_every_setting_says_what_it_means(cls: type[Settings]) -> None:
    for name, field in cls.model_fields.items():
        assert field.description and field.description.endswith("."), name


@pytest.mark.parametrize("cls", SETTINGS)
def test_a_key_of_the_yaml_is_the_setting_itself(cls: type[Settings]) -> None:
    sections = [field.annotation for field in RunConfig.model_fields.values()]
    heirs = [s for s in [RunConfig, *sections] if isinstance(s, type) and issubclass(s, cls)]
    (section,) = heirs
    for name, field in cls.model_fields.items():
        key: Any = section.model_fields[name]
        assert repr(key) == repr(field), "the same type, range, default and meaning"


def test_the_trainers_docstring_says_what_each_setting_means() -> None:
    text = " ".join((Trainer.__doc__ or "").split())
    for cls in SETTINGS:
        for name, field in cls.model_fields.items():
            assert f"{cls.prefix}{name}: {' '.join(str(field.description).split())}" in text


def test_a_wrong_value_is_named_by_the_keyword_of_the_trainer() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainerSettings.collect({"eval_every_steps": -1, "eval_by": "kind", "steps": 0})
    assert str(caught.value).splitlines() == [
        "steps: must be >= 1, got 0",
        "eval_every_steps: must be >= 0, got -1",
        "eval_by: must be a list of columns, or jmespath expressions by name, got 'kind'",
    ]


def test_a_section_gives_its_settings_back_as_keywords_of_the_trainer() -> None:
    settings = EvaluationSettings(every_steps=3, by=("kind",))
    assert EvaluationSettings.collect(EvaluationSettings.keywords(settings)) == settings
