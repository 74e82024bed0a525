"""Which entries of a working folder are carried into another box, and where its links lead.

Pure functions over the list of entries that `carried.py` has read: they look at no disk.
"""

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

_MOST_LINKS = 40  # as many as the system follows for one path


@dataclass(frozen=True)
class Entry:
    """A file, a folder or a link.

    Attributes:
        kind: "file", "folder" or "link".
        path: Relative to the working folder.
        mode: Permission bits.
        size: The size of a file, in bytes.
        changed_ns: When a file was last changed, in nanoseconds since 1970.
        target: The target of a link, as written.
    """

    kind: str
    path: str
    mode: int = 0o755
    size: int = 0
    changed_ns: int = 0
    target: str = ""


def kept_entries(
    entries: Iterable[Entry], root: str, new_root: str, placed: Collection[str]
) -> dict[str, Entry]:
    """The entries of a folder that are carried, by path.

    Args:
        entries: All entries of the folder.
        root: Where the folder is; absolute links below it lead into the folder.
        new_root: Where the folder will be; such links lead there afterwards.
        placed: Paths of other files, which replace entries at their paths. No link may lead to
            them.
    """
    holding = {folder for path in placed for folder in _folders_of(path)}
    nodes = {path: Entry("folder", path) for path in holding if path}
    nodes |= {path: Entry("file", path) for path in placed}
    taken = frozenset(nodes)
    carried: dict[str, Entry] = {}
    for entry in entries:
        folder, _, name = entry.path.rpartition("/")
        if entry.path in taken or not (not folder or folder in holding or folder in carried):
            continue
        if entry.kind == "file" and name.endswith(".pyc"):
            continue
        carried[entry.path] = entry
    nodes |= carried
    links = _Links(nodes, root, frozenset(placed) | holding)
    kept = {path: entry for path, entry in carried.items()
            if entry.kind != "link" or links.end_of(entry) is not None}  # fmt: skip
    return {path: _moved(entry, root, new_root) for path, entry in kept.items()}


class _Links:
    """Where links lead, in a folder that exists only as a list.

    Args:
        nodes: All entries of the folder, by path.
        root: See `kept_entries`.
        forbidden: Paths that no link may lead to; "" is the folder itself.
    """

    def __init__(self, nodes: Mapping[str, Entry], root: str, forbidden: Collection[str]) -> None:
        self._nodes, self._root, self._forbidden = nodes, root, forbidden
        self._ends: dict[str, str | None] = {}

    def end_of(self, link: Entry, followed: int = 0) -> str | None:
        """The path that a link leads to; None if the link is not carried."""
        if link.path in self._ends:
            return self._ends[link.path]
        if followed >= _MOST_LINKS:
            return None
        end = self._follow(link, followed)
        end = None if end in self._forbidden else end
        if followed == 0 or end is not None:
            self._ends[link.path] = end
        return end

    def _follow(self, link: Entry, followed: int) -> str | None:
        at, rest = link.path.rpartition("/")[0], link.target
        if rest.startswith("/"):
            at, rest = "", _below(rest, self._root)
        is_file = False
        for part in rest.split("/"):
            if is_file:
                return None  # something in a file
            if part in ("", "."):
                continue
            if part == "..":
                if not at:
                    return None
                at = at.rpartition("/")[0]
                continue
            at = f"{at}/{part}" if at else part
            node = self._nodes.get(at)
            if node is not None and node.kind == "link":
                end = self.end_of(node, followed + 1)
                if end is None:
                    return None
                at, node = end, self._nodes.get(end) if end else Entry("folder", "")
            if node is None:
                return None
            is_file = node.kind == "file"
        return at


_OUTSIDE = ".."  # a path that leads out of every folder


def _below(path: str, root: str) -> str:
    """An absolute path relative to the folder."""
    inside = path == root or path.startswith(f"{root.rstrip('/')}/")
    return path[len(root) :].lstrip("/") if inside else _OUTSIDE


def _moved(entry: Entry, root: str, new_root: str) -> Entry:
    if entry.kind != "link" or not entry.target.startswith("/"):
        return entry
    return replace(entry, target=posixpath.join(new_root, _below(entry.target, root)))


def _folders_of(path: str) -> Iterator[str]:
    """The folders above a path, including the working folder ("")."""
    while path:
        path = path.rpartition("/")[0]
        yield path
