"""A working folder carried into another box: what arrives, what does not, who is not believed."""

import base64
import contextlib
import json
import os
import shutil
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.envs.boxes.carried import (
    MAX_ENTRIES,
    CannotCarry,
    prepare_box,
    read_folder,
    write_folder,
)
from gymnast.envs.boxes.carried_links import Entry, kept_entries
from gymnast.errors import SandboxDead
from gymnast.sandboxes import ExecResult, LocalSandbox, Sandbox, SandboxSpec

MOST = 8 << 20


@pytest.fixture
def boxes() -> Iterator[tuple[LocalSandbox, LocalSandbox]]:
    with LocalSandbox(SandboxSpec(disk_bytes=MOST)) as first, LocalSandbox() as second:
        yield first, second


def carried(boxes: tuple[LocalSandbox, LocalSandbox], commands: str, *placed: str) -> Path:
    """What has arrived of what commands leave."""
    source, target = boxes
    assert source.exec(commands).verdict == "ok"
    folder = read_folder(source, MOST)
    places = prepare_box(target)
    for path in placed:
        target.write_file(f"{places.root}/{path}", "of the check")
    write_folder(folder, target, places, placed)
    return Path(places.root)


def listed(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_files_arrive_as_they_were(boxes: tuple[LocalSandbox, LocalSandbox]) -> None:
    root = carried(
        boxes,
        "mkdir -p a/b empty; echo one > a/one; printf '#!/bin/sh\\n' > a/b/run; chmod 755 a/b/run; "
        ": > nothing; chmod 400 nothing; chmod 500 a; touch -d '2001-02-03 04:05:06 UTC' a/one; "
        "printf 'x' > \"$(printf 'n\\377\\nx')\"; echo 2 > ' -rf *'; chmod 2775 empty; "
        "touch -d '2300-01-01 UTC' a/b/run",
    )
    assert (root / "a/one").read_text() == "one\n"
    assert (root / "a/one").stat().st_mtime_ns == 981173106 * 10**9
    assert (root / "a/b/run").stat().st_mtime == 10413792000
    modes = {name: (root / name).stat().st_mode & 0o7777 for name in ("a/b/run", "nothing", "a")}
    assert modes == {"a/b/run": 0o755, "nothing": 0o400, "a": 0o500}
    assert (root / "empty").stat().st_mode & 0o7777 == 0o2775
    assert (root / os.fsdecode(b"n\xff\nx")).read_text() == "x"
    assert (root / " -rf *").read_text() == "2\n"
    assert len(listed(root)) == 8


def test_large_files_arrive_in_pieces(boxes: tuple[LocalSandbox, LocalSandbox]) -> None:
    root = carried(
        boxes,
        "seq 300000 > a; : > b; seq 5 > c; seq 200000 > d; : > e; echo gone > f; seq 9 > g.pyc; "
        "seq 3 > h; chmod 000 d",
        "f",
    )
    counts = {"a": 300000, "b": 0, "c": 5, "d": 200000, "e": 0, "h": 3}
    for name, count in counts.items():
        assert (root / name).read_text() == "".join(f"{i}\n" for i in range(1, count + 1)), name
    assert listed(root) == [*"abcdefh"] and (root / "f").read_text() == "of the check"


def test_what_is_no_plain_file_does_not_arrive(boxes: tuple[LocalSandbox, LocalSandbox]) -> None:
    root = carried(
        boxes,
        "mkfifo pipe; ln -s /etc/passwd out; ln -s ../.. up; ln -s nowhere dangling;"
        "ln -s self self;"
        "mkdir -p d/__pycache__; echo > d/__pycache__/x.py; echo > x.pyc; echo 1 > one; ln one two;"
        "ln -s one good; ln -s $PWD/d whole; ln -s /proc/self/environ proc; ln -s good/ file; "
        "ln -s . dot; ln -s dot/dot/one through; ln -s dot/pipe no",
    )
    links = {name: os.readlink(root / name) for name in listed(root) if (root / name).is_symlink()}
    assert links == {"good": "one", "whole": f"{root}/d", "dot": ".", "through": "dot/dot/one"}
    assert {*listed(root)} - {*links} == {"d", "one", "two"}
    assert (root / "one").stat().st_nlink == (root / "two").stat().st_nlink == 1


def test_files_of_the_check_take_their_places(boxes: tuple[LocalSandbox, LocalSandbox]) -> None:
    root = carried(
        boxes,
        "mkdir -p file/sub other; echo 1 > file/sub/x; ln -s other folder; echo 2 > other/check; "
        "echo 3 > parent; ln -s other/y late; echo 4 > other/y; mkdir own; chmod 0 own",
        "file",
        "folder/check",
        "parent/check",
        "own/check",
    )
    theirs = ["folder", "late", "other", "other/check", "other/y", "own", "parent"]
    ours = ["file", "folder/check", "parent/check", "own/check"]
    assert listed(root) == sorted([*theirs, *ours])
    for path in ours:
        assert (root / path).read_text() == "of the check"
    assert (root / "other/check").read_text() == "2\n"


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ("seq 101 | xargs touch", "too many"),
        ("truncate -s 5M a; truncate -s 5M b", "more than"),
        ("truncate -s 8M a; for i in $(seq 9); do ln a a$i; done", "more than"),
        ("for i in $(seq 40); do d=$(printf %0250d 0); mkdir $d; cd $d; done", "too long"),
    ],
)
def test_a_folder_beyond_the_limits_is_refused(
    commands: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymnast.envs.boxes.carried.MAX_ENTRIES", 100)
    with LocalSandbox(SandboxSpec(disk_bytes=MOST)) as box:
        box.exec(commands)
        with pytest.raises(CannotCarry, match=words):
            read_folder(box, MOST)


def test_no_module_of_the_folder_is_imported(boxes: tuple[LocalSandbox, LocalSandbox]) -> None:
    """Else a policy whose task is to write one of that name would not be graded."""
    names = "json os sys stat bisect binascii contextlib typing base64 encodings traceback"
    root = carried(boxes, f"for n in {names}; do echo 'raise SystemExit(1)' > $n.py; done")
    assert len(listed(root)) == len(names.split())


def test_the_session_of_the_policy_is_not_asked(
    boxes: tuple[LocalSandbox, LocalSandbox],
) -> None:
    source, _ = boxes
    source.python(
        "import os, threading; os.mkdir('a'); os.chdir('a'); open('b', 'w'); print = None\n"
        "def write():\n"
        "    while True: open('c', 'a').write('c')\n"
        "threading.Thread(target=write, daemon=True).start()"
    )
    assert {entry.path for entry in read_folder(source, MOST).entries} >= {"a", "a/b"}


# ---- links, against the system's own idea of them ----

NAMES = st.sampled_from("abc")
PARTS = st.sampled_from([*"abc", *"abc", "..", ".", ""])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TARGETS = st.tuples(
    st.sampled_from(["", "", "", "ROOT/", "/", "/proc/", "ROOTx/", "ROOT/../"]),
    st.lists(PARTS, min_size=1, max_size=5).map("/".join),
).map("".join)
NODES = st.one_of(st.just(None), st.just(0), TARGETS)  # a folder, a file, a link


def entries_of(wanted: Mapping[str, Any], root: Path) -> list[Entry]:
    """A folder with as much of what is wanted as goes together, made at `root`."""
    made: dict[str, Entry] = {}
    for path, node in sorted(wanted.items()):
        for end in range(1, path.count("/") + 1):
            above = "/".join(path.split("/")[:end])
            made.setdefault(above, Entry("folder", above))
        parent = path.rpartition("/")[0]
        if path in made or (parent and made[parent].kind != "folder"):
            continue
        if isinstance(node, str):
            target = node.replace("ROOT", str(root)) or "."
            made[path] = Entry("link", path, target=target)
        else:
            made[path] = Entry("folder" if node is None else "file", path)
    whole = [e for e in made.values() if all(
        made[f].kind == "folder" for f in _above(e.path))]  # fmt: skip
    return sorted(whole, key=lambda entry: entry.path.count("/"))


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def make(root: Path, entries: Sequence[Entry]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for entry in entries:
        path = root / entry.path
        if entry.kind == "folder":
            path.mkdir(exist_ok=True)
        elif entry.kind == "file":
            path.touch()
        else:
            path.symlink_to(entry.target)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("links") / "root"


def leads_to(path: Path) -> Path | None:
    try:
        path.stat()
        return Path(os.path.realpath(path, strict=True))
    except OSError:
        return None


@settings(max_examples=100)
@given(wanted=st.dictionaries(PATHS, NODES, max_size=9))
def test_every_link_that_leads_into_the_folder_is_carried_and_no_other(
    place: Path, wanted: Mapping[str, Any]
) -> None:
    entries = entries_of(wanted, place)
    make(place, entries)
    kept = kept_entries(entries, str(place), str(place), ())
    for entry in entries:
        end = leads_to(place / entry.path)
        inside = end is not None and (end == place or place in end.parents)
        left = entry.kind == "link" and "ROOT/../" in str(wanted.get(entry.path))
        if not left:
            assert (entry.path in kept) == inside, entry
        assert inside or entry.path not in kept, entry


@settings(max_examples=100)
@given(
    wanted=st.dictionaries(PATHS, NODES, max_size=9),
    placed=st.lists(PATHS, min_size=1, max_size=3, unique=True),
)
def test_no_link_leads_to_a_file_of_the_check(
    place: Path, wanted: Mapping[str, Any], placed: list[str]
) -> None:
    placed = [p for p in placed if not any(q.startswith(f"{p}/") for q in placed)]
    old = place.parent / "old"
    entries = entries_of(wanted, old)
    kept = kept_entries(entries, str(old), str(place), placed)
    holding = [Entry("folder", above) for path in placed for above in _above(path)]
    make(place, [*holding, *(Entry("file", path) for path in placed), *kept.values()])
    for path in placed:
        assert not (place / path).is_symlink() and (place / path).is_file()
        assert os.path.realpath(place / path) == str(place / path)
    forbidden = {place / p for path in placed for p in (path, *_above(path))} | {place}
    for entry in kept.values():
        if entry.kind == "link":
            end = leads_to(place / entry.path)
            assert end is not None and place in end.parents and end not in forbidden, entry


# ---- a box that lies ----


class Liar(Sandbox):
    """A box that its policy has taken over: it says what it likes."""

    def __init__(self, *said: str, verdict: Any = "ok") -> None:
        self.said, self.verdict = list(said), verdict

    def exec(self, command: Any, **_: Any) -> ExecResult:
        raise NotImplementedError

    def python(self, code: str, **_: Any) -> ExecResult:
        if "_folder" not in code:  # it is asked for a new session
            return ExecResult(0, "", "", "ok")
        said = self.said.pop(0) if self.said else ""
        return ExecResult(0 if self.verdict == "ok" else 1, said, "", self.verdict)

    def read_file(self, path: str, **_: Any) -> bytes:
        raise NotImplementedError

    def write_file(self, path: str, data: str | bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def lie(*entries: Any, root: Any = "/work", contents: str = "") -> str:
    lines = [json.dumps(said) for said in ({"root": root}, *entries)]
    return "\n".join([*lines, contents]) + "\n"


FILE = ["file", "a", 0o644, 1, 0]
LIES = {
    "nothing": "",
    "no JSON": "{\n\n",
    "a list": "[]\n\n",
    "deep JSON": "[" * 20_000 + "\n\n",
    "a number of many digits": '{"root": "/"}\n["folder", "a", 1' + "0" * 9999 + "]\n\n",
    "a line that is empty": '{"root": "/"}\n\n\n',
    "a line that is longer than any entry": '{"root": "/"}\n' + " " * 99_999 + "[]\n\n",
    "entries that are none": lie(7),
    "a root that is none": lie(root=None),
    "a relative root": lie(root="work"),
    "an unknown kind": lie(["socket", "a", 0]),
    "a kind that is a list": lie([[], "a", 0]),
    "too few fields": lie(["file", "a"]),
    "too many fields": lie(["link", "a", "b", "c"]),
    "an absolute path": lie(["folder", "/etc", 0]),
    "a path upwards": lie(["folder", "..", 0]),
    "a path upwards, further on": lie(["folder", "a", 0], ["folder", "a/../..", 0]),
    "the folder itself": lie(["folder", ".", 0]),
    "an empty path": lie(["folder", "", 0]),
    "an empty part": lie(["folder", "a", 0], ["folder", "a//b", 0]),
    "NUL in a path": lie(["folder", "a\0b", 0]),
    "a path without bytes": lie(["folder", "\ud800", 0]),
    "a name that is too long": lie(["folder", "a" * 256, 0]),
    "NUL in a target": lie(["link", "a", "\0"]),
    "an empty target": lie(["link", "a", ""]),
    "a path twice": lie(FILE, FILE, contents="AAA="),
    "a file in a file": lie(FILE, ["file", "a/b", 0, 0, 0], contents="AA=="),
    "a file in a link": lie(["link", "a", "/etc"], ["file", "a/b", 0, 0, 0]),
    "a file before its folder": lie(["file", "a/b", 0, 0, 0], ["folder", "a", 0]),
    "a mode of other bits": lie(["folder", "a", 0o10000]),
    "a mode that is true": lie(["folder", "a", True]),
    "a mode that is a float": lie(["folder", "a", 1.0]),
    "a size below zero": lie(["file", "a", 0, -1, 0]),
    "more than there may be": lie(["file", "a", 0, MOST + 1, 0]),
    "more files than there may be": lie(*(["folder", str(i), 0] for i in range(MAX_ENTRIES + 1))),
    "less than it says": lie(FILE, contents=""),
    "more than it says": lie(FILE, contents="AAAA"),
    "contents that are no base64": lie(FILE, contents="A!=="),
    "contents that are no ASCII": lie(FILE, contents="ÄÄ=="),
}


@pytest.mark.parametrize("name", LIES)
def test_a_box_that_lies_is_refused(name: str) -> None:
    with pytest.raises(CannotCarry):
        read_folder(Liar(LIES[name]), MOST)


WORDS = st.sampled_from(["file", "folder", "link", "a", "a/b", "/", ".."])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | WORDS
KEYS = st.sampled_from(["root", "entries", "refused"])
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=20,
)


@given(said=ANYTHING)
def test_whatever_a_box_says_nothing_else_is_raised(said: Any) -> None:
    for text in (json.dumps(said) + "\n\n", lie(said)):
        with contextlib.suppress(CannotCarry):
            read_folder(Liar(text), MOST)


@pytest.mark.parametrize("verdict", ["nonzero", "timeout", "oom", "output_limit"])
def test_a_box_that_does_not_answer_is_refused(verdict: str) -> None:
    with pytest.raises(CannotCarry, match=verdict):
        read_folder(Liar(lie(), verdict=verdict), MOST)


def test_lists_within_lists_do_not_fill_the_memory_of_the_host() -> None:
    entries = "[" + ",".join(["{}"] * 2_000_000) + "]"
    tracemalloc.start()
    try:
        for text in ('{"root": ' + entries + "}\n\n", '{"root": "/"}\n' + entries + "\n\n"):
            with pytest.raises(CannotCarry):
                read_folder(Liar(text), MOST)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20  # all of it would take 170
    finally:
        tracemalloc.stop()


def test_a_box_that_takes_its_time_for_each_piece_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(Liar):
        def python(self, code: str, **more: Any) -> ExecResult:
            time.sleep(0.1)
            return super().python(code, **more)

    monkeypatch.setattr("gymnast.envs.boxes.carried.READ_S", 0.15)
    piece = base64.b64encode(bytes(1 << 20)).decode()
    first = lie(["file", "a", 0, 8 << 20, 0], contents=piece)
    with pytest.raises(CannotCarry, match=r"longer than 0\.15 s"):
        list(read_folder(Slow(first, *[piece] * 7), MOST).pieces())


def test_a_box_that_breaks_is_infrastructure() -> None:
    with pytest.raises(SandboxDead):
        read_folder(Liar(verdict="dead"), MOST)


def test_a_later_piece_may_not_be_shorter_either() -> None:
    first = base64.b64encode(bytes(1 << 20)).decode()
    folder = read_folder(
        Liar(lie(["file", "a", 0, (1 << 20) + 5, 0], contents=first), "AA=="), MOST
    )
    with pytest.raises(CannotCarry, match="1 bytes in place of 5"):
        list(folder.pieces())


def test_where_a_box_says_its_folder_is_makes_no_link_lead_out() -> None:
    for root in ("/proc/self", "/", "/etc/", "//"):
        entries = [Entry("link", "a", target=root.rstrip("/") + "/environ")]
        assert kept_entries(entries, root, "/work", ()) == {}
        entries.append(Entry("file", "environ"))
        kept = kept_entries(entries, root, "/work", ())
        assert kept["a"].target == "/work/environ" if root != "//" else "a" not in kept
