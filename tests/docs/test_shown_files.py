"""A file of the repository that a page shows is shown as it is."""

from pathlib import Path

import pytest

from pages import PAGES, ROOT, files


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_repositorys_files_as_they_are(page: Path) -> None:
    shown = {name: text for name, text in files(page).items() if (ROOT / name).exists()}
    kept = {name: (ROOT / name).read_text().partition("\n")[2] for name in shown}
    assert shown == kept


def test_the_readme_shows_a_toolset_of_the_examples() -> None:
    assert "examples/shop.py" in files(ROOT / "README.md")
