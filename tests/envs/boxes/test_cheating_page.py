"""docs/cheating.md: its example runs, and what it names is there."""

import re
from pathlib import Path
from typing import Any

from gymnast.envs.boxes.box import BROKEN
from sandbox_fixtures import skip_without_landlock

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/cheating.md").read_text()


def test_the_example_pays_the_work_and_no_cheat() -> None:
    skip_without_landlock()
    namespace: dict[str, Any] = {}
    for source in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(source, "docs/cheating.md", "exec", dont_inherit=True), namespace)


def test_the_suites_and_counts_that_it_names_are_there() -> None:
    suites = set(re.findall(r"test_\w+\.py", PAGE))
    assert "test_shell_cheats.py" in suites
    assert suites <= {path.name for path in (ROOT / "tests/envs").rglob("test_*.py")}
    assert f"`{BROKEN}`" in PAGE and "`environment/grading_failed`" in PAGE
