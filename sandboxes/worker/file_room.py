"""How much the folders of a box may hold. They are in memory, and must leave room for the worker.

When a box has no memory left, the kernel kills what runs in it, the worker last; but that frees no
files. So all files together, with what the kernel keeps for each, must never fill the memory.
"""

from dataclasses import dataclass

from gymnast.sandboxes.contract.spec import MIB, SandboxSpec

# The worker and its session take 8 to 11 MiB, and several times the size of an output to read it.
_WORKER_BYTES = 16 * MIB
_WORKER_OUTPUTS = 8
# There are three folders: the working folder, /tmp and /dev/shm. A page that lies far from all
# others of its file takes 1.4 pages of memory; an inode with the longest name takes 1.5 KiB.
_SHARE = 6
_PAGE_BYTES = 4096
_MORE_INODES = 256  # for folders, links and empty files


@dataclass(frozen=True)
class FileRoom:
    """What each writable folder of a box may hold.

    Attributes:
        size_bytes: Size of all files together.
        inodes: Number of files, folders and links.
    """

    size_bytes: int
    inodes: int

    @property
    def largest_file_bytes(self) -> int:
        """For RLIMIT_FSIZE: just above the folder's size, so that a full folder is met first.

        Without a limit the parts of a file could lie so far apart that each costs several pages.
        """
        return self.size_bytes + _PAGE_BYTES


def file_room(spec: SandboxSpec) -> FileRoom:
    """The room of each folder: `disk_bytes`, or less if that takes too much of the memory."""
    left = spec.memory_bytes - _WORKER_BYTES - _WORKER_OUTPUTS * spec.max_output_bytes
    size = max(_PAGE_BYTES, min(spec.disk_bytes, left // _SHARE)) // _PAGE_BYTES * _PAGE_BYTES
    return FileRoom(size, size // _PAGE_BYTES + _MORE_INODES)
