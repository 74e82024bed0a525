"""The filters of episodes in a real browser: what each leaves, and how it is reached."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from browser_fixtures import Browser, Serving
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Trajectory
from viewer_fixtures import episode, plain_run, write_run

pytestmark = pytest.mark.browser


def mixed_run(folder: Path, tokenizer: Any) -> Path:
    """Two steps in two environments, each with tools of its own, and an evaluation in a third."""

    def played(environment: str, tool: str, asked: str, reward: float) -> Trajectory:
        metrics = {f"environments/{environment}/episodes": 1.0} if environment else {}
        row = {"prompt": asked}
        return episode(tokenizer, asked=asked, tool=tool, reward=reward, row=row, metrics=metrics)

    def step(reward: float) -> list[list[Trajectory]]:
        return [
            [played("shop", tool, "What does tea cost?", reward) for tool in ("price", "stock")],
            [played("bank", "balance", "How much is left?", n) for n in (0.0, 1.0)],
        ]

    write_run(folder, tokenizer, [step(0.0), step(1.0)])
    held_out = [[played("", "open", "What is inside?", 1.0)]]
    write_rollouts(folder / "rollouts/eval_00002_vault.parquet", held_out, tokenizer=tokenizer)
    return folder


def left(browser: Browser, of: int, ids: Sequence[str]) -> None:
    """Waits until these episodes are left."""
    browser.until(lambda: f"{len(ids)} of {of} episodes" in browser.texts("[role=status]"))
    assert browser.texts(".list .id") == list(ids)


def choose(browser: Browser, label: str, value: str) -> None:
    """Chooses a value in the menu that has this label."""
    (menu,) = [
        each
        for each in browser.all(".filters label")
        if each.get_property("textContent").startswith(label)
    ]
    assert value in [each.text for each in menu.find_elements("css selector", "option")]
    menu.find_element("css selector", "select").send_keys(value)


SHOP = ["step_00001/0/0", "step_00001/0/1", "step_00002/0/0", "step_00002/0/1"]
BANK = ["step_00001/1/0", "step_00001/1/1", "step_00002/1/0", "step_00002/1/1"]
VAULT = ["eval_00002_vault/0/0"]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("environment=shop", SHOP),
        ("environment=bank", BANK),
        ("environment=vault", VAULT),
        ("tool=stock", ["step_00001/0/1", "step_00002/0/1"]),
        ("tool=balance", BANK),
        ("environment=bank&tool=price", []),
        ("kind=evaluation", VAULT),
        ("kind=training", sorted(SHOP + BANK)),
        ("to=1", sorted(SHOP[:2] + BANK[:2])),
        ("from=2&to=2&kind=training&sort=played", sorted(SHOP[2:] + BANK[2:])),
        ("group=1", BANK),
        ("row=0", SHOP),
        ("row=1&file=step_00002", BANK[2:]),
        ("alike=1", SHOP),
    ],
)
def test_the_address_says_which_episodes_are_left(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any, query: str, ids: list[str]
) -> None:
    page(mixed_run(tmp_path / "shop", tokenizer))
    browser.show(f"#/rollouts?run=shop&{query}")
    left(browser, 9, ids)


@pytest.mark.parametrize(
    ("label", "value", "key", "ids"),
    [
        ("Environment", "bank", "environment=bank", BANK),
        ("Tool", "stock", "tool=stock", ["step_00001/0/1", "step_00002/0/1"]),
        ("Played in", "evaluation", "kind=evaluation", VAULT),
        ("Groups", "with equal rewards", "alike=1", SHOP),
    ],
)
def test_menus_offer_what_there_is_and_it_is_cleared_again(
    page: Serving,
    browser: Browser,
    tmp_path: Path,
    tokenizer: Any,
    label: str,
    value: str,
    key: str,
    ids: list[str],
) -> None:
    page(mixed_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop")
    browser.until(lambda: browser.all(".filters label"))
    choose(browser, label, value)
    left(browser, 9, ids)
    assert key in browser.driver.current_url
    (clear,) = [each for each in browser.all(".filters button") if each.text == "Clear filters"]
    clear.click()
    browser.until(lambda: "9 of 9 episodes" in browser.texts("[role=status]"))
    assert key not in browser.driver.current_url


def test_the_last_step_is_typed(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(mixed_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&kind=training")
    browser.until(lambda: browser.all(".filters label"))
    (field,) = [each for each in browser.all(".filters label") if each.text == "Last step"]
    field.find_element("css selector", "input").send_keys("1")
    left(browser, 9, sorted(SHOP[:2] + BANK[:2]))


def test_groups_are_not_offered_where_each_taught_something(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    group = [episode(tokenizer), episode(tokenizer, reward=0.0)]
    page(write_run(tmp_path / "shop", tokenizer, [[group]]))
    browser.show("#/rollouts?run=shop")
    browser.until(lambda: browser.all(".filters label"))
    assert not any(each.startswith("Groups") for each in browser.texts(".filters label"))


@pytest.mark.parametrize(
    ("of", "kind", "ids"),
    [
        ("", "kind=training", ["step_00001/1/0", "step_00001/1/1"]),
        ("&file=step_00001", "file=step_00001", ["step_00001/1/0", "step_00001/1/1"]),
    ],
)
def test_why_0_leads_to_the_groups_that_taught_nothing(
    page: Serving,
    browser: Browser,
    tmp_path: Path,
    tokenizer: Any,
    of: str,
    kind: str,
    ids: list[str],
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show(f"#/why?run=shop{of}")
    (link,) = browser.until(lambda: browser.all(".why > p a"))
    assert link.text == ("1 of 2 groups" if of else "1 of 4 groups")
    link.click()
    left(browser, 8, ids)
    assert "alike=1" in browser.driver.current_url and kind in browser.driver.current_url
    (menu,) = [each for each in browser.texts(".filters label") if each.startswith("Groups")]
    assert "with equal rewards" in menu
