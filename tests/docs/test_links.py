"""Links between the pages: each leads somewhere, and README leads to every page."""

import re
from pathlib import Path

import pytest

from pages import PAGES, ROOT

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)  # code, which may look like a link
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def targets(page: Path) -> set[tuple[Path, str]]:
    """The files that a page links to, each with the heading if the link names one."""
    found = _LINK.findall(_FENCED.sub("", page.read_text()))
    return {((page.parent / name).resolve() if name else page, heading) for name, heading in found}


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    titles = (re.sub(r"[^\w -]", "", title.lower()) for title in _HEADING.findall(page.read_text()))
    return {title.replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, heading in targets(page):
        assert target.exists(), target
        assert not heading or heading in headings(target), f"{target.name}#{heading}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, new = set[Path](), {ROOT / "README.md", ROOT / "docs/index.md"}
    while new:
        reached |= new
        linked = {target for page in new for target, _ in targets(page)}
        new = {target for target in linked - reached if target.suffix == ".md"}
    assert set(PAGES) <= reached
