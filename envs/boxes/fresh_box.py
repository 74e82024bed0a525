"""Grading in a fresh box, which gets nothing from the policy's box but the files of its folder.

So nothing that the policy has started, set or left elsewhere runs beside the grader. The grader
also gets an environment in which common programs take no start files, modules or settings from the
folder. `carried.py` carries the files; `builtin/shell.py`, `builtin/container.py` and
`Environment.run_grader` choose the grader.
"""

import posixpath
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gymnast.envs.boxes.carried import CannotCarry, Folder, prepare_box, read_folder, write_folder
from gymnast.envs.boxes.safe_python import require_safe_path
from gymnast.envs.boxes.settings import BoxSettings
from gymnast.errors import (
    DataError,
    GymnastError,
    SandboxDead,
    SandboxFileError,
    SandboxTextError,
    UsageError,
)
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import ExecResult
from gymnast.threads import in_background
from gymnast.visible import visible_line, visible_logger

T = TypeVar("T")

# A box of one of these purposes is waited for while boxes of those before it are held: an episode's
# own, then "control", then "grading". In this order nobody waits in a circle.
CONTROL = "grading, control"
GRADING = "grading"

# Variables that keep common programs from reading the policy's files.
_ENV = {
    "ENV": "",
    "BASH_ENV": "",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONSAFEPATH": "1",
}

# Options that keep pytest from reading settings, plugins or modules of the policy's.
_PYTEST = "-c /dev/null --rootdir={0} --noconftest --import-mode=importlib -p no:cacheprovider"

log = visible_logger(__name__)


class Ungraded(Exception):
    """The grader has not graded.

    Args:
        error: The error to raise if the policy is not to blame.
    """

    def __init__(self, error: GymnastError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class GradingBox:
    """A fresh box with the policy's files in it.

    Attributes:
        box: The box.
        root: The folder with the files.
        copies: A folder with the grader's files, and none of the policy's.
        env: Variables for the grader.
    """

    box: Sandbox
    root: str
    copies: str
    env: Mapping[str, str]

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run the grader.

        Raises:
            SandboxDead: The box broke.
        """
        variables = {**self.env, **(env or {})}
        result = await self.box.aexec(command, stdin=stdin, cwd=self.root, env=variables)
        if result.verdict == "dead":
            raise SandboxDead(f"a box broke while it graded: {result.stderr.strip()[-200:]!r}")
        return result


Grade = Callable[[GradingBox], Awaitable[T]]


async def graded(
    work: Sandbox,
    boxes: BoxSettings,
    grade: Grade[T],
    *,
    begin: Callable[[Sandbox], object],
    control: Grade[object],
    files: Mapping[str, str] | None = None,
) -> T | None:
    """Grade a working folder in a fresh box.

    Args:
        work: The box in which the policy has worked.
        boxes: Where fresh ones come from.
        grade: Runs the grader. Raises `Ungraded` if the grader fails.
        begin: Puts into a fresh box what the policy's box began with.
        control: Grades the work of a policy that does nothing; raises as `grade` does.
        files: The grader's files, by path. They replace files at their paths.

    Returns:
        What `grade` returned; None if the grader fails because of what the policy has done.

    Raises:
        GymnastError: The grader fails even if the policy does nothing.
        SandboxError: `work` broke, or no box is available.
    """
    try:
        return await _graded(work, boxes, grade, files or {})
    except Ungraded as error:
        why = str(error)
    async with await boxes.take(CONTROL) as untouched:
        await in_background(partial(begin, untouched))
        try:
            await _graded(untouched, boxes, control, files or {})
        except Ungraded as error:
            raise error.error from None
    log.info("reward 0, as the policy has kept it from being graded: %s", visible_line(why))
    return None


async def run_grader(
    work: Sandbox,
    boxes: BoxSettings,
    command: str | Sequence[str],
    *,
    begin: Callable[[Sandbox], object],
    files: Mapping[str, str],
    stdin: str | None = None,
) -> ExecResult | None:
    """Run a command on a working folder in a fresh box; see `Environment.run_grader`."""
    if not isinstance(files, Mapping) or not all(
        isinstance(part, str) for pair in files.items() for part in pair
    ):
        raise UsageError(f"run_grader: files is {files!r:.200}; it must be {{path: text}}")
    if stdin is not None and not isinstance(stdin, str):
        raise UsageError(f"run_grader: stdin is {stdin!r:.200}; it must be a text, or None")
    if not command or not isinstance(command, Sequence):
        raise UsageError(
            f"run_grader: command is {command!r:.200}; it must be a shell command, or a list of "
            "texts that begins with a program"
        )

    async def run(place: GradingBox) -> ExecResult:
        ask = partial(require_safe_path, "run_grader", place.box, boxes, env=place.env)
        await in_background(ask)
        path = [place.copies, *filter(None, [place.env.get("PYTHONPATH")])]
        env = {
            "PYTHONPATH": ":".join(path),
            "PYTEST_ADDOPTS": _PYTEST.format(place.copies),
            "GYMNAST_CHECK_FILES": place.copies,
        }
        return await place.run(command, stdin=stdin, env=env)

    return await graded(work, boxes, run, begin=begin, control=run, files=files)


async def _graded(
    work: Sandbox, boxes: BoxSettings, grade: Grade[T], files: Mapping[str, str]
) -> T:
    try:
        folder = await in_background(partial(read_folder, work, boxes.spec.disk_bytes))
        try:
            return await _graded_once(folder, boxes, grade, files)
        except _GradingBoxBroke:  # perhaps by accident: try once more
            return await _graded_once(folder, boxes, grade, files)
    except CannotCarry as error:
        raise Ungraded(DataError(f"The working folder cannot be graded: {error}.")) from None
    except _GradingBoxBroke as error:
        raise Ungraded(SandboxDead(str(error))) from None


async def _graded_once(
    folder: Folder, boxes: BoxSettings, grade: Grade[T], files: Mapping[str, str]
) -> T:
    box = await boxes.take(GRADING)
    try:
        return await grade(await in_background(partial(_filled, box, folder, files)))
    except SandboxDead as error:
        if box.alive:
            raise  # the policy's box broke
        raise _GradingBoxBroke(str(error)) from None
    finally:
        threading.Thread(target=box.close, name="gymnast-sandbox", daemon=True).start()


def _filled(box: Sandbox, folder: Folder, files: Mapping[str, str]) -> GradingBox:
    """Put the grader's files and the policy's folder into a fresh box."""
    try:
        places = prepare_box(box)
    except CannotCarry as error:  # nothing of the policy's is in it yet
        raise _GradingBoxBroke(str(error)) from None
    inside = {}
    for path, text in files.items():
        whole = posixpath.normpath(posixpath.join(places.root, path))
        try:
            box.write_file(whole, text)
            if whole.startswith(f"{places.root}/"):
                below = whole[len(places.root) + 1 :]
                box.write_file(f"{places.own}/check/{below}", text)
                inside[below] = text
        except (SandboxFileError, SandboxTextError) as error:
            raise DataError(
                f"The file {path!r} for the grading cannot be written: {error}. Name it by a path "
                "in the working folder that is neither a folder nor below another file."
            ) from error
    write_folder(folder, box, places, inside)
    env = {
        **_ENV,
        **places.search_paths,
        "HOME": f"{places.own}/home",
        "TMPDIR": f"{places.own}/tmp",
        "PYTHONPYCACHEPREFIX": f"{places.own}/bytecode",
    }
    return GradingBox(box, places.root, f"{places.own}/check", env)


class _GradingBoxBroke(Exception):
    """The fresh box broke; the message says how."""
