"""Whether a box's Python can be kept from importing files of the folder that it runs in.

PYTHONSAFEPATH does that, from Python 3.11 on; `fresh_box.py` sets it.
"""

import posixpath
from collections.abc import Mapping, Sequence

from gymnast.envs.boxes.settings import BoxSettings
from gymnast.errors import ConfigError
from gymnast.sandboxes.contract.base import Sandbox

_LEAST = (3, 11)
_ASK = """
for name in "$@"; do
    if command -v "$name" >/dev/null; then
        echo "$name $("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    fi
done
"""


_known: set[tuple[BoxSettings, tuple[str, ...]]] = set()  # images that are new enough


def require_safe_path(
    owner: str,
    box: Sandbox,
    boxes: BoxSettings,
    pythons: tuple[str, ...] = ("python3", "python"),
    env: Mapping[str, str] | None = None,
) -> None:
    """Refuse an image whose Python is too old; each image is asked once a process.

    Args:
        owner: What needs it, for messages.
        box: A box of the image.
        boxes: Where it comes from.
        pythons: The commands that start Python; one that does not exist is fine.
        env: Variables that keep Python from the policy's files, if the box has them.

    Raises:
        ConfigError: It is too old.
    """
    if (boxes, pythons) in _known:
        return
    result = box.exec(["sh", "-c", _ASK, "sh", *pythons], env=env)
    for line in result.stdout.splitlines():
        name, _, version = line.partition(" ")
        if tuple(int(number) for number in version.split(".") if number) < _LEAST:
            raise ConfigError(
                f"{owner}: {name} in the box is Python {version or 'of no known version'}; it must "
                "be 3.11 or newer, as an older one imports the policy's files in place of those "
                "that a program which grades names. Use an image with a newer Python "
                "(sandbox.image); Gymnast's own may be an older one (sandbox.python)."
            )
    if result.verdict == "ok":
        _known.add((boxes, pythons))


def python_that_imports_from_its_folder(argv: Sequence[str]) -> str | None:
    """The Python of a command that imports from its folder (by -c or -m); None for others."""
    if not posixpath.basename(argv[0]).startswith("python"):
        return None
    arguments = iter(argv[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument.startswith("--"):
            return None  # a script: its own folder is what counts
        for number, option in enumerate(argument[1:], start=2):
            if option == "I":
                return None
            if option in "cm":
                return argv[0]
            if option in "WX":  # its value follows
                if number == len(argument):
                    next(arguments, None)
                break
    return None
