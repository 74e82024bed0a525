"""How much the folders of a box may hold: its files are in memory, and must not fill it alone.

Where a box has no memory left the kernel kills what runs in it, the worker last. That frees no
file. So all that files can take, with what the kernel keeps of each, leaves room for the worker.
"""

from dataclasses import dataclass

from gymnast.sandboxes.contract.spec import MIB, SandboxSpec

# The worker with its session takes 8 to 11 MiB, reading a box's output several times its size.
_WORKERS_BYTES = 16 * MIB
_WORKERS_OUTPUTS = 8
# There are three folders: where code runs, /tmp and /dev/shm. A page that lies far from all others
# of its file takes 1.4 pages; an inode with the longest name 1.5 KiB.
_SHARE = 6
_PAGE_BYTES = 4096
_MORE_INODES = 256  # folders, links and empty files


@dataclass(frozen=True)
class FileRoom:
    """What each writable folder of a box may hold.

    Attributes:
        size_bytes: Of all files together.
        inodes: Files, folders and links.
    """

    size_bytes: int
    inodes: int

    @property
    def largest_file_bytes(self) -> int:
        """For RLIMIT_FSIZE: a file that fills its folder meets a full folder, and no signal.

        Without this limit parts of a file could lie so far apart that each costs several pages.
        """
        return self.size_bytes + _PAGE_BYTES


def file_room(spec: SandboxSpec) -> FileRoom:
    """The room of a folder: `disk_bytes`, unless that were too much of the memory."""
    left = spec.memory_bytes - _WORKERS_BYTES - _WORKERS_OUTPUTS * spec.max_output_bytes
    size = max(_PAGE_BYTES, min(spec.disk_bytes, left // _SHARE)) // _PAGE_BYTES * _PAGE_BYTES
    return FileRoom(size, size // _PAGE_BYTES + _MORE_INODES)
