"""Calls that wait for an import."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from gymnast.imports import when_imported


def test_calls_are_made_once_the_module_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_later.py").write_text("value = 1\nvalue = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders, seen = list(sys.meta_path), list[int]()
    when_imported("imported_later", lambda module: seen.append(module.value))
    when_imported("imported_later", lambda module: seen.append(10 * module.value))
    assert seen == []
    import_module("imported_later")
    assert sorted(seen) == [2, 20]
    assert sys.meta_path == finders
    when_imported("imported_later", lambda module: seen.append(3))
    assert seen[2:] == [3]
    del sys.modules["imported_later"]
