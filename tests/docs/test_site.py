"""The site of docs/: it is built without a warning, and can be read without asking anybody.

The tests in Chromium need what `npm ci` in gymnast/viewer/page installs: axe-core.
"""

import html
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT

pytestmark = pytest.mark.docs

AXE = ROOT / "gymnast/viewer/page/node_modules/axe-core/axe.min.js"
LOOKED_AT = [
    *("index", "first_run", "tutorial", "environments", "algorithms", "project/results"),
    *("reference/keys", "reference/commands", "reference/api/envs", "search"),
]
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


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for option in ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


def seen(chromium: Any, address: str, width: int, theme: str) -> None:
    """Open a page of the site so wide, in a theme."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chromium.get(address)
    chromium.execute_script(f"localStorage.setItem('theme', '{theme}')")
    chromium.refresh()


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_every_page_fits_the_window_and_loads_all_it_shows(
    site: Path, address: str, chromium: Any, width: int, theme: str
) -> None:
    chromium.get_log("browser")
    for page in sorted(site.rglob("*.html")):
        seen(chromium, f"{address}/{page.relative_to(site)}", width, theme)
        assert chromium.execute_script("return document.body.dataset.theme") == theme
        wide = chromium.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, page
        images = "return [...document.images].filter(i => i.complete && !i.naturalWidth).length"
        assert chromium.execute_script(images) == 0, page
        asked = "return performance.getEntriesByType('resource').map(e => e.name)"
        assert [each for each in chromium.execute_script(asked) if address not in each] == []
    assert [each["message"] for each in chromium.get_log("browser")] == []


def test_the_search_finds_a_key(address: str, chromium: Any) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    chromium.get(f"{address}/search.html?q=rollout_deadline_s")
    found = "return [...document.querySelectorAll('#search-results a')].map(a => a.href)"
    links = WebDriverWait(chromium, 20).until(lambda it: it.execute_script(found))
    assert any("reference/keys.html" in link for link in links)


@pytest.mark.parametrize("page", LOOKED_AT)
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_a_page_is_accessible(
    address: str, chromium: Any, page: str, width: int, theme: str
) -> None:
    seen(chromium, f"{address}/{page}.html", width, theme)
    chromium.execute_script(AXE.read_text())
    found = chromium.execute_async_script("axe.run().then(arguments[0])")
    serious = [
        (each["id"], [node["html"][:200] for node in each["nodes"]])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
