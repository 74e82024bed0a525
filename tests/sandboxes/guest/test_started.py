"""Started processes as the worker keeps them."""

from pathlib import Path

import pytest

from gymnast.sandboxes import open_sandbox

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def test_a_command_with_the_id_of_a_process_that_has_ended_ends_by_itself() -> None:
    try:
        LAST_PID.write_text(LAST_PID.read_text())
    except OSError as error:
        pytest.skip(f"the next process id cannot be chosen: {error}")
    with open_sandbox("local") as box, box.start("echo $$") as process:
        pid = int(process.stdout.readline(timeout_s=20))
        assert process.wait(timeout_s=20) == 0
        for _ in range(100):  # others start processes too
            LAST_PID.write_text(str(pid - 1))
            ended = box.exec("echo $$; exit 3", timeout_s=5)
            assert ended.exit_code == 3, ended
            if ended.stdout == f"{pid}\n":
                return
        pytest.skip("the machine is too busy to choose a process id")
