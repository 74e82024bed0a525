"""gpu_wheels.sh: what travels follows from the requirements, and installs without an index."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

import gpu_wheels
from gpu_machine import PYTHON_VERSION

ROOT = Path(__file__).parents[2]


def wheel_requiring(folder: Path, *lines: str) -> Path:
    path = folder / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        required = "".join(f"Requires-Dist: {line}\n" for line in lines)
        archive.writestr("a-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: a\n{required}")
    return path


def test_requirements_are_those_of_the_machine(tmp_path: Path) -> None:
    wheel = wheel_requiring(
        tmp_path,
        "always>=2",
        "old; python_version < '3.12'",
        "new; python_version >= '3.12'",
        "windows; sys_platform == 'win32'",
        "wanted; extra == 'demo'",
        "unwanted; extra == 'test'",
    )
    found = [requirement.name for requirement in gpu_wheels.requirements(wheel, ["demo"])]
    assert found == ["always", "new", "wanted"]


def test_the_kernels_travel() -> None:
    """All that the extra `gpu` requires is on the machine, or among the wheels."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = pyproject["project"]["optional-dependencies"]["gpu"]
    assert {Requirement(each).name for each in named} == {"triton", "liger-kernel"}
    assert "gpu" in gpu_wheels.EXTRAS
    present = gpu_wheels.machine_packages()
    assert "triton" in present and "liger-kernel" not in present


def test_a_version_that_the_machine_lacks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = gpu_wheels.machine_packages()
    assert present["torch"].specifier and "typer" in present and "pydantic" not in present
    monkeypatch.setattr(
        gpu_wheels, "build_gymnast", lambda folder: wheel_requiring(folder, "torch>=99")
    )
    with pytest.raises(SystemExit, match="torch>=99"):
        gpu_wheels.download_closure(tmp_path)


@pytest.mark.network
@pytest.mark.slow
def test_the_wheels_install_without_an_index(tmp_path: Path) -> None:
    # Not the shim of pyenv, which fails where another version is chosen.
    installed = map(str, Path.home().glob(".pyenv/versions/3.12.*/bin/python"))
    python = next(installed, None) or shutil.which("python3.12")
    if python is None:
        pytest.skip("there is no Python 3.12")
    clone = tmp_path / "gymnast"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    subprocess.run(
        [sys.executable, "benchmarks/gpu_wheels.py", "--no-weights"], cwd=clone, check=True
    )
    wheels = sorted((clone / ".gpu/wheels").glob("*.whl"))
    assert sum(wheel.stat().st_size for wheel in wheels) < 30 * 2**20
    commit = (clone / ".gpu/wheels/COMMIT").read_text().split()[0]
    assert not commit.endswith("-dirty") and len(commit) == 8

    versions = {
        canonicalize_name((found := parse_wheel_filename(one.name))[0]): found[1] for one in wheels
    }
    present = gpu_wheels.machine_packages()
    assert not versions.keys() & present.keys()
    assert versions.keys() >= {"gymnast-rl", "liger-kernel", "trl", "gguf"}
    for wheel in wheels:
        extras = gpu_wheels.EXTRAS if wheel.name.startswith("gymnast_rl-") else ()
        for requirement in gpu_wheels.requirements(wheel, extras):
            name = canonicalize_name(requirement.name)
            there = name in present or requirement.specifier.contains(versions[name])
            assert there, f"{wheel.name} requires {requirement}"

    venv = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*pip, *map(str, wheels)], check=True)
    code = (  # what needs nothing of the machine's own packages
        "import sys, annotated_types, dill, docstring_parser, gymnast, jmespath\n"
        f"assert sys.version_info[:2] == {PYTHON_VERSION}"
    )
    subprocess.run([str(venv / "bin/python"), "-c", code], check=True, cwd=tmp_path)
