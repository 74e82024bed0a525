"""docs/docstrings.py: what Sphinx makes of a docstring is what it says."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.docs

WORDS = [
    *("word", "`code`", "(`code`)", "`code`s", "un`code`", "*stressed*", "**options", "*rows"),
    *("a_b", "name_", "_name", "a|b", "|x|", "a\\b", "5 * 3", "`{a: b}`.", '"`x`"', "x's"),
]


def rst(text: str, known: dict[str, str] | None = None) -> str:
    from docstrings import as_rst

    return "\n".join(as_rst(text.split("\n"), known or {}))


@given(st.lists(st.sampled_from(WORDS)))
def test_whatever_a_sentence_has_is_read_as_it_is_written(words: Sequence[str]) -> None:
    from docutils import nodes
    from docutils.core import publish_doctree

    text = " ".join(["A", *words, "sentence."])
    settings = {"report_level": 1, "halt_level": 5, "warning_stream": False}
    read = publish_doctree(rst(text), settings_overrides=settings)
    assert not [*read.findall(nodes.system_message)]
    assert read.astext() == text.replace("`", "").replace("*stressed*", "stressed")


def test_a_block_that_is_indented_is_code() -> None:
    text = "As here:\n\n    a = 1\n\n    b = `c`\n\nThen `d`."
    assert rst(text) == (
        "As here:\n\n.. code-block:: text\n\n    a = 1\n\n    b = `c`\n\nThen ``d``."
    )
    assert ".. code-block:: python" in rst("As here:\n\n    a = 1")


def test_sections_are_left_to_napoleon() -> None:
    text = "Do.\n\nArgs:\n    rows: Of `data`,\n        or none.\n\nRaises:\n    DataError: None."
    assert rst(text) == text.replace("`", "``")


def test_public_names_and_pages_become_links() -> None:
    known = {"Episode": "gymnast.envs.Episode"}
    assert rst("An `Episode`.", known) == "An :py:obj:`Episode <gymnast.envs.Episode>`."
    assert rst("See docs/reference/keys.md, or `docs/vllm.md`.") == (
        "See :doc:`/reference/keys`, or :doc:`/vllm`."
    )
