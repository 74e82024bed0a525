"""Harbor: tasks in folders, played in their containers and scored by their own tests.

`tasks.py` reads the folders, and `verifier.py` runs the tests.
"""

import base64
import dataclasses
import logging
import posixpath
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.boxes.box import in_words
from gymnast.envs.builtin.harbor.task_file import resolved
from gymnast.envs.builtin.harbor.tasks import HarborTask, files_of, read_tasks
from gymnast.envs.builtin.harbor.verifier import LOGS, SOLUTION, Verdict, verify
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.rows import pick_row
from gymnast.envs.records.assistant import call
from gymnast.envs.records.episode import Episode
from gymnast.envs.tools.marks import tool
from gymnast.errors import ConfigError, DataError
from gymnast.lookup import did_you_mean
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import CAPABILITIES, MIB, SandboxSpec

_MAX_READ_BYTES = 1 << 20
_LONGEST_CALL_S = 24 * 3600.0
_PIECE_BYTES = 48_000  # of a solution's file, as a command line holds it

log = logging.getLogger(__name__)


class Harbor(Environment):
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

    sandbox_spec: ClassVar[SandboxSpec | None] = SandboxSpec(
        python=None,
        memory_bytes=2048 * MIB,
        processes=512,
        disk_bytes=10240 * MIB,
        timeout_s=120.0,
        start_timeout_s=120.0,
        root="image",
        capabilities=CAPABILITIES,
    )

    def __init__(
        self,
        *arguments: Any,
        tasks: str | Path | None = None,
        skip: Collection[str] = (),
        ignore: Collection[str] = (),
        build: bool = False,
        **settings: Any,
    ) -> None:
        settings["sandbox"] = _with_docker(settings.get("sandbox"))
        super().__init__(*arguments, **settings)
        self._tasks = {} if tasks is None else read_tasks(tasks, skip=skip, ignore=ignore)
        self._build = build
        self._commands = 0
        self._cwd = "/"
        self._verdict = Verdict()
        if self.rows is None and self._tasks:
            self.rows = [self._row(task) for task in self._tasks.values()]
        if self.box_settings.spec.network == "none":
            count = sum(task.settings.network for task in self._tasks.values())
            if count:
                log.warning(
                    "%d of %d tasks may use a network and have none: sandbox.network is none",
                    count,
                    len(self._tasks),
                )

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
        result = await self.sandbox.aexec(command, cwd=self._cwd, timeout_s=timeout_s)
        return in_words(result, command=True)

    @tool(max_output_tokens=1000)
    async def read_file(self, path: str) -> str:
        """Return the text of a file.

        Args:
            path: Relative to the working folder, or absolute.
        """
        whole = posixpath.join(self._cwd, path)
        data = await self.sandbox.aread_file(whole, max_bytes=_MAX_READ_BYTES)
        return data.decode("utf-8", "replace")

    @tool
    async def write_file(self, path: str, text: str) -> str:
        """Write a text to a file; what was there is replaced.

        Args:
            path: Relative to the working folder, or absolute.
            text: The whole content.
        """
        await self.sandbox.awrite_file(posixpath.join(self._cwd, path), text)
        return f"Wrote {len(text)} characters."

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """One of `rows`: by default, those of all tasks."""
        if not self._tasks:
            raise ConfigError(
                "Harbor: tasks is None; name a folder of tasks, or the folder of one: tasks=FOLDER."
            )
        return pick_row(self.rows, rng, type(self).__name__)

    def sandbox_spec_for(self, row: Mapping[str, Any], spec: SandboxSpec) -> SandboxSpec:
        """The image, the limits and the network of the row's task."""
        from gymnast.sandboxes.docker import images

        task = self._task(row)
        says = task.settings
        if says.image is not None and not self._build:
            image = images.pulled(says.image)
        else:
            image = images.built(task.folder / "environment", timeout_s=says.build_timeout_s)
        self._cwd = says.workdir or images.image_facts(image).workdir
        said: dict[str, Any] = {
            "memory_bytes": None if says.memory_mb is None else says.memory_mb * MIB,
            "disk_bytes": None if says.storage_mb is None else says.storage_mb * MIB,
            "cpus": None if says.cpus is None else min(says.cpus, float(images.cores())),
            "user": says.user,
            # An endpoint is the run's own, whatever the task says.
            "network": "none" if spec.network == "full" and not says.network else None,
        }
        limits = {name: value for name, value in said.items() if value is not None}
        env = {**spec.env, **resolved(says.env)}
        return dataclasses.replace(spec, image=image, env=env, **limits)

    def prepare_sandbox(self, sandbox: Sandbox) -> None:
        """Make the folders that the format promises."""
        folders = [self._cwd, *(f"{LOGS}/{name}" for name in _LOG_FOLDERS)]
        made = sandbox.python(
            f"import os\nfor path in {folders!r}: os.makedirs(path, exist_ok=True)"
        )
        if made.verdict != "ok":
            raise DataError(
                f"Harbor: the container of the task {self.row.get('task')!r} cannot be prepared: "
                f"{made.stderr.strip()[-300:]}"
            )

    def setup(self, row: Mapping[str, Any]) -> None:
        """Forget the last episode."""
        self._commands = 0
        self._verdict = Verdict()

    def solve(self, row: Mapping[str, Any]) -> Iterator[Any] | None:
        """Put solution/ into the container and run its solve.sh."""
        task = self._task(row)
        return None if task.solution is None else _solution(task, task.solution)

    async def reward(self, episode: Episode) -> Any:
        """What the tests write; see the class."""
        task = self._task(self.row)
        verdict = self._verdict = await verify(
            self.sandbox,
            files_of(task.tests),
            cwd=self._cwd,
            env=resolved(task.settings.verifier_env),
            timeout_s=task.settings.verifier_timeout_s,
        )
        return dict(verdict.parts) or verdict.reward

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        task, verdict = self._task(self.row), self._verdict
        without = task.settings.network and self.box_settings.spec.network == "none"
        return {
            **verdict.others,
            "verified": float(verdict.problem is None),
            "verifier_timeout": float(verdict.timed_out),
            "commands": float(self._commands),
            "without_network": float(without),
        }

    def _task(self, row: Mapping[str, Any]) -> HarborTask:
        name = row.get("task")
        if name not in self._tasks:
            raise DataError(
                f"Harbor: the row's 'task' is {name!r:.200}, and there is no such task."
                f"{did_you_mean(str(name), list(self._tasks))} There are {len(self._tasks)} tasks."
            )
        return self._tasks[str(name)]

    def _row(self, task: HarborTask) -> dict[str, Any]:
        limits = [task.settings.agent_timeout_s, self.episode_timeout_s]
        timeout_s = min((limit for limit in limits if limit is not None), default=None)
        row: dict[str, Any] = {"prompt": task.instruction, "task": task.name}
        return row if timeout_s is None else {**row, "limits": {"episode_timeout_s": timeout_s}}


_LOG_FOLDERS = ("agent", "verifier", "artifacts")


def _with_docker(given: Any) -> Any:
    """The setting `sandbox`, whose backend can only be Docker."""
    given = {} if given is None else {"backend": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping):
        return given
    if given.get("backend", "docker") not in ("docker", "auto"):
        raise ConfigError(
            f"Harbor: sandbox.backend is {given['backend']!r:.100}; tasks are played in "
            "containers: use docker"
        )
    return {**given, "backend": "docker"}


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
