"""Images without Python: a copy of the image, with the Python that runs Gymnast beside its files.

The copy has one folder more. In it are the interpreter, its standard library, the shared libraries
that these need, and their dynamic loader, which is started with the program: so nothing of the
image's own is used or changed, whatever C library it has, if it has one. The engine keeps the copy
under `REPOSITORY`, one for each image and interpreter.
"""

import contextlib
import hashlib
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import uuid
from collections.abc import Iterator
from functools import cache
from typing import IO, Any, NamedTuple

import docker.errors

from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes.host.files import ask_python, base_executable
from gymnast.sandboxes.lifetime.owner import owner_labels

REPOSITORY = "gymnast-with-python"

_FOLDER = "/gymnast-python"
_LIBRARIES = f"{_FOLDER}/libraries"
_LOADER = f"{_FOLDER}/loader"
_PROGRAM = f"{_FOLDER}/bin/python3"
_MODULES = f"{_FOLDER}/lib/python{sys.version_info.major}.{sys.version_info.minor}"
# Parts of a standard library that no box needs, and packages that are not its.
_LEFT_OUT = re.compile(
    r"/(test|tests|idlelib|turtledemo|ensurepip|lib2to3|site-packages|dist-packages|config-[^/]*)$"
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Python and as Docker name them
_FOUND = re.compile(r"^\s+(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)  # a line of ldd's

_making = threading.Lock()


def python_command() -> list[str]:
    """How to start the Python of such a copy."""
    return [_LOADER, "--inhibit-cache", "--library-path", _LIBRARIES, _PROGRAM]


def image_with_python(api: Any, image: str) -> str:
    """The copy of an image; it is made if the engine does not have it yet.

    Args:
        api: The engine's client.
        image: The image.

    Returns:
        The name of the copy.

    Raises:
        SandboxUnavailable: The image is for other machines than the one that runs this, or the
            libraries of this Python are not to be found.
        Exception: One of `ENGINE_ERRORS`.
    """
    told = api.inspect_image(image)
    ours, theirs = platform.machine(), told["Architecture"]
    if theirs != _ARCHITECTURES.get(ours, ours):
        raise SandboxUnavailable(
            f"the image {image!r} is for {theirs}, and the Python that would be copied into it is "
            f"for {ours}: take an image that has Python, and leave python=None out"
        )
    python = _python_here()
    name = f"{REPOSITORY}:{hashlib.sha256((told['Id'] + python.mark).encode()).hexdigest()[:16]}"
    with _making:
        if not api.images(name):
            _make(api, image, name, python)
    return name


class _Python(NamedTuple):
    """The files of an interpreter, and a mark that differs if they do."""

    program: str
    modules: str
    libraries: list[str]
    loader: str
    mark: str


@cache
def _python_here() -> _Python:
    """The Python that runs this, outside of its virtual environment."""
    found = ask_python(base_executable())
    modules = next(one for one in found.libraries if os.path.exists(f"{one}/os.py"))
    extensions = [path for path in _files(modules) if path.endswith(".so")]
    command = ["ldd", found.executable, *extensions]
    try:
        listed = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError as error:
        raise SandboxUnavailable(
            f"ldd cannot list the libraries of {found.executable} ({error}), so it cannot be "
            "copied into an image: take an image that has Python, and leave python=None out"
        ) from None
    libraries = sorted(set(_FOUND.findall(listed)))
    loaders = [path for path in libraries if os.path.basename(path).startswith("ld-")]
    if len(loaders) != 1:
        raise SandboxUnavailable(
            f"{found.executable} has {len(loaders)} dynamic loaders, and one is needed to copy it "
            "into an image: take an image that has Python, and leave python=None out"
        )
    kept = [path for path in libraries if path not in loaders]
    state = os.stat(found.executable)
    mark = repr((sys.version, state.st_size, state.st_mtime_ns, kept, _LEFT_OUT.pattern))
    return _Python(found.executable, modules, kept, loaders[0], mark)


def _make(api: Any, image: str, name: str, python: _Python) -> None:
    """Make the copy of an image, under a name."""
    container = f"gymnast-{uuid.uuid4().hex}"
    # It is never started, but an image need not say what it runs.
    api.create_container(image, command=[_PROGRAM], name=container, labels=owner_labels())
    try:
        with tempfile.TemporaryFile() as archive:
            _write(archive, python)
            archive.seek(0)
            api.put_archive(container, "/", archive)
        repository, _, tag = name.partition(":")
        api.commit(container, repository=repository, tag=tag, pause=False)
    finally:
        with contextlib.suppress(docker.errors.NotFound):  # a sweep was quicker
            api.remove_container(container, v=True, force=True)


def _write(archive: IO[bytes], python: _Python) -> None:
    """Write the files of an interpreter as they are to lie in an image."""
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        files = {_PROGRAM: python.program, _LOADER: python.loader}
        files |= {f"{_LIBRARIES}/{os.path.basename(path)}": path for path in python.libraries}
        for path in _files(python.modules):
            files[_MODULES + path.removeprefix(python.modules)] = path
        for target, path in files.items():
            tar.add(path, target.lstrip("/"), recursive=False, filter=_for_everyone)


def _files(folder: str) -> Iterator[str]:
    for where, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not _LEFT_OUT.search(f"{where}/{one}")]
        yield from (f"{where}/{name}" for name in names if ".opt-" not in name)


def _for_everyone(file: tarfile.TarInfo) -> tarfile.TarInfo:
    """Root's, and readable for all: a box has a user of its own."""
    file.uid = file.gid = 0
    file.uname = file.gname = ""
    file.mode = (file.mode | 0o444) & ~0o022
    return file
