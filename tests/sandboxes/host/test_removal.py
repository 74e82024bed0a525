"""The folder of a box is deleted, whatever was made in it."""

import os
from pathlib import Path

from gymnast.sandboxes.host.removal import delete_folder


def test_links_are_deleted_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    (kept / "file").write_text("kept")
    folder = tmp_path / "folder"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "link").symlink_to(kept)
    (folder / "closed" / "link").symlink_to(kept)
    (folder / "closed").chmod(0)
    delete_folder(folder)
    assert not folder.exists()
    assert (kept / "file").read_text() == "kept"
    assert kept.stat().st_mode & 0o777 == 0o700


def test_a_folder_deeper_than_any_path(tmp_path: Path) -> None:
    folder, here = tmp_path / "folder", os.open(".", os.O_RDONLY)
    try:
        folder.mkdir()
        os.chdir(folder)
        for _ in range(1500):
            os.mkdir("d" * 100)
            os.chdir("d" * 100)
    finally:
        os.fchdir(here)
        os.close(here)
    delete_folder(folder)
    assert not folder.exists()


def test_one_that_is_not_there(tmp_path: Path) -> None:
    delete_folder(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []
