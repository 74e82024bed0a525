"""`python` on every backend: a session like a notebook's, and what ends it."""

import uuid
from collections.abc import Callable

import pytest

from gymnast.sandboxes import ExecResult, Sandbox

Running = Callable[[str], int]


def test_variables_stay_and_a_last_expression_is_printed(box: Sandbox) -> None:
    assert box.python("x = 20\ndef double(n): return 2 * n") == ExecResult(0, "", "", "ok")
    assert box.python("print('then'); double(x) + 2") == ExecResult(0, "then\n42\n", "", "ok")
    assert box.python("'text'").stdout == "'text'\n"
    assert box.python("None").stdout == ""
    assert box.python("").verdict == "ok"
    assert box.python("__name__").stdout == "'__main__'\n"


def test_an_exception_has_an_interpreters_traceback_and_the_session_goes_on(box: Sandbox) -> None:
    box.python("x = 1\ndef fail():\n    return x / 0")
    ended = box.python("print('before')\nfail()")
    assert (ended.exit_code, ended.verdict, ended.stdout) == (1, "nonzero", "before\n")
    lines = [line for line in ended.stderr.splitlines() if "~" not in line and "^" not in line]
    assert [line.strip() for line in lines] == [
        "Traceback (most recent call last):",
        'File "<python 2>", line 2, in <module>',
        "fail()",
        'File "<python 1>", line 3, in fail',
        "return x / 0",
        "ZeroDivisionError: division by zero",
    ]
    assert box.python("x").stdout == "1\n"


def test_code_that_cannot_be_compiled_is_an_exception_too(box: Sandbox) -> None:
    assert box.python("x = = 1").stderr.splitlines()[-1] == "SyntaxError: invalid syntax"
    assert "null bytes" in box.python("x = 1\0").stderr
    assert "UnicodeDecodeError" in box.python("'\ud800'").stderr
    assert "RecursionError" in box.python("def f(): f()\nf()").stderr


def test_a_chain_of_exceptions_is_whole(box: Sandbox) -> None:
    code = "try:\n    {}['key']\nexcept KeyError as e:\n    raise ValueError('later') from e"
    error = box.python(code).stderr
    assert "KeyError: 'key'" in error and "ValueError: later" in error
    assert "gymnast" not in error


def test_what_c_code_and_children_write_counts(box: Sandbox) -> None:
    code = """
    import ctypes, os, subprocess, sys
    print("python", flush=True)
    os.write(2, b"raw\\n")
    subprocess.run(["echo", "child"])
    written = ctypes.CDLL(None).puts(b"libc")
    """
    ended = box.python("\n".join(line.strip() for line in code.splitlines()))
    assert sorted(ended.stdout.split()) == ["child", "libc", "python"]
    assert ended.stderr == "raw\n"


def test_input_meets_the_end_of_the_file(box: Sandbox) -> None:
    assert "EOFError" in box.python("input()").stderr


@pytest.mark.parametrize(
    ("code", "exit_code", "verdict"),
    [
        ("import sys; sys.exit(3)", 3, "nonzero"),
        ("exit", 0, "ok"),
        ("raise SystemExit", 0, "ok"),
        ("import os; os._exit(5)", 5, "nonzero"),
        ("import os; os.kill(os.getpid(), 9)", 137, "nonzero"),
        ("raise SystemExit('words')", 1, "nonzero"),
    ],
)
def test_what_ends_the_session_says_so_and_the_next_is_new(
    box: Sandbox, code: str, exit_code: int, verdict: str
) -> None:
    box.python("x = 1")
    ended = box.python(code)
    assert (ended.exit_code, ended.verdict) == (exit_code, verdict)
    if code != "exit":
        assert "its variables are gone" in ended.stderr
        assert "NameError" in box.python("x").stderr


def test_a_timeout_ends_the_session(box: Sandbox, running: Running) -> None:
    mark = uuid.uuid4().hex
    code = f"""
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sh", "-c", "sleep 4321; : {mark}"], start_new_session=True)
print("begun", flush=True)
while True: pass
"""
    ended = box.python(code, timeout_s=0.7)
    assert (ended.verdict, ended.exit_code, ended.stdout) == ("timeout", 137, "begun\n")
    assert "time limit of 0.7 s" in ended.stderr and "variables are gone" in ended.stderr
    assert running(mark) == 0
    assert "NameError" in box.python("mark").stderr


