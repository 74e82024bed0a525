"""The page of rollouts in a real browser: the list, and what is said of one episode."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from browser_fixtures import Browser, Serving
from gymnast.types import StopReason
from viewer_fixtures import episode, plain_run, write_run

pytestmark = pytest.mark.browser

HIDDEN = "a\x1cb\x07c\u202ed\x9be"  # what a browser shows as boxes, or by turning the line
MAIN = "return document.querySelector('main').textContent"
ESCAPED = "a\\x1cb\\x07c\\u202ed\\x9be"


def with_evaluation(folder: Path, step: int) -> Path:
    """The run, with the episodes of its first step as those of an evaluation too."""
    rollouts = folder / "rollouts"
    shutil.copy(rollouts / "step_00001.parquet", rollouts / f"eval_{step:05d}.parquet")
    return folder


def test_training_is_listed_first_and_its_first_episode_is_open(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(with_evaluation(plain_run(tmp_path / "shop", tokenizer), step=0))
    browser.show("#/rollouts?run=shop")
    browser.until(lambda: browser.texts(".episode h2") == ["step_00001/0/0"])
    ids = browser.texts(".list .id")
    assert ids[0] == "step_00001/0/0" and ids[8] == "eval_00000/0/0"
    assert browser.texts(".list a[aria-current] .id") == ["step_00001/0/0"]
    said = [" ".join(line.split()) for line in browser.texts(".list .line .quiet")]
    assert said[0] == "answered · 2 turns" and said[2] == "answered · 2 turns · 1 error"
    browser.show("#/rollouts?run=shop&sort=played")
    browser.until(lambda: browser.texts(".list .id")[0] == "eval_00000/0/0")


def test_filters_say_in_one_line_what_they_are(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(with_evaluation(plain_run(tmp_path / "shop", tokenizer), step=0))
    browser.show("#/rollouts?run=shop")
    browser.until(lambda: browser.all(".filters label"))
    heights = {label.rect["height"] for label in browser.all(".filters label")}
    assert max(heights) < 50  # one line above a field
    labels = [label.text.split("\n")[0] for label in browser.all(".filters label")]
    for label in ("Played in", "First step", "Last step", "Lowest reward", "Highest reward"):
        assert any(each.startswith(label) for each in labels), labels


def test_back_passes_over_what_was_typed_into_a_filter(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&e=step_00001%2F0%2F0")
    browser.until(lambda: browser.all(".list a"))
    before = browser.run("return history.length")
    browser.all(".filters input[placeholder^=said]")[0].send_keys("pear")
    browser.until(lambda: "words=pear" in browser.run("return location.hash"))
    assert "e=step_00001" in browser.run("return location.hash")
    assert browser.run("return history.length") == before


def test_on_a_telephone_the_list_comes_first(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    browser.resize(390)
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop")
    browser.until(lambda: browser.all(".list a"))
    assert browser.all(".list")[0].is_displayed()
    assert not browser.all(".detail")[0].is_displayed()


def test_an_episode_says_how_it_ended_and_why_it_earned_nothing(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&e=step_00002/1/1")
    browser.until(lambda: browser.all(".ending"))
    assert browser.texts(".ending") == [
        "Cut off after the most turns that it may have (max_turns)."
    ]
    assert browser.texts(".nothing")[0].startswith(
        "Earned nothing: no final answer. The last calls"
    )
    assert "tool offered: price" in browser.texts(".offered")[0]
    assert "seed" not in browser.all(".episode header")[0].text
    browser.all(".nothing a")[0].click()
    browser.until(lambda: "#/why?run=shop&file=step_00002" in browser.driver.current_url)
    browser.show("#/rollouts?run=shop&e=step_00002/1/0")
    browser.until(
        lambda: browser.texts(".ending") == ["Ended with the policy's answer (answered)."]
    )
    assert browser.texts(".nothing") == []
    browser.show("#/rollouts?run=shop&e=step_00002/1/0&tab=all")
    browser.until(lambda: str(2**62 + 1) in browser.all(".episode")[0].text)


def test_an_episode_without_a_reward_says_so(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    cut = episode(tokenizer, reward=0.0, stop_reason=StopReason.max_tokens)
    page(write_run(tmp_path / "shop", tokenizer, [[[cut]]]))
    browser.show("#/rollouts?run=shop")
    browser.until(
        lambda: browser.texts(".ending") == ["Cut off at the limit of tokens (max_tokens)."]
    )
    assert browser.texts(".nothing")[0].startswith("Earned nothing: cut off. A limit ended")


def test_control_characters_are_shown_as_escapes(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    said = episode(
        tokenizer,
        HIDDEN,
        asked=HIDDEN,
        result=HIDDEN,
        reward=0.0,
        arguments={"item": HIDDEN},
        row={"prompt": HIDDEN},
    )
    page(write_run(tmp_path / "shop", tokenizer, [[[said, said]], [[said, said]]]))
    for address in (
        "#/why?run=shop",
        *(
            f"#/rollouts?run=shop&tab={tab}"
            for tab in ("conversation", "tokens", "group", "row", "all")
        ),
    ):
        browser.show(address)
        browser.until(lambda: re.search(r"a\\(x|u00)1cb", browser.run(MAIN)))  # the latter as JSON
        browser.until(lambda: "Reading" not in browser.run("return document.body.innerText"))
        shown = browser.run(MAIN)
        assert [each for each in "\x1c\x07\u202e\x9b" if each in shown] == [], address
    browser.show("#/rollouts?run=shop&tab=tokens")
    browser.until(lambda: ESCAPED in "".join(browser.texts(".tokens span")).replace("∅", ""))


def test_the_token_that_is_described_is_marked_and_tokens_have_edges(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&e=step_00002/1/0&tab=tokens")
    marked = ".tokens [data-shown]"

    def described() -> list[str]:
        (known,) = browser.all(".about")
        return [f"token {each.get_attribute('data-i')}" for each in browser.all(marked)] + [
            known.text.replace("\n", " ").partition(" text")[0]
        ]

    first, said = browser.until(lambda: browser.all(marked) and described())
    assert first == said
    style = "return getComputedStyle(arguments[0])"
    assert browser.run(f"{style}.outlineStyle", browser.all(marked)[0]) == "solid"
    assert browser.run(f"{style}.borderRightWidth", browser.all(".tokens .sampled")[0]) == "1px"
    browser.all(".tokens")[0].send_keys("\ue014")  # an arrow to the right
    browser.until(lambda: described()[0] == described()[1] != first)
    browser.all(".tokenview button")[1].click()  # other colours: the mark stays
    browser.until(lambda: browser.all(".tokens .shaded") and described()[0] != first)


def test_members_of_the_same_row_are_named(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&e=step_00002/0/0&tab=row")
    named = browser.until(lambda: browser.texts(".samerow button"))
    assert named == ["member 0: 1", "member 1: 0"] * 2
    browser.until(lambda: browser.all("pre.difference"))
    assert "policy: " in browser.texts("pre.difference")[0]


def test_members_of_a_group_share_the_width(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    members = [episode(tokenizer, reward=float(n)) for n in range(3)]
    page(write_run(tmp_path / "shop", tokenizer, [[members]]))
    browser.show("#/rollouts?run=shop&e=step_00001/0/0&tab=group")
    browser.until(lambda: len(browser.all(".member")) == 3)
    places = [member.rect for member in browser.all(".member")]
    assert len({place["y"] for place in places}) == 1
    assert max(place["x"] + place["width"] for place in places) <= 1280


def test_on_a_telephone_mistakes_are_cards(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    browser.resize(390)
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/why?run=shop")
    for cell in browser.until(lambda: browser.all(".cause tbody td")):
        assert cell.rect["x"] + cell.rect["width"] <= 390
