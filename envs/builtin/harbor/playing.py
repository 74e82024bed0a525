"""What every way to play tasks in folders has in common: their containers, and their own tests.

`tasks.py` reads the folders, and `verifier.py` runs the tests. The policy plays with tools in
`environment.py`.
"""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.builtin.harbor.task_file import resolved
from gymnast.envs.builtin.harbor.tasks import HarborTask, files_of, read_tasks
from gymnast.envs.builtin.harbor.verifier import LOGS, Verdict, verify
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.rows import pick_row
from gymnast.envs.records.episode import Episode
from gymnast.errors import ConfigError, DataError
from gymnast.lookup import did_you_mean
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import CAPABILITIES, MIB, SandboxSpec
from gymnast.visible import visible_logger

logger = visible_logger(__name__)


class TaskFolders(Environment):
    """Tasks in folders, each in its container, scored by its own tests; see `Harbor`.

    Attributes:
        workdir: The folder of the episode's container in which commands run.

    Args:
        *arguments: As for `Environment`.
        tasks: A folder of tasks, or the folder of one. Without it there is nothing to play.
        skip: Names of tasks to leave out.
        ignore: Fields of task.toml to leave unread, as "environment.healthcheck".
        build: Whether images are built even where task.toml names one.
        **settings: As for `Environment`.

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
        self.workdir = "/"
        self._verdict = Verdict()
        if self.rows is None and self._tasks:
            self.rows = [self._row(task) for task in self._tasks.values()]
        if self.box_settings.spec.network == "none":
            count = sum(task.settings.network for task in self._tasks.values())
            if count:
                logger.warning(
                    "%d of %d tasks may use a network and have none: sandbox.network is none",
                    count,
                    len(self._tasks),
                )

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

        task = self.task_of(row)
        says = task.settings
        if says.image is not None and not self._build:
            image = images.pulled(says.image)
        else:
            image = images.built(task.folder / "environment", timeout_s=says.build_timeout_s)
        self.workdir = says.workdir or images.image_facts(image).workdir
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
        self._verdict = Verdict()
        folders = [self.workdir, *(f"{LOGS}/{name}" for name in _LOG_FOLDERS)]
        made = sandbox.python(
            f"import os\nfor path in {folders!r}: os.makedirs(path, exist_ok=True)"
        )
        if made.verdict != "ok":
            raise DataError(
                f"Harbor: the container of the task {self.row.get('task')!r} cannot be prepared: "
                f"{made.stderr.strip()[-300:]}"
            )

    async def reward(self, episode: Episode) -> Any:
        """What the tests write; see the class."""
        task = self.task_of(self.row)
        verdict = self._verdict = await verify(
            self.sandbox,
            files_of(task.tests),
            cwd=self.workdir,
            env=resolved(task.settings.verifier_env),
            timeout_s=task.settings.verifier_timeout_s,
        )
        return dict(verdict.parts) or verdict.reward

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        task, verdict = self.task_of(self.row), self._verdict
        without = task.settings.network and self.box_settings.spec.network != "full"
        return {
            **verdict.others,
            "verified": float(verdict.problem is None),
            "verifier_timeout": float(verdict.timed_out),
            "without_network": float(without),
        }

    def task_of(self, row: Mapping[str, Any]) -> HarborTask:
        """The task of a row.

        Raises:
            DataError: There is none of that name.
        """
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