def test_code_that_cannot_be_interrupted_is_stopped_in_time(box: Sandbox) -> None:
    assert box.python("(10**9)**(10**8)", timeout_s=0.5).verdict == "timeout"
    assert box.python("1").stdout == "1\n"


def test_output_is_cut_and_the_session_stays_if_it_ends(box: Sandbox) -> None:
    ended = box.python("x = 1\nprint('é' * 1000)", max_output_bytes=9)
    assert ended.verdict == "output_limit" and ended.truncated
    assert ended.stdout == "éé\n[... 1994 bytes left out ...]\né\n"
    assert box.python("x").stdout == "1\n"
    assert box.python("while True: print('x' * 9999)", max_output_bytes=9).exit_code == 137


def test_a_session_that_ended_between_calls_is_told_of_once(box: Sandbox) -> None:
    box.python("x = 1\nimport os, threading\nthreading.Timer(0.1, os._exit, [0]).start()")
    box.exec("sleep 0.5")
    assert "new Python session" in box.python("1").stderr
    assert box.python("1").stderr == ""


def test_processes_below_the_session_stay_and_detached_ones_do_not(
    box: Sandbox, running: Running
) -> None:
    kept, detached = uuid.uuid4().hex, uuid.uuid4().hex
    box.python(
        "import subprocess\n"
        f"p = subprocess.Popen(['sh', '-c', 'sleep 99; : {kept}'])\n"
        f"subprocess.run(['sh', '-c', 'setsid sh -c \"sleep 99; : {detached}\" &'])\n"
    )
    assert running(kept) >= 1  # 2 while the shell forks
    assert running(detached) == 0
    assert box.python("p.poll() is None").stdout == "True\n"


def test_the_child_of_a_fork_leaves_when_its_code_ends(box: Sandbox) -> None:
    box.python("import os\npid = os.fork()")
    assert box.python("pid > 0, os.waitpid(pid, 0)[1]").stdout == "(True, 0)\n"
    assert [box.python("os.getpid()").stdout for _ in range(3)] == [
        box.python("os.getpid()").stdout
    ] * 3


def test_closed_and_replaced_outputs_are_there_again(box: Sandbox) -> None:
    box.python("import os, sys\nos.close(1); os.close(2)")
    assert box.python("print(1)\nprint(2, file=sys.stderr)") == ExecResult(0, "1\n", "2\n", "ok")
    box.python("sys.stdout.close()")
    assert box.python("print(3)").stdout == "3\n"


def test_files_of_the_working_folder_can_be_imported(box: Sandbox) -> None:
    name = f"module_{uuid.uuid4().hex}"
    box.write_file(f"{name}.py", "VALUE = 5")
    assert box.python(f"import {name}; {name}.VALUE").stdout == "5\n"


def test_a_future_import_holds_for_its_call(box: Sandbox) -> None:
    box.python("from __future__ import annotations")
    assert box.python("def f(x: int): ...\nf.__annotations__").stdout == "{'x': <class 'int'>}\n"


def test_the_session_knows_nothing_of_the_worker(box: Sandbox) -> None:
    listed = box.python("import sys; [name for name in sys.modules if name.startswith('gymnast')]")
    assert listed.stdout == "[]\n"
    assert box.python("import os; len(os.listdir('/proc/self/fd'))").stdout == "8\n"


def test_signals_have_their_usual_meaning_in_the_session(box: Sandbox) -> None:
    code = "import signal as s; [s.getsignal(n) == s.SIG_DFL for n in (s.SIGTERM, s.SIGCHLD)]"
    assert box.python(code).stdout == "[True, True]\n"
    assert "KeyboardInterrupt" in box.python("import os; os.kill(os.getpid(), 2)").stderr


def test_threads_go_on_between_calls(box: Sandbox) -> None:
    box.python("import threading\nseen = threading.Event()\nthreading.Timer(0.1, seen.set).start()")
    box.exec("sleep 0.3")
    assert box.python("seen.is_set()").stdout == "True\n"
