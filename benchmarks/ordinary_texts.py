"""Ordinary text, as a policy may write it in an answer: taken from packages that are installed.

A quarter each of documentation (paragraphs of packages' descriptions and of docstrings), Python
source (functions and classes), HTML (pages that `pydoc` writes of modules, in stretches) and JSON
(objects of packages' data files). Drawn with a seed: the same packages give the same texts.
"""

import ast
import contextlib
import importlib
import json
import pydoc
import random
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, metadata
from itertools import islice
from pathlib import Path
from typing import Any

PACKAGES = (
    *("accelerate", "datasets", "docker", "filelock", "gymnasium", "jinja2", "jmespath"),
    *("jsonschema", "jsonschema-specifications", "numpy", "pydantic", "pyyaml", "rich"),
    *("setuptools", "tokenizers", "torch", "transformers", "typer"),
)
SHORTEST, LONGEST = 60, 2000  # characters of a text
_MOST_FILES = 6  # of a package, of a kind
_PAGES = (
    *("csv", "fractions", "gzip", "heapq", "json", "queue", "shutil", "string", "tempfile"),
    *("textwrap", "timeit", "zipfile"),
)


def ordinary_texts(count: int, seed: int = 0) -> list[str]:
    """So many texts, of all kinds, in a random order."""
    kinds: tuple[Callable[[], Iterator[str]], ...] = (_documentation, _source, _html, _json)
    chance = random.Random(seed)
    texts: list[str] = []
    for kind in kinds:
        found = sorted(
            {text.strip() for text in kind() if SHORTEST <= len(text.strip()) <= LONGEST}
        )
        texts += chance.sample(found, min(len(found), -(-count // len(kinds))))
    chance.shuffle(texts)
    return texts[:count]


def _installed() -> Iterator[str]:
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):  # some installations have fewer
            yield distribution(name).name


def _files(ending: str) -> Iterator[Path]:
    """Some files of a kind, of each package and of the standard library."""
    for name in _installed():
        listed = distribution(name).files or []
        yield from _some(Path(str(file.locate())) for file in listed if file.suffix == ending)
    yield from _some(Path(sysconfig.get_path("stdlib")).glob(f"*{ending}"))


def _some(files: Iterable[Path]) -> list[Path]:
    ordered = sorted(files)
    return ordered[:: len(ordered) // _MOST_FILES + 1]


def _documentation() -> Iterator[str]:
    for name in _installed():
        yield from re.split(r"\n\s*\n", metadata(name)["Description"] or "")
    for tree, _ in _parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                yield ast.get_docstring(node) or ""


def _source() -> Iterator[str]:
    for tree, text in _parsed():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield ast.get_source_segment(text, node) or ""


@cache
def _parsed() -> list[tuple[ast.Module, str]]:
    read = [file.read_text(errors="replace") for file in _files(".py")]
    return [(ast.parse(text), text) for text in read]


def _html() -> Iterator[str]:
    for name in _PAGES:
        module = importlib.import_module(name)
        lines = pydoc.html.page(name, pydoc.html.document(module)).split("\n")
        yield from ("\n".join(lines[start : start + 12]) for start in range(0, len(lines), 12))


def _json() -> Iterator[str]:
    for file in _files(".json"):
        try:
            data = json.loads(file.read_text(errors="replace"))
        except ValueError:
            continue
        for value in islice(_objects(data), 2000):
            yield json.dumps(value, ensure_ascii=False)
            yield json.dumps(value, ensure_ascii=False, indent=2)


def _objects(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list) and value:
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _objects(item)
