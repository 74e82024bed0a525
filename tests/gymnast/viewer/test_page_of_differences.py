"""What the page shows side by side, in a real browser: two steps of one row, and a group."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from browser_fixtures import Browser, Serving
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Branch, StopReason, Trajectory
from viewer_fixtures import episode, plain_run, write_run

pytestmark = pytest.mark.browser

MARKUP = "<img src=x onerror='window.attacked=1'>"
ROW = "#/rollouts?run=shop&e=step_00002/0/0&tab=row"


def with_branch(first: Trajectory, other: Trajectory) -> Trajectory:
    """An episode in which a second conversation was held after the first."""
    branch = Branch(**{each.name: getattr(other, each.name) for each in fields(Branch)})
    return replace(first, branches=[branch], order=[0, 0, 1, 1])


def with_last(trajectory: Trajectory, **keys: str) -> Trajectory:
    """An episode whose last message has these keys too."""
    *others, last = trajectory.messages
    changed: Any = dict(last) | keys
    return replace(trajectory, messages=[*others, changed])


def unlearned_run(
    folder: Path, tokenizer: Any, steps: Sequence[Sequence[Sequence[Trajectory]]]
) -> Path:
    """A run that knows no advantages."""
    write_run(folder, tokenizer, [[[episode(tokenizer)]]])
    for step, groups in enumerate(steps, 1):
        path = folder / "rollouts" / f"step_{step:05d}.parquet"
        write_rollouts(path, groups, tokenizer=tokenizer)
    return folder


def differing(browser: Browser) -> tuple[list[str], list[str]]:
    """What only the one, and only the other episode says."""
    browser.until(lambda: browser.all("pre.difference"))
    return browser.texts("pre.difference del"), browser.texts("pre.difference ins")


def test_thoughts_and_raw_text_of_two_steps_are_compared(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    one, other = (
        with_last(episode(tokenizer), reasoning_content=f"{what} is dear.", raw=f"<{what} {MARKUP}")
        for what in ("Tea", "Milk")
    )
    page(write_run(tmp_path / "shop", tokenizer, [[[one]], [[other]]]))
    browser.show(ROW)
    assert differing(browser) == (["Tea", "Tea"], ["Milk", "Milk"])
    (text,) = browser.texts("pre.difference")
    assert "policy, reasoning: " in text and "policy, word for word: " in text and MARKUP in text
    assert browser.all("pre.difference img") == []


def test_all_contexts_of_two_steps_are_compared(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    one, other = (
        with_branch(episode(tokenizer), episode(tokenizer, said, asked="And milk?"))
        for said in ("Milk is dear.", "Milk is cheap.")
    )
    page(unlearned_run(tmp_path / "shop", tokenizer, [[[one]], [[other]]]))
    browser.show(ROW)
    assert differing(browser) == (["dear"], ["cheap"])
    (text,) = browser.texts("pre.difference")
    assert text.startswith("context 0\n\nuser: What does tea cost?")
    assert "context 1\n\nuser: And milk?" in text
    assert browser.all(".tabs select") == []  # nothing is left to choose


def test_what_two_steps_earned_and_how_they_ended_is_compared(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    ended = {False: StopReason.max_turns, True: StopReason.answered}
    steps = [
        [[episode(tokenizer, reward=float(right), stop_reason=ended[right]), episode(tokenizer)]]
        for right in (False, True)
    ]
    page(write_run(tmp_path / "shop", tokenizer, steps))
    browser.show(f"{ROW}&other=step_00001/0/0")
    browser.until(lambda: browser.all(".outcomes"))
    names = ["reward", "part right", "part environment", "advantage", "stop reason"]
    assert browser.texts(".outcomes tbody th") == names
    assert browser.texts(".outcomes del") == ["step_00001/0/0", "0", "0", "-0.5", "max_turns"]
    assert browser.texts(".outcomes ins") == ["step_00002/0/0", "1", "1", "0", "answered"]
    same = browser.all(".outcomes tbody tr")[2]
    assert same.text == "part environment 0 0"
    assert same.find_elements("css selector", "del, ins") == []


def test_long_texts_that_have_nothing_in_common_are_shown_whole(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    texts = [" ".join(f"{sign}{n}" for n in range(10_000)) for sign in "ab"]
    one, other = (replace(episode(tokenizer), messages=[said(each)]) for each in texts)
    page(write_run(tmp_path / "shop", tokenizer, [[[one]], [[other]]]))
    browser.show(ROW)
    browser.until(lambda: browser.all(".samerow .member"))
    said_so = "The texts differ too much to be compared word by word, so both are shown whole."
    assert said_so in browser.texts(".samerow > p")
    assert browser.texts(".samerow .member h3") == ["step_00001/0/0", "step_00002/0/0"]
    shown = browser.texts(".samerow .member pre")
    assert [each.removeprefix("policy: ") for each in shown] == texts


def said(text: str) -> Any:
    """A message of the policy's."""
    return {"role": "assistant", "content": text}


def test_a_group_shows_every_context_of_its_episodes(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    several = with_branch(
        episode(tokenizer), episode(tokenizer, f"Milk is {MARKUP}.", asked="And milk?")
    )
    page(unlearned_run(tmp_path / "shop", tokenizer, [[[several, episode(tokenizer)]]]))
    browser.show("#/rollouts?run=shop&e=step_00001/0/0&tab=group")
    one, other = browser.until(lambda: browser.all(".member"))
    assert len(one.find_elements("css selector", ".conversation")) == 2
    heads = one.find_elements("css selector", "h4")
    assert [head.text.partition(":")[0] for head in heads] == ["Context 0", "Context 1"]
    assert "The price is 3." in one.text and f"Milk is {MARKUP}." in one.text
    assert one.find_elements("css selector", "img") == []
    assert len(other.find_elements("css selector", ".conversation")) == 1
    assert other.find_elements("css selector", "h4") == []  # there is one only


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_is_compared_fits_on_a_telephone(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any, dark: bool
) -> None:
    browser.resize(390, dark=dark)
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&e=step_00002/1/0&tab=row")
    browser.until(lambda: browser.all(".outcomes"))
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    for cell in browser.all(".outcomes :is(th, td)"):
        assert cell.rect["x"] + cell.rect["width"] <= 390
