"""Boxes for tests: every backend by name, one kept for tests that do it no harm."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import gymnast.sandboxes.host.files as host_files
import gymnast.sandboxes.host.landlock as landlock
from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes import Sandbox, SandboxSpec, open_sandbox
from gymnast.sandboxes.worker.sandbox import WorkerSandbox

OpenBox = Callable[..., WorkerSandbox]

# The image that tests/sandboxes/start_engine.sh makes.
BASE_IMAGE = "gymnast-base:debian"

# Where code is kept away from the host, and from the worker that serves it.
ISOLATING = frozenset({"docker", "landlock", "bubblewrap"})

BACKENDS = [
    pytest.param("local"),
    pytest.param("landlock"),
    pytest.param("bubblewrap"),
    pytest.param("docker", marks=pytest.mark.docker),
]


@pytest.fixture(scope="session")
def docker_image() -> str:
    """An image with Python on an engine that runs; skips with the reason where there is none."""
    from gymnast.sandboxes.docker.engine import engine_client

    image = os.environ.get("GYMNAST_SANDBOX_IMAGE") or BASE_IMAGE
    try:
        found = engine_client().images(image)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    if not found:
        pytest.skip(f"no image {image}: run tests/sandboxes/start_engine.sh")
    return image


def skip_without_landlock() -> None:
    """Skip with the reason where the kernel or the package does not do."""
    try:
        landlock.check_works()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def skip_without_bubblewrap() -> None:
    """Skip with the reason where there is no bwrap, or it may make no namespaces."""
    from gymnast.sandboxes.host.bubblewrap import check_works

    try:
        check_works()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@contextmanager
def python_that_everyone_may_use() -> Iterator[None]:
    """Boxes run the system's Python: in some of them this one, in a home, is out of reach."""
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("there is no /usr/bin/python3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "_base_executable", "/usr/bin/python3")
        host_files.files_here.cache_clear()
        yield
    host_files.files_here.cache_clear()


def without_namespaces(**limits: Any) -> landlock._Box:
    """A Landlock box as it is where the kernel refuses namespaces."""
    skip_without_landlock()
    return landlock._Box(SandboxSpec(**limits), namespaces=False)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend that works here."""
    name: str = request.param
    if name == "docker":
        request.getfixturevalue("docker_image")
    if name == "landlock":
        skip_without_landlock()
    if name == "bubblewrap":
        skip_without_bubblewrap()
    return name


def _open(backend: str, request: pytest.FixtureRequest, limits: dict[str, Any]) -> WorkerSandbox:
    if backend == "docker":
        limits = {"image": request.getfixturevalue("docker_image"), **limits}
    box: Sandbox = open_sandbox(backend, **limits)
    assert isinstance(box, WorkerSandbox)
    return box


@pytest.fixture
def open_box(backend: str, request: pytest.FixtureRequest) -> Iterator[OpenBox]:
    """Opens boxes of the backend with given limits; they are closed after the test."""
    opened = []

    def open_box(**limits: Any) -> WorkerSandbox:
        opened.append(_open(backend, request, limits))
        return opened[-1]

    yield open_box
    for box in opened:
        box.close()


@pytest.fixture(scope="module")
def _kept(backend: str) -> Iterator[list[WorkerSandbox]]:
    kept: list[WorkerSandbox] = []
    yield kept
    for box in kept:
        box.close()


@pytest.fixture
def box(backend: str, request: pytest.FixtureRequest, _kept: list[WorkerSandbox]) -> WorkerSandbox:
    """A box that tests share, in an empty session; another one where a test has broken it."""
    if not _kept or not _kept[-1].ping():
        _kept.append(_open(backend, request, {}))
    _kept[-1].python("raise SystemExit")
    return _kept[-1]


@pytest.fixture
def running(box: WorkerSandbox) -> Callable[[str], int]:
    """How many processes that the box can see have a text in their command line."""

    def running(text: str) -> int:
        ended = box.exec(["python3", "-c", _COUNT], stdin=text)
        assert ended.verdict == "ok", ended
        return int(ended.stdout)

    return running


_COUNT = """
import os, sys
text, count = sys.stdin.buffer.read(), 0
for name in os.listdir("/proc"):
    try:
        count += name.isdigit() and text in open("/proc/%s/cmdline" % name, "rb").read()
    except OSError:
        pass
print(count)
"""
