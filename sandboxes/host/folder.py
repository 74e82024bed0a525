"""Deleting the folder of a box on the host, whatever the guest has made of it."""

import contextlib
import shutil
import subprocess
from pathlib import Path


def delete_folder(folder: Path) -> None:
    """Delete a folder and what is in it; links are not followed."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # a folder in it may not be entered, or they are too deep for Python
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run(
                [*command, str(folder)], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
