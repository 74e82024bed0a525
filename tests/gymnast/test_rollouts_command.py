"""`gymnast rollouts`: what it prints of the episodes that a run has saved."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from command_fixtures import CommandLine
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Branch, Span, StopReason
from saved_episodes import ASKED, answered, call, episode, said


@pytest.fixture
def run(shop_folder: Path) -> str:
    solved = episode(
        call("add", {"a": 2}),
        answered("5"),
        said("It is \x1b[31m5"),
        reward=1.0,
        metrics={"tools/calls/add": 1.0, "odd": math.nan},
        row={"kind": "sum", "a": 2},
        reward_parts={"right": 1.0, "brief": 0.0},
    )
    raw = {**call("", "oops", error="the call could not be read: no JSON"), "raw": "<call>oops"}
    failed = episode(
        raw,  # type: ignore[arg-type]
        metrics={"tools/errors/malformed": 1.0},
        row={"kind": "product"},
        stop_reason=StopReason.max_turns,
    )
    write_rollouts("out/rollouts/step_00001.parquet", [[solved, failed]])
    write_rollouts("out/rollouts/step_00002.parquet", [[failed], [solved]])
    write_rollouts("out/rollouts/eval_00002.parquet", [[episode(said("4"), no_reward=True)]])
    return "out"


def test_an_episode_is_printed_with_its_name_and_nothing_steers_the_terminal(
    run: str, gymnast: CommandLine
) -> None:
    ran = gymnast("rollouts", run, "--step", "1", "--min-reward", "0.5")
    assert ran.code == 0, ran.errors
    assert ran.output == (
        "step_00001/0/0  reward 1 (right 1, brief 0)  answered  2 turns\n"
        "[user]\nWhat is 2 plus 3?\n[assistant]\n-> add(a=2)\n[tool add]\n5\n"
        "[assistant]\nIt is \\x1b[31m5\n"
    )


def test_a_call_that_could_not_be_read_is_printed_as_it_was_written(
    run: str, gymnast: CommandLine
) -> None:
    ran = gymnast("rollouts", run, "--step", "2", "--error", "malformed")
    assert ran.output.endswith("[assistant]\n<call>oops\n   the call could not be read: no JSON\n")


def test_the_worked_turns_of_a_prompt_are_told_from_what_the_policy_said(
    run: str, gymnast: CommandLine
) -> None:
    worked = [call("add", {"a": 1}), answered("4"), said("4"), ASKED]
    played = replace(episode(*worked, said("5")), turns=[Span(0, 0)], turn_rewards=[0.0])
    write_rollouts("out/rollouts/step_00003.parquet", [[played]])
    shown = gymnast("rollouts", run, "--step", "3").output.splitlines()
    place = shown.index("--- the prompt, with its worked turns, ends here ---")
    assert shown[place - 1] == ASKED["content"] and shown[place + 1 :] == ["[assistant]", "5"]
    record = json.loads(gymnast("rollouts", run, "--step", "3", "--format", "json").output)
    assert record["prompt_messages"] == len(record["messages"]) - 1 == 5


def test_an_expression_that_takes_no_row_is_answered_with_the_columns(
    run: str, gymnast: CommandLine
) -> None:
    ran = gymnast("rollouts", run, "--where", "b>`1`")
    assert ran.errors == (
        "none of the 4 training episodes matches\n"
        "--where b>`1`: the columns of the rows are kind, a\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--tool ad", "--tool ad: is in no episode. Did you mean 'add'? The called tools: add"),
        (
            "--environment shop",
            "--environment shop: is in no episode. The named environments: none",
        ),
        ("--error timeout", "--error timeout: is in no episode. The errors: malformed"),
        (
            "--stop-reason timeout",
            "--stop-reason timeout: is in no episode. The stop reasons: answered, max_turns",
        ),
        ("--group 7", "--group 7: is in no file. The groups: 0-1"),
        (
            "--tag knd=3",
            "--tag knd=3: no row has this column. Did you mean 'kind'? The columns: kind, a",
        ),
        ("--tag a=3", "--tag a=3: no row has this value. Those of a: 2"),
        (
            "--min-reward 0.25 --max-reward 0.5",
            "--min-reward 0.25 --max-reward 0.5: no episode has such a reward; they are from 0 to "
            "1",
        ),
    ],
)
def test_what_no_episode_has_is_answered_with_what_they_have(
    run: str, gymnast: CommandLine, options: str, said: str
) -> None:
    ran = gymnast("rollouts", run, *options.split())
    assert (ran.code, ran.output) == (0, "")
    assert ran.errors == f"none of the 4 training episodes matches\n{said}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--step 7",
            "--step 7: the run has no training episodes of this step; it has those of steps 1-2\n",
        ),
        (
            "--step 3-4 --evaluations",
            "--step 3-4: the run has no evaluation episodes of these steps; it has those of st",
        ),
    ],
)
def test_a_step_that_a_run_has_not_is_answered_with_those_it_has(
    run: str, gymnast: CommandLine, options: str, said: str
) -> None:
    ran = gymnast("rollouts", run, *options.split())
    assert (ran.code, ran.output) == (0, "") and ran.errors.startswith(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--tag =3", "--tag: must be KEY=VALUE, a column of the rows, got '=3'"),
        ("--group -1", "--group: must be 0 or more, as groups count from 0, got -1"),
        ("--min-reward nan", "--min-reward: must be a number such as 0.5, got nan"),
    ],
)
def test_a_value_that_no_episode_can_have_is_refused(
    run: str, gymnast: CommandLine, options: str, said: str
) -> None:
    ran = gymnast("rollouts", run, *options.split())
    assert (ran.code, ran.output, ran.errors) == (2, "", f"error: {said}\n")


def names(output: str) -> list[str]:
    return [json.loads(line)["id"] for line in output.splitlines()]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("", ["step_00001/0/0", "step_00001/0/1", "step_00002/0/0", "step_00002/1/0"]),
        ("--step 2-5", ["step_00002/0/0", "step_00002/1/0"]),
        ("--max-reward 0 --group 0", ["step_00001/0/1", "step_00002/0/0"]),
        ("--stop-reason max_turns --step 1", ["step_00001/0/1"]),
        ("--tool add --step 2", ["step_00002/1/0"]),
        ("--tag kind=product --step 1", ["step_00001/0/1"]),
        ("--where a>`1` --step 1", ["step_00001/0/0"]),
        ("--search IT.IS --step 1", []),
        ("--search it --step 1", ["step_00001/0/0"]),
        ("--evaluations", ["eval_00002/0/0"]),
    ],
)
def test_filters_choose_what_is_printed(
    run: str, gymnast: CommandLine, options: str, found: list[str]
) -> None:
    ran = gymnast("rollouts", run, "--format", "json", *options.split())
    assert (ran.code, names(ran.output)) == (0, found), ran.errors


def test_named_episodes_are_printed_whatever_they_are_of(run: str, gymnast: CommandLine) -> None:
    asked = ("eval_00002/0/0", "step_00001/0/1")
    ran = gymnast("rollouts", run, *asked, "--format", "json", "--limit", "1")
    assert (ran.code, names(ran.output), ran.errors) == (0, [*asked], "")
    ran = gymnast("rollouts", run, "step_00001/0/1", "--why")
    assert ran.output.startswith("1 episode, of which 1 earned nothing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("step_00001/0/7", "step_00001/0/7: there is no such episode; group 0 has members 0-1"),
        ("step_00009/0/0", "step_00009/0/0: out has no file 'step_00009'; it has step_00001, "),
        ("7", "'7': names no episode; write FILE/GROUP/MEMBER, as step_00001/0/0"),
        ("step_00001/0/0 --step 1", "NAME: names single episodes; give names, or options"),
        ("step_00001/0/0 --evaluations", "NAME: names single episodes; give names, or options"),
    ],
)
def test_a_name_that_names_none_says_which_there_are(
    run: str, gymnast: CommandLine, arguments: str, message: str
) -> None:
    ran = gymnast("rollouts", run, *arguments.split())
    assert (ran.code, ran.output) == (2, "")
    assert ran.errors.startswith(f"error: {message}")


def test_json_is_one_object_a_line_without_nan(run: str, gymnast: CommandLine) -> None:
    ran = gymnast("rollouts", run, "--limit", "1", "--format", "json")
    record = json.loads(ran.output, parse_constant=lambda name: pytest.fail(name))
    assert record["metrics"] == {"tools/calls/add": 1.0, "odd": None}
    assert record["messages"][-1]["content"] == "It is \x1b[31m5"
    assert record["turns"] == 2
    assert "\x1b" not in ran.output
    assert ran.errors == "1 of 4 episodes; --limit 4 prints all\n"


def test_it_says_how_many_more_there_are(run: str, gymnast: CommandLine) -> None:
    ran = gymnast("rollouts", run, "--limit", "1")
    assert ran.output.splitlines()[-1] == "1 of 4 episodes; --limit 4 prints all"
    assert gymnast("rollouts", run, "--limit", "0").output == ("4 episodes; --limit 4 prints all\n")


def test_a_run_without_evaluations_is_said_to_have_none(run: str, gymnast: CommandLine) -> None:
    Path(run, "rollouts/eval_00002.parquet").unlink()
    ran = gymnast("rollouts", run, "--evaluations")
    assert (ran.code, ran.output, ran.errors) == (0, "", "the run has no evaluation episodes\n")


def test_the_contexts_of_a_program_are_printed_one_by_one(
    shop_folder: Path, gymnast: CommandLine
) -> None:
    branch = Branch([], [], [], 0, [Span(0, 0)], [1.0], messages=[said("in another")])
    write_rollouts(
        "out/rollouts/eval_00000.parquet",
        [[episode(said("at first"), branches=[branch], order=[0, 1])]],
    )
    ran = gymnast("rollouts", "out")  # which has evaluations alone
    assert "context 0\n[user]" in ran.output
    assert ran.output.endswith("context 1\n[assistant]\nin another\n")
    ran = gymnast("rollouts", "out", "--format", "json", "--tokens")
    record = json.loads(ran.output)
    assert (record["order"], record["branches"][0]["tokens"]) == ([0, 1], [])


def test_why_the_reward_is_zero_is_told_with_examples(run: str, gymnast: CommandLine) -> None:
    advice = {"step": 2, "cause": "malformed calls", "text": "100% of the calls", "page": "x.md"}
    Path(run, "advice.jsonl").write_text(json.dumps(advice) + "\n{torn")
    ran = gymnast("rollouts", run, "--why")
    assert (ran.code, ran.errors) == (0, "")
    assert ran.output == (
        "4 episodes, of which 2 earned nothing; mean reward 0.5\n\n"
        "malformed calls: 2 (100%). The last calls could not be read. "
        "Demonstrations of the right form help most.\n"
        "      2  the call could not be read: no JSON  (step_00001/0/1)\n"
        '         "<call>oops"\n'
        "  further examples: step_00002/0/0\n\n"
        "advice given during the run:\nstep 2, malformed calls: 100% of the calls\n"
        "docs/learning.md says more\n\n"
        "to read an episode: gymnast rollouts out step_00001/0/1\n"
    )
    found = json.loads(gymnast("rollouts", run, "--why", "--format", "json").output)
    assert found["causes"][0]["mistakes"][0]["count"] == found["unpaid"] == 2
    assert (
        "4 episodes, of which 4 earned at most 1;"
        in gymnast("rollouts", run, "--why", "--max-reward", "1").output
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--step 3-1", "--step: must be a step or a range of them, as 7 or 3-7, got '3-1'"),
        ("--tag kind", "--tag: must be KEY=VALUE, a column of the rows, got 'kind'"),
        ("--where a>", "--where: must be a jmespath expression"),
        (
            "--error malfored",
            "--error: must be one of malformed, unknown_tool, bad_arguments, exception, timeout, "
            "bug, got 'malfored'. Did you mean 'malformed'?",
        ),
        (
            "--stop-reason contxt",
            "--stop-reason: must be one of answered, stop_tool, environment, max_turns, "
            "max_tokens, context, timeout, error, got 'contxt'. Did you mean 'context'?",
        ),
        ("--format xml", "--format: must be text or json, got 'xml'"),
    ],
)
def test_mistakes_are_named_by_the_option(
    run: str, gymnast: CommandLine, options: str, said: str
) -> None:
    ran = gymnast("rollouts", run, *options.split())
    assert ran.code == 2
    assert ran.errors.startswith(f"error: {said}")


def test_a_folder_without_episodes_is_named(gymnast: CommandLine) -> None:
    ran = gymnast("rollouts", ".")
    assert ran.code == 2 and "has no saved episodes" in ran.errors
