"""The files that a bubblewrap box sees, as options of bwrap.

The host's folders are shown as overlays, so that a lock on a file, or anything else that the kernel
keeps with an inode, does not touch the host's file. As bwrap cannot make overlays before 0.11, they
are mounted in the mount namespace that it starts in.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gymnast.sandboxes.host.cgroups import Groups
from gymnast.sandboxes.host.files import HostFiles
from gymnast.sandboxes.host.landlock_view import is_below, mount_points
from gymnast.sandboxes.host.plan import OOM_PLACES, python_links

_OVERLAY = "overlay"
_DEVICES = ("full", "null", "random", "urandom", "zero")
_LINKS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}


class Layers:
    """Overlays of the host's folders.

    Args:
        folder: Where to make them.
        files: What the box sees.
        devices: Whether devices work through an overlay; they do not in a user namespace.
    """

    def __init__(self, folder: Path, files: HostFiles, *, devices: bool) -> None:
        self.steps = [step for step in files.steps() if not step.path.startswith("/dev/")]
        self._folder, self._mounts = folder, set(mount_points())
        self._places: dict[str, str] = {}  # by the host's folder
        for source in [_folder_of(step.path) for step in self.steps if step.kind == "show"]:
            if not any(mount != source and is_below(mount, source) for mount in self._mounts):
                self._add(source)
        if devices:
            self._add("/dev")

    def make(self) -> list[str]:
        """Make the overlays' folders; return a mount table, then each folder and its place."""
        (self._folder / "empty").mkdir(parents=True)  # an overlay needs two layers
        mounts = []
        for source, place in self._places.items():
            os.mkdir(place)
            mounts.append((place, _OVERLAY, f"ro,lowerdir={source}:{self._folder}/empty"))
        pairs = (part for pair in self._places.items() for part in pair)
        return [mount_table(self._folder / "table", mounts), *pairs]

    def find(self, path: str) -> str:
        """The path to bind a file or folder of the host's from."""
        source = _folder_of(path)
        if source not in self._places or (path in self._mounts and path != source):
            return path  # the overlay of its folder would show another file there
        return self._places[source] + path[len(source) :]

    def _add(self, source: str) -> None:
        place = str(self._folder / str(len(self._places)))
        if not any(sign in source + place for sign in ":,\\"):
            self._places.setdefault(source, place)


def mount_table(path: Path, mounts: Iterable[tuple[str, str, str]]) -> str:
    """Write a table for `mount --all`, which makes many mounts as fast as one.

    Args:
        path: Where to write it.
        mounts: The place, the type and the options of each.

    Returns:
        The path.
    """
    lines = [" ".join(map(_escaped, ("none", *mount, "0", "0"))) for mount in mounts]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", "surrogateescape")
    return str(path)


def _escaped(text: str) -> str:
    return re.sub(r"[\s\\#]", lambda found: f"\\{ord(found[0]):03o}", text)


def view_options(layers: Layers, groups: Groups, writable: Mapping[str, str]) -> list[str]:
    """Options for everything that a box sees.

    Args:
        layers: The overlays of the host's files.
        groups: The box's control groups, whose counter of killed processes it sees.
        writable: The path of each writable folder in the box, by its path on the host.
    """
    options = ["--proc", "/proc", *_devices(layers)]
    for folder, place in writable.items():
        options += ["--bind", folder, place]
    counter = groups.oom_counter
    placed = [] if counter is None else ["--ro-bind", str(counter), OOM_PLACES[counter.name]]
    covers: list[str] = []
    for kind, path, target in (*layers.steps, *python_links()):
        options += _folders_above(path)
        if kind == "link":
            options += ["--symlink", target, path]
        elif kind == "hide" and os.path.exists(path):
            options += ["--perms", "0755", "--tmpfs", path]
            covers.append(path)
        elif os.path.exists(path):
            options += ["--ro-bind", layers.find(path), path]
    options += [option for path in placed[2:] for option in _folders_above(path)]
    # With a writable /proc, a guest could have the worker killed first when memory runs out.
    for path in ("/proc", "/dev", *covers, "/"):
        placed += ["--remount-ro", path]
    return [*options, *placed]


def _folder_of(path: str) -> str:
    return path if os.path.isdir(path) else os.path.dirname(path)


def _folders_above(path: str) -> list[str]:
    """Options that make the folders: by itself bwrap would close them to all but root."""
    above = [*reversed(Path(path).parents)][1:]
    return [option for parent in above for option in ("--perms", "0755", "--dir", str(parent))]


def _devices(layers: Layers) -> list[str]:
    """Options for /dev. With --dev a box could take all of the host's PTYs."""
    options = ["--perms", "0755", "--tmpfs", "/dev"]
    for name in _DEVICES:
        options += ["--dev-bind", layers.find(f"/dev/{name}"), f"/dev/{name}"]
    for name, rest in _LINKS.items():
        options += ["--symlink", f"/proc/self/fd{rest}", f"/dev/{name}"]
    return options
