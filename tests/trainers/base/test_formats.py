"""Files of a later Gymnast are refused in a sentence, and those without a number are read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from command_fixtures import CommandLine
from gymnast.trainers.base.formats import unreadable_format
from gymnast.trainers.config.files import load_config

ONE = ["trainer.steps=1", "trainer.rows_per_step=1", "evaluation.rows=1"]


@pytest.mark.parametrize("given", [None, 1, 2])
def test_formats_up_to_the_own_are_read(given: Any) -> None:
    assert unreadable_format("x", given, 2) == ""


@pytest.mark.parametrize("given", [3, 0, -1, "1", True, 1.5, [1]])
def test_others_are_not(given: Any) -> None:
    assert unreadable_format("x", given, 2).startswith("x: ")


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert re.search(before, text), text
    path.write_text(re.sub(before, after, text, count=1))


def test_what_a_run_writes_has_a_number_and_a_later_one_is_refused(gymnast: CommandLine) -> None:
    assert gymnast("train", "run.yaml", *ONE).code == 0
    config, complete = Path("out/config.yaml"), Path("out/checkpoints/step_00001/complete")
    environment = Path("out/environment.json")
    assert config.read_text().startswith("format_version: 1\n")
    assert json.loads(complete.read_text())["format_version"] == 1
    more = ["train", "run.yaml", *ONE, "trainer.steps=2", "--resume"]
    says = "this version of Gymnast reads up to 1; update Gymnast"

    change(config, "format_version: 1", "format_version: 9")
    refused = gymnast("eval", "out")
    assert refused.code == 2
    assert refused.errors == f"error: out/config.yaml: has format_version 9, and {says}\n"
    refused = gymnast(*more)
    assert (refused.code, says in refused.errors) == (2, True)
    change(config, "format_version: 9", "format_version: 1")

    change(complete, '"format_version": 1', '"format_version": 9')
    refused = gymnast(*more)
    assert refused.code == 1 and "step_00001: has format_version 9" in refused.errors
    change(complete, '"format_version": 9', '"format_version": 1')

    change(environment, '"metrics": 1', '"metrics": 9')
    refused = gymnast(*more)
    assert refused.code == 1 and "metrics.jsonl: has format_version 9" in refused.errors
    change(environment, '"metrics": 9', '"metrics": 1')

    # Without numbers, as before there were any.
    change(complete, '"format_version": 1, ', "")
    change(config, "format_version: 1\n", "")
    environment.unlink()
    assert gymnast(*more).code == 0
    assert load_config(config).trainer.steps == 2


def test_a_yaml_of_ones_own_may_say_its_format(shop_folder: Path) -> None:
    run = Path("run.yaml")
    run.write_text(f"format_version: 1\n{run.read_text()}")
    assert load_config(run).model.name == "tiny:"
