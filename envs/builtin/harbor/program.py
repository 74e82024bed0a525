"""HarborProgram: tasks in folders, played by a program in their containers.

`envs/programs` starts the program and serves the model that it asks; `playing.py` opens the
containers and has the tests run.
"""

from collections.abc import Mapping
from typing import Any

from gymnast.envs.builtin.harbor.playing import TaskFolders
from gymnast.envs.programs.environment import Program
from gymnast.envs.records.episode import Episode
from gymnast.sandboxes.contract.spec import SandboxSpec


class HarborProgram(TaskFolders, Program):
    """A program does the tasks of a folder, and the policy is what it takes for a model server.

    What holds of tasks, containers, tests and rewards is said in `Harbor`, and what the program
    finds and how it is answered in `Program`: it runs in the task's container, in its working
    folder, as its user, and what it needs must be in the image. It is told the instruction as
    `prompt`. The container reaches the endpoint and nothing else, so a setting `network: full` is
    refused; each episode of a task that may use a network counts in `without_network`.

    Args:
        *arguments: As for `Environment`.
        command: The program: an argument vector, or a text for `/bin/sh -c`.
        **settings: As for `Harbor` and `Program`.

    Raises:
        ConfigError: There are no tasks, some cannot be played here, or there is no command.
    """

    def sandbox_spec_for(self, row: Mapping[str, Any], spec: SandboxSpec) -> SandboxSpec:
        """The image and the limits of the row's task, and the endpoint."""
        return Program.sandbox_spec_for(self, row, super().sandbox_spec_for(row, spec))

    def metrics(self, episode: Episode) -> dict[str, float]:
        """What the tests and the program did."""
        return {**Program.metrics(self, episode), **super().metrics(episode)}
