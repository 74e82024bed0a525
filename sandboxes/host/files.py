"""The files of the host that a box on the host's kernel sees.

It sees the system's programs and a Python with its standard library, but nothing else of the
environment that runs Gymnast: no installed package, no virtual environment, no settings of pip, no
checkout. Hidden folders may lie inside shown ones: a box with mounts of its own has empty folders
over them (`Step`s), and a box without is granted everything around them (`around`).
"""

import functools
import glob
import json
import os
import site
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import gymnast
from gymnast.errors import SandboxUnavailable

# Single files of /etc: the whole folder would show /etc/shadow to a process that may read it.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types",
    "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
)  # fmt: skip

_OF_A_ROOT = ("", "/local")  # /usr and /usr/local
_PROGRAMS = ("", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libexec", "/include", "/share")
_NOT_PROGRAMS = ("/src", "/local/src", "/local/etc", "/pip.conf", "/local/pip.conf")
_PACKAGES = ("site-packages", "dist-packages")

# Run by an interpreter without any package.
_ASK = """
import json, os, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "executable": os.path.realpath(sys.executable),
    "prefix": sys.base_prefix,
    "libraries": sys.path,
    "headers": [paths["include"], paths["platinclude"]],
}))
"""


class Step(NamedTuple):
    """One thing to make in a box's own root.

    Attributes:
        kind: "show": the host's file or folder, with everything below it. "hide": an empty folder
            in its place. "link": a symbolic link.
        path: Where to make it.
        target: The target of a link.
    """

    kind: Literal["show", "hide", "link"]
    path: str
    target: str = ""


@dataclass(frozen=True)
class Python:
    """An interpreter outside of any virtual environment, and where its parts are.

    Attributes:
        executable: The program itself, not a link to it.
        prefix: The folder that it is installed in.
        libraries: The folders of the standard library.
        headers: The folders of C headers.
    """

    executable: str
    prefix: str
    libraries: tuple[str, ...]
    headers: tuple[str, ...]

    def files(self) -> list[str]:
        """What a box needs: the program, its libraries and headers, and the files curses reads."""
        wanted = [self.executable, *self.libraries, *self.headers, f"{self.prefix}/share/terminfo"]
        for folder in {os.path.dirname(path) for path in self.libraries}:
            for names in ("lib*.so*", "libpython*"):
                wanted += glob.glob(f"{glob.escape(folder)}/{names}")
        return [path for path in dict.fromkeys(wanted) if os.path.exists(path)]


@dataclass(frozen=True)
class HostFiles:
    """The files of the host that a box sees. All paths are real ones, except those of links.

    Attributes:
        shown: Files, and folders with everything below them.
        hidden: Paths below shown folders that are not shown. A shown path may lie below one again.
        links: Symbolic links that lead to shown paths, with their targets.
    """

    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    links: Mapping[str, str]

    def with_folder(self, folder: str) -> "HostFiles":
        """The same files and one more folder, wherever it is."""
        kept = tuple(path for path in self.hidden if path != folder)
        return HostFiles((*self.shown, folder), kept, self.links)

    def steps(self) -> list[Step]:
        """The steps that make a root with these files, in order."""
        files = [path for path in self.hidden if not os.path.isdir(path)]
        folders = [path for path in self.hidden if os.path.isdir(path)]
        found = [Step("link", path, target) for path, target in self.links.items()]
        found += [Step("hide", path) for path in folders]
        for path in (one for folder in self.shown for one in _around(folder, files)):
            if os.path.islink(path):
                found.append(Step("link", path, os.readlink(path)))
            elif path not in folders:
                found.append(Step("show", path))
        return list(_needed(sorted(set(found), key=lambda step: step.path)))

    def around(self) -> tuple[list[str], list[str]]:
        """The same files as grants: paths that may be read, and folders that may be listed.

        A list shows the names of hidden paths too.
        """
        readable, listed = [], []
        for folder in self.shown:
            entries = list(_around(folder, self.hidden))
            # Links need no grant: only their targets do.
            readable += [path for path in entries if not os.path.islink(path)]
            if entries != [folder]:
                listed.append(folder)
        return readable, listed


_SANDBOXES = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _needed(steps: Sequence[Step]) -> Iterator[Step]:
    """The same paths without those that make no difference where they are."""
    shown: list[str] = []
    hidden: list[str] = []
    for step in steps:
        is_shown = _is_shown(step.path, shown, hidden)
        if step.kind == "link":
            if not is_shown:
                yield step
        elif (step.kind == "show") != is_shown:
            (shown if step.kind == "show" else hidden).append(step.path)
            yield step


def _is_shown(path: str, shown: Collection[str], hidden: Collection[str]) -> bool:
    """Whether a path is shown because of a folder above it."""
    above = [one for one in (*shown, *hidden) if path.startswith(f"{one}/")]
    return bool(above) and max(above, key=len) in shown


def _around(path: str, hidden: Collection[str]) -> Iterator[str]:
    """The path; or if something below it is hidden, everything below it that is not."""
    below = [one for one in hidden if one.startswith(path.rstrip("/") + "/")]
    if not below:
        yield path
        return
    try:
        names = sorted(os.listdir(path))
    except OSError:  # what this user may not list, a box may not either
        return
    for name in names:
        if (entry := f"{path}/{name}") not in below:
            yield from _around(entry, below)


def files_for(python: Python, own: Collection[str], system: Sequence[str]) -> HostFiles:
    """The files that a box with this Python sees.

    Args:
        python: The interpreter.
        own: Files and folders of the environment that runs Gymnast, which are hidden.
        system: Files and folders of the system, which are shown.
    """
    shown: dict[str, None] = {}
    links: dict[str, str] = {}
    for path in (*system, *python.files()):
        if os.path.exists(path):
            if os.path.islink(path):
                links[path] = os.readlink(path)
            shown[os.path.realpath(path)] = None
    parts = [os.path.realpath(path) for path in python.files()]
    kept = [*parts, *(root + of + folder for root in _roots(system) for of in _OF_A_ROOT
                      for folder in _PROGRAMS)]  # fmt: skip
    hidden = {
        path
        for path in map(os.path.realpath, [*own, *_packages(python, system)])
        if os.path.exists(path)
        and any(path.startswith(folder + "/") for folder in shown)
        and not any(f"{needed}/".startswith(f"{path}/") for needed in kept)
    }
    needed = [path for path in shown if not _is_shown(path, shown, hidden)]
    return HostFiles(tuple(needed), tuple(sorted(hidden)), links)


def _roots(system: Sequence[str]) -> list[str]:
    return [path for path in system if os.path.basename(path) == "usr"]


def _packages(python: Python, system: Sequence[str]) -> list[str]:
    """Folders below system folders to hide: installed packages of any Python, and data."""
    found = [f"{library}/{name}" for library in python.libraries for name in _PACKAGES]
    found.append(f"{python.prefix}/pip.conf")
    for root in _roots(system):
        found += [root + name for name in _NOT_PROGRAMS]
        for of in _OF_A_ROOT:
            for name in _PACKAGES:
                found += glob.glob(f"{glob.escape(root)}{of}/lib*/py*/{name}")
    return found


@functools.cache
def ask_python(executable: str) -> Python:
    """Ask an interpreter where its parts are.

    Raises:
        SandboxUnavailable: It does not run.
    """
    command = [executable, "-I", "-S", "-c", _ASK]
    ended = subprocess.run(command, capture_output=True, text=True, cwd="/", env={})
    if ended.returncode != 0:
        why = ended.stderr.strip()[-200:]
        raise SandboxUnavailable(f"{executable}, which boxes are to run, does not start: {why}")
    told = json.loads(ended.stdout)
    return Python(
        told["executable"],
        os.path.realpath(told["prefix"]),
        tuple(dict.fromkeys(map(os.path.realpath, filter(os.path.isdir, told["libraries"])))),
        tuple(dict.fromkeys(map(os.path.realpath, told["headers"]))),
    )


def base_executable() -> str:
    """The Python that this one is, or that this virtual environment was made with."""
    base = getattr(sys, "_base_executable", "") or ""
    return base if os.path.isfile(base) else os.path.realpath(sys.executable)


@functools.cache
def files_here() -> HostFiles:
    """The files that the boxes of this process see."""
    return files_for(ask_python(base_executable()), _own_files(), SYSTEM)


def _own_files() -> list[str]:
    """The files and folders of the environment that runs this, from Python's search path."""
    found = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
    for folder in (os.path.dirname(os.path.abspath(gymnast.__file__)), _SANDBOXES):
        found += [os.path.dirname(folder), folder]  # a checkout, or where packages are; it itself
    if sys.prefix != sys.base_prefix:
        found.append(sys.prefix)
    found += [os.path.expanduser("~"), f"{sys.prefix}/pip.conf"]
    found.append(os.environ.get("PIP_CONFIG_FILE", ""))
    for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        found += [f"{folder}/pip" for folder in os.environ.get(name, "").split(os.pathsep)]
    return [path for path in found if os.path.isabs(path)]
