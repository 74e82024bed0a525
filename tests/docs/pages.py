"""The blocks of README and docs, read from the pages: commands, files, and any other.

A block of commands follows a comment that says how it is run:

    <!-- commands: fast -->            as printed
    <!-- commands: short -->           trainings with SHORT and SHORT_WARM_UP appended
    <!-- commands: short, docker -->   likewise, where a Docker engine runs
    <!-- commands: short, vllm -->     likewise, among the tests of vLLM servers
    <!-- commands: long -->            as printed, before a release (so are the short ones)
"""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KINDS = ("fast", "short", "long")
SHORT = "trainer.steps=1 trainer.rows_per_step=2 algorithm.group_size=2 evaluation.rows=4"
SHORT_WARM_UP = "warmup.steps=1 warmup.rows_per_step=2"

_FENCE = re.compile(
    r"(?:<!-- commands: (?P<mark>[a-z, ]+) -->\n)?```sh\n(?P<text>.*?)```", re.DOTALL
)
_FILE = re.compile(
    r"```(?:python|yaml|json)\n# (?P<name>[\w/.]+\.\w+)\n(?P<text>.*?)```", re.DOTALL
)
_ANY_FENCE = re.compile(r"^( *)```([^`\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_PROGRAM = r"(?:gymnast|python3?(?! -m venv)|pytest|pip|accelerate|torchrun|docker|ruff)"
_INDENTED = re.compile(rf"^ {{4}}{_PROGRAM} .*$", re.MULTILINE)
_INLINE = re.compile(rf"`({_PROGRAM} [^`]+)`")
_PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|\.\.\.")
_CONFIG = re.compile(r" train (\S+\.yaml)(?!.* warmup=null)")
_NEW_CONFIG = ROOT / "gymnast/commands/package/train.yaml.template"  # of `gymnast new`
_TRAINING = re.compile(r"\bgymnast(?:\.cli)? (?:train|eval) ")


@dataclass(frozen=True)
class Block:
    """One block of commands.

    Attributes:
        page: Its file.
        kind: Among KINDS; "" where the page does not say.
        needs_docker: Whether it needs an engine.
        needs_vllm: Whether it needs a vLLM.
        text: The commands, as printed.
    """

    page: Path
    kind: str
    needs_docker: bool
    needs_vllm: bool
    text: str

    def shortened(self) -> str:
        """With SHORT after each training, before its comment."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return "\n".join(map(_shortened, lines))


def _shortened(line: str) -> str:
    if not _TRAINING.search(line):
        return line
    command, hash_, comment = line.partition(" #")
    config = _CONFIG.search(command)
    of = config and (_NEW_CONFIG if config[1].endswith("/train.yaml") else ROOT / config[1])
    warms_up = of and of.exists() and "\nwarmup:" in of.read_text()
    short = f"{SHORT} {SHORT_WARM_UP}" if warms_up else SHORT
    return f"{command.rstrip()} {short}{hash_}{comment}"


def blocks(page: Path) -> list[Block]:
    """Every block of shell commands of a page, in order."""
    found = []
    for match in _FENCE.finditer(page.read_text()):
        kind, *more = [word.strip() for word in (match["mark"] or "").split(",")]
        found.append(Block(page, kind, "docker" in more, "vllm" in more, match["text"]))
    return found


def files(page: Path) -> dict[str, str]:
    """The files that a page shows, by the name in their first line."""
    return {match["name"]: match["text"] for match in _FILE.finditer(page.read_text())}


def languages(page: Path) -> dict[str, list[str]]:
    """Every block of a page by its language, "" where it names none."""
    found: dict[str, list[str]] = {}
    for indent, language, text in _ANY_FENCE.findall(page.read_text()):
        found.setdefault(language, []).append(textwrap.dedent(text) if indent else text)
    return found


def defining(page: Path, name: str) -> str:
    """The block of Python of a page that defines something."""
    definition = re.compile(rf"^(?:class|(?:async )?def) {name}\b", re.MULTILINE)
    (text,) = [text for text in languages(page)["python"] if definition.search(text)]
    return text


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """A YAML with the keys of another in place of its own, section by section."""
    both = {**first, **second}
    for key in first.keys() & second.keys():
        if isinstance(first[key], Mapping) and isinstance(second[key], Mapping):
            both[key] = merged(first[key], second[key])
    return both


def loose_commands(page: Path) -> list[str]:
    """Whole commands of a page that stand in no block: indented ones, and those within a line."""
    text = _FENCE.sub("", page.read_text())
    inline = (" ".join(command.split()) for command in _INLINE.findall(text))
    whole = [command for command in inline if not _PLACEHOLDER.search(command)]
    return [*(line.strip() for line in _INDENTED.findall(text)), *whole]
