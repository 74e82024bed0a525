"""Files and folders that are there whole or not at all."""

from pathlib import Path

import pytest

from gymnast.trainers.saving.durable import remove, sweep, write_text, written_aside


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with written_aside(target) as aside:
        (aside / "a").write_text("first")
        assert not target.exists()
    with pytest.raises(ZeroDivisionError), written_aside(target) as aside:
        (aside / "a").write_text("second")
        raise ZeroDivisionError
    assert (target / "a").read_text() == "first"
    assert names(target.parent) == ["model"]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with written_aside(tmp_path / "model") as aside:
            (aside / text).write_text(text)
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["second"]


def test_where_the_new_folder_cannot_be_renamed_the_old_one_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    target, rename = tmp_path / "model", os.rename
    with written_aside(target) as aside:
        (aside / "a").write_text("first")

    def breaks(source: Path, place: Path) -> None:
        if place == target and source.name.endswith(".new"):
            raise OSError("the disk is gone")
        rename(source, place)

    monkeypatch.setattr(os, "rename", breaks)
    with pytest.raises(OSError, match="is gone"), written_aside(target) as aside:
        (aside / "a").write_text("second")
    assert names(tmp_path) == ["model"] and (target / "a").read_text() == "first"


def test_a_text_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for text in ("first é", ""):
        write_text(tmp_path / "file", text)
        assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert names(tmp_path) == ["file"]


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    """Between two renames the old folder has another name: it is the only copy, and is put back."""
    for name in (".a.old", ".a.new", "b", ".b.old", ".b.gone", ".c.gone", ".c.12345", ".other.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "from").write_text(name)
    (tmp_path / ".c.new").write_text("half a te")
    sweep(tmp_path, "[abc]")
    assert names(tmp_path) == [".other.new", "a", "b"]
    assert (tmp_path / "a" / "from").read_text() == ".a.old"
    assert (tmp_path / "b" / "from").read_text() == "b"
    sweep(tmp_path / "missing", "*")


def test_a_removed_folder_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    remove(tmp_path / "a")
    assert names(tmp_path) == []
