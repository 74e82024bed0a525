"""A folder of packages for guests (`SandboxSpec.packages`): checked, and made known to Python.

`pip install --target FOLDER numpy` makes one; each backend has its own way to show it in a box.
"""

import glob
import os
from collections.abc import Mapping
from pathlib import Path

from gymnast.errors import UsageError

_OWN = Path(__file__).resolve().parent
# The files of an installed Gymnast, whose distribution was called "gymnast" at first.
_NAMES = (
    "gymnast",
    "gymnast-*.dist-info",
    "gymnast_rl-*.dist-info",
    "__editable__.gymnast-*",
    "__editable__.gymnast_rl-*",
)


def check_packages(folder: str) -> str:
    """Return the folder with links resolved.

    Raises:
        UsageError: It is no folder, or Gymnast is in it.
    """
    found = os.path.realpath(folder)
    if not os.path.isdir(found):
        raise UsageError(
            f"packages is {folder!r}, which is no folder; make one with "
            f"`pip install --target {folder} NAME`"
        )
    own = [path for name in _NAMES for path in glob.glob(f"{glob.escape(found)}/{name}")]
    if own or _OWN.is_relative_to(found):
        raise UsageError(
            f"packages is {folder!r}, which holds Gymnast itself, with the answers of its "
            "tasks: name a folder that holds only what code in a box may import, as made by "
            "`pip install --target FOLDER NAME`"
        )
    return found


def python_path(packages: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """`PYTHONPATH` with the packages last, after those that the spec's own variable names."""
    if packages is None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [env.get("PYTHONPATH"), packages]))}
