"""Chromium with a page of `gymnast view` in it, for the tests that look at the page."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.viewer.runs import named_runs
from gymnast.viewer.server import Viewer


class Browser:
    """Chromium, with a page of Gymnast's in it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.base = ""

    def open(self, url: str) -> None:
        self.driver.get(url)
        self.base = self.driver.current_url.partition("#")[0]
        self.until(lambda: self.all("h1"))

    def show(self, address: str) -> None:
        self.driver.get(self.base + address)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def texts(self, selector: str) -> list[str]:
        """What elements say, read at once: a page that is drawn anew takes none away meanwhile."""
        read = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        return list(self.run(read, selector))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def until(self, holds: Callable[[], Any]) -> Any:
        """What holds at last; fails with the page's text where it never does."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if found := holds():
                return found
            time.sleep(0.05)
        raise AssertionError(self.run("return document.body.innerText")[:3000])

    def resize(self, width: int, *, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for option in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
    ):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    driver = webdriver.Chrome(service=service, options=options)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    """A browser that has said nothing of errors when the test is over."""
    chromium.get_log("browser")
    browser = Browser(chromium)
    browser.resize(1280)
    yield browser
    assert [each["message"] for each in chromium.get_log("browser")] == []


Serving = Callable[..., None]


@pytest.fixture
def page(browser: Browser) -> Iterator[Serving]:
    """Opens the page of some runs."""
    viewers: list[tuple[Viewer, threading.Thread]] = []

    def serve(*folders: Path) -> None:
        viewer = Viewer(named_runs(folders), told=lambda url: None)
        thread = threading.Thread(target=viewer.serve)
        thread.start()
        viewers.append((viewer, thread))
        browser.open(viewer.url)

    yield serve
    browser.driver.get("about:blank")
    for viewer, thread in viewers:
        viewer.stop()
        thread.join(20)
