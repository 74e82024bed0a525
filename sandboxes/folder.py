"""Deleting the folder of a box on the host, whatever the guest has made of it."""

import os
import shutil
from pathlib import Path


def delete_folder(folder: Path) -> None:
    """Delete a folder and what is in it; links are not followed."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # a folder in it may not be entered
        for path, names, _ in os.walk(folder):
            for name in names:
                entry = Path(path, name)
                if not entry.is_symlink():
                    entry.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
