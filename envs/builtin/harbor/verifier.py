"""Running a task's tests in the container in which the policy has worked, and what they reward.

Nothing of the policy's runs any more, and the folders of the tests and of their logs are made anew.
The programs that the tests use are those of the container, and a policy that may write there can
have changed them: docs/harbor.md says what follows.
"""

import errno
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnast.envs.builtin.harbor.tasks import FolderFile
from gymnast.errors import SandboxFileError, shown
from gymnast.numbers import finite_number, finite_sum, is_finite
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.visible import visible_line, visible_logger

LOGS, TESTS, SOLUTION = "/logs", "/tests", "/solution"
VERIFIER_LOGS = f"{LOGS}/verifier"
REWARD_KEY = "reward"

_MOST_REWARD_BYTES = 1 << 20
_OUTPUT = f"{VERIFIER_LOGS}/test-stdout.txt"

log = visible_logger(__name__)


@dataclass(frozen=True)
class Verdict:
    """What a task's tests have said.

    Attributes:
        reward: The reward; 0.0 where they named none.
        parts: Its parts by name, whose sum it is; empty if it is one number.
        others: Further numbers that they named.
        problem: Why there is no reward; None where there is one.
        timed_out: Whether they ran out of time.
    """

    reward: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None
    timed_out: bool = False


async def verify(
    box: Sandbox,
    tests: Sequence[FolderFile],
    *,
    cwd: str,
    env: Mapping[str, str],
    timeout_s: float,
) -> Verdict:
    """Run the tests of a task.

    Args:
        box: Where the policy has worked.
        tests: The files of tests/.
        cwd: The folder that the tests run in.
        env: Their variables.
        timeout_s: Their time, in seconds.

    Raises:
        SandboxError: The box broke.
    """
    try:
        await end_processes(box)
        await make_folder(box, LOGS, keep=True)
        for folder in (VERIFIER_LOGS, TESTS):
            await make_folder(box, folder)
        await upload(box, tests, TESTS)
    except (SandboxFileError, _Unready) as error:
        return _without_reward(f"the tests could not be put into the container: {error}")
    command = f"{TESTS}/test.sh >{_OUTPUT} 2>&1"
    result = await box.aexec(command, cwd=cwd, env=env, timeout_s=timeout_s)
    if result.verdict in ("timeout", "dead"):
        timed_out = result.verdict == "timeout"
        return _without_reward(f"the tests ended by {result.verdict}", timed_out=timed_out)
    for name, read in (("reward.json", read_json), ("reward.txt", read_text)):
        try:
            data = await box.aread_file(f"{VERIFIER_LOGS}/{name}", max_bytes=_MOST_REWARD_BYTES)
        except SandboxFileError as error:
            if error.errno == errno.ENOENT:
                continue
            return _without_reward(str(error))
        return read(data)
    return _without_reward(f"the tests wrote no {VERIFIER_LOGS}/reward.txt or reward.json")


def read_text(data: bytes) -> Verdict:
    """The reward of a reward.txt: one finite number."""
    try:
        return Verdict(finite_number(float(data.decode())))
    except ValueError:
        return _without_reward(f"reward.txt is {data[:100]!r}, and must be a finite number")


def read_json(data: bytes) -> Verdict:
    """The reward of a reward.json: numbers by name, or one number.

    The one under `REWARD_KEY` is the reward, and the others stand beside it. Without it the reward
    is the mean of all, of which each is a part.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        return _without_reward(f"reward.json is no JSON: {error}")
    numbers = value if isinstance(value, dict) else {REWARD_KEY: value}
    if not numbers or not all(map(_is_number, numbers.values())):
        return _without_reward(f"reward.json is {shown(value)}, and must hold finite numbers")
    named = {visible_line(name): float(number) for name, number in numbers.items()}
    if REWARD_KEY in named:
        reward = named.pop(REWARD_KEY)
        return Verdict(reward, others=named)
    parts = {name: number / len(named) for name, number in named.items()}
    try:
        return Verdict(finite_sum(parts.values()), parts=parts)
    except ValueError as error:
        return _without_reward(f"reward.json has numbers whose mean is not finite: {error}")


async def end_processes(box: Sandbox) -> None:
    """End what runs in a box but its worker: what a call has left is dead, and this its session.

    In the session's memory code of the same user may have put something.
    """
    await box.aexec(["/bin/sh", "-c", "kill -9 -1"])
    await box.apython("pass")  # fails where the worker has not seen yet that the session ended


async def make_folder(box: Sandbox, path: str, *, keep: bool = False) -> None:
    """Make a folder that is empty, whatever stood in its place.

    No program of the container's is run for it.

    Args:
        box: The box.
        path: The folder.
        keep: Whether what is in it may stay, if it is a folder already.

    Raises:
        SandboxFileError: It cannot be made.
    """
    await _run(box, f"{_MAKE_FOLDER}\nmake_folder({path!r}, {keep!r})")


async def upload(box: Sandbox, files: Sequence[FolderFile], folder: str) -> None:
    """Write files into a folder of a box.

    Raises:
        SandboxFileError: One cannot be written.
    """
    for file in files:
        await box.awrite_file(posixpath.join(folder, file.path), file.content)
    programs = [posixpath.join(folder, file.path) for file in files if file.executable]
    # Scripts are often checked out without the right to be executed.
    scripts = [posixpath.join(folder, file.path) for file in files if file.path.endswith(".sh")]
    chosen = sorted({*programs, *scripts})
    await _run(box, f"import os\nfor path in {chosen!r}: os.chmod(path, 0o755)")


class _Unready(Exception):
    """The container could not be made ready for the tests; the message says why."""


async def _run(box: Sandbox, code: str) -> None:
    result = await box.apython(code)
    if result.verdict != "ok":
        raise _Unready(f"{result.verdict}: {result.stderr.strip()[-300:]}")


def _without_reward(problem: str, *, timed_out: bool = False) -> Verdict:
    log.info("reward 0: %s", visible_line(problem))
    return Verdict(problem=problem, timed_out=timed_out)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and is_finite(value)


_MAKE_FOLDER = """
import os
def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        for place, folders, names in os.walk(path, topdown=False):
            for name in names + [one for one in folders if os.path.islink(place + "/" + one)]:
                os.unlink(place + "/" + name)
            for name in folders:
                if not os.path.islink(place + "/" + name):
                    os.path.lexists(place + "/" + name) and os.rmdir(place + "/" + name)
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)
def make_folder(path, keep):
    is_folder = os.path.isdir(path) and not os.path.islink(path)
    if not (keep and is_folder):
        remove(path)
        os.mkdir(path)
    os.chmod(path, 0o777)
"""
