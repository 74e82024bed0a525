"""The page in a real browser: what it shows is what the run holds, and text is never markup."""

import json
from pathlib import Path
from typing import Any

import pytest

from browser_fixtures import Browser, Serving
from gymnast.trainers import load_rollouts
from gymnast.viewer.runs import named_runs
from gymnast.viewer.server import STATIC
from gymnast.viewer.single_file import write_single_file
from viewer_fixtures import episode, plain_run, write_run

pytestmark = pytest.mark.browser
AXE = STATIC.parent / "page/node_modules/axe-core/axe.min.js"
MARKUP = "<img src=x onerror='window.attacked=1'><script>window.attacked=1</script>"


def test_runs_are_shown_with_their_metrics(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "one", tokenizer), plain_run(tmp_path / "two", tokenizer))
    browser.until(lambda: browser.all("figure"))
    rows = [row.text for row in browser.all(".runs tbody tr")]
    assert rows[0].startswith("one tiny: shop.py:Shop grpo 2 of 4 0.25 → 0.5 0.25 → 0.75")
    assert "Reward" in browser.texts("figcaption") and "Loss" not in browser.texts("figcaption")
    spoken = browser.all("[role=img]")[0].get_attribute("aria-label")
    assert spoken.startswith("Reward: one from 0.25 to 0.5; one held out from 0.25 to 0.75; two")
    browser.all(".runs input[type=checkbox]")[1].click()
    browser.until(lambda: "two" not in browser.all("[role=img]")[0].get_attribute("aria-label"))
    assert "hide=two" in browser.driver.current_url


