"""The folders of tasks: what is in them, and which can be played.

instruction.md   what the policy is told
task.toml        limits, image, variables: `task_file.py`
environment/     a Dockerfile and what it copies
tests/           test.sh and its files, which the policy's container gets at the end
solution/        solve.sh and its files, which no policy is shown
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from gymnast.envs.builtin.harbor.task_file import TaskSettings, read_settings
from gymnast.errors import ConfigError
from gymnast.visible import visible

_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_MOST_SHOWN = 20
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


@dataclass(frozen=True)
class HarborTask:
    """A task.

    Attributes:
        name: Of its folder.
        folder: Its folder.
        instruction: What the policy is told.
        settings: What its task.toml says.
    """

    name: str
    folder: Path
    instruction: str
    settings: TaskSettings

    @property
    def tests(self) -> Path:
        """The folder with the tests."""
        return self.folder / "tests"

    @property
    def solution(self) -> Path | None:
        """The folder with the solution, if there is one."""
        folder = self.folder / "solution"
        return folder if (folder / "solve.sh").is_file() else None


@dataclass(frozen=True)
class FolderFile:
    """A file of a folder: its path below it, its bytes, and whether it can be executed."""

    path: str
    content: bytes
    executable: bool


def read_tasks(
    folder: str | Path, *, skip: Collection[str] = (), ignore: Collection[str] = ()
) -> dict[str, HarborTask]:
    """Read a folder of tasks, or the folder of one.

    Args:
        folder: The folder.
        skip: Names of tasks to leave out.
        ignore: Fields of task.toml to leave unread, as "environment.gpus".

    Returns:
        The tasks by name, in the order of their names.

    Raises:
        ConfigError: There are none, or some cannot be played here; it says why.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ConfigError(f"Harbor: tasks is {str(folder)!r:.300}, and there is no such folder.")
    found = [root] if _looks_like_a_task(root) else sorted(filter(_looks_like_a_task, _below(root)))
    known = [root.resolve().name if path == root else path.name for path in found]  # of "." too
    for setting, given in (("skip", skip), ("ignore", ignore)):
        if isinstance(given, str):
            raise ConfigError(
                f"Harbor: {setting} must be a list, got {given!r}. Write {setting}=[{given!r}]."
            )
    if unknown := sorted(set(skip) - set(known)):
        raise ConfigError(f"Harbor: skip names {unknown}, and there are no such tasks in {root}.")
    tasks, problems = {}, []
    for path, name in zip(found, known, strict=True):
        if name not in skip:
            task = _read(path, name, ignore)
            if isinstance(task, HarborTask):
                tasks[name] = task
            else:
                problems.append((name, task))
    if problems:
        raise ConfigError(_refusal(root, problems))
    if known and not tasks:
        raise ConfigError(
            f"Harbor: skip names each of the {len(known)} tasks in {root}. Leave one to play."
        )
    if not tasks:
        raise ConfigError(
            f"Harbor: there is no task in {root}. A task is a folder with task.toml, "
            "instruction.md, environment/ and tests/test.sh; name one, or the folder of several."
        )
    return tasks


def files_of(folder: Path) -> list[FolderFile]:
    """The files of a folder and of those below it, in the order of their paths."""
    paths = [
        Path(place, name) for place, _, names in os.walk(folder) for name in names
    ]  # links to folders are not followed
    return [
        FolderFile(
            path.relative_to(folder).as_posix(),
            path.read_bytes(),
            bool(path.stat().st_mode & 0o111),
        )
        for path in sorted(paths)
        if path.is_file()
    ]


def without_canary(text: str) -> str:
    """An instruction without the lines at its beginning that mark it for searches in corpora."""
    lines = text.split("\n")
    marked = 0
    while marked < len(lines) and _CANARY.fullmatch(lines[marked].strip()):
        marked += 1
    while marked < len(lines) and not lines[marked].strip():
        marked += 1
    return "\n".join(lines[marked:])


def _below(root: Path) -> Iterator[Path]:
    for path in root.iterdir():
        if path.is_dir() and not path.name.startswith("."):
            yield path


def _looks_like_a_task(path: Path) -> bool:
    return any((path / name).is_file() for name in ("task.toml", "instruction.md", "task.yaml"))


def _read(path: Path, name: str, ignore: Collection[str]) -> HarborTask | list[str]:
    """The task in a folder, or what stands in the way of playing it."""
    if (path / "task.yaml").is_file() and not (path / "task.toml").is_file():
        return [
            "it has a task.yaml and no task.toml, as tasks of Terminal-Bench 1 do: "
            "`harbor task migrate` of the package harbor turns them into this format"
        ]
    try:
        document = tomllib.loads((path / "task.toml").read_text("utf-8"))
    except FileNotFoundError:
        return ["there is no task.toml"]
    except (OSError, ValueError) as error:
        return [f"task.toml cannot be read: {error}"]
    try:
        instruction = without_canary((path / "instruction.md").read_text("utf-8"))
    except FileNotFoundError:
        return ["there is no instruction.md"]
    except (OSError, ValueError) as error:
        return [f"instruction.md cannot be read: {error}"]
    settings, problems = read_settings(document, ignore)
    if not instruction.strip():
        problems.append("instruction.md says nothing")
    if not (path / "tests" / "test.sh").is_file():
        problems.append("there is no tests/test.sh")
    if any((path / "environment" / name).is_file() for name in _COMPOSE):
        problems.append("environment/ has a compose file, and an episode has one container")
    elif settings.image is None and not (path / "environment" / "Dockerfile").is_file():
        problems.append("it has neither environment/Dockerfile nor environment.docker_image")
    return problems or HarborTask(name, path.resolve(), instruction, settings)


def _refusal(root: Path, problems: list[tuple[str, list[str]]]) -> str:
    shown = [f"  {name}: {'; '.join(why)}" for name, why in problems[:_MOST_SHOWN]]
    if len(problems) > _MOST_SHOWN:
        shown.append(f"  and {len(problems) - _MOST_SHOWN} more")
    names = [name for name, _ in problems]
    return visible(
        f"Harbor: {len(problems)} of the tasks in {root} cannot be played as they say:\n"
        + "\n".join(shown)
        + f"\nLeave them out (skip={names}), or play them without fields that do not matter "
        '(ignore=["environment.healthcheck"], say).'
    )
