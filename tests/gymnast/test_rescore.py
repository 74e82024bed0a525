"""`gymnast rescore`: saved episodes graded anew, and the file with their new rewards."""

import json
from pathlib import Path

import pytest

from command_fixtures import CommandLine
from gymnast.trainers import load_rollouts
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Branch, Span, Trajectory
from saved_episodes import ASKED, episode, said

GRADING = """\
import asyncio
from gymnast.envs import Environment, Score, rubrics

def short(trajectory):
    return float(len(trajectory.messages[-1]["content"]) < 4)

async def parted(trajectory):
    await asyncio.sleep(0)
    return Score({"a": 0.5, "b": trajectory.row["answer"]}, {"seen": 1.0})

def unknown(trajectory):
    return None if trajectory.row["answer"] == 2 else 1.0

def fails(trajectory):
    return trajectory.answer

def sometimes(trajectory):
    return {2: 1.0}[trajectory.row["answer"]]

def large(trajectory):
    return 10**400 if trajectory.row["answer"] == 2 else 1.0

def larger(trajectory):
    return 1.7e308

def old(trajectory):
    return 2 * trajectory.reward

def two(environment, trajectory):
    return 1.0

class Game(Environment):
    pass

right = rubrics.numeric("answer")
"""
ANSWERS = [("2", 2, 1.0), ("It is 3", 3, 0.0), ("4", 5, 0.0), ("It is six", 6, 1.0)]


def played(text: str, answer: int, reward: float) -> Trajectory:
    return episode(said(text), reward=reward, row={"answer": answer}, reward_parts={"short": 9.0})


@pytest.fixture
def run(shop_folder: Path) -> str:
    Path("grading.py").write_text(GRADING)
    one, two, three, four = (played(*each) for each in ANSWERS)
    write_rollouts("out/rollouts/step_00001.parquet", [[one, two]])
    write_rollouts("out/rollouts/step_00002.parquet", [[], [three, four]])
    return "out"


def test_only_episodes_with_some_reward_are_graded(run: str, gymnast: CommandLine) -> None:
    graded = ["rescore", run, "--reward", "grading.py:short", "--min-reward", "0.5"]
    ran = gymnast(*graded)
    assert ran.output.startswith("2 episodes, 2 of them"), ran.errors
    assert gymnast(*graded, "--max-reward", "0.7").code == 2


def test_rewards_before_and_after_are_compared(run: str, gymnast: CommandLine) -> None:
    ran = gymnast("rescore", run, "--reward", "grading.py:short")
    assert (ran.code, ran.errors) == (0, "")
    assert ran.output == (
        "4 episodes, 4 of them with a reward before and after\n"
        "mean reward 0.5 before, 0.5 after\n"
        "changed: 2 (1 higher, 1 lower)\n"
        "correlation: 0.000\n"
        "groups with different rewards: 2 of 2 before, 2 after\n"
        "4 have no token ids, which are not saved of episodes that are played in messages: a "
        "reward that counts tokens finds none in them\n"
        "\n"
        "before \\ after  0  1\n"
        "             0  1  1\n"
        "             1  1  1\n"
        "\n"
        "largest changes:\n"
        "  step_00002/1/0  0 -> 1\n"
        "  step_00002/1/1  1 -> 0\n"
    )


def test_large_rewards_fail_by_episode(run: str, gymnast: CommandLine) -> None:
    ran = gymnast("rescore", run, "--reward", "grading.py:large")
    assert ran.code == 0 and "4 episodes, 3 of them with a reward" in ran.output, ran.errors
    assert "1 failed: rewards.large: returned 1000" in ran.output


@pytest.mark.parametrize("options", [[], ["--add"]])
def test_the_largest_rewards_can_be_compared(
    options: list[str], run: str, gymnast: CommandLine
) -> None:
    ran = gymnast("rescore", run, "--reward", "grading.py:larger", *options)
    assert ran.code == 0 and "0.5 before, 1.7e+308 after" in ran.output, ran.errors


@pytest.mark.parametrize("digits", [401, 5000])
def test_a_weight_beyond_float_is_refused(digits: int, run: str, gymnast: CommandLine) -> None:
    weighted = f"{{function: 'grading.py:short', weight: {'9' * digits}}}"
    ran = gymnast("rescore", run, "--reward", weighted)
    assert ran.code == 2 and "reward" in ran.errors and "Traceback" not in ran.errors


def graded(gymnast: CommandLine, run: str, *options: str) -> dict[str, float]:
    """The new reward of each episode, by its name, read from the file that is written."""
    ran = gymnast("rescore", run, *options, "--output", "new.parquet")
    assert ran.code == 0, ran.errors
    return {f"{s.group}/{s.member}": s.trajectory.reward for s in load_rollouts("new.parquet")}


def test_several_functions_and_rubrics_are_weighted(run: str, gymnast: CommandLine) -> None:
    weighted = ["--reward", "{function: 'grading.py:parted', weight: 2}"]
    assert graded(gymnast, run, *weighted, "--reward", "grading.py:short") == {
        "0/0": 2 * 2.5 + 1,
        "0/1": 2 * 3.5,
        "1/0": 2 * 5.5 + 1,
        "1/1": 2 * 6.5,
    }
    [saved, *_] = load_rollouts("new.parquet")
    assert saved.trajectory.reward_parts == {"parted/a": 0.5, "parted/b": 2.0, "short": 1.0}
    assert saved.trajectory.metrics["seen"] == 1.0
    assert graded(gymnast, run, "--reward", "{function: numeric, column: answer}") == {
        **{"0/0": 1.0, "0/1": 1.0, "1/0": 0.0, "1/1": 0.0}
    }
    assert graded(gymnast, run, "--reward", "grading.py:right", "--step", "1") == {
        **{"0/0": 1.0, "0/1": 1.0}
    }


