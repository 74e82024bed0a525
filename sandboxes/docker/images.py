"""Images that an engine has, is given by a registry, or builds from a folder with a Dockerfile.

`sandbox.py` opens boxes of them.
"""

import hashlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker.errors

from gymnast.errors import SandboxTemporarilyUnavailable, SandboxUnavailable
from gymnast.sandboxes.docker.engine import ENGINE_ERRORS, engine_client, may_pass
from gymnast.visible import visible

REPOSITORY = "gymnast-built"

_SHOWN = 1500  # characters of what a build has said
_making = threading.Lock()


@dataclass(frozen=True)
class ImageFacts:
    """What an image says of itself.

    Attributes:
        workdir: The folder that its commands run in.
        user: Its user; "" is root.
    """

    workdir: str
    user: str


def image_facts(image: str) -> ImageFacts:
    """What an image of the engine says of itself.

    Raises:
        SandboxUnavailable: There is no such image, or no engine.
    """
    try:
        config = engine_client().inspect_image(image).get("Config") or {}
    except ENGINE_ERRORS as error:
        raise _failed(f"the image {image!r} cannot be looked at", error) from None
    return ImageFacts(config.get("WorkingDir") or "/", config.get("User") or "")


def cores() -> int:
    """How many cores the engine's machine has.

    Raises:
        SandboxUnavailable: No engine answers.
    """
    try:
        return int(engine_client().info().get("NCPU") or 1)
    except ENGINE_ERRORS as error:
        raise _failed("the engine does not say how many cores it has", error) from None


def pulled(image: str) -> str:
    """An image by its name, from a registry if the engine does not have it.

    Raises:
        SandboxUnavailable: Neither has it, or no engine answers.
    """
    api = engine_client()
    with _making:
        try:
            if not _has(api, image):
                repository, tag = docker.utils.parse_repository_tag(image)
                lines = api.pull(repository, tag=tag or "latest", stream=True, decode=True)
                errors = [line["error"] for line in lines if "error" in line]
                if errors:
                    raise SandboxUnavailable(f"the image {image!r} cannot be pulled: {errors[0]}")
        except ENGINE_ERRORS as error:
            raise _failed(f"the engine has no image {image!r} and cannot pull it", error) from None
    return image


def built(folder: Path, *, timeout_s: float) -> str:
    """The image of a folder with a Dockerfile, named after what is in the folder.

    It is built where the engine does not have it; an image that it begins from is not asked for
    anew. To have it built again, remove it (`docker image rm`).

    Args:
        folder: The folder.
        timeout_s: How long that may take, in seconds.

    Raises:
        SandboxUnavailable: It cannot be built, or no engine answers.
    """
    api, name = engine_client(), f"{REPOSITORY}:{_mark(folder)}"
    hint = f"See what it needs with: docker build -t {name} {folder}"
    with _making:
        try:
            if not _has(api, name):
                _build(api, folder, name, time.monotonic() + timeout_s, hint)
        except ENGINE_ERRORS as error:
            raise _failed(f"the image of {folder} cannot be built", error, f". {hint}") from None
    return name


def _build(api: Any, folder: Path, name: str, deadline: float, hint: str) -> None:
    said, error = "", None
    lines = api.build(
        path=str(folder),
        tag=name,
        rm=True,
        forcerm=True,
        decode=True,
        timeout=max(1, int(deadline - time.monotonic())),
    )
    for line in lines:  # to the end: only then is the connection free
        said = (said + str(line.get("stream") or ""))[-_SHOWN:]
        error = error or line.get("error")
        if time.monotonic() > deadline:
            raise SandboxUnavailable(
                f"the image of {folder} was not built in the time that its task allows. {hint}"
            )
    if error:
        problem = f"the image of {folder} cannot be built: {error}. {hint}. It said: {said}"
        raise SandboxUnavailable(visible(problem))


def _has(api: Any, image: str) -> bool:
    try:
        api.inspect_image(image)
    except docker.errors.ImageNotFound:
        return False
    return True


def _mark(folder: Path) -> str:
    """A text that differs if the files of a folder do."""
    digest = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*names, *(one for one in folders if Path(place, one).is_symlink())]):
            path = Path(place, name)
            link = os.readlink(path) if path.is_symlink() else None
            content = b"" if link is not None or not path.is_file() else path.read_bytes()
            kind = path.lstat().st_mode & 0o170111  # what it is, and who may execute it
            head = (path.relative_to(folder).as_posix(), kind, link, len(content))
            digest.update(repr(head).encode() + content)
    return digest.hexdigest()[:24]


def _failed(what: str, error: Exception, more: str = "") -> SandboxUnavailable:
    kind = SandboxTemporarilyUnavailable if may_pass(error) else SandboxUnavailable
    problem = getattr(error, "explanation", None) or str(error)
    return kind(visible(f"{what}: {problem}{more}"))
