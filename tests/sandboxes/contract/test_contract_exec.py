"""`exec` on every backend: how commands end, what they write, and that nothing outlives them."""

import signal
import textwrap
import uuid
from collections.abc import Callable

import pytest

from gymnast.errors import UsageError
from gymnast.sandboxes import ExecResult, Sandbox
from sandbox_fixtures import OpenBox

Running = Callable[[str], int]

DETACHED = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.execvp("sleep", ["sleep", sys.argv[1]])
"""


@pytest.fixture
def seconds() -> str:
    """A time to sleep that no other process on the machine sleeps."""
    return f"{1000 + uuid.uuid4().int % 10**9}.5"


def test_a_text_is_for_the_shell_and_a_list_is_not(box: Sandbox) -> None:
    assert box.exec("echo $((1 + 1)); echo no >&2; exit 3") == ExecResult(
        3, "2\n", "no\n", "nonzero"
    )
    assert box.exec(["echo", "$((1 + 1))"]) == ExecResult(0, "$((1 + 1))\n", "", "ok")


def test_stdin_folder_and_variables_are_the_callers(box: Sandbox) -> None:
    assert box.exec("cat", stdin="a\né").stdout == "a\né"
    assert box.exec(["od", "-An", "-tx1"], stdin=b"\x00\xff").stdout.split() == ["00", "ff"]
    assert box.exec("cat").stdout == ""
    assert box.exec("pwd", cwd="/").stdout == "/\n"
    assert box.exec("echo $MINE", env={"MINE": "a b"}).stdout == "a b\n"
    assert box.exec("echo $MINE").stdout == "\n"


def test_more_stdin_than_a_pipe_holds_goes_in_while_output_comes_out(box: Sandbox) -> None:
    text = "0123456789" * 100_000
    assert box.exec("cat", stdin=text).stdout == text
    assert box.exec("exit 4", stdin=text).exit_code == 4


def test_a_command_that_is_not_there_ends_as_in_a_shell(box: Sandbox) -> None:
    missing = box.exec(["no-such-command"])
    assert (missing.exit_code, missing.verdict) == (127, "nonzero")
    assert "no-such-command" in missing.stderr
    assert box.exec(["/tmp"]).exit_code == 126
    assert "/no/folder" in box.exec(["true"], cwd="/no/folder").stderr


def test_a_signal_is_an_exit_code_of_128_and_more(box: Sandbox) -> None:
    assert box.exec("kill -SEGV $$").exit_code == 128 + 11


def test_what_no_system_could_take_is_refused_by_name(box: Sandbox) -> None:
    with pytest.raises(UsageError, match="command is empty"):
        box.exec([])
    for command in (17, ["head", 3]):
        with pytest.raises(UsageError, match="it must be a text or a list of texts"):
            box.exec(command)  # type: ignore[arg-type]
    for content in (3, None):
        with pytest.raises(UsageError, match=f"{content} is no content for a box"):
            box.write_file("a", content)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"command is 'a.x00'.*without NUL"):
        box.exec("a\0")
    with pytest.raises(UsageError, match="timeout_s is 0; it must be a number of seconds above 0"):
        box.exec("true", timeout_s=0)
    with pytest.raises(UsageError, match="max_output_bytes is -1"):
        box.exec("true", max_output_bytes=-1)
    with pytest.raises(UsageError, match="env has the name 'a=b'"):
        box.exec("true", env={"a=b": ""})
    assert box.exec("true").verdict == "ok"


def test_too_long_a_command_is_an_ending_not_an_error(box: Sandbox) -> None:
    assert box.exec(["echo", "x" * 3_000_000]).exit_code == 126


def test_a_timeout_kills_what_runs(box: Sandbox, running: Running, seconds: str) -> None:
    stubborn = f"trap '' TERM INT HUP; sleep {seconds} & sleep {seconds}; sleep {seconds}"
    ended = box.exec("echo begun; " + stubborn, timeout_s=0.5)
    assert (ended.verdict, ended.exit_code, ended.stdout) == ("timeout", 137, "begun\n")
    assert running(seconds) == 0


def test_nothing_outlives_its_command(box: Sandbox, running: Running, seconds: str) -> None:
    assert box.exec(f"sleep {seconds} & echo begun").stdout == "begun\n"
    assert running(seconds) == 0
    assert box.exec(["python3", "-c", DETACHED, seconds]).verdict == "ok"
    assert running(seconds) == 0


def test_a_timeout_finds_what_has_detached_itself(
    box: Sandbox, running: Running, seconds: str
) -> None:
    ended = box.exec(["python3", "-c", DETACHED + "\ntime.sleep(99)", seconds], timeout_s=1)
    assert ended.verdict in ("timeout", "ok")
    assert running(seconds) == 0
    box.write_file("detached.py", DETACHED)
    ended = box.exec(f"python3 detached.py {seconds}; sleep 999", timeout_s=1)
    assert ended.verdict == "timeout"
    assert running(seconds) == 0


def test_a_process_that_forks_on_and_on_is_caught(box: Sandbox, running: Running) -> None:
    # One at a time, but always another by the time that it is looked for.
    mark = uuid.uuid4().hex
    chain = f"import os # {mark}\nwhile True:\n    if os.fork(): os._exit(0)\n"
    assert box.exec(["python3", "-c", chain]).verdict == "ok"
    assert running(mark) == 0


def test_closed_outputs_do_not_end_the_wait(box: Sandbox) -> None:
    assert box.exec("exec >&- 2>&-; sleep 0.3; exit 7") == ExecResult(7, "", "", "nonzero")


def test_long_output_keeps_head_and_tail_and_says_what_is_missing(box: Sandbox) -> None:
    ended = box.exec("seq 1 1000; echo 'fine' >&2", max_output_bytes=20)
    assert ended.stdout == "1\n2\n3\n4\n5\n[... 3873 bytes left out ...]\n\n999\n1000\n"
    assert (ended.verdict, ended.truncated, ended.exit_code) == ("output_limit", True, 0)
    assert ended.stderr == "fine\n"


def test_output_up_to_the_limit_is_whole(box: Sandbox) -> None:
    ended = box.exec("printf 0123456789", max_output_bytes=10)
    assert ended == ExecResult(0, "0123456789", "", "ok")
    assert box.exec("printf 0123456789A", max_output_bytes=10).truncated


def test_endless_output_is_stopped(box: Sandbox, running: Running) -> None:
    mark = uuid.uuid4().hex
    ended = box.exec(["yes", mark], timeout_s=100, max_output_bytes=1000)
    assert (ended.verdict, ended.exit_code, ended.truncated) == ("output_limit", 137, True)
    assert len(ended.stdout) < 1100
    assert running(mark) == 0


def test_a_line_of_a_gigabyte_is_stopped_as_well(box: Sandbox) -> None:
    ended = box.exec("head -c 1000000000 /dev/zero | tr '\\0' x", timeout_s=100)
    assert ended.verdict == "output_limit"
    assert len(ended.stdout) < 1.1 * (1 << 20)


def test_bytes_that_are_no_text_are_replaced(box: Sandbox) -> None:
    assert box.exec(r"printf 'a\377b\303\251'").stdout == "a�bé"


def test_commands_inherit_three_descriptors(box: Sandbox) -> None:
    listed = box.exec(["python3", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"])
    assert listed.stdout == "['0', '1', '2', '3']\n"  # 3 is the folder that is being listed


def assert_every_signal_is_restored(box: Sandbox) -> None:
    ended = box.exec(["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"])
    assert ended.stdout.split()[1::2] == ["0" * 16, "0" * 16]


def test_signals_have_their_usual_meaning_in_a_command(box: Sandbox) -> None:
    assert_every_signal_is_restored(box)


def test_signals_have_it_though_whoever_started_the_run_ignores_them(open_box: OpenBox) -> None:
    ignored = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGRTMAX]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        box = open_box()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
    assert_every_signal_is_restored(box)
    code = """
        import signal
        ignored = [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
        print(sorted(n.name for n in ignored))
    """
    pythons_own = ["SIGPIPE", "SIGXFSZ"]
    assert box.python(textwrap.dedent(code)).stdout.strip() == str(pythons_own)


def test_a_user_without_a_name_is_one_to_programs(box: Sandbox, backend: str) -> None:
    if backend == "local":
        pytest.skip("code runs as the run's user")
    code = """
import getpass, os, tempfile
print(getpass.getuser(), os.path.expanduser("~") == os.getcwd())
os.makedirs(os.path.expanduser("~/.cache/tool"))
tempfile.TemporaryDirectory().cleanup()
print({os.stat(path).st_uid for path in (".", tempfile.gettempdir())} - {os.getuid()})
"""
    ended = box.exec(["python3", "-c", code])
    assert ended.stdout == "sandbox True\nset()\n", ended
    assert box.exec('cd && echo "$LOGNAME $USER"').stdout == "sandbox sandbox\n"
