"""A folder of packages for guests, `SandboxSpec.packages`: what it may hold, and how it is found.

Made by `pip install --target FOLDER numpy`. Left out: showing it in a box.
"""

import glob
import os
from pathlib import Path

from gymnast.errors import UsageError
from gymnast.sandboxes.spec import SandboxSpec

_OWN = Path(__file__).resolve().parent
_NAMES = ("gymnast", "gymnast-*.dist-info", "__editable__.gymnast-*")  # of an installed Gymnast


def packages_folder(spec: SandboxSpec) -> str | None:
    """The folder of a spec, without links, or None where it names none.

    Raises:
        UsageError: It is no folder, or Gymnast is in it.
    """
    if spec.packages is None:
        return None
    folder = os.path.realpath(spec.packages)
    if not os.path.isdir(folder):
        raise UsageError(
            f"packages is {spec.packages!r}, which is no folder; make one with "
            f"`pip install --target {spec.packages} NAME`"
        )
    own = [path for name in _NAMES for path in glob.glob(f"{glob.escape(folder)}/{name}")]
    if own or _OWN.is_relative_to(folder):
        raise UsageError(
            f"packages is {spec.packages!r}, which holds Gymnast itself, with the answers of its "
            "tasks: name a folder that holds only what code in a box may import, as made by "
            "`pip install --target FOLDER NAME`"
        )
    return folder


def python_path(spec: SandboxSpec) -> dict[str, str]:
    """The variable that lets Python find them, after what the spec's own names."""
    folder = packages_folder(spec)
    if folder is None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [spec.env.get("PYTHONPATH"), folder]))}
