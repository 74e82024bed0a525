"""A box sees a Python, its standard library and the system's programs, and nothing else of ours.

Nothing of the environment that runs Gymnast: no package, none of Gymnast's own files, no settings
of pip's. Whatever kind of box, whoever runs it, and however Gymnast is installed.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gymnast.sandboxes.host.files as host_files
import gymnast.sandboxes.host.plan as host_plan
from gymnast.envs.builtin.code.tasks import tasks
from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes import Sandbox, open_sandbox
from sandbox_fixtures import (
    python_that_everyone_may_use,
    skip_without_bubblewrap,
    skip_without_landlock,
    without_namespaces,
)

ROOT = Path(__file__).parents[3]
SOLUTION = "sum(letter in 'aeiou' for letter in text)"
SECRET = "https://someone:a-secret-of-pip@packages.example/simple"
ANOTHER_USER = 54321
PACKAGES = ("gymnast", "gymnast.sandboxes", "torch", "numpy")

# Prints which modules of the standard library cannot be imported, and how they fail.
STANDARD_LIBRARY = """
import contextlib, importlib, io, json, sys, warnings
failed, harmful = {}, {"antigravity", "this", "__main__", "idlelib", "turtledemo"}
warnings.simplefilter("ignore")
for name in sorted(sys.stdlib_module_names - harmful):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(name)
    except Exception as error:
        failed[name] = type(error).__name__
print(json.dumps(failed))
"""
IMPORTS = f"""
import importlib, json
found = {{}}
for name in {PACKAGES!r}:
    try:
        found[name] = str(importlib.import_module(name))
    except Exception as error:
        found[name] = type(error).__name__
print(json.dumps(found))
"""
NOT_FOUND = dict.fromkeys(PACKAGES, "ModuleNotFoundError")
WAYS = (["python3", "-c"], ["python", "-I", "-c"], ["sh", "-c", '"$PYTHON" -c "$0"'])

# Opens the three kinds of boxes in a process of its own, and prints what is seen in each.
LOOK = """
import json, os, sys
import gymnast.sandboxes.host.landlock as landlock
from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes import SandboxSpec, open_sandbox

def without_namespaces():
    landlock.check_works()
    return landlock._Box(SandboxSpec(), namespaces=False)

def with_namespaces():
    if missing := landlock._why_no_namespaces(os.getpid()):
        raise SandboxUnavailable(missing)
    return open_sandbox("landlock")

folders, texts, imports, library, ways = json.loads(sys.argv[1])
kinds = {"landlock": with_namespaces, "landlock without namespaces": without_namespaces,
         "bubblewrap": lambda: open_sandbox("bubblewrap")}
seen = {}
for kind, opens in kinds.items():
    try:
        with opens() as box:
            mine = {"PYTHON": box.python("import sys; print(sys.executable)").stdout.strip()}
            asked = [option for text in texts for option in ("-e", text)]
            imported = [box.exec([*way, imports], env=mine) for way in ways]
            seen[kind] = {
                "grep": box.exec(["grep", "-rlsF", *asked, "--", *folders]).stdout,
                "imports": [run.stdout for run in (box.python(imports), *imported)],
                "library": box.python(library).stdout,
                "user": box.exec(["id", "-u"]).stdout,
            }
    except SandboxUnavailable as error:
        seen[kind] = {"unavailable": str(error)}
print(json.dumps(seen))
"""
KINDS = ("landlock", "landlock without namespaces", "bubblewrap")


def look(python: str, folders: list[str], user_id: int | None = None) -> dict[str, Any]:
    """What each kind of box sees, run by a Python that has Gymnast, as a user."""
    library = STANDARD_LIBRARY if user_id is None else ""  # it takes a while
    wanted = [folders, [SOLUTION, SECRET], IMPORTS, library, WAYS]
    ended = subprocess.run(
        [python, "-c", LOOK, json.dumps(wanted)],
        cwd="/",
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        user=user_id,
        group=user_id,
        extra_groups=None if user_id is None else [],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@cache
def cannot_be_imported(python: str) -> dict[str, str]:
    """Of the standard library, on the host."""
    program = [python, "-I", "-c", STANDARD_LIBRARY]
    found: dict[str, str] = json.loads(subprocess.check_output(program, cwd="/", env={}))
    return found


def check(seen: dict[str, Any], python: str) -> None:
    """What a box saw is what it should."""
    if "unavailable" in seen:
        pytest.skip(seen["unavailable"])
    assert [json.loads(said) for said in seen["imports"]] == [NOT_FOUND] * (1 + len(WAYS))
    if seen["library"]:
        assert json.loads(seen["library"]) == cannot_be_imported(python)
    assert seen["grep"] == ""


@cache
def seen_here() -> dict[str, Any]:
    prefixes = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()]
    return look(sys.executable, [str(ROOT), *prefixes])


@pytest.mark.parametrize("kind", ["landlock", "bubblewrap"])
def test_of_this_environment_nothing_is_seen(kind: str) -> None:
    """A checkout that is installed as it is, in a virtual environment."""
    assert SOLUTION in {task.expression for task in tasks(3)}
    assert subprocess.run(["grep", "-rqF", SOLUTION, str(ROOT / "envs")]).returncode == 0
    check(seen_here()[kind], host_files.base_executable())


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A virtual environment of the system's Python with a wheel of Gymnast, and settings of pip's.

    Where every user may go, as not everyone may into a test's folder.
    """
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("there is no /usr/bin/python3")
    folder = Path(tempfile.mkdtemp(prefix="gymnast-installed-", dir="/var/tmp"))
    folder.chmod(0o755)
    pytest.importorskip("pip")
    try:
        names = ("gymnast", "envs", "agents", "trainers", "sandboxes")
        for name in names:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder / "source")
        pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
        offline = ["--quiet", "--no-index", "--no-deps"]
        wheels = ["--no-build-isolation", "--wheel-dir", str(folder / "wheels"), "."]
        venv = folder / "venv"
        for command in (
            ["/usr/bin/python3", "-m", "venv", "--without-pip", str(venv)],
            [*pip, "wheel", *offline, *wheels],
        ):
            subprocess.run(command, cwd=folder / "source", check=True, capture_output=True)
        (wheel,) = (folder / "wheels").iterdir()
        python = str(venv / "bin" / "python")
        install = [*pip, "--python", python, "install", *offline, str(wheel)]
        subprocess.run(install, check=True, capture_output=True)
        (venv / "pip.conf").write_text(f"[global]\nindex-url = {SECRET}\n")
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def seen_installed(installed: Path) -> Callable[[int | None], dict[str, Any]]:
    python = str(installed / "venv/bin/python")
    found: dict[int | None, dict[str, Any]] = {}
    folders = [str(installed), "/usr/lib/python3", "/usr/local/lib"]

    def seen(user_id: int | None) -> dict[str, Any]:
        if user_id not in found:
            found[user_id] = look(python, folders, user_id)
        return found[user_id]

    return seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("user_id", [None, ANOTHER_USER], ids=["as we are", "as another user"])
