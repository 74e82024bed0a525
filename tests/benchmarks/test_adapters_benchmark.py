"""The benchmark of adapters loses nothing, and finds what is lost and left behind."""

import os
import subprocess
import threading

import pytest

from adapters import DONE, SMALL, SUBJECTS, Subject, held, report
from gymnast.envs import call


@pytest.mark.parametrize(
    "name",
    ["gymnasium", *(pytest.param(n, marks=pytest.mark.adapters) for n in SUBJECTS if "mcp" in n)],
)
def test_nothing_of_a_few_episodes_is_lost_or_left_behind(name: str) -> None:
    found = report(name, SUBJECTS[name], 4)
    assert len(found.targets) == 2 and all(target.met for target in found.targets), str(found)


@pytest.mark.adapters
def test_an_episode_that_is_told_something_else_or_fails_is_lost() -> None:
    settings = {"command": SMALL, "instructions": False}
    other = Subject("mcp:small", [call("add", a=1), DONE], "2", settings)
    dies = Subject("mcp:small", [call("die"), DONE], "", settings)
    for subject in (other, dies):
        lost, left = report("odd", subject, 2).targets
        assert not lost.met and left.met


def test_what_is_left_behind_is_counted() -> None:
    before = held()
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    end, other = os.pipe()
    with subprocess.Popen(["sleep", "60"]) as process:
        more = held().more_than(before)
        process.kill()
    over.set()
    thread.join()
    os.close(end)
    os.close(other)
    assert more == {"processes": 1, "descriptors": 2, "threads": 1}
    assert held().more_than(before) == {}
