"""Which key of a config somebody meant, also in the words of other frameworks."""

import pytest

from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.algorithms.losses import LOSSES
from gymnast.trainers.base.config_errors import dotted_keys
from gymnast.trainers.base.key_hints import OTHER_NAMES, setting_meant, unknown_key
from gymnast.trainers.config.sections import RunConfig


@pytest.mark.parametrize(
    ("section", "key", "said"),
    [
        ("trainer", "stepz", "trainer.stepz: unknown key; did you mean steps?"),
        (
            "algorithm",
            "num_generations",
            "algorithm.num_generations: unknown key; Gymnast calls it algorithm.group_size",
        ),
        ("", "lr", "lr: unknown key; Gymnast calls it trainer.learning_rate"),
        (
            "sampling",
            "learning_rate",
            "sampling.learning_rate: unknown key; did you mean trainer.learning_rate or "
            "warmup.learning_rate?",
        ),
        (
            "",
            "dynamic_sampling",
            "dynamic_sampling: unknown key; did you mean trainer.dynamic_sampling?",
        ),
        (
            "algorithm",
            "curriculum",
            "algorithm.curriculum: unknown key; did you mean trainer.curriculum?",
        ),
        ("trainer", "warmup", "trainer.warmup: unknown key; did you mean warmup?"),
        ("trainer", "zzz", "trainer.zzz: unknown key; the keys are steps, rows_per_step"),
    ],
)
def test_an_unknown_key_is_told_where_its_thing_is_set(section: str, key: str, said: str) -> None:
    assert unknown_key(section, key, ["steps", "rows_per_step"], dotted_keys(RunConfig)) == said


@pytest.mark.parametrize("name", list(OTHER_NAMES))
def test_every_name_of_another_framework_leads_to_a_key_that_there_is(name: str) -> None:
    meant = setting_meant(name, dotted_keys(RunConfig))
    parts = [part for parts in (ESTIMATORS, LOSSES) for part in parts.values()]
    options = {f"algorithm.{option}" for part in parts for option in part.options}
    assert meant in {*dotted_keys(RunConfig), *options}
    assert name not in {key.rpartition(".")[2] for key in dotted_keys(RunConfig)}


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("--steps", "trainer.steps"),
        ("--trainer.steps", "trainer.steps"),
        ("--learning-rate", "trainer.learning_rate"),
        ("--num_generations", "algorithm.group_size"),
        ("--batch-size", "trainer.rows_per_step"),
        ("--temperature", "sampling.temperature"),
        ("--output", "output_dir"),
        ("--model", "model.name"),
        ("--env", "environment.id"),
        ("--eval", "evaluation.rows"),
        ("--evaluation", "evaluation.rows"),
        ("--colour", None),
    ],
)
def test_an_option_that_is_a_setting(option: str, setting: str | None) -> None:
    assert setting_meant(option, dotted_keys(RunConfig)) == setting