def test_of_an_installed_wheel_nothing_is_seen(
    kind: str,
    user_id: int | None,
    installed: Path,
    seen_installed: Callable[[int | None], dict[str, Any]],
) -> None:
    if user_id is not None and os.geteuid() != 0:
        pytest.skip("only root may become another user")
    asked = ["grep", "-rlsF", "-e", SOLUTION, "-e", SECRET, str(installed / "venv")]
    readable = subprocess.run(asked, capture_output=True, text=True, user=user_id).stdout
    assert {Path(path).name for path in readable.split()} >= {"tasks.py", "pip.conf"}
    seen = seen_installed(user_id)[kind]
    if user_id is not None and kind == "landlock without namespaces":
        assert seen["user"] == f"{user_id}\n"
    check(seen, "/usr/bin/python3")


def on(*kinds: str) -> pytest.MarkDecorator:
    """Run a test with each of some kinds of boxes."""
    return pytest.mark.parametrize("opens", kinds, indirect=True)


@pytest.fixture
def opens(request: pytest.FixtureRequest) -> Iterator[Callable[..., Sandbox]]:
    """Opens boxes of a kind on this machine."""
    kind = request.param
    with ExitStack() as stack:
        if kind == "landlock without namespaces":
            stack.enter_context(python_that_everyone_may_use())
            yield without_namespaces
        else:
            if kind == "landlock":
                skip_without_landlock()
            if kind == "bubblewrap":
                skip_without_bubblewrap()
            yield lambda **limits: open_sandbox(kind, **limits)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may read."""
    folder = Path(tempfile.mkdtemp(prefix="gymnast-public-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@on(*KINDS)
def test_a_checkout_amid_what_is_shown_is_hidden(
    opens: Callable[..., Sandbox], public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("app/envs/code_tasks.py", "app/guests/given.py", "tool/data"):
        (public / name).parent.mkdir(parents=True, exist_ok=True)
        (public / name).write_text(SOLUTION)
    usual = host_files.files_here()
    shown, hidden = (*usual.shown, str(public)), (*usual.hidden, str(public / "app"))
    files = host_files.HostFiles(shown, hidden, usual.links)
    monkeypatch.setattr(host_plan, "files_here", lambda: files)
    with opens(packages=str(public / "app/guests")) as box:
        found = box.exec(["grep", "-rlsF", SOLUTION, str(public)]).stdout.split()
        assert set(found) == {str(public / name) for name in ("app/guests/given.py", "tool/data")}
        refused = box.exec(["cat", str(public / "app/envs/code_tasks.py")])
        assert (refused.stdout, refused.exit_code) == ("", 1)
        for path in (public, public / "app", public / "app/guests"):
            assert box.exec(["touch", str(path / "made")]).exit_code == 1


@on("local", *KINDS)
def test_a_folder_of_packages_can_be_imported(opens: Callable[..., Sandbox], public: Path) -> None:
    (public / "guests" / "shapes").mkdir(parents=True)
    (public / "guests" / "shapes" / "__init__.py").write_text("sides = {'square': 4}\n")
    (public / "more").mkdir()
    (public / "more" / "colours.py").write_text("red = 'rot'\n")
    env = {"PYTHONPATH": str(public / "more")}
    with opens(packages=str(public / "guests")) as box:
        assert box.python("import shapes; shapes.sides").stdout == "{'square': 4}\n"
        command = ["python3", "-c", "import shapes; print(shapes.sides['square'])"]
        assert box.exec(command).stdout == "4\n"
        assert box.exec(command, cwd="/").stdout == "4\n"
    with opens(packages=str(public / "guests"), env=env) as box:
        assert box.python("import os, shapes; os.environ['PYTHONPATH']").stdout == (
            f"'{public / 'more'}:{public / 'guests'}'\n"
        )


@pytest.mark.docker
def test_a_container_refuses_a_folder_of_packages(docker_image: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="install them there, and name the image"):
        open_sandbox("docker", image=docker_image, packages=str(tmp_path))


@on("landlock", "bubblewrap")
def test_programs_of_the_system_find_what_they_need(opens: Callable[..., Sandbox]) -> None:
    with opens() as box:
        assert box.exec("which which env").exit_code == 0
        assert box.exec("echo a b | awk '{print $2}'").stdout == "b\n"
        mode = box.python("import os; oct(os.stat('/etc').st_mode & 0o777)").stdout
        assert mode == "'0o755'\n"
