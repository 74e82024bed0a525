"""Docstrings as Sphinx wants them: ours are Google's style, with code in backticks as in Markdown.

Napoleon reads the sections (`Args:`, `Raises:`). Before it does, code becomes what reStructuredText
calls a literal, indented blocks become code blocks, and what the markup would take for its own is
escaped. Public names and pages that a docstring names become links.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import inspect

PACKAGES = ("gymnast.envs", "gymnast.agents", "gymnast.trainers", "gymnast.sandboxes")
_INLINE = re.compile(
    r"""``(?P<quoted>.+?)`` | `(?P<code>[^`]+)` | (?P<page>\bdocs/(?:\w+/)*\w+\.md)
    | (?P<stressed>(?<![\w*])\*\w+\*(?![\w*])) | (?P<special>[*|\\]|_(?!\w))""",
    re.DOTALL | re.VERBOSE,
)
_COLON = "\N{MODIFIER LETTER COLON}"
_MAY_FOLLOW = re.compile(r"[\s'\")\]}>\-/\\:.,;!?]?")
_MAY_PRECEDE = re.compile(r"[\s'\"(\[{<\-/:]?")


def names() -> dict[str, str]:
    """Every public name with its module, by that, and those of classes by the bare name too."""
    found: dict[str, str] = {}
    for package in ("gymnast.types", "gymnast.errors", *PACKAGES):
        module: Any = import_module(package)
        listed = getattr(module, "__all__", None) or [
            name
            for name, each in vars(module).items()
            if getattr(each, "__module__", "") == package
        ]
        full = {name: f"{package}.{name}" for name in listed}
        found |= {name: path for name, path in full.items() if name[0].isupper()}
        found |= {path: path for path in full.values()}
    return found


def as_rst(lines: Sequence[str], known: dict[str, str]) -> list[str]:
    """A docstring of ours as reStructuredText, sections of Google's style left as they are.

    Args:
        lines: The docstring's, without its indentation.
        known: Names that become links, with what they lead to.
    """
    result: list[str] = []
    for is_code, block in _blocks(lines):
        if is_code:
            result += _code_block(block)
        else:
            result += _inline("\n".join(block), known).split("\n")
    return result


def _blocks(lines: Sequence[str]) -> Iterator[tuple[bool, list[str]]]:
    """Runs of lines that are code, or are not.

    Code is what stands at least four columns to the right of the line before a blank one.
    """
    marked: list[tuple[bool, str]] = []
    before, code_from, blank = 0, None, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            blank = True
            marked.append((code_from is not None, line))
            continue
        if code_from is not None and indent < code_from:
            code_from = None
        if code_from is None and blank and indent >= before + 4:
            code_from = indent
        if code_from is None:
            before = indent
        blank = False
        marked.append((code_from is not None, line))
    for is_code, run in groupby(marked, key=lambda each: each[0]):
        yield is_code, [line for _, line in run]


def _code_block(lines: Sequence[str]) -> list[str]:
    indent = " " * (len(lines[0]) - len(lines[0].lstrip()) - 4)
    code = textwrap.dedent("\n".join(lines)).strip("\n")
    language = "python" if _is_python(code) else "text"
    shown = textwrap.indent(code, f"{indent}    ").split("\n")
    return [f"{indent}.. code-block:: {language}", "", *shown, ""]


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def _inline(text: str, known: dict[str, str]) -> str:
    def rewritten(found: re.Match[str]) -> str:
        if found["special"]:
            return f"\\{found['special']}"
        if found["stressed"]:
            return found["stressed"]
        code = found["quoted"] or found["code"] or ""
        page = found["page"] or (code if re.fullmatch(r"docs/[\w/]+\.md", code) else None)
        if page:
            literal = f":doc:`/{page.removeprefix('docs/').removesuffix('.md')}`"
        elif code in known:
            literal = f":py:obj:`{code} <{known[code]}>`"
        else:
            literal = f"``{code}``"
        before, after = text[: found.start()][-1:], text[found.end() : found.end() + 1]
        left = "" if _MAY_PRECEDE.fullmatch(before) else "\\ "
        right = "" if _MAY_FOLLOW.fullmatch(after) else "\\ "
        return f"{left}{literal}{right}"

    return _INLINE.sub(rewritten, text)


def _as_in_code(app: Sphinx, document: nodes.document) -> None:
    """Lists of arguments and attributes look as they do in the code."""
    for text in [*document.findall(nodes.Text)]:
        if " -- " in text and _is_described(text):
            text.parent.replace(text, nodes.Text(text.replace(" -- ", ": ")))
        elif text == "Variables" and isinstance(text.parent, nodes.field_name):
            text.parent.replace(text, nodes.Text("Attributes"))


def _is_described(node: nodes.Node | None) -> bool:
    while node is not None and not isinstance(node, addnodes.desc_content | nodes.literal_block):
        node = node.parent
    return isinstance(node, addnodes.desc_content)


def _signed(
    app: Sphinx, what: str, name: str, of: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """The arguments of `__init__`, where those of `__new__` or of a metaclass tell nothing."""
    if what != "class" or not re.match(r"\(\*arg", signature or ""):
        return None
    text = inspect.stringify_signature(
        inspect.signature(of.__init__, bound_method=True), unqualified_typehints=True
    )
    return "" if re.match(r"\(\*arg", text) else text, returns


def setup(app: Sphinx) -> None:
    """Have docstrings read so, before napoleon reads them."""
    known = names()

    def read(app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
        lines[:] = as_rst(lines, known)
        if what in ("attribute", "data", "property") and lines:
            lines[0] = lines[0].replace(":", _COLON)  # before one, napoleon expects a type

    def finished(
        app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]
    ) -> None:
        lines[:] = [line.replace(_COLON, ":") for line in lines]

    app.connect("autodoc-process-docstring", read, priority=100)
    app.connect("autodoc-process-docstring", finished, priority=900)
    app.connect("autodoc-process-signature", _signed)
    app.connect("doctree-read", _as_in_code)
