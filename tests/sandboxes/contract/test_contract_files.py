"""Files on every backend: what is written is read back, and a path leads nowhere it should not."""

import errno
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymnast.errors import GymnastError, InfrastructureError, SandboxFileError, UsageError
from gymnast.sandboxes import Sandbox
from sandbox_fixtures import OpenBox

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=5000), name=NAMES)
def test_bytes_come_back_as_they_were(box: Sandbox, data: bytes, name: str) -> None:
    path = "all/" + name.encode()[:200].decode(errors="ignore") + "."
    if path not in ("all/..", "all/."):
        box.write_file(path, data)
        assert box.read_file(path) == data


def test_large_files_go_in_pieces(box: Sandbox, tmp_path: Path) -> None:
    data = bytes(range(256)) * 12_345
    (tmp_path / "here").write_bytes(data)
    box.upload(tmp_path / "here", "large")
    box.download("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    assert box.exec("wc -c < large").stdout.strip() == str(len(data))
    box.write_file("large", "")
    assert box.read_file("large") == b""


def test_a_path_of_more_folders_than_can_be_made_does_not_break_the_box(box: Sandbox) -> None:
    with pytest.raises(SandboxFileError):
        box.write_file("a/" * 2000 + "b", "")
    assert box.alive


def test_text_is_written_as_utf8_into_folders_that_are_made(box: Sandbox) -> None:
    box.write_file("deep/er/text", "é")
    assert box.read_file("deep/er/text") == b"\xc3\xa9"
    assert box.exec("cat deep/er/text").stdout == "é"
    box.write_file("/tmp/absolute", "1")
    assert box.read_file("/tmp/absolute") == b"1"


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("missing", errno.ENOENT),
        ("missing/er", errno.ENOENT),
        ("folder", errno.EISDIR),
        (".", errno.EISDIR),
        ("", errno.ENOENT),
        ("file/below", errno.ENOTDIR),
        ("loop", errno.ELOOP),
        ("x" * 300, errno.ENAMETOOLONG),
        ("pipe", errno.EACCES),
        ("/dev/zero", errno.EACCES),
        ("/proc/self/mem", errno.EACCES),
        ("/proc/self/environ", errno.EACCES),
        ("memory", errno.EACCES),
    ],
)
def test_what_cannot_be_read_says_why(box: Sandbox, path: str, number: int) -> None:
    setup = "mkdir -p folder; touch file; ln -sfn loop loop; ln -sfn /proc/self/mem memory"
    assert box.exec(f"{setup}; test -p pipe || mkfifo pipe").verdict == "ok"
    with pytest.raises(SandboxFileError) as caught:
        box.read_file(path)
    assert (caught.value.errno, caught.value.filename) == (number, path)
    assert str(caught.value).startswith(f"{path}: ")
    assert not isinstance(caught.value, InfrastructureError)
    assert box.exec("true").verdict == "ok"


@pytest.mark.parametrize("path", ["folder", "pipe", "/proc/self/mem", "/proc/self/oom_score_adj"])
def test_what_is_no_regular_file_cannot_be_written(box: Sandbox, path: str) -> None:
    assert box.exec("mkdir -p folder; test -p pipe || mkfifo pipe").verdict == "ok"
    with pytest.raises(SandboxFileError):
        box.write_file(path, "500")
    assert box.ping()


def test_a_link_to_the_workers_memory_cannot_be_written(box: Sandbox) -> None:
    # The worker may open its own memory; the guest, who made the link, may not.
    box.exec("ln -sfn /proc/self/mem innocent.txt; ln -sfn /proc/self innocent")
    for path in ("innocent.txt", "innocent/mem", "innocent/root/proc/self/mem"):
        with pytest.raises(SandboxFileError):
            box.write_file(path, b"\0" * 100)
    assert box.ping()


def test_links_are_followed_inside_the_box(box: Sandbox) -> None:
    box.exec("echo target > target; ln -sfn target link; ln -sfn new dangling")
    assert box.read_file("link") == b"target\n"
    box.write_file("dangling", "made")
    assert box.read_file("new") == b"made"


def test_a_file_above_the_limit_is_refused(box: Sandbox) -> None:
    box.write_file("ten", b"0123456789")
    assert box.read_file("ten", max_bytes=10) == b"0123456789"
    with pytest.raises(SandboxFileError, match=r"ten: .* 10 bytes, more than max_bytes \(9\)"):
        box.read_file("ten", max_bytes=9)
    with pytest.raises(UsageError, match="max_bytes is -1"):
        box.read_file("ten", max_bytes=-1)


def test_a_file_that_does_not_fit_is_an_error_of_its_own(open_box: OpenBox) -> None:
    box = open_box(disk_bytes=1 << 20)
    with pytest.raises(SandboxFileError) as caught:
        box.write_file("large", bytes(3 << 20))
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert box.exec("rm large; echo small > small; cat small").stdout == "small\n"


def test_impossible_paths_are_refused(box: Sandbox) -> None:
    with pytest.raises(UsageError, match="without NUL"):
        box.read_file("a\0b")
    with pytest.raises(UsageError, match="text that has bytes"):
        box.write_file("\ud800", "")


def test_a_local_file_that_is_missing_is_the_hosts_error(box: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        box.upload(tmp_path / uuid.uuid4().hex, "x")
    assert not isinstance(caught.value, GymnastError)
