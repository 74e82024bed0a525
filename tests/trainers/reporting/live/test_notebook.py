"""A real training in a real kernel: one output is replaced in place, without widgets."""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.notebook,
    # Of the clients of a kernel, on ending a test.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).parents[4]
CELL = """
import sys
from gymnast.trainers.build import build_trainer
from gymnast.trainers.config.files import load_config
from gymnast.trainers.reporting.console import RunConsole
config = load_config({yaml!r}, ["output_dir=" + {folder!r}, "evaluation.rows=2"])
trainer = build_trainer(config, observer=RunConsole())
trainer.train()
assert "ipywidgets" not in sys.modules
"""


def test_a_notebook_has_one_view_and_the_last_sample(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    code = CELL.format(yaml=str(ROOT / "examples/tiny.yaml"), folder=str(tmp_path / "run"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs: list[Any] = [o.data for o in notebook.cells[0].outputs if o.output_type != "stream"]
    views = [text for each in outputs if re.match(r"step \d/3 ━", text := each["text/plain"])]
    assert len(views) == 1
    assert "reward " in views[0] and "training" in views[0]
    assert views[0].startswith("step 3/3 ")
    samples = [html for each in outputs if "<details>" in (html := each.get("text/html", ""))]
    assert len(samples) == 1
    assert "Write down the number" in samples[0]
    steps = [text for each in outputs if re.match(r"step \d/3  reward", text := each["text/plain"])]
    assert len(steps) == 3
