"""`gymnast new NAME`: makes a package with an environment, which others can install.

Its files are made of those in `package/`, where `$name` and the like stand for what differs.
"""

import importlib.util
import json
import keyword
import re
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gymnast.commands.output import say
from gymnast.errors import ConfigError

new = typer.Typer()

# Where each file of `package/` goes.
FILES = {
    "README.md": "README.md",
    "pyproject.toml": "pyproject.toml",
    "train.yaml": "train.yaml",
    "gitignore": ".gitignore",
    "test.yml": ".github/workflows/test.yml",
    "init.py": "src/$module/__init__.py",
    "environment.py": "src/$module/environment.py",
    "test_environment.py": "tests/test_environment.py",
}
_TEMPLATES = Path(__file__).parent / "package"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_URL = re.compile(r"[a-z+]+://[^\s'\"]+")
_LONGEST = 32
_RULE = (
    f"a package's name is at most {_LONGEST} lowercase letters, digits and single dashes or "
    "underscores, and begins with a letter"
)
_EXTRAS = "demo,lora"  # what train.yaml needs

# What stands in the files where nobody knows where others find Gymnast.
_CLONE = f"path/to/gymnast[{_EXTRAS}]"
_VARIABLE = "${{ vars.GYMNAST }}  # a variable of the repository: git+https://..."


@new.command(name="new")
def make_package(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The package's name, such as dice-game.")
    ],
    gymnast: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where pip finds Gymnast, such as git+https://...; by default this one's origin.",
        ),
    ] = None,
) -> None:
    """Make a package with an environment: its rows, solve, test, entry point and CI."""
    words = _words(name)
    if gymnast is not None and not _URL.fullmatch(gymnast):
        raise ConfigError(
            f"--gymnast: must be a URL, such as git+https://... or file:///..., got {gymnast!r}"
        )
    source = _source() if gymnast is None else gymnast
    words |= {
        "readme_gymnast": f"gymnast-rl[{_EXTRAS}] @ {source}" if source else _CLONE,
        "workflow_gymnast": json.dumps(f"gymnast-rl @ {source}") if source else _VARIABLE,
    }
    _write(Path(name), words)
    say(f"{name}/ is a package with the environment {words['id']}")
    if words["module"] != name:
        say(f"its module is {words['module']}, as a module's name has no dashes")
    if source is None:
        say(
            "where others find Gymnast is not known here: write it in README.md and, for the CI, "
            "into the variable GYMNAST of its repository; --gymnast URL does both"
        )
    say(f"to install it: pip install -e './{name}[test]'")
    say(f"to check it: gymnast check {words['id']}")


def _words(name: str) -> dict[str, str]:
    """What stands for the package's name in its files.

    Raises:
        ConfigError: It can be no package's name, or something has it.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        meant = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "-", name).lower().strip("-")
        fits = _NAME.fullmatch(meant) and len(meant) <= _LONGEST and meant != name
        hint = f". Did you mean {meant}?" if fits else ""
        raise ConfigError(f"NAME: is {name!r:.200}; {_RULE}{hint}")
    module = name.replace("-", "_")
    cls = "".join(part.capitalize() for part in module.split("_"))
    if problem := _taken(name, module, cls):
        raise ConfigError(f"NAME: is {name!r}, but {problem}; take another")
    return {"name": name, "module": module, "cls": cls, "id": f"{name}/{cls}-v0"}


def _taken(name: str, module: str, cls: str) -> str | None:
    """Why a name cannot be taken, though it is written as it should be."""
    from gymnast.envs.registry import SCHEMES

    if module in sys.stdlib_module_names:
        return f"Python has a module {module}"
    if keyword.iskeyword(module) or keyword.iskeyword(cls):
        return f"{module if keyword.iskeyword(module) else cls} is a word of Python's"
    if module in SCHEMES:
        return f"names of environments that begin with {module}: are an adapter's"
    if module in ("src", "tests"):
        return f"the package has a folder {module}"
    if re.search(rf"^from .* import .*\b{cls}\b", _template("environment.py").template, re.M):
        return f"its class would be called {cls}, as one that it imports"
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    try:
        there = distribution(name)
        return f"a package of this name is installed ({there.name} {there.version})"
    except PackageNotFoundError:
        pass
    spec = importlib.util.find_spec(module)
    if spec is not None:
        return f"a module {module} is installed ({spec.origin or 'a namespace'})"
    return None


def _source() -> str | None:
    """Where pip found this Gymnast, and others find it as well; None where they do not."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    try:
        text = distribution("gymnast-rl").read_text("direct_url.json")
    except PackageNotFoundError:  # it runs without being installed
        return None
    if text is None:  # from a folder of wheels, say
        return None
    origin = json.loads(text)
    url, vcs = origin["url"], origin.get("vcs_info")
    if "dir_info" in origin:
        return _remote(urlsplit(url).path)
    if urlsplit(url).scheme == "file":
        return None
    return f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else str(url)


def _remote(folder: str) -> str | None:
    """The public address of a clone."""
    git = ["git", "-C", folder, "remote", "get-url", "origin"]
    try:
        asked = subprocess.run(git, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):  # there is no git
        return None
    parts = urlsplit(asked.stdout.strip())
    if parts.scheme != "https" or not parts.hostname:
        return None
    return f"git+https://{parts.netloc.rpartition('@')[2]}{parts.path}"  # without a password


def _write(folder: Path, words: dict[str, str]) -> None:
    """Write the files, or none.

    Raises:
        ConfigError: The folder is there already, or cannot be written.
    """
    try:
        folder.mkdir()
    except FileExistsError as error:
        raise ConfigError(f"NAME: {folder} is there already; take another name") from error
    except OSError as error:
        raise ConfigError(f"NAME: {folder} cannot be made here: {error.strerror}") from error
    try:
        for template, target in FILES.items():
            path = folder / Template(target).substitute(words)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_template(template).substitute(words), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(f"NAME: {folder} cannot be written: {error.strerror}") from error


def _template(name: str) -> Template:
    return Template((_TEMPLATES / f"{name}.template").read_text(encoding="utf-8"))
