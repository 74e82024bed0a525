"""Processes that are started in Landlock boxes without namespaces, where /proc shows none."""

from collections.abc import Iterator

import pytest

from attack_fixtures import processes_with
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from sandbox_fixtures import python_that_everyone_may_use, without_namespaces


@pytest.fixture
def plain() -> Iterator[WorkerSandbox]:
    with python_that_everyone_may_use(), without_namespaces() as box:
        yield box


def test_calls_spare_what_was_started_and_its_end_takes_what_it_left(
    plain: WorkerSandbox, mark: str
) -> None:
    waits = f"sh -c 'sleep 600; : {mark}'"
    with plain.start(f"{waits} & setsid {waits} & cat; : {mark}") as process:
        process.stdin.write("line\n")
        assert process.stdout.readline(timeout_s=20) == b"line\n"
        plain.exec("true")
        plain.python("raise SystemExit")
        plain.exec("sleep 9", timeout_s=0.2)
        assert len(processes_with(mark)) == 3
        process.stdin.close()
        assert process.wait(timeout_s=20) == 0
    assert not processes_with(mark)


def test_code_in_calls_can_neither_end_it_nor_reach_its_streams(
    plain: WorkerSandbox, mark: str
) -> None:
    with plain.start(["sh", "-c", f"echo $$; cat; : {mark}"]) as process:
        number = int(process.stdout.readline(timeout_s=20))
        code = f"""
import os
for attempt in (lambda: os.kill({number}, 9), lambda: open("/proc/{number}/fd/0", "rb")):
    try: print(attempt())
    except OSError as error: print(type(error).__name__)
"""
        for ended in (plain.python(code), plain.exec(["python3", "-c", code])):
            assert ended.stdout == "PermissionError\nPermissionError\n", ended
        process.stdin.write("still\n")
        assert process.stdout.readline(timeout_s=20) == b"still\n"
