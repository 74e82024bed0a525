"""docs/demonstrations.md: its examples run, and its commands print what the page says."""

import re
import sys
from pathlib import Path

import pytest

from command_fixtures import CommandLine
from gymnast.commands.demos import OPTIONS
from pages import ROOT, blocks, files

PAGE = ROOT / "docs/demonstrations.md"
TEXT = PAGE.read_text()


@pytest.fixture
def page_folder(shop_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in files(PAGE).items():
        (shop_folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(shop_folder))
    monkeypatch.delitem(sys.modules, "market", raising=False)
    return shop_folder


def test_the_examples_run_one_after_the_other(
    page_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, object] = {}
    for source in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(source, "docs/demonstrations.md", "exec", dont_inherit=True), namespace)
    *printed, roles = capsys.readouterr().out.splitlines()
    assert printed == ["1.0 They cost 84 cents.", "0.0"]
    assert "\n".join(["```", *printed, "```"]) in TEXT
    assert f"```\n{roles}\n```" in TEXT


def test_the_commands_print_what_the_page_says(page_folder: Path, gymnast: CommandLine) -> None:
    block = blocks(PAGE)[0]
    commands = [line.split() for line in block.text.splitlines()]
    ran = [gymnast(*command[1:]) for command in commands]
    assert [(each.code, each.errors) for each in ran] == [(0, "")] * 3
    assert f"```\n{ran[0].output}```" in TEXT
    assert ran[2].output == "100 demonstrations, of 100 episodes, are in best.parquet\n"


def test_a_mistake_is_told_as_the_page_says(page_folder: Path, gymnast: CommandLine) -> None:
    text = (page_folder / "market.py").read_text()
    (page_folder / "market.py").write_text(text.replace('row["fruit"])\n', '"figs")\n'))
    told = gymnast("check", "market.py:Market").errors.splitlines()[-1]
    shown = re.search(r"^error: Market.solve: .*(?= \(row)", TEXT, re.MULTILINE)
    assert shown is not None and told.startswith(shown[0])


def test_every_option_is_listed() -> None:
    assert {each for each in OPTIONS if not re.search(rf"\| `{each}[ `]", TEXT)} == set()
