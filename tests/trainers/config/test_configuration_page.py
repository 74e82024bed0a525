"""docs/configuration.md: its example is a run."""

import re
from pathlib import Path

from gymnast.trainers.config.files import load_config

PAGE = Path(__file__).parents[3] / "docs/configuration.md"


def test_the_pages_example_is_a_run(tmp_path: Path) -> None:
    example, *_ = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (tmp_path / "run.yaml").write_text(example)
    (tmp_path / "shop.py").write_text("def brevity(trajectory): return 0.0\n")
    config = load_config(tmp_path / "run.yaml")
    assert config.environment.id == f"{tmp_path}/shop.py:Shop"


def test_an_editor_is_told_of_the_schema_that_the_page_writes() -> None:
    """The block is the first line of a run's YAML; relative to it, as its comment says."""
    _, first_line = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (schema,) = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", first_line, re.M)
    assert f"\ngymnast schema --output {schema}\n" in PAGE.read_text(encoding="utf-8")
