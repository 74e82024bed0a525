"""No block of README and docs that could be run is left unread by the tests."""

from pathlib import Path

import pytest

from pages import PAGES, ROOT, blocks, languages
from readers import EVERY_PAGE, OUTPUT, READERS

HOW = (
    "the blocks of {} are not those that tests/docs/readers.py counts. Have a test read each new "
    "one, tests/docs/test_python_blocks.py or the page's own; then say there which test, and how "
    "many there are. What only shows something printed is a block of `text` or `console`."
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_its_reader(page: Path) -> None:
    found = {
        language: len(texts)
        for language, texts in languages(page).items()
        if language not in OUTPUT
    }
    counted = {key[1]: claim[0] for key, claim in READERS.items() if key[0] == page.name}
    taken = {language: found[language] for language in EVERY_PAGE if language in found}
    assert found == taken | counted, HOW.format(page.name)


def test_no_page_is_counted_that_is_not_there() -> None:
    assert {name for name, _ in READERS} <= {page.name for page in PAGES}


@pytest.mark.parametrize(("name", "language"), READERS)
def test_a_reader_names_its_page(name: str, language: str) -> None:
    _, *readers = READERS[name, language]
    for text in [(ROOT / reader).read_text() for reader in readers]:
        assert name in text or "PAGES" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_commands_is_one_with_a_mark(page: Path) -> None:
    """Those of `test_commands.py`, which looks for them with the comments before them."""
    assert [block.text for block in blocks(page)] == languages(page).get("sh", [])
