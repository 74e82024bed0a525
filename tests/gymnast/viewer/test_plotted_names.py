"""Every metric that the page names is one that docs/metrics.md describes.

A plot of a metric that no run writes is left out without a word, so a name that changes would take
its plot along.
"""

import re

import pytest

from gymnast.viewer.server import STATIC
from page_names import is_metric

RUNS = STATIC.parent / "page/src/runs"


def quoted(text: str) -> list[str]:
    return re.findall(r'"([^"]+)"', text)


def plotted() -> list[str]:
    """What the panels draw; what begins with a name ends in "*"."""
    panels = (RUNS / "panels.ts").read_text().partition("export const PANELS")[2]
    lists = re.findall(r"(?:lines|evaluations): \[(.*?)\]", panels, re.DOTALL)
    assert len(lists) >= panels.count("title:") > 10, "a panel's names are not found"
    return [name for each in lists for name in quoted(each)]


def explained() -> list[str]:
    """What has a meaning to show; what is one by its beginning ends in "/"."""
    meanings = (RUNS / "meanings.ts").read_text().partition("= {")[2].partition("\n};")[0]
    names = re.findall(r'^  "?([^":\n]+)"?:', meanings, re.MULTILINE)
    assert len(names) == len(re.findall(r'",$', meanings, re.MULTILINE)) > 10
    return [name + "*" if name.endswith("/") else name for name in names]


def tabulated() -> list[str]:
    """What the table says of each run."""
    names = re.findall(r'ends\(\w+, "([^"]+)"\)', (RUNS / "Table.tsx").read_text())
    assert names, "the table's names are not found"
    return names


@pytest.mark.parametrize("name", sorted({*plotted(), *explained(), *tabulated()}))
def test_a_name_is_one_of_the_page_of_metrics(name: str) -> None:
    assert is_metric(name), f"{name} is not in docs/metrics.md"


def test_what_is_plotted_has_a_meaning() -> None:
    assert set(plotted()) - set(explained()) == set()
