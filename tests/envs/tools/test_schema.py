"""What a policy is told of a function, read from its docstring; schemas are in test_tools.py."""

from gymnast.envs.tools.schema import parse_docstring


def test_the_description_ends_at_the_first_section() -> None:
    found = parse_docstring(
        """Search.

        Note: in all of it.

        Args:
            query (str): What to find;
                Note: any case.

                Even over paragraphs.
            limit: How many.

        Raises:
            ValueError: Never.
        """
    )
    assert found.description == "Search.\n\nNote: in all of it."
    assert found.arguments == {
        "query": "What to find; Note: any case. Even over paragraphs.",
        "limit": "How many.",
    }


def test_no_docstring_reads_as_empty() -> None:
    assert parse_docstring(None).description == ""
    assert parse_docstring("Args:\n    a: One.").arguments == {"a": "One."}
