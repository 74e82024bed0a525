"""The page of runs in a real browser: what they said, and how their metrics are drawn."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from browser_fixtures import Browser, Serving
from viewer_fixtures import plain_run

pytestmark = pytest.mark.browser

# Keeps the text that is drawn on each canvas: the marks of the axes are nowhere else.
KEEP_TEXTS = """
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  (this.canvas.drawn ??= []).push(text);
  return draw.call(this, text, ...rest);
};
"""
MARKS = """
const titled = (each) => each.querySelector("figcaption").firstChild.data === arguments[0];
const figure = [...document.querySelectorAll("figure")].find(titled);
return figure?.querySelector("canvas")?.drawn ?? [];
"""
# In how many columns of the first plot a colour is drawn, of those from its first to its last.
COLUMNS = """
const canvas = document.querySelector("figure canvas");
const { width, height } = canvas;
const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
copy.drawImage(canvas, 0, 0);
const { data } = copy.getImageData(0, 0, width, height);
const like = (at) => [0, 1, 2].every((n) => Math.abs(data[at + n] - arguments[0][n]) < 40);
const columns = [...Array(width).keys()].filter((x) => {
  for (let y = 0; y < height; y++) {
    const at = 4 * (y * width + x);
    if (data[at + 3] > 200 && like(at)) return true;
  }
  return false;
});
return columns.length / (columns.at(-1) - columns[0] + 1);
"""
ORANGE = [213, 94, 0]


@pytest.fixture
def drawn(browser: Browser) -> Any:
    """Keeps what is drawn while the test runs."""
    command = "Page.addScriptToEvaluateOnNewDocument"
    kept = browser.driver.execute_cdp_cmd(command, {"source": KEEP_TEXTS})
    yield
    browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", kept)


def with_metrics(folder: Path, lines: Sequence[Mapping[str, float]]) -> Path:
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def marks(browser: Browser, title: str) -> list[float]:
    """The marks of both axes of a plot, without those of another size of it."""
    texts = browser.until(lambda: browser.run(MARKS, title))
    return sorted({float(text) for text in texts})


def test_the_latest_advice_of_each_kind_is_shown(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    folder = plain_run(tmp_path / "shop", tokenizer)
    said = [(2, "no calls", "Old."), (2, "cut off", "Raise it."), (12, "no calls", "New.")]
    (folder / "advice.jsonl").write_text(
        "".join(json.dumps({"step": n, "cause": c, "text": t}) + "\n" for n, c, t in said)
    )
    page(folder)
    expected = ["step 12, no calls: New.", "step 2, cut off: Raise it."]
    assert browser.until(lambda: browser.texts(".advice li")) == expected
    browser.show("#/why?run=shop")
    browser.until(lambda: browser.all(".why"))
    assert browser.until(lambda: browser.texts(".advice li")) == expected


def test_axes_have_whole_steps_and_shares_end_at_1(
    drawn: None, page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    lines = [
        {
            "step": step,
            "episodes/stop/answered": 0.95 + 0.01 * step,
            "tools/calls": step,
            "loss": 1e-8 * (-1) ** step,
        }
        for step in (1, 2, 3)
    ]
    page(with_metrics(plain_run(tmp_path / "shop", tokenizer), lines))
    shares = marks(browser, "Stop reasons (share)")
    assert [mark for mark in shares if mark > 1] == [1, 2, 3][1:]  # the steps
    assert [mark for mark in marks(browser, "Tool calls") if mark % 1] == []
    loss = [mark for mark in marks(browser, "Loss") if mark not in (1, 2, 3)]
    assert max(loss) > 0.5  # far above the noise


def test_a_legend_shows_the_last_values_and_what_they_mean(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    legends = browser.until(lambda: browser.texts(".u-legend"))
    assert legends[0] == "step2reward/mean0.5held out0.75"
    names = browser.all(".u-legend")[0].find_elements("css selector", "th")
    assert [name.get_attribute("title") for name in names] == [
        "",
        "mean reward of the episodes that a step trained on",
        "mean reward of the rows that are held out from training",
    ]
    assert "0 where it is certain" in browser.texts("figcaption")[1]
    borders = browser.run(
        "return [...document.querySelectorAll('.u-legend td, .u-legend th')]"
        ".map((cell) => getComputedStyle(cell).borderBottomWidth)"
    )
    assert set(borders) == {"0px"}
    least = browser.run(
        "return getComputedStyle(document.querySelector('.plot [role=img]')).minHeight"
    )
    assert int(least.removesuffix("px")) >= 190  # nothing moves when plots come


def test_lines_of_one_plot_are_told_apart_where_they_lie_on_one_another(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    lines = [{"step": n, "time/step_s": 2.0, "time/rollout_s": 2.0} for n in (1, 2)]
    page(with_metrics(plain_run(tmp_path / "shop", tokenizer), lines))
    browser.until(lambda: browser.texts(".u-legend") == ["step2time/step_s2time/rollout_s2"])
    styles = browser.run(
        "return [...document.querySelectorAll('.u-marker')].slice(1)"
        ".map((mark) => getComputedStyle(mark).borderTopStyle)"
    )
    assert styles == ["solid", "dashed"]


def test_points_of_evaluations_are_joined(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.until(lambda: browser.all("figure canvas"))
    browser.until(lambda: browser.run(COLUMNS, ORANGE) > 0.4)  # its dashes


def test_on_a_telephone_runs_are_cards(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    browser.resize(390)
    page(plain_run(tmp_path / "shop", tokenizer))
    browser.until(lambda: browser.all("figure"))
    for cell in browser.all(".runs tbody td, .runs tbody a"):
        assert cell.rect["x"] + cell.rect["width"] <= 390
    assert "rollouts" in browser.all(".runs tbody tr")[0].text


def test_any_metric_is_plotted_and_stands_in_the_address(
    page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    lines = [{"step": n, "reward/mean": 0.5, "clipped/low": 0.25 * n} for n in (1, 2)]
    page(with_metrics(plain_run(tmp_path / "shop", tokenizer), lines))
    browser.until(lambda: browser.all("figure"))
    assert not any(each.startswith("clipped") for each in browser.texts("figcaption"))
    (field,) = browser.all(".runs input[list=metrics]")
    field.send_keys("clipped/low")
    browser.until(lambda: browser.texts("figcaption")[0].startswith("clipped/low"))
    assert "metric=clipped%2Flow" in browser.driver.current_url
    browser.driver.refresh()  # as somebody else who opens the link
    browser.until(lambda: browser.all("figure"))
    assert browser.texts("figcaption")[0].startswith("clipped/low")
    (field,) = browser.all(".runs input[list=metrics]")
    assert field.get_property("value") == "clipped/low"
    browser.show("#/runs?metric=no/such&over=minutes")
    browser.until(lambda: browser.texts("figcaption")[0].startswith("Reward"))


def test_plots_are_drawn_over_minutes(
    drawn: None, page: Serving, browser: Browser, tmp_path: Path, tokenizer: Any
) -> None:
    lines = [{"step": n, "reward/mean": 0.5, "loss": 1.0, "time/step_s": 900.0} for n in (1, 2, 3)]
    page(with_metrics(plain_run(tmp_path / "shop", tokenizer), lines))
    assert max(marks(browser, "Reward")) == 3  # steps
    over = {each.text: each for each in browser.all(".bar button")}
    assert over["over steps"].get_attribute("aria-pressed") == "true"
    over["over minutes"].click()
    browser.until(lambda: "over=minutes" in browser.driver.current_url)
    assert over["over minutes"].get_attribute("aria-pressed") == "true"
    browser.until(lambda: max(marks(browser, "Reward")) > 30)  # three steps of 15 minutes
    legend = browser.until(lambda: browser.texts(".u-legend"))[0]
    assert legend.startswith("minutes45"), legend
