"""Backends by name; what isolates nothing is never chosen for anyone."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import gymnast.sandboxes
import gymnast.sandboxes.host.landlock as landlock
from gymnast.errors import SandboxUnavailable, UsageError, UserCodeError
from gymnast.sandboxes import (
    BubblewrapSandbox,
    LandlockSandbox,
    LocalSandbox,
    Sandbox,
    SandboxPool,
    SandboxSpec,
    open_sandbox,
)
from gymnast.sandboxes.backends.open import isolates
from sandbox_fixtures import (
    python_that_everyone_may_use,
    skip_without_bubblewrap,
    skip_without_landlock,
)


def test_every_name_is_there() -> None:
    for name in gymnast.sandboxes.__all__:
        assert getattr(gymnast.sandboxes, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Sandbocks'"):
        gymnast.sandboxes.Sandbocks  # noqa: B018


def test_the_docker_sdk_is_imported_by_those_who_use_it() -> None:
    program = "import sys, gymnast.sandboxes; sys.exit('docker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_local_warns_once_a_process() -> None:
    program = "from gymnast.sandboxes import open_sandbox\n" + "open_sandbox('local').close()\n" * 2
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr
    assert shown.count("does not isolate") == 1


def test_local_and_what_is_made_of_it_does_not_isolate(tmp_path: Path) -> None:
    file = tmp_path / "boxes.py"
    file.write_text("from gymnast.sandboxes import LocalSandbox\nclass Quick(LocalSandbox): ...\n")
    names = ("local", f"{file}:Quick", "landlock", "auto")
    assert [isolates(name) for name in names] == [False, False, True, True]


def test_local_deletes_its_folder_whatever_is_in_it() -> None:
    with LocalSandbox() as box:
        box.exec("mkdir -p a/b; touch a/b/c; ln -s / a/root; chmod 0 a/b a")
        assert box.folder.exists()
    assert not box.folder.exists()
    assert Path("/etc").exists()


def test_local_kills_what_outlives_its_worker(tmp_path: Path) -> None:
    with LocalSandbox() as box:
        survivor = f"setsid sleep 987 >&- 2>&- & echo $! > {tmp_path}/pid; kill -9 $PPID; sleep 9"
        assert box.exec(survivor).verdict == "dead"
    assert ends(int((tmp_path / "pid").read_text()))


def test_local_ends_with_its_owner() -> None:
    program = (
        "import os, signal\nfrom gymnast.sandboxes import LocalSandbox\nbox = LocalSandbox()\n"
        "print(box.python('import os; os.getppid()').stdout, box.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    worker, folder = shown.split()
    os.rmdir(folder)
    assert ends(int(worker))


def ends(pid: int) -> bool:
    """Whether a process ends soon; one that nobody has collected yet has ended."""
    for _ in range(1000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_auto_is_never_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setattr(
        "gymnast.sandboxes.host.landlock._why_not", lambda pid: "the kernel is too old"
    )
    monkeypatch.setattr(
        "gymnast.sandboxes.host.bubblewrap._why_not", lambda pid: "there is no bwrap"
    )
    reasons = (
        r"docker: no Docker engine.*landlock: .*the kernel is too old.*"
        r"bubblewrap: .*there is no bwrap.*backend \"local\""
    )
    with pytest.raises(SandboxUnavailable, match=reasons):
        open_sandbox()


def test_auto_takes_boxes_that_show_the_hosts_names_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Landlock without namespaces, that is."""
    skip_without_landlock()
    skip_without_bubblewrap()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with open_sandbox() as box:
        without = landlock._why_no_namespaces(os.getpid())
        assert isinstance(box, BubblewrapSandbox if without else LandlockSandbox)
    monkeypatch.setattr(landlock, "_why_no_namespaces", lambda pid: "unshare: not permitted")
    with open_sandbox() as box:
        assert isinstance(box, BubblewrapSandbox)
    monkeypatch.setattr(
        "gymnast.sandboxes.host.bubblewrap._why_not", lambda pid: "there is no bwrap"
    )
    landlock._warn_once.cache_clear()
    with python_that_everyone_may_use(), open_sandbox() as box:
        assert isinstance(box, LandlockSandbox)
        assert not box.namespaces
    assert "code in them can tell which files of the host there are" in caplog.text


