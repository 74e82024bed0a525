"""Shell: commands and files in a box, and a command that checks the files at the end."""

import os
import posixpath
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.boxes.box import in_words
from gymnast.envs.boxes.safe_python import require_safe_path
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.assistant import call
from gymnast.envs.records.episode import Episode
from gymnast.envs.tools.marks import tool
from gymnast.errors import DataError, SandboxFileError
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import SandboxSpec

MAX_READ_BYTES = 1 << 20


class Shell(Environment):
    """Work on files with shell commands.

    A row has `prompt`, may have `files` (`{path: text}`, present from the start), and is scored by
    `check`, a shell command: exit code 0 is reward 1.0, anything else 0.0. It runs after the
    episode in a fresh box, to which the working folder is copied and nothing else: not /tmp, no
    process, no variable. `check_files` (`{path: text}`) replace whatever the policy has put at
    their paths, and no link leads to them. Neither is in the policy's box, so the policy can
    neither read nor change them. `solution`, a shell command that does the task, is for
    demonstrations.

    If a check runs code of the policy's, that code may do in the fresh box what the check may: read
    the expected answer, end the check. A check should read files, and leave running code to
    `gymnast/Code-v0`; docs/sandboxes.md has recipes. Without rows, the environment has small tasks
    of its own.

    `metrics` gives `checked` (1 if the check ran to its end), `grading_failed` (1 if it did not, or
    the folder could not be copied: the reward is 0.0) and `commands`.
    """

    sandbox_spec: ClassVar[SandboxSpec | None] = SandboxSpec(timeout_s=20.0)

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._commands = 0
        self._checked = False

    @tool(max_output_tokens=400)
    async def shell(self, command: str) -> str:
        """Run a shell command and return what it prints.

        Args:
            command: For /bin/sh, in the working folder. Nothing runs on after it.
        """
        self._commands += 1
        return in_words(await self.sandbox.aexec(command), command=True)

    @tool(max_output_tokens=400)
    async def read_file(self, path: str) -> str:
        """Return the text of a file.

        Args:
            path: Relative to the working folder, or absolute.
        """
        data = await self.sandbox.aread_file(path, max_bytes=MAX_READ_BYTES)
        return data.decode("utf-8", "replace")

    @tool
    async def write_file(self, path: str, text: str) -> str:
        """Write a text to a file; what was there is replaced.

        Args:
            path: Relative to the working folder, or absolute.
            text: The whole content.
        """
        await self.sandbox.awrite_file(path, text)
        return f"Wrote {len(text)} characters."

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else a question about a file of words."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        words = [_WORDS[i] for i in rng.integers(len(_WORDS), size=int(rng.integers(8, 30)))]
        wanted = words[0]
        answers = {
            "the number of lines of words.txt": (len(words), "wc -l < words.txt"),
            "the number of different words in words.txt": (
                len(set(words)),
                "sort -u words.txt | wc -l",
            ),
            f"how often {wanted!r} is in words.txt": (
                words.count(wanted),
                f"grep -cx {wanted} words.txt",
            ),
        }
        what, (answer, command) = list(answers.items())[int(rng.integers(len(answers)))]
        return {
            "prompt": f"words.txt has one word a line. Write {what} into answer.txt.",
            "files": {"words.txt": "".join(f"{word}\n" for word in words)},
            "check": f'[ "$(tr -d "[:space:]" < answer.txt)" = {answer} ]',
            "solution": f"{command} > answer.txt",
        }

    def solve(self, row: Mapping[str, Any]) -> list[Any] | None:
        """The row's `solution` as a command, then a last word."""
        if row.get("solution") is None:
            return None
        return [call("shell", command=row["solution"]), "Done."]

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        """Write the row's files."""
        for path, text in self._files("files").items():
            try:
                sandbox.write_file(path, text)
            except SandboxFileError as error:
                raise DataError(
                    f"Shell: the row's file {path!r} cannot be written: {error}"
                ) from error

    def setup(self, row: Mapping[str, Any]) -> None:
        """Check the row, and that the image's Python can ignore the policy's files."""
        self._commands = 0
        self._checked = False
        require_safe_path("Shell", self.sandbox, self.box_settings)
        _require_separate(self._files("check_files"))
        check = row.get("check")
        if not isinstance(check, str) or not check.strip() or not _can_be_named(check):
            raise DataError(
                f"Shell: the row's 'check' is {check!r:.100}; it must be a shell command, without "
                f"NUL and halves of characters (the row: {dict(row)!r:.300})."
            )

    async def reward(self, episode: Episode) -> float:
        """Whether the check passes; see the class."""
        result = await self.run_grader(self.row["check"], files=self._files("check_files"))
        self._checked = result is not None and result.verdict in ("ok", "nonzero")
        return float(result is not None and result.verdict == "ok")

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        return {
            "checked": float(self._checked),
            "grading_failed": float(not self._checked),
            "commands": float(self._commands),
        }

    def _files(self, name: str) -> dict[str, str]:
        files = self.row.get(name) or {}
        if not isinstance(files, Mapping) or not all(
            isinstance(part, str) for pair in files.items() for part in pair
        ):
            raise DataError(
                f"Shell: the row's {name!r} is {files!r:.200}; it must be {{path: text}}."
            )
        for path in files:
            if not path or not _can_be_named(path):
                raise DataError(
                    f"Shell: the row's {name!r} has the path {path!r:.200}; it must be a text with "
                    "something in it, and without NUL and halves of characters."
                )
        return dict(files)


def _can_be_named(text: str) -> bool:
    """Whether a text can be a path or part of a command."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _require_separate(files: Mapping[str, str]) -> None:
    """Refuse files that cannot exist together.

    Raises:
        DataError: One is a folder, is below another file, or is named twice.
    """
    paths = [posixpath.normpath(path) for path in files]
    for path in paths:
        if path == "." or paths.count(path) > 1 or any(p.startswith(f"{path}/") for p in paths):
            raise DataError(
                f"Shell: the row's 'check_files' {sorted(files)!r:.200} cannot all be there: "
                f"{path!r} is a folder, or there twice."
            )


_WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay")
