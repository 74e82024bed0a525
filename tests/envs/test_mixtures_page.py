"""docs/mixtures.md: its examples run, and its YAMLs are sections of a run."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gymnast.trainers.config.files import parse_config

PAGE = (Path(__file__).parents[2] / "docs/mixtures.md").read_text()


def test_the_examples_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    for source in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(source, "docs/mixtures.md", "exec", dont_inherit=True), namespace)
    printed = capsys.readouterr().out
    assert printed.startswith("['add', 'multiply', 'note']\n")
    assert printed.count("Arithmetic") == 8
    assert namespace["environment"].playing == "Arithmetic"


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_the_yamls_are_sections_of_a_run(text: str) -> None:
    config = parse_config({"model": {"name": "tiny:"}, **yaml.safe_load(text)})
    assert config.environment.mixture or config.environment.wrappers