def test_functions_see_the_saved_reward_and_may_be_added_to_it(
    run: str, gymnast: CommandLine
) -> None:
    assert graded(gymnast, run, "--reward", "grading.py:old")["0/0"] == 2.0
    assert graded(gymnast, run, "--reward", "grading.py:old", "--add")["0/0"] == 3.0


def test_none_is_no_reward_and_a_failure_leaves_the_episode_out(
    run: str, gymnast: CommandLine
) -> None:
    ran = gymnast("rescore", run, "--reward", "grading.py:unknown", "--output", "new.parquet")
    assert "1 has none after: a function returned None" in ran.output
    assert [s.trajectory.no_reward for s in load_rollouts("new.parquet")] == [True] + [False] * 3
    ran = gymnast("rescore", run, "--reward", "grading.py:sometimes", "--output", "new.parquet")
    assert "1 failed: rewards.sometimes: KeyError: 3" in ran.output
    assert ran.output.endswith("\nnew.parquet holds 1 episode with new rewards\n")


def test_the_new_reward_is_that_of_the_last_turn_in_whichever_context(
    shop_folder: Path, gymnast: CommandLine
) -> None:
    Path("grading.py").write_text(GRADING)
    branch = Branch([], [], [], 0, [Span(0, 0)], [0.75], messages=[ASKED, said("5")])
    two = episode(said("5"), reward=0.5, branches=[branch], order=[0, 1], row={"answer": 4})
    write_rollouts("out/rollouts/eval_00001.parquet", [[two]])
    assert graded(gymnast, "out", "--reward", "grading.py:old")
    [saved] = load_rollouts("new.parquet")
    assert saved.trajectory.all_turn_rewards == [0.0, 2.5]


def test_an_episode_whose_box_was_broken_earns_nothing(
    shop_folder: Path, gymnast: CommandLine
) -> None:
    Path("grading.py").write_text(GRADING)
    broken = episode(said("5"), metrics={"sandbox/broken": 1.0})
    write_rollouts("out/rollouts/step_00001.parquet", [[broken]])
    assert graded(gymnast, "out", "--reward", "grading.py:short") == {"0/0": 0.0}


def test_json_has_the_whole_comparison(run: str, gymnast: CommandLine) -> None:
    ran = gymnast("rescore", run, "--reward", "grading.py:short", "--format", "json")
    found = json.loads(ran.output)
    assert (found["changed"], found["old_mean"], found["correlation"]) == (2, 0.5, 0.0)
    assert {"old": "0", "new": "1", "count": 1} in found["agreement"]
    assert found["changes"][0] == {"id": "step_00002/1/0", "old": 0.0, "new": 1.0}


def test_what_a_reward_needs_that_is_not_saved_is_said(run: str, gymnast: CommandLine) -> None:
    ran = gymnast("rescore", run, "--reward", "grading.py:fails")
    assert ran.errors.splitlines()[-1].startswith("a reward function gets a Trajectory (messages")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("--reward grading.py:nothing", 2, "--reward grading.py:nothing: 'grading.py' has no "),
        ("--reward grading.py:two", 2, "--reward grading.py:two: must take one argument, the traj"),
        (
            "--reward grading.py:short --reward grading.py:two",
            2,
            "--reward grading.py:two: must take one argument",
        ),
        (
            "--reward {function:~exact,~colum:~city}",
            2,
            "--reward {function: exact, colum: city}: colum: unknown key; did you mean column?",
        ),
        (
            "--reward {function:~grading.py:short,~weight:~.nan}",
            2,
            "--reward {function: grading.py:short, weight: .nan}: weight: must be a finite number",
        ),
        (
            "--reward {function:~grading.py:short,~weight:~heavy}",
            2,
            "--reward {function: grading.py:short, weight: heavy}: weight: must be a finite "
            "number, such as 0.5, got 'heavy'",
        ),
        (
            "--reward grading.py:Game",
            2,
            "--reward grading.py:Game: must be a function of the trajectory or a rubric, and Game "
            "is an environment; write `def brief(trajectory)",
        ),
        ("--reward {function:", 2, "--reward: '{function:' is no YAML"),
        ("--reward {weight:1}", 2, "--reward: must be file.py:function, or {function:"),
        ("--reward grading.py:fails", 1, "rewards.fails: AttributeError: 'Trajectory' object"),
        ("--reward grading.py:short --output new.json", 2, "--output: must end in .parquet"),
        ("--reward grading.py:short --step 9", 2, "--step 9: the run has no training episodes"),
        ("--reward grading.py:short --max-reward nan", 2, "--max-reward: must be a number"),
        (
            "--reward grading.py:short --group 7",
            2,
            "none of the 4 training episodes matches; --group 7: is in no file. The groups: 0-1\n",
        ),
        (
            "--reward grading.py:short --output out/rollouts/step_00001.parquet",
            2,
            "--output: out/rollouts/step_00001.parquet is a file that is graded",
        ),
    ],
)
def test_mistakes_are_named(
    run: str, gymnast: CommandLine, options: str, code: int, said: str
) -> None:
    ran = gymnast("rescore", run, *(word.replace("~", " ") for word in options.split()))
    assert ran.code == code
    assert f"error: {said}" in ran.errors
