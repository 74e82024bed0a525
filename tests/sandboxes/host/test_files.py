"""Which files a box sees, for a Python wherever people have theirs; trees made for it stand in."""

import os
import tempfile
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gymnast.sandboxes.host.files as host_files
from gymnast.sandboxes.host.files import HostFiles, Python, Step, files_for

VERSION = "python3.12"


def make_python(prefix: Path, library: str = "lib") -> Python:
    """A Python installed in a folder, with packages and settings of pip's."""
    for path in (
        f"bin/{VERSION}", f"{library}/{VERSION}/os.py", f"{library}/{VERSION}/json/__init__.py",
        f"{library}/{VERSION}/lib-dynload/math.so", f"{library}/libpython3.12.so.1.0",
        f"{library}/{VERSION}/site-packages/gymnast/envs/code_tasks.py",
        f"include/{VERSION}/Python.h", "bin/pip", "share/terminfo/x/xterm", "share/secret",
        "lib/other/secret", "pip.conf", ".git/config",
    ):  # fmt: skip
        (prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (prefix / path).write_text(path)
    (prefix / "bin" / "python3").symlink_to(VERSION)
    (prefix / library / "libpython3.12.so").symlink_to("libpython3.12.so.1.0")
    folder = prefix / library / VERSION
    return Python(
        executable=str(prefix / "bin" / VERSION),
        prefix=str(prefix),
        libraries=(str(folder), str(folder / "lib-dynload")),
        headers=(str(prefix / "include" / VERSION),),
    )


@pytest.fixture
def usr(tmp_path: Path) -> Path:
    """The system's programs, and what is installed for its own Python."""
    for path in (
        "bin/env", "lib/libc.so.6", "lib/python3/dist-packages/apt.py", "share/zoneinfo/UTC",
        "local/bin/tool", "local/etc/secret", "src/app/secret",
    ):  # fmt: skip
        (tmp_path / "usr" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "usr" / path).write_text(path)
    (tmp_path / "lib").symlink_to("usr/lib")
    return tmp_path / "usr"


def files(usr: Path, python: Python, own: Collection[Path] = ()) -> HostFiles:
    return files_for(python, [str(path) for path in own], [str(usr), str(usr.parent / "lib")])


def in_an_own_root(found: HostFiles, tmp_path: Path) -> set[str]:
    """The files that are there once the steps are taken, links followed."""
    there: set[str] = set()
    for kind, path, target in found.steps():
        if kind == "show":
            there |= {str(one) for one in _below(Path(path))}
        elif kind == "hide":
            there = {one for one in there if not one.startswith(path + "/")}
        else:
            assert os.readlink(path) == target
    return {os.path.relpath(path, tmp_path) for path in there}


def granted(found: HostFiles, tmp_path: Path) -> set[str]:
    """The files that may be read by what is granted; what a link leads to is granted by itself."""
    readable, _ = found.around()
    assert not [path for path in readable if os.path.realpath(path) != path]
    below = {str(one) for path in readable for one in _below(Path(path))}
    return {os.path.relpath(path, tmp_path) for path in below}


def _below(path: Path) -> list[Path]:
    found = [path] if path.is_file() else path.rglob("*")
    return [one for one in found if one.is_file() and not one.is_symlink()]


def seen(found: HostFiles, tmp_path: Path) -> set[str]:
    """The same both ways."""
    shown = in_an_own_root(found, tmp_path)
    assert shown == granted(found, tmp_path)
    return shown


SYSTEM = {"usr/bin/env", "usr/lib/libc.so.6", "usr/share/zoneinfo/UTC", "usr/local/bin/tool"}


def parts(prefix: str, library: str = "lib") -> set[str]:
    """What is seen of a Python that is outside the system's folders."""
    return {
        f"{prefix}/bin/{VERSION}", f"{prefix}/{library}/{VERSION}/os.py",
        f"{prefix}/{library}/{VERSION}/json/__init__.py",
        f"{prefix}/{library}/{VERSION}/lib-dynload/math.so",
        f"{prefix}/{library}/libpython3.12.so.1.0", f"{prefix}/include/{VERSION}/Python.h",
        f"{prefix}/share/terminfo/x/xterm",
    }  # fmt: skip


@pytest.mark.parametrize(
    "prefix",
    [
        "opt/conda",
        "home/ann/.pyenv/versions/3.12.1",
        "home/ann/.local/share/uv/python/cpython-3.12.1-linux-x86_64-gnu",
    ],
)
@pytest.mark.parametrize("library", ["lib", "lib64"])
def test_of_a_python_of_its_own_prefix_only_its_parts_are_seen(
    prefix: str, library: str, usr: Path, tmp_path: Path
) -> None:
    python = make_python(tmp_path / prefix, library)
    assert seen(files(usr, python), tmp_path) == SYSTEM | parts(prefix, library)


@pytest.mark.parametrize("prefix", ["usr", "usr/local"])
def test_of_the_systems_python_no_packages_and_settings_are_seen(
    prefix: str, usr: Path, tmp_path: Path
) -> None:
    python = make_python(tmp_path / prefix)
    more = {
        f"{prefix}/{path}"
        for path in ("bin/pip", "share/secret", "lib/other/secret", ".git/config")
    }
    assert seen(files(usr, python), tmp_path) == SYSTEM | parts(prefix) | more


def test_a_python_that_is_found_by_links(usr: Path, tmp_path: Path) -> None:
    real = make_python(tmp_path / "home/ann/versions/3.12.1")
    (tmp_path / "home/ann/versions/3.12").symlink_to("3.12.1")
    named = str(tmp_path / "home/ann/versions/3.12")
    python = Python(
        real.executable,
        real.prefix,
        tuple(path.replace(real.prefix, named) for path in real.libraries),
        tuple(path.replace(real.prefix, named) for path in real.headers),
    )
    assert seen(files(usr, python), tmp_path) == SYSTEM | parts("home/ann/versions/3.12.1")


def test_links_are_as_on_the_host(usr: Path, tmp_path: Path) -> None:
    python = make_python(tmp_path / "opt/python")
    steps = files(usr, python).steps()
    assert Step("link", f"{tmp_path}/lib", "usr/lib") in steps
    library = f"{tmp_path}/opt/python/lib/libpython3.12.so"
    assert Step("link", library, "libpython3.12.so.1.0") in steps


@pytest.mark.parametrize(
    "own", ["usr/local/app/.venv", "usr/share/app", "usr/lib/extra", "usr/local/lib/app"]
)
def test_folders_of_the_environment_are_hidden_amid_those_of_the_system(
    own: str, usr: Path, tmp_path: Path
) -> None:
    """A virtual environment, a checkout that is installed as it is, a folder of $PYTHONPATH."""
    python = make_python(tmp_path / "opt/python")
    (tmp_path / own / "a").mkdir(parents=True)
    (tmp_path / own / "a" / "secret").touch()
    (tmp_path / own).with_name("beside").touch()
    beside = os.path.relpath((tmp_path / own).with_name("beside"), tmp_path)
    found = seen(files(usr, python, [tmp_path / own]), tmp_path)
    assert found == SYSTEM | parts("opt/python") | {beside}


def test_what_is_hidden_by_a_link_is_hidden_where_it_is(usr: Path, tmp_path: Path) -> None:
    python = make_python(usr)
    packages = usr / "lib" / VERSION / "site-packages"
    packages.rename(usr / "share" / "packages")
    packages.symlink_to("../../share/packages")
    found = seen(files(usr, python), tmp_path)
    assert not [path for path in found if "gymnast" in path]
    assert f"usr/lib/{VERSION}/os.py" in found


def test_folders_that_programs_need_are_never_hidden(usr: Path, tmp_path: Path) -> None:
    python = make_python(usr)
    needed = [usr, usr / "bin", usr / "lib", usr / "local", usr / "local/bin", tmp_path, Path("/")]
    needed += [Path(path) for path in python.libraries]
    assert seen(files(usr, python, needed), tmp_path) == seen(files(usr, python), tmp_path)


def test_a_folder_for_guests_is_seen_wherever_it_is(usr: Path, tmp_path: Path) -> None:
    python = make_python(tmp_path / "opt/python")
    app = usr / "share" / "app"
    for path in (app / "guests" / "numpy.py", app / "secret", tmp_path / "srv" / "pandas.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    within = files(usr, python, [app]).with_folder(str(app / "guests"))
    rest = SYSTEM | parts("opt/python")
    assert seen(within, tmp_path) == rest | {"usr/share/app/guests/numpy.py"}
    beside = files(usr, python, [app]).with_folder(str(tmp_path / "srv"))
    assert seen(beside, tmp_path) == rest | {"srv/pandas.py"}
    hidden_before = files(usr, python, [app]).with_folder(str(app))
    assert seen(hidden_before, tmp_path) >= {"usr/share/app/secret"}


def test_settings_of_pip_are_hidden_wherever_they_are(
    usr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("home/.pip/pip.conf", "config/pip/pip.conf", "all/pip/pip.conf", "pip.ini"):
        (usr / "share" / path).parent.mkdir(parents=True, exist_ok=True)
        (usr / "share" / path).touch()
    monkeypatch.setenv("HOME", str(usr / "share/home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(usr / "share/config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"/etc/xdg:{usr / 'share/all'}")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(usr / "share/pip.ini"))
    monkeypatch.setattr(host_files, "SYSTEM", (str(usr),))
    host_files.files_here.cache_clear()
    found = host_files.files_here()
    host_files.files_here.cache_clear()
    hidden = {os.path.relpath(path, usr) for path in found.hidden}
    assert hidden >= {"share/home", "share/config/pip", "share/all/pip", "share/pip.ini"}


def test_folders_that_may_not_be_listed_are_not_shown_by_entries(
    usr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = make_python(usr / "local")
    listdir = os.listdir

    def refuse(path: str) -> list[str]:
        if path == str(usr / "local/lib" / VERSION):
            raise PermissionError(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    readable, _ = files(usr, python).around()
    assert str(usr / "bin") in readable
    assert not [path for path in readable if f"lib/{VERSION}" in path]


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join)


@settings(max_examples=60, deadline=None)
@given(
    made=st.sets(NAMES, min_size=1, max_size=12),
    choices=st.dictionaries(NAMES, st.booleans(), max_size=5),
)
def test_what_lies_deepest_decides(made: set[str], choices: dict[str, bool]) -> None:
    """Folders that are shown and folders and files that are hidden, in each other at will."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(os.path.realpath(name))
        for path in sorted(made, key=len, reverse=True):  # those above are folders then
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if not (root / path).exists():
                (root / path).touch()
        there = {path: shown for path, shown in choices.items() if (root / path).exists()}
        paths = {shown: [str(root / path) for path in there if there[path] is shown]
                 for shown in (True, False)}  # fmt: skip
        found = HostFiles(tuple(paths[True]), tuple(sorted(paths[False])), {})
        expected = set()
        for file in root.rglob("*"):
            above = [path for path in there if f"{file}/".startswith(f"{root / path}/")]
            if file.is_file() and above and there[max(above, key=len)]:
                expected.add(str(file.relative_to(root)))
        assert seen(found, root) == expected