def test_auto_says_once_what_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    skip_without_landlock()
    caplog.set_level("INFO", "gymnast.sandboxes")
    for _ in range(3):
        open_sandbox().close()
    assert caplog.text.count("the strongest that works here") <= 1


def test_an_unknown_backend_is_told_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"no sandbox backend 'jail'\. There are: auto, docker, .*local\."
    ):
        open_sandbox("jail")


def test_limits_are_named_in_one_place() -> None:
    with pytest.raises(UsageError, match="spec and timeout_s were given"):
        open_sandbox("local", spec=SandboxSpec(), timeout_s=1)


def test_the_subclass_in_the_contracts_docstring_works() -> None:
    text = Sandbox.__doc__ or ""
    source = textwrap.dedent(text[text.index("    class FolderSandbox") :])
    names: dict[str, Any] = {}
    imports = (
        "import os, subprocess, sys, tempfile\nfrom pathlib import Path\n"
        "from gymnast.sandboxes import ExecResult, Sandbox\n"
        "from gymnast.sandboxes.contract.base import MAX_FILE_BYTES\n"
    )
    exec(imports + source, names)
    with names["FolderSandbox"](SandboxSpec()) as box:
        assert box.exec("cat; exit 2", stdin="x").stdout == "x"
        assert box.exec("sleep 5", timeout_s=0.1).verdict == "timeout"
        assert box.python("print(1)").stdout == "1\n"
        box.write_file("a", "text")
        assert box.read_file("a") == b"text"
        assert box.ping()


@pytest.mark.parametrize("backend", ["landlock", "bubblewrap", "local"])
def test_without_a_folder_for_temporary_files_it_says_so(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_it_works(backend)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(SandboxUnavailable, match=r"cannot start one more box: .*gone/gymnast-"):
        open_sandbox(backend)


@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
def test_root_without_its_rights_is_told_what_is_missing(backend: str, tmp_path: Path) -> None:
    """As in a container with all capabilities dropped."""
    if os.geteuid() != 0:
        pytest.skip("only root has rights to lack")
    skip_unless_it_works(backend)
    program = (
        "from gymnast.sandboxes import open_sandbox\n"
        f"try:\n    open_sandbox({backend!r})\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    ended = subprocess.run(
        ["setpriv", "--bounding-set=-all", sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.stdout.startswith("SandboxUnavailable"), (ended.stdout, ended.stderr)
    assert "not permitted" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def skip_unless_it_works(backend: str) -> None:
    try:
        open_sandbox(backend).close()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


# --- Backends that are not built in

OWN = """
from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes import LocalSandbox, Sandbox, open_sandbox

class Quiet(LocalSandbox):
    def exec(self, command, **options):
        return super().exec(["sh", "-c", f"{command} >/dev/null"], **options)

class Away(LocalSandbox):
    def __init__(self, spec):
        raise SandboxUnavailable("no quiet boxes on Sundays")

class Typo(LocalSandbox):
    def __init__(self, spec):
        super().__init__(spek)

class Half(Sandbox):
    def close(self):
        pass

def function(spec):
    return LocalSandbox(spec)
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own_boxes.py").write_text(OWN)
    return f"{tmp_path}/own_boxes.py"


def test_a_backend_of_ones_own_is_opened_with_its_limits(own: str) -> None:
    with open_sandbox(f"{own}:Quiet", timeout_s=0.2) as box:
        assert box.exec("echo hello").stdout == ""
        assert box.exec("sleep 5").verdict == "timeout"
    with SandboxPool(f"{own}:Quiet") as pool, pool.take() as box:
        assert box.exec("echo hello").stdout == ""


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("Away", SandboxUnavailable, "no quiet boxes on Sundays"),
        ("Typo", UserCodeError, "sandbox backend '.*own_boxes.py:Typo': NameError: .*'spek'"),
        (
            "Half",
            UsageError,
            "is abstract. It has to implement exec, python, read_file, write_file.",
        ),
        ("function", UsageError, "which is no subclass of gymnast.sandboxes.Sandbox"),
        ("Quite", UsageError, r"has no 'Quite'. Did you mean 'Quiet'\? It defines: Quiet, Away, "),
    ],
)
def test_a_backend_that_cannot_be_opened_says_why(
    own: str, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_sandbox(f"{own}:{name}")
    with pytest.raises(error, match=message), SandboxPool(f"{own}:{name}") as pool:
        pool.take()
