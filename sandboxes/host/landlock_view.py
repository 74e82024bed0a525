"""The files that a Landlock box with namespaces of its own sees: a root in memory, made for it.

It holds the host's folders and files that the box may read, read-only and as files of its own,
with empty folders over hidden ones; a /proc of the box's processes; and its writable folders, each
an empty file system in memory with a size limit. As there is nothing else, there is no local socket
of the host's either, which Landlock would not keep from a box.
"""

import contextlib
import ctypes
import os
import re
import stat
import struct
from collections.abc import Collection, Mapping, Sequence

_READ_ONLY, _NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_ROOT_BYTES = 1 << 16  # it holds folders and links; likewise what covers a hidden folder
_DETACH = 2
_MOUNT_SETATTR, _HERE, _WITH_THOSE_BELOW = 442, -100, 0x8000
_ATTRIBUTE_READ_ONLY, _ATTRIBUTE_NOSUID = 1, 2
_LINKS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}

_LIBC = ctypes.CDLL(None, use_errno=True)


def make_view(
    root: str,
    *,
    steps: Sequence[Sequence[str]],
    writable: Collection[str],
    placed: Mapping[str, str],
    folder_bytes: int,
    folder_inodes: int,
    owner: tuple[int, int],
) -> None:
    """Give this process a root of its own, in a mount namespace that it has to itself.

    Args:
        root: An empty folder to make it in.
        steps: What it shows of the host, each as the fields of `files.Step`.
        writable: Folders that are empty and writable. One below a shown folder exists on the host.
        placed: Files that have other paths than on the host: the host's path by the box's.
        folder_bytes: The size of each writable folder.
        folder_inodes: How many files, folders and links each may have.
        owner: User and group of the writable folders.

    Raises:
        OSError: This process may not do that; the message says what.
    """
    _mount("none", "/", "", _RECURSIVE | _PRIVATE, "")
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, f"size={_ROOT_BYTES},mode=755")
    options = f"uid={owner[0]},gid={owner[1]},size={folder_bytes},nr_inodes={folder_inodes}"
    layers = _Layers(root)
    covers = []
    own = [("own", path, "") for path in writable]
    for kind, path, target in sorted([*steps, *own], key=lambda step: step[1]):
        if kind == "show":
            layers.show(path)
        elif kind == "hide":
            _mount("tmpfs", root + path, "tmpfs", _NOSUID | _NODEV, f"size={_ROOT_BYTES},mode=755")
            covers.append(root + path)
        elif kind == "link":
            os.makedirs(os.path.dirname(root + path), mode=0o755, exist_ok=True)
            os.symlink(target, root + path)
        else:
            mode = "1777" if path in ("/tmp", "/dev/shm") else "700"
            os.makedirs(root + path, mode=0o755, exist_ok=True)
            _mount("tmpfs", root + path, "tmpfs", _NOSUID | _NODEV, f"{options},mode={mode}")
    for place, path in placed.items():
        _bind(path, root + place)
    layers.remove()
    for name, rest in _LINKS.items():
        os.symlink(f"/proc/self/fd{rest}", f"{root}/dev/{name}")
    os.mkdir(root + "/proc")
    _mount("proc", root + "/proc", "proc", _NOSUID | _NODEV | _NOEXEC, "")
    for path in (root, *covers):
        _set_read_only(path, 0)
    os.chdir(root)
    check_call(_LIBC.pivot_root(b".", b"."), "pivot_root")  # the old one lies over it now
    check_call(_LIBC.umount2(b".", _DETACH), "umount2")
    os.chdir("/")


class _Layers:
    """The host's folders, each as a read-only overlay of the box's own.

    A lock on a file there, or anything else that the kernel keeps with an inode, does not touch the
    host's file. Data is neither copied nor held in memory twice. If an overlay cannot be made, the
    host's own file is shown.

    Args:
        root: Where the box's root is made.
    """

    def __init__(self, root: str) -> None:
        self._root, self._folder = root, f"{root}/.layers"
        self._made: dict[str, str] = {}  # by the host's folder
        self._mounts = mount_points()
        os.mkdir(self._folder)
        _mount("tmpfs", self._folder, "tmpfs", _NOSUID | _NODEV, f"size={_ROOT_BYTES},mode=755")
        os.mkdir(f"{self._folder}/empty")  # an overlay needs two layers

    def show(self, path: str) -> None:
        """Put an overlay of a file or folder of the host's at the same path in the box."""
        place = self._find(path)
        _bind(place, self._root + path)
        if place != path:
            for mount in self._mounts_in(path):
                with contextlib.suppress(OSError):  # this user may not look into every mount
                    _bind(mount, self._root + mount)

    def remove(self) -> None:
        """Remove the overlays; what has been bound from them stays."""
        check_call(_LIBC.umount2(os.fsencode(self._folder), _DETACH), "umount2")
        os.rmdir(self._folder)

    def _find(self, path: str) -> str:
        """The path of a host's file or folder in its overlay."""
        if path in self._mounts and not os.path.isdir(path):
            return path  # the overlay of its folder would show another file there
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if folder not in self._made:
            self._made[folder] = self._make(folder)
        place = self._made[folder] + path[len(folder) :]
        return path if _is_closed_device(place) else place

    def _make(self, folder: str) -> str:
        place = f"{self._folder}/{len(self._made)}"
        options = f"lowerdir={folder}:{self._folder}/empty"
        if not any(sign in folder + place for sign in ":,\\"):
            # In a user namespace none can be made of what has mounts in it.
            with contextlib.suppress(OSError):
                os.mkdir(place)
                _mount("overlay", place, "overlay", _READ_ONLY, options)
                return place
        return folder

    def _mounts_in(self, path: str) -> list[str]:
        return sorted({one for one in self._mounts if one != path and is_below(one, path)})


def mount_points() -> list[str]:
    """The paths where file systems are mounted."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        places = [line.split(" ")[4] for line in lines]
    return [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), one) for one in places]


def is_below(path: str, folder: str) -> bool:
    """Whether a path is the folder or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_closed_device(path: str) -> bool:
    """Whether it is a device that cannot be used where it is: in a user namespace, none can."""
    if not stat.S_ISCHR(os.stat(path).st_mode):
        return False
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return True
    return False


def _bind(source: str, target: str) -> None:
    """Show a file or a folder of the host's at another path, read-only."""
    if os.path.isdir(source):
        os.makedirs(target, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    _mount(source, target, "", _BIND | _RECURSIVE, "")
    _set_read_only(target, _WITH_THOSE_BELOW)


def _set_read_only(target: str, flags: int) -> None:
    # Adds to the flags that are set: a user namespace may not remove any.
    wanted = struct.pack("=QQQQ", _ATTRIBUTE_READ_ONLY | _ATTRIBUTE_NOSUID, 0, 0, 0)
    attributes = ctypes.create_string_buffer(wanted, len(wanted))
    arguments = (_MOUNT_SETATTR, _HERE, os.fsencode(target), flags, attributes, len(wanted))
    check_call(_LIBC.syscall(*arguments), f"mount_setattr {target}")


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    arguments = [os.fsencode(text) for text in (source, target, kind)]
    result = _LIBC.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(options))
    check_call(result, f"mount {target}")


def check_call(result: int, what: str) -> None:
    """Raise what a call into libc left in `errno`, unless it returned 0."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
