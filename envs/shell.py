"""Shell: commands and files in a box, and a command that checks what has become of them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.base import Environment
from gymnast.envs.episode import Episode
from gymnast.envs.marks import tool
from gymnast.envs.result_words import in_words
from gymnast.errors import DataError, SandboxFileError
from gymnast.sandboxes.base import Sandbox
from gymnast.sandboxes.spec import SandboxSpec

MAX_READ_BYTES = 1 << 20

# For the check: the policy's files must not be run in place of programs, nor imported.
_CHECK_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/nonexistent",
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "ENV": "",
    "BASH_ENV": "",
}


class Shell(Environment):
    """Do something to files with shell commands.

    A row has `prompt`, may have `files` (`{path: text}`, there from the start), and is scored by
    `check`, a shell command: exit code 0 is reward 1.0. It is run when the episode has ended, in
    the same box and folder, after `check_files` (`{path: text}`) were written over whatever lies
    at their paths. Neither is in the box before, so the policy can read or change neither; nothing
    that it started still runs. What the check looks at is the policy's, of course: a check that
    runs or imports files of the policy's lets them decide, and one that compares a file of the
    policy's with one of `check_files` finds them equal where the policy's is a link to that name;
    what is expected belongs into `check` itself. A check that ends in any other way,
    with its box broken say, is reward 0.0. Without rows, the environment has small tasks of its
    own.

    `metrics` gives `checked` (1 where the check could be run to its end) and `commands`.
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
        """A row of `rows` where there are any, else a question about a file of words."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        words = [_WORDS[i] for i in rng.integers(len(_WORDS), size=int(rng.integers(8, 30)))]
        wanted = words[0]
        answers = {
            "the number of lines of words.txt": len(words),
            "the number of different words in words.txt": len(set(words)),
            f"how often {wanted!r} is in words.txt": words.count(wanted),
        }
        what, answer = list(answers.items())[int(rng.integers(len(answers)))]
        return {
            "prompt": f"words.txt has one word a line. Write {what} into answer.txt.",
            "files": {"words.txt": "".join(f"{word}\n" for word in words)},
            "check": f'[ "$(tr -d "[:space:]" < answer.txt)" = {answer} ]',
        }

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        """The row's files."""
        for path, text in self._files("files").items():
            try:
                sandbox.write_file(path, text)
            except SandboxFileError as error:
                raise DataError(
                    f"Shell: the row's file {path!r} cannot be written: {error}"
                ) from error

    def setup(self, row: Mapping[str, Any]) -> None:
        """Require something to check."""
        self._commands = 0
        self._checked = False
        self._files("check_files")
        if not isinstance(row.get("check"), str) or not row["check"].strip():
            raise DataError(
                f"Shell: the row's 'check' is {row.get('check')!r:.100}; it must be a shell "
                f"command (the row: {dict(row)!r:.300})."
            )

    async def reward(self, episode: Episode) -> float:
        """Whether the check passes; see the class."""
        files = self._files("check_files")
        try:
            for path, text in files.items():
                await self.sandbox.awrite_file(path, text)
            for path, text in files.items():
                if await self.sandbox.aread_file(path) != text.encode("utf-8", "surrogatepass"):
                    return 0.0  # a link of the policy's made two of them one
        except SandboxFileError:  # the policy has put a folder there, say
            return 0.0
        result = await self.sandbox.aexec(self.row["check"], env=_CHECK_ENV)
        self._checked = result.verdict in ("ok", "nonzero")
        return float(result.verdict == "ok")

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        return {"checked": float(self._checked), "commands": float(self._commands)}

    def _files(self, name: str) -> dict[str, str]:
        files = self.row.get(name) or {}
        if not isinstance(files, Mapping) or not all(
            isinstance(part, str) for pair in files.items() for part in pair
        ):
            raise DataError(
                f"Shell: the row's {name!r} is {files!r:.200}; it must be {{path: text}}."
            )
        return dict(files)


_WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay")
