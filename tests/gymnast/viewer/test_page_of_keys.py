"""What belongs to the whole page, in a real browser: its keys, their list, and the theme."""

from pathlib import Path
from typing import Any

import pytest

from browser_fixtures import Browser, Serving
from viewer_fixtures import plain_run

pytestmark = pytest.mark.browser

ESCAPE = "\ue00c"
THEME = "return document.documentElement.dataset.theme"
PAPER = "return getComputedStyle(document.body).backgroundColor"


def test_escape_goes_back_to_the_list(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    browser.resize(390)
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&min=0.5&e=step_00002/1/0")
    browser.until(lambda: browser.texts(".episode h2") == ["step_00002/1/0"])
    assert not browser.all(".list")[0].is_displayed()
    browser.press(ESCAPE)
    browser.until(lambda: browser.all(".list")[0].is_displayed())
    assert "e=" not in browser.driver.current_url
    assert "min=0.5" in browser.driver.current_url  # the filters stay


def test_escape_closes_the_list_of_keys_and_leaves_the_episode(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&e=step_00002/1/0")
    browser.until(lambda: browser.texts(".episode h2") == ["step_00002/1/0"])
    browser.press("?")
    (keys,) = browser.until(lambda: browser.all("dialog[open]"))
    assert "next and previous episode" in keys.text
    browser.press(ESCAPE)
    browser.until(lambda: not browser.all("dialog[open]"))
    assert "e=step_00002/1/0" in browser.driver.current_url
    assert browser.texts(".episode h2") == ["step_00002/1/0"]


def test_the_list_of_keys_opens_by_its_button_and_not_while_somebody_types(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop")
    browser.until(lambda: browser.all(".list a"))
    browser.press("/")
    browser.press("?")
    browser.until(lambda: "words=%3F" in browser.driver.current_url)
    assert browser.all("dialog[open]") == []
    (button,) = browser.all(".top button[aria-label=Keys]")
    button.click()
    (close,) = browser.until(lambda: browser.all("dialog[open] form button"))
    close.click()
    browser.until(lambda: not browser.all("dialog[open]"))


def test_the_theme_is_as_the_system_says_until_it_is_chosen_and_then_stays(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.until(lambda: browser.all("figure"))
    assert browser.run(THEME) == "light"
    light = browser.run(PAPER)
    browser.resize(1280, dark=True)
    browser.until(lambda: browser.run(THEME) == "dark")
    browser.until(lambda: browser.run(PAPER) != light)
    (button,) = browser.all(".top button[aria-label='Use the light theme']")
    button.click()
    browser.until(lambda: browser.run(PAPER) == light)
    browser.driver.refresh()
    browser.until(lambda: browser.all("figure"))
    assert browser.run(THEME) == "light"
    assert browser.all(".top button[aria-label='Use the dark theme']")
    browser.run("localStorage.clear()")
