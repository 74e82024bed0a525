"""What a policy is told of a function, read from its docstring; schemas are in test_tools.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.tools.schema import Docstring, parse_docstring

GOOGLE = """Search the notes.

    Note: titles count too.

    Args:
        query (str): What to look for;
            Note: any case.

            It may span paragraphs.
        *words: More of it.
        limit: How many.

    Returns:
        The notes: all of them.

    Raises:
        ValueError
    """
NUMPY = """Search the notes.

    Note: titles count too.

    Parameters
    ----------
    query : str
        What to look for;
        Note: any case.

        It may span paragraphs.
    *words
        More of it.
    limit : int, optional
        How many.

    Returns
    -------
    list
        The notes.
    """
SPHINX = """Search the notes.

    Note: titles count too.

    :param str query: What to look for;
        Note: any case.

        It may span paragraphs.
    :param words: More of it.
    :type words: str
    :param limit: How many.
    :returns: The notes: all of them.
    :raises ValueError: Never.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["Google", "NumPy", "Sphinx"])
def test_description_and_parameters_are_read_in_every_style(text: str) -> None:
    assert parse_docstring(text) == Docstring(
        "Search the notes.\n\nNote: titles count too.",
        {
            "query": "What to look for; Note: any case. It may span paragraphs.",
            "words": "More of it.",
            "limit": "How many.",
        },
    )


@pytest.mark.parametrize(
    "section",
    [
        "Returns:\n    A number.",
        "Notes:\n    None.",
        "Returns\n-------\nint\n    A number.",
        ":returns: A number.",
    ],
)
def test_the_description_ends_at_the_first_section(section: str) -> None:
    assert parse_docstring(f"Add.\n\n{section}") == Docstring("Add.", {})


@pytest.mark.parametrize(
    "text",
    [
        "Add.\n\n:warning: both must be numbers.",
        "Add.\n\n:memo, without an end",
        "Add two numbers\nof any size.\n\n    a  b\n\nParameters matter.",
        "Add.\n\nExample: 1 + 2",
    ],
)
def test_what_is_no_section_belongs_to_the_description(text: str) -> None:
    assert parse_docstring(text) == Docstring(text, {})


def test_a_line_of_an_entry_may_stand_where_entries_do() -> None:
    text = "Add.\n\nArgs:\n    a: One number,\n    or another.\n    b: One more.\n"
    assert parse_docstring(text).arguments == {"a": "One number, or another.", "b": "One more."}


@pytest.mark.parametrize("section", ["Args:", "Args:\n    None.", "Args:\n\nReturns:\n    One."])
def test_a_section_without_entries_says_nothing(section: str) -> None:
    assert parse_docstring(f"Add.\n\n{section}\n") == Docstring("Add.", {})


def test_parameters_that_share_a_numpy_entry_share_its_text() -> None:
    text = "Add.\n\nParameters\n----------\na, b : int\n    A number.\n"
    assert parse_docstring(text).arguments == {"a": "A number.", "b": "A number."}


def test_no_docstring_reads_as_empty() -> None:
    assert parse_docstring(None) == Docstring("", {})
    assert parse_docstring("\nArgs:\n    a: One.") == Docstring("", {"a": "One."})


PIECES = st.sampled_from(
    [
        *("Args:", "Parameters\n----------", "Returns:", ":param x:", ":param a b c d:", ":x", ":"),
        *(" ", "\n", "\n    ", "\n        ", "a: One.", "a", ".. deprecated::", "@param a: b"),
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_docstring_can_be_read_and_nothing_is_made_up(text: str) -> None:
    read = parse_docstring(text)
    for part in (read.description, *read.arguments, *read.arguments.values()):
        assert all(word in text for word in part.split())
