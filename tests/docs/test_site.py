"""The site of docs/: it is built without a warning, and shows itself without asking anybody."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT

pytestmark = pytest.mark.docs

_LOADED = re.compile(
    r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']([^\"']*)|<link\b[^>]*\bhref=[\"']([^\"']*)"
)
_LOADED_BY_CSS = re.compile(r"(?:@import\s*|url\()[\"']?([^\"')\s]+)")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, str(ROOT / "docs"), str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_of_the_folder_is_a_page_of_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        title = re.search(r"^# (.*)", page.read_text(), re.MULTILINE)
        if title is not None:  # it does not include another file
            built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
            text = html.unescape(re.sub(r"<[^>]*>", "", built.read_text()))
            assert title[1].replace("`", "") in text, page


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {"".join(m) for p in site.rglob("*.html") for m in _LOADED.findall(p.read_text())}
    styles = {each for p in site.rglob("*.css") for each in _LOADED_BY_CSS.findall(p.read_text())}
    assert pages
    assert {each for each in pages | styles if re.match(r"(?:https?:)?//", each)} == set()
