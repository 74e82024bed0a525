"""Harbor: tasks in folders, which the policy does with a shell and files.

`playing.py` opens their containers and has their tests run.
"""

import base64
import posixpath
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gymnast.envs.boxes.box import in_words
from gymnast.envs.builtin.harbor.playing import TaskFolders
from gymnast.envs.builtin.harbor.task_file import resolved
from gymnast.envs.builtin.harbor.tasks import HarborTask, files_of
from gymnast.envs.builtin.harbor.verifier import SOLUTION
from gymnast.envs.records.assistant import call
from gymnast.envs.records.episode import Episode
from gymnast.envs.tools.marks import tool

_MAX_READ_BYTES = 1 << 20
_LONGEST_CALL_S = 24 * 3600.0
_PIECE_BYTES = 48_000  # of a solution's file, as a command line holds it


class Harbor(TaskFolders):
    """Do the tasks of a folder, each in its container, with a shell at hand.

    Tasks are folders in the format of Harbor and Terminal-Bench 2 (docs/harbor.md). A task's image
    is built from its environment/Dockerfile, once for the same files, or is the one that its
    task.toml names. After the episode what the policy has started is killed, /logs/verifier is
    emptied, tests/ is put into the container, and the reward is what tests/test.sh writes there:
    reward.txt, or reward.json. If it writes none in its time, the reward is 0.0.

    The policy is the image's user, most often root, in the container in which the tests run: it can
    change the programs that they use. docs/harbor.md says what can be relied on.

    `metrics` gives `verified` (1 if the tests wrote a reward), `verifier_timeout`, `commands`,
    `without_network` (1 if the task may use a network and the setting `sandbox` gives none), and
    the numbers that a reward.json names beside the reward.

    Args:
        *arguments: As for `Environment`.
        tasks: A folder of tasks, or the folder of one. Without it there is nothing to play.
        skip: Names of tasks to leave out.
        ignore: Fields of task.toml to leave unread, as "environment.healthcheck".
        build: Whether images are built even where task.toml names one.
        **settings: As for `Environment`. `sandbox` names limits for tasks that say none, and
            `network: full`, without which no task has a network.

    Raises:
        ConfigError: There are no tasks, or some cannot be played here.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._commands = 0

    @tool(max_output_tokens=1000)
    async def shell(self, command: str, timeout_s: float | None = None) -> str:
        """Run a shell command and return what it prints.

        Args:
            command: For /bin/sh. Nothing runs on after it.
            timeout_s: Seconds after which it is killed, if not the usual ones.
        """
        self._commands += 1
        if timeout_s is not None:
            timeout_s = min(max(timeout_s, 1.0), _LONGEST_CALL_S)
        result = await self.sandbox.aexec(command, cwd=self.workdir, timeout_s=timeout_s)
        return in_words(result, command=True)

    @tool(max_output_tokens=1000)
    async def read_file(self, path: str) -> str:
        """Return the text of a file.

        Args:
            path: Relative to the working folder, or absolute.
        """
        whole = posixpath.join(self.workdir, path)
        data = await self.sandbox.aread_file(whole, max_bytes=_MAX_READ_BYTES)
        return data.decode("utf-8", "replace")

    @tool
    async def write_file(self, path: str, text: str) -> str:
        """Write a text to a file; what was there is replaced.

        Args:
            path: Relative to the working folder, or absolute.
            text: The whole content.
        """
        await self.sandbox.awrite_file(posixpath.join(self.workdir, path), text)
        return f"Wrote {len(text)} characters."

    def setup(self, row: Mapping[str, Any]) -> None:
        """Forget the last episode."""
        self._commands = 0

    def solve(self, row: Mapping[str, Any]) -> Iterator[Any] | None:
        """Put solution/ into the container and run its solve.sh."""
        task = self.task_of(row)
        return None if task.solution is None else _solution(task, task.solution)

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        return {**super().metrics(episode), "commands": float(self._commands)}


def _solution(task: HarborTask, folder: Path) -> Iterator[Any]:
    """The messages that carry out a solution."""
    for file in files_of(folder):
        path = posixpath.join(SOLUTION, file.path)
        try:
            text = file.content.decode()
            yield call("write_file", path=path, text=text)
        except UnicodeDecodeError:
            yield from _written(path, file.content)
    env = {"DEBIAN_FRONTEND": "noninteractive", **resolved(task.settings.solution_env)}
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    timeout_s = task.settings.agent_timeout_s or _LONGEST_CALL_S
    script = f"{SOLUTION}/solve.sh"
    yield call(
        "shell",
        command=f"chmod +x {script}; env {variables} {script}",
        timeout_s=min(timeout_s, _LONGEST_CALL_S),
    )
    yield "Done."


def _written(path: str, content: bytes) -> Iterator[Any]:
    """The commands that write bytes which are no text."""
    for start in range(0, max(1, len(content)), _PIECE_BYTES):
        piece = base64.b64encode(content[start : start + _PIECE_BYTES]).decode()
        quoted = shlex.quote(path)
        folder = shlex.quote(posixpath.dirname(path))
        yield call(
            "shell",
            command=f"mkdir -p {folder}; echo {piece} | base64 -d >{'>' if start else ''}{quoted}",
        )
