"""Draws viewer.png beside this file: the tokens of one episode of a run in `gymnast view`.

    python docs/images/draw_viewer.py runs/coding step_00001/0/0

Needs chromium, chromium-driver and the extra `browser`.
"""

import sys
import threading
from pathlib import Path
from urllib.parse import urlencode

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from gymnast.viewer.runs import named_runs
from gymnast.viewer.server import Viewer

SIZE = {"width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": False}
TOKEN = 12


def main() -> None:
    """Serve the run, open the episode, point at a sampled token, and save what is shown."""
    run, episode = sys.argv[1:]
    viewer = Viewer(named_runs([run]), told=print)
    threading.Thread(target=viewer.serve, daemon=True).start()
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for option in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars"):
        options.add_argument(f"--{option}")
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SIZE)
        driver.get(viewer.url)  # the cookie
        shown = urlencode({"e": episode, "tab": "tokens"})
        driver.get(f"http://127.0.0.1:{viewer.port}/#/rollouts?{shown}")
        token = WebDriverWait(driver, 30).until(
            lambda page: page.find_elements(By.CSS_SELECTOR, ".tokens .sampled")
        )[TOKEN]
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", token)
        webdriver.ActionChains(driver).move_to_element(token).perform()
        driver.save_screenshot(str(Path(__file__).with_name("viewer.png")))
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
