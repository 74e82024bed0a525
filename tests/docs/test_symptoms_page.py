"""docs/symptoms.md: it has every cause that a run or `--why` says, and what it names exists."""

import ast
import re
from collections.abc import Iterator

from gymnast.trainers.base.observer import SLOW, SOLVED
from gymnast.trainers.inspecting.cause import CAUSES
from page_names import codes, unknown
from pages import ROOT

PAGE = (ROOT / "docs/symptoms.md").read_text()
LEARNING = (ROOT / "docs/learning.md").read_text().partition("\n## ")[0]
ADVICE = ROOT / "trainers/reporting/advice"
BOLD = {*re.findall(r"\*\*([^*]+)\*\*", PAGE)} - {"bold"}
OTHERS = {
    "advice.jsonl",
    "async def",
    "best/",  # of a run's folder
    "extract",  # an argument of `rubrics.exact`
    "ignore",
    "memory:",  # how a line of the console begins
    "overlong",
    "ray status",
    "timeout_s",  # of `tool`
}


def said() -> Iterator[str]:
    """The causes in the source of the advice: what stands first in a pair with a sentence."""
    for name in ("cases.py", "numbers.py", "sudden_falls.py"):
        for node in ast.walk(ast.parse((ADVICE / name).read_text())):
            if isinstance(node, ast.Tuple) and len(node.elts) == 2:
                first, second = node.elts
                if isinstance(first, ast.Constant) and not isinstance(second, ast.Constant):
                    yield str(first.value)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_failing":
                yield ast.literal_eval(node.args[1])


def causes() -> set[str]:
    return {cause for cause in said() if re.fullmatch(r"[a-z]+ [a-z]+", cause)} | {SOLVED} | SLOW


def test_the_causes_are_those_of_the_page_on_learning() -> None:
    table = re.findall(r"^\| ([a-z ]+) \| ", LEARNING, re.MULTILINE)[1:]  # without its head
    assert causes() == set(table) and len(table) > 12


def test_every_cause_has_an_entry_and_no_other_is_named() -> None:
    assert causes() | set(CAUSES) == BOLD


def test_what_it_names_exists() -> None:
    assert not unknown(codes(PAGE), OTHERS)


def test_quoted_messages_are_what_is_said() -> None:
    folders = ("agents", "envs", "trainers")
    sources = [path.read_text() for name in folders for path in (ROOT / name).rglob("*.py")]
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))  # a text over several lines
    quoted = [part for text in re.findall(r'"([^"`]{12,})"', PAGE) for part in split(text)]
    assert len(quoted) > 4
    assert not [part for part in quoted if part not in code]


def split(text: str) -> list[str]:
    """A message without the numbers in it, which stand for others."""
    return [part.strip() for part in re.split(r"\b(?:N|\d+)\b", text) if part.strip()]


def test_every_row_says_what_to_do() -> None:
    rows = re.findall(r"^\| (?!you see|---)(.*) \|$", PAGE, re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    assert len(rows) > 50
    assert all(len(row) == 3 and "<br>" in row[0] and row[2] for row in cells)
