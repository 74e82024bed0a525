"""Modules sent as source text, and what is left behind in the process that defines them."""

import ast
import subprocess
import sys
from pathlib import Path

from gymnast.sandboxes.contract.module_program import (
    DEFINE_MODULES,
    module_program,
    module_sources,
)


def run(program: str, folder: Path) -> str:
    argv = [sys.executable, "-I", "-c", program]
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout


def test_modules_import_each_other_where_their_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "numbers.py").write_text("SEVEN = 7\n")
    (tmp_path / "answer.py").write_text(
        "from far.away import numbers\nfrom far.away.numbers import SEVEN\n"
        "def twice(): return numbers.SEVEN + SEVEN\n"
    )
    program = module_program("far.away", module_sources(tmp_path, ["numbers", "answer"]))
    (tmp_path / "numbers.py").unlink()
    (tmp_path / "answer.py").unlink()
    assert run(f"{program}print(answer.twice())", tmp_path) == "14\n"


def test_a_program_leaves_one_name_behind(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text("")
    (tmp_path / "second.py").write_text("")
    program = module_program("far", module_sources(tmp_path, ["first", "second"]))
    shown = run(f"before = set(vars())\n{program}print(set(vars()) - before)", tmp_path)
    assert ast.literal_eval(shown) == {"before", "second"}


def test_modules_keep_their_own_future_imports(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("def f(x: int): pass\nKIND = type(f.__annotations__['x'])\n")
    program = module_program("far", module_sources(tmp_path, ["plain"]))
    shown = run(f"from __future__ import annotations\n{program}print(plain.KIND)", tmp_path)
    assert shown == "<class 'type'>\n"


def test_the_loader_is_for_any_python_from_3_8_on() -> None:
    ast.parse(DEFINE_MODULES, feature_version=(3, 8))
