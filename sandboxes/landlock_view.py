"""The files that a Landlock box with namespaces of its own sees: a root made for it, in memory.

In it are the host's folders and files that the box may read, bound read-only, with empty folders
over what is hidden in them; a /proc of its own processes; and its writable folders, each an empty
file system in memory with a size. Nothing else, so no local socket of the host's either, which
Landlock would not keep a box from.
"""

import ctypes
import os
import struct
from collections.abc import Collection, Mapping, Sequence

_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_INODES = 1 << 16
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
    owner: tuple[int, int],
) -> None:
    """Give this process a root of its own, in a mount namespace that it has to itself.

    Args:
        root: An empty folder to make it in.
        steps: What is there of the host's, each as the entries of `host_files.Step`.
        writable: Folders that are there, empty; on the host, too, if below one that is shown.
        placed: Files that are there under other names than on the host, by the former.
        folder_bytes: The size of each writable folder.
        owner: User and group of the writable folders.

    Raises:
        OSError: This process may not; it says what.
    """
    _mount("none", "/", "", _RECURSIVE | _PRIVATE, "")
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, f"size={_ROOT_BYTES},mode=755")
    options = f"uid={owner[0]},gid={owner[1]},size={folder_bytes},nr_inodes={_INODES}"
    covers = []
    own = [("own", path, "") for path in writable]
    for kind, path, target in sorted([*steps, *own], key=lambda step: step[1]):
        if kind == "show":
            _bind(path, root + path)
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
    for name, rest in _LINKS.items():
        os.symlink(f"/proc/self/fd{rest}", f"{root}/dev/{name}")
    os.mkdir(root + "/proc")
    _mount("proc", root + "/proc", "proc", _NOSUID | _NODEV | _NOEXEC, "")
    for path in (root, *covers):
        _set_read_only(path, 0)
    os.chdir(root)
    _check(_LIBC.pivot_root(b".", b"."), "pivot_root")  # the old one lies over it now
    _check(_LIBC.umount2(b".", _DETACH), "umount2")
    os.chdir("/")


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
    # Adds to the flags that are set, which a user namespace may not take away.
    wanted = struct.pack("=QQQQ", _ATTRIBUTE_READ_ONLY | _ATTRIBUTE_NOSUID, 0, 0, 0)
    attributes = ctypes.create_string_buffer(wanted, len(wanted))
    arguments = (_MOUNT_SETATTR, _HERE, target.encode(), flags, attributes, len(wanted))
    _check(_LIBC.syscall(*arguments), f"mount_setattr {target}")


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    arguments = [text.encode() for text in (source, target, kind)]
    result = _LIBC.mount(*arguments, ctypes.c_ulong(flags), options.encode())
    _check(result, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
