"""What the page of `gymnast view` costs with many rollouts, in Chromium: seconds and memory.

    python benchmarks/viewer.py                   10,000 episodes of 8,000 tokens
    python benchmarks/viewer.py --files 2         2,000

Needs chromium and chromium-driver, and the extra `browser`. Seconds are of the wall: from asking
for the page until the list of all episodes is shown, and then for each further view. The files
are in the cache of the system. "Heap" is what the page's own objects take.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from selenium import webdriver

from finding_episodes import MEMBERS, write_run
from gymnast.viewer.runs import named_runs
from gymnast.viewer.server import Viewer
from rollout import conditions

OPTIONS = (
    *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
)


def look(driver: Any, viewer: Viewer, episodes: int) -> None:
    """Open the page, and show an episode in all ways."""

    def shown(selector: str, text: str = "") -> None:
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        while not any(each.startswith(text) for each in driver.execute_script(script, selector)):
            time.sleep(0.005)

    def measured(what: str, show: Callable[[], None], selector: str, text: str = "") -> None:
        before = time.perf_counter()
        show()
        shown(selector, text)
        seconds = time.perf_counter() - before
        heap = driver.execute_script("return performance.memory.usedJSHeapSize") / 1e6
        print(f"{what:34} {seconds:7.2f} s   heap {heap:6.1f} MB", flush=True)

    base = f"http://127.0.0.1:{viewer.port}/"
    driver.get(viewer.url)  # the cookie
    driver.get("about:blank")
    server = psutil.Process()
    before_mb = server.memory_info().rss / 1e6

    def go(address: str) -> Callable[[], None]:
        return lambda: driver.get(base + address)

    one, all_shown = "#/rollouts?e=step_00001/3/1", f"{episodes:,} of {episodes:,} "
    measured("the list of all, from nothing", go("#/rollouts"), ".list a")
    paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
    print(f"{'first paint':34} {driver.execute_script(paint) / 1e3:7.2f} s", flush=True)
    measured("an episode as a conversation", go(one), ".conversation")
    measured("its 8,000 tokens", go(one + "&tab=tokens"), ".tokens span")
    measured("its group of 8", go(one + "&tab=group"), ".member")
    measured("a filter that none passes", go("#/rollouts?min=2"), "[role=status]", "0 of ")
    measured("none again: all", go("#/rollouts"), "[role=status]", all_shown)
    measured("a text that nobody says", go("#/rollouts?words=zebra"), "[role=status]", "0 of ")
    measured("why 0?", go("#/why"), ".cause")
    grown = server.memory_info().rss / 1e6 - before_mb
    print(f"the server grew by {grown:.0f} MB", flush=True)


def main() -> None:
    """Write the run, serve it, and look at it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--groups", type=int, default=125)
    parser.add_argument("--tokens", type=int, default=8000)
    arguments = parser.parse_args()
    print(conditions("cpu", 1))
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for option in OPTIONS:
        options.add_argument(f"--{option}")
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), arguments.files, arguments.groups, arguments.tokens)
        viewer = Viewer(named_runs([folder]), told=lambda url: None)
        serving = threading.Thread(target=viewer.serve)
        serving.start()
        with webdriver.Chrome(service=service, options=options) as driver:
            look(driver, viewer, arguments.files * arguments.groups * MEMBERS)
        viewer.stop()
        serving.join()


if __name__ == "__main__":
    main()