def test_runs_say_in_which_settings_they_differ(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    folders = [plain_run(tmp_path / name, tokenizer) for name in ("one", "two")]
    config = folders[1] / "config.yaml"
    config.write_text(config.read_text() + "sampling: {temperature: 0.5}\noutput_dir: two\n")
    page(*folders)
    said = browser.until(lambda: browser.texts(".setting"))
    assert said == ["sampling.temperature: not set", "sampling.temperature: 0.5"]


def test_a_call_that_could_not_be_read_says_why(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    unread = episode(tokenizer)
    call = next(m for m in unread.messages if m.get("tool_calls"))["tool_calls"][0]
    call["error"] = "expected a quote at character 7"
    page(write_run(tmp_path / "shop", tokenizer, [[[unread]]]))
    browser.show("#/rollouts?e=step_00001/0/0")
    shown = browser.until(lambda: browser.texts(".call"))[0]
    assert "not read" in shown and "expected a quote at character 7" in shown


def test_an_episode_is_shown_as_it_was_said(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    page(folder)
    browser.show("#/rollouts?run=shop&e=step_00002/1/0")
    browser.until(lambda: browser.all(".conversation"))
    assert browser.texts(".list .id") == [
        f"{saved.name}/{saved.group}/{saved.member}" for saved in load_rollouts(folder)
    ]
    assert browser.texts(".message .who") == ["user prompt", "policy", "policy turn 2, reward 1"]
    assert browser.texts(".message > pre") == ["What does cake cost?", "Cake is 5."]
    call = browser.all("details.call")[0]
    assert call.text == '▶price(item="tea") → 3'.replace("▶", "")
    call.click()
    assert browser.texts("details.call pre") == ['{\n  "item": "tea"\n}', "3"]
    assert "reward" not in browser.texts(".episode h2")[0]


def test_tokens_are_coloured_by_their_part_and_say_what_is_known(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    page(folder)
    saved = load_rollouts(folder, step=2)[2]
    trajectory = saved.trajectory
    browser.show("#/rollouts?run=shop&e=step_00002/1/0&tab=tokens")
    browser.until(lambda: browser.all(".tokens span"))
    kinds = [span.get_attribute("class") for span in browser.all(".tokens span")]
    expected = ["sampled" if bit else "appended" for bit in trajectory.action_mask]
    assert kinds == ["prompt"] * trajectory.prompt_length + expected[trajectory.prompt_length :]
    assert "".join(browser.texts(".tokens span")).replace("⏎", "") == saved.text
    last = len(trajectory.ids) - 1
    browser.all(f'[data-i="{last}"]')[0].click()
    assert saved.advantages is not None
    known = browser.all(".about")[0].text.replace("\n", " ")
    for fact in (
        f"token {last}",
        f"id {trajectory.ids[last]}",
        "what sampled by the policy",
        "loss mask 1",
        "turn 2, reward 1",
        "log-probability -0.25 (77.9%)",
        f"advantage {saved.advantages[last]:.3g}",
        "weights version 7",
    ):
        assert fact in known, known


def test_a_group_stands_side_by_side(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&e=step_00002/0/0&tab=group")
    browser.until(lambda: len(browser.all(".member")) == 2)
    headings = [heading.text.split() for heading in browser.all(".member h3")]
    assert headings == [["member", "0", "1"], ["member", "1", "0"]]
    assert "advantage 0.5" in browser.all(".member")[0].text.replace("\n", " ")
    assert "right 1" in browser.all(".member")[0].text.replace("\n", " ")


def test_the_same_row_at_two_steps_shows_what_changed(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop&e=step_00002/1/0&tab=row&other=step_00001/1/0")
    browser.until(lambda: browser.all("pre.difference"))
    assert browser.texts("pre.difference del") == ["I do not know"]
    assert browser.texts("pre.difference ins") == ["Cake is 5"]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("min=0.5", ["step_00001/0/0", "step_00002/0/0", "step_00002/1/0"]),
        ("from=2&max=0", ["step_00002/0/1", "step_00002/1/1"]),
        ("error=timeout", ["step_00001/1/0"]),
        ("stop=max_turns", ["step_00001/1/1", "step_00002/1/1"]),
        ("tag=n=2&from=2", ["step_00002/1/0", "step_00002/1/1"]),
        ("alike=1", ["step_00001/1/0", "step_00001/1/1"]),
        ("words=CAKE+is+5", ["step_00002/1/0"]),
        ("words=nobody+says+this", []),
    ],
)
def test_filters_leave_what_they_say(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any, query: str, ids: list[str]
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show(f"#/rollouts?run=shop&{query}")
    browser.until(lambda: f"{len(ids)} of 8 episodes" in browser.texts("[role=status]"))
    assert browser.texts(".list .id") == ids


def test_why_the_reward_is_0(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/why?run=shop")
    browser.until(lambda: browser.all(".cause"))
    assert browser.texts(".why > p") == [
        "5 of 8 episodes earned nothing. The mean reward is 0.375. In 1 of 4 groups every episode "
        "had the same reward, which teaches nothing. No episode of that group earned anything."
    ]
    headings = [" ".join(heading.split()) for heading in browser.texts(".cause h2")]
    assert headings == ["wrong answer 3 episodes, 60%", "no final answer 2 episodes, 40%"]
    heads = browser.texts(".cause thead th")
    assert heads == ["Most common form", "Times", "As written", "Error or answer", "Example"]
    links = browser.texts(".cause a")
    assert len(links) == 5 and len(set(links)) == 5, "an episode is named twice"
    browser.all(".cause td a")[0].click()
    browser.until(lambda: browser.texts(".episode h2") == ["step_00001/0/1"])


def test_keys_move_between_episodes_and_views(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.show("#/rollouts?run=shop")
    browser.until(lambda: browser.texts(".episode h2") == ["step_00001/0/0"])  # without a key
    browser.press("j")
    browser.until(lambda: browser.texts(".episode h2") == ["step_00001/0/1"])
    browser.press("j")
    browser.until(lambda: browser.texts(".episode h2") == ["step_00001/1/0"])
    browser.press("k")
    browser.until(lambda: browser.texts(".episode h2") == ["step_00001/0/1"])
    browser.press("2")
    browser.until(lambda: browser.all(".tokens"))
    browser.press("/")
    browser.press("cake")  # typed into the search: no key of the page
    browser.until(lambda: "words=cake" in browser.driver.current_url)


def test_a_run_that_goes_on_is_shown_as_it_goes(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    page(folder)
    browser.until(lambda: "2 of 4" in browser.all(".runs tbody tr")[0].text)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, "reward/mean": 0.875}) + "\n")
    browser.until(lambda: "3 of 4 0.25 → 0.875" in browser.all(".runs tbody tr")[0].text)


def test_what_a_policy_says_is_never_markup(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    said = episode(
        tokenizer,
        MARKUP,
        asked=MARKUP,
        result=MARKUP,
        tool=MARKUP,
        arguments={MARKUP: MARKUP},
        reward=0.0,
        row={"prompt": MARKUP, MARKUP: "1"},
        metrics={MARKUP: 1.0, f"tools/errors/{MARKUP}": 1.0},
    )
    folder = write_run(tmp_path / "<b onclick=x>", tokenizer, [[[said, said]], [[said, said]]])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, MARKUP: 1.0}) + "\n")
    (folder / "advice.jsonl").write_text(json.dumps({"step": 1, "cause": MARKUP, "text": MARKUP}))
    page(folder)
    name = "%3Cb%20onclick%3Dx%3E"
    seen = 0
    for address in (
        "#/runs",
        f"#/why?run={name}",
        *(
            f"#/rollouts?run={name}&e=step_00002/0/0&tab={tab}&words={{}}"
            for tab in ("conversation", "tokens", "group", "row", "all")
        ),
    ):
        browser.show(address)
        browser.until(lambda: MARKUP in browser.run("return document.body.textContent"))
        assert browser.all("img, main script, b") == [], address
        assert browser.run("return window.attacked") is None, address
        seen += 1
    assert seen == 7


def test_one_file_shows_the_same_without_a_server(
    browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    write_single_file(tmp_path / "a.html", named_runs([plain_run(tmp_path / "shop", tokenizer)]))
    browser.open((tmp_path / "a.html").as_uri())
    browser.until(lambda: browser.all("figure"))
    browser.show("#/rollouts?run=shop&words=cake+is+5&e=step_00002/1/0&tab=tokens")
    browser.until(lambda: "1 of 8 episodes" in browser.texts("[role=status]"))
    assert "Cake is 5." in "".join(browser.texts(".tokens span"))
    browser.show("#/why?run=shop&file=step_00001")
    text = "return document.querySelector('main').textContent"  # at once: paragraphs come and go
    browser.until(lambda: "3 of 4 episodes earned nothing" in browser.run(text))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_accessible_and_fits(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any, width: int, dark: bool
) -> None:
    if not AXE.exists():
        pytest.skip(f"axe-core is not installed: run npm ci in {AXE.parent.parent.parent}")
    browser.resize(width, dark=dark)
    page(plain_run(tmp_path / "shop", tokenizer), plain_run(tmp_path / "other", tokenizer))
    one = "#/rollouts?run=shop&e=step_00002/1/0&tab="
    for address in (
        *("#/runs", "#/rollouts?run=shop", "#/why?run=shop"),
        *(one + tab for tab in ("conversation", "tokens", "group", "row", "all")),
    ):
        browser.show(address)
        browser.until(lambda: browser.all("h1") and not browser.all("main > .quiet"))
        browser.until(lambda: "Reading" not in browser.run("return document.body.innerText"))
        browser.run(AXE.read_text())
        found = browser.driver.execute_async_script("axe.run().then(arguments[0])")
        serious = [
            (each["id"], [node["html"][:200] for node in each["nodes"]])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], address
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= width, address
