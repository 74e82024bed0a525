"""Removing what boxes have left behind whose owner is gone: killed, or lost with its machine.

A box ends with its owner where it can: a worker that loses its connection ends, and its container
with it. This is for what cannot: folders, containers that were paused or never started, processes
that outlived their worker. A box is only ever removed when its owner can be looked for and is not
there; those of other hosts are left and counted, as are those of an engine's other clients.
"""

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes.host.cgroups import sweep_groups
from gymnast.sandboxes.host.removal import delete_folder
from gymnast.sandboxes.lifetime.owner import LABEL, Owner, owner_of_folder, owner_of_labels
from gymnast.sandboxes.lifetime.processes import kill_marked
from gymnast.visible import visible_logger

log = visible_logger("gymnast.sandboxes")


@dataclass(frozen=True)
class Swept:
    """What a sweep has removed, and what it has left.

    Attributes:
        containers: How many containers were removed.
        folders: How many folders of boxes were deleted.
        processes: How many processes of boxes were killed.
        elsewhere: How many boxes were left since their owners ran on another host, before this
            machine was started last, or in another PID namespace, and cannot be looked for.
        failed: Why something could not be swept, a line for each reason.
    """

    containers: int = 0
    folders: int = 0
    processes: int = 0
    elsewhere: int = 0
    failed: tuple[str, ...] = ()


def sweep(*, containers: bool = True, all_hosts: bool = False) -> Swept:
    """Remove the boxes whose owner is gone.

    Args:
        containers: Whether to look at the Docker engine, too.
        all_hosts: Whether to take owners that ran elsewhere for gone. Only for those who know
            that nobody else uses the engine, or this temporary folder.

    Returns:
        What was removed, and what was left.
    """
    processes = kill_marked(lambda mark: _is_left(owner_of_folder(mark), all_hosts))
    processes += sweep_groups(lambda name: _is_left(owner_of_folder(name), all_hosts))
    folders, folders_elsewhere = _sweep_folders(all_hosts)
    removed, elsewhere, failed = _sweep_containers(all_hosts) if containers else (0, 0, ())
    return Swept(removed, folders, processes, folders_elsewhere + elsewhere, failed)


_begun: set[tuple[int, bool]] = set()
_begun_lock = threading.Lock()


def sweep_in_background(*, containers: bool) -> None:
    """Sweep on a thread of its own, the first time that this process asks for it.

    Args:
        containers: Whether to look at the Docker engine, too.
    """
    key = (os.getpid(), containers)
    if key in _begun:
        return
    with _begun_lock:
        if key in _begun:
            return
        _begun.update({key, (key[0], False)})
    threading.Thread(
        target=_sweep_and_say, args=(containers,), name="gymnast-sweep", daemon=True
    ).start()


def _sweep_and_say(containers: bool) -> None:
    try:
        swept = sweep(containers=containers)
    except Exception:
        log.exception("what earlier runs have left could not be swept")
        return
    if swept.containers or swept.folders or swept.processes:
        log.info(
            "removed what runs that are gone have left: %d containers, %d folders, %d processes",
            swept.containers,
            swept.folders,
            swept.processes,
        )


def _is_left(owner: Owner | None, all_hosts: bool) -> bool:
    """Whether a box's owner is gone."""
    if owner is None:
        return False
    return not owner.lives if owner.is_here else all_hosts


def _sweep_folders(all_hosts: bool) -> tuple[int, int]:
    """How many were deleted, and how many are of other hosts."""
    deleted = elsewhere = 0
    for folder, owner in _box_folders():
        if _is_left(owner, all_hosts):
            delete_folder(folder)
            deleted += not folder.exists()
        else:
            elsewhere += not owner.is_here
    return deleted, elsewhere


def _box_folders() -> Iterator[tuple[Path, Owner]]:
    """The folders of boxes in the temporary folder that belong to this user."""
    for folder in Path(tempfile.gettempdir()).glob("gymnast-*"):
        owner = owner_of_folder(folder.name)
        if owner is None:
            continue
        try:
            status = folder.lstat()
        except OSError:
            continue  # it was just deleted
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            yield folder, owner


def _sweep_containers(all_hosts: bool) -> tuple[int, int, tuple[str, ...]]:
    """How many were removed, how many are of other hosts, and what went wrong."""
    from gymnast.sandboxes.docker.engine import ENGINE_ERRORS, engine_client
    from gymnast.sandboxes.docker.removal import remove

    removed = elsewhere = 0
    failed = []
    try:
        api = engine_client()
        found: list[Any] = api.containers(all=True, filters={"label": f"{LABEL}=1"})
    except SandboxUnavailable:
        return 0, 0, ()  # no engine, no containers
    except ENGINE_ERRORS as error:
        return 0, 0, (f"containers: {error}",)
    for container in found:
        owner = owner_of_labels(container.get("Labels") or {})
        if not _is_left(owner, all_hosts):
            elsewhere += owner is not None and not owner.is_here
            continue
        try:
            remove(api, container["Id"])
            removed += 1
        except ENGINE_ERRORS as error:
            failed.append(f"container {container['Id'][:12]}: {error}")
    return removed, elsewhere, tuple(failed)
