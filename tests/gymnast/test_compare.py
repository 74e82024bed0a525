"""`gymnast eval --compare`: what pairs, what is said of it, and what cannot be compared."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from chat_fixtures import Answer, Endpoint, says
from command_fixtures import CommandLine, Ran
from gymnast.trainers.evaluating.results import compare_sides
from gymnast.trainers.evaluating.sides import find_sides

ON_ARITHMETIC = ("--environment", "gymnast/Arithmetic-v0", "environment.max_turns=1")


def right(request: dict[str, Any], number: int) -> Answer:
    """The answer to a question of the environment."""
    asked = str(request["messages"][-1]["content"])
    first, word, second = re.findall(r"(\d+) (plus|times) (\d+)", asked)[0]
    result = int(first) + int(second) if word == "plus" else int(first) * int(second)
    return says(f"It is {result}.")


def wrong_at_times(request: dict[str, Any], number: int) -> Answer:
    """The answer to additions; no answer to multiplications."""
    times = " times " in str(request["messages"][-1]["content"])
    return says("I do not know.") if times else right(request, number)


@pytest.fixture
def evaluate(endpoint: Endpoint, gymnast: CommandLine) -> Any:
    def evaluated(folder: str, script: Any, *more: str) -> Ran:
        endpoint.script = script
        named = ("--endpoint", endpoint.url, "--model", folder, "--no-api-key")
        ended = gymnast("eval", *named, *ON_ARITHMETIC, "--output", folder, *more)
        assert ended.code == 0, ended.errors
        return ended

    return evaluated


def test_two_evaluations_are_compared_row_by_row(evaluate: Any, gymnast: CommandLine) -> None:
    evaluate("guess", wrong_at_times, "--rows", "8", "--group-size", "2")
    evaluate("know", right, "--rows", "10")
    compared = gymnast("eval", "--compare", "guess", "know")
    assert (compared.code, compared.errors) == (0, "")
    lines = compared.output.splitlines()
    assert lines[:2] == ["A  guess  guess", "B  know  know"]
    assert "A and B differ in evaluation.group_size: 2 and 1" in lines
    assert "A and B differ in evaluation.rows: 8 and 10" in lines
    assert not any("agent.model" in line for line in lines), "the models are named above"
    assert "B and A: 8 rows pair by row and seed (2 only in B)" in lines
    changed = [line for line in lines if re.match(r"row \d+ +\+1\.000 +0\.000 +1\.000", line)]
    assert changed and all(" times " in line for line in changed)
    *_, counts, header, rewards, _, said = lines
    assert header.split() == ["A", "B", "difference", "95%", "interval"]
    won = len(changed)
    assert counts == f"B - A: B better in {won} rows, A in 0, both alike in {8 - won}"
    assert 3 < won <= 5
    share = won / 8
    assert re.fullmatch(
        rf"  reward  {1 - share:.3f}  1\.000 +\+{share:.3f}  \[-?\d\.\d+, \d\.\d+\]", rewards
    )
    assert re.fullmatch(
        rf"B is better than A by {share:.3f} \[0\.\d+, \d\.\d+\], which is more than chance of "
        "rows and sampling",
        said,
    )

    turned = gymnast("eval", "--compare", "know", "guess", "-q")
    assert re.match(rf"B - A: reward -{share:.3f} \[.*\]  pass@1 -.*  rows 8\n$", turned.output)
    same = gymnast("eval", "--compare", "know", "know", "guess", "-v")
    alike = "B - A: B better in 0 rows, A in 0, both alike in 10\n"
    assert alike in same.output
    numbers = same.output.partition(alike)[2].splitlines()
    assert numbers[1:3] == [
        f"  {name}  1.000  1.000       0.000  -" for name in ("reward", "pass@1")
    ]
    assert numbers[3].startswith("C - A: C better in 0 rows, A in ")


def test_a_run_is_compared_with_itself_before_and_after(gymnast: CommandLine) -> None:
    assert gymnast("train", "run.yaml", "trainer.steps=1").code == 0
    compared = gymnast("eval", "--compare", "out")
    assert (compared.code, compared.errors) == (0, "")
    assert compared.output.startswith(
        "A  out after step 0  tiny:\nB  out after step 1  out/model\n"
    )
    assert "B and A: 3 rows pair by row and seed\n" in compared.output
    assert gymnast("eval", "out").code == 0  # of the trained model, on the same rows and seeds
    compared = gymnast("eval", "--compare", "out", "out/evaluations/001")
    assert "B and A: 3 rows pair by row and seed\n" in compared.output, compared.errors
    named = gymnast("eval", "--compare", "out/rollouts/eval_00000.parquet", "out")
    assert "B and A: 3 rows pair by row and seed\n" in named.output, named.errors
    assert named.output.startswith("A  out/rollouts/eval_00000.parquet  tiny:\n")


def test_a_run_that_stopped_after_its_warm_up_is_compared_before_and_after_it(
    gymnast: CommandLine,
) -> None:
    warmup = "warmup={demonstrations: solve, steps: 1, rows_per_step: 2}"
    assert gymnast("train", "run.yaml", "trainer.steps=1", warmup).code == 0
    for last in Path("out/rollouts").glob("eval_00001*"):
        last.unlink()
    compared = gymnast("eval", "--compare", "out")
    assert (compared.code, compared.errors) == (0, "")
    assert compared.output.startswith(
        "A  out before the warm-up  tiny:\nB  out after the warm-up\n"
    )
    assert "B and A: 3 rows pair by row and seed\n" in compared.output
    later = "B: out was trained to step 1, and this is its evaluation after its warm-up; "
    assert f"\n{later}evaluate what it has learned: gymnast eval out\n" in compared.output
    gymnast("eval", "run.yaml", "--output", "untrained")
    compared = gymnast("eval", "--compare", "untrained", "out")
    assert "B  out after the warm-up\n" in compared.output, compared.errors


def test_runs_name_what_they_differ_in_and_pair_by_row_where_their_seeds_differ(
    gymnast: CommandLine,
) -> None:
    short = ("train", "run.yaml", "trainer.steps=1")
    assert gymnast(*short, "output_dir=one").code == 0
    other = ("trainer.learning_rate=1e-2", "seed=1", "algorithm.kl={coefficient: 0.1}")
    assert gymnast(*short, "output_dir=two", *other).code == 0
    compared = gymnast("eval", "--compare", "one", "two")
    assert (compared.code, compared.errors) == (0, "")
    lines = compared.output.splitlines()
    assert "A and B differ in trainer.learning_rate: 0.001 and 0.01" in lines
    assert "A and B differ in algorithm.kl.coefficient: not set and 0.1" in lines
    assert "A and B differ in seed: 0 and 1" in lines
    assert not any("output_dir" in line for line in lines)
    assert (
        "B and A: 3 rows pair by row; the rows are the same, the seeds of sampling differ" in lines
    )
    assert lines[-1].startswith(("no difference between A and B", "A is better", "B is better"))
    assert gymnast("eval", "--compare", "one", "two", "-q").output.endswith("seeds differ\n")
    assert gymnast("eval", "one", "--output", "three").code == 0
    many = [
        "environment.context_length=690",
        "environment.max_turns=1",
        "evaluation.temperature=0.5",
    ]
    many += ["evaluation.top_k=5", "evaluation.top_p=0.5", "evaluation.min_p=0.1", "seed=1"]
    many += ["evaluation.pass_reward=0.5", "evaluation.group_size=2"]
    shown = gymnast("eval", "three", *many, "--output", "four")
    assert shown.code == 0, shown.errors
    found = gymnast("eval", "--compare", "three", "four").output.splitlines()
    assert sum("A and B differ in" in line for line in found) == 8
    assert "and in 1 more setting" in found
    found = gymnast("eval", "--compare", "three", "four", "-v").output.splitlines()
    assert sum("A and B differ in" in line for line in found) > 8


def test_a_run_that_was_not_evaluated_after_its_training_is_no_evaluation_of_what_it_learned(
    gymnast: CommandLine,
) -> None:
    for folder in ("one", "two"):
        assert gymnast("train", "run.yaml", "trainer.steps=1", f"output_dir={folder}").code == 0
    Path("two/rollouts/eval_00001.parquet").unlink()  # a run that is stopped leaves none
    early = "B: two was trained to step 1, and this is its evaluation before training; "
    compared = gymnast("eval", "--compare", "one", "two")
    assert compared.code == 0 and "B  two after step 0  tiny:\n" in compared.output
    note, verdict = compared.output.splitlines()[-2:]
    assert note == f"{early}evaluate what it has learned: gymnast eval two"
    assert "between A and B" in verdict or "better than" in verdict
    short = gymnast("eval", "--compare", "one", "two", "-q")
    assert (short.output.count("\n"), short.errors) == (1, f"{note}\n")
    Path("two/model").rename("gone")
    compared = gymnast("eval", "--compare", "one", "two")
    assert f"{early}it has not ended: gymnast train two/config.yaml --resume\n" in compared.output
    Path("gone").rename("two/model")
    assert gymnast("eval", "two").code == 0
    compared = gymnast("eval", "--compare", "one", "two")
    assert f"{early}a later one to name in its place: two/evaluations/001\n" in compared.output


def test_a_newer_evaluation_of_a_run_is_named(gymnast: CommandLine) -> None:
    for folder in ("one", "two"):
        assert gymnast("train", "run.yaml", "trainer.steps=1", f"output_dir={folder}").code == 0
    assert gymnast("eval", "one", "--rows", "5").code == 0
    shop = (
        "--environment",
        "shop.py:Shop",
        "--data",
        "rows.jsonl",
        "data.columns={prompt: q.text}",
    )
    other = gymnast("eval", "one", *shop, "environment.context_length=300")
    assert other.output.endswith(" are in one/evaluations/002\n"), other.errors
    compared = gymnast("eval", "--compare", "one", "two")
    assert compared.output.startswith("A  one after step 1  one/model\nB  two after step 1  ")
    assert "A: a newer evaluation of 5 rows is in one/evaluations/001\n" in compared.output
    assert "\nB: " not in compared.output


def test_evaluations_of_runs_differ_in_what_their_runs_do(gymnast: CommandLine) -> None:
    for folder, *more in (("one",), ("two", "trainer.learning_rate=1e-2")):
        train = ("train", "run.yaml", "trainer.steps=1", f"output_dir={folder}", *more)
        assert gymnast(*train).code == 0
        assert gymnast("eval", folder, "--rows", "4").code == 0
    compared = gymnast("eval", "--compare", "one/evaluations/001", "two/evaluations/001")
    different = [line for line in compared.output.splitlines() if " differ in " in line]
    assert different == ["A and B differ in trainer.learning_rate: 0.001 and 0.01"]
    assert compared.output.startswith("A  one/evaluations/001  one/model\nB  two/")
    own = gymnast("eval", "--compare", "one", "one/evaluations/001")
    different = [line for line in own.output.splitlines() if " differ in " in line]
    assert different == ["A and B differ in evaluation.rows: 3 and 4"]
    for first, second, of_runs in (
        ("one", "two", True),
        ("one/evaluations/001", "two", True),
        ("one", "one/evaluations/001", False),
    ):
        assert compare_sides(*find_sides([first, second])).of_runs == of_runs


def test_a_setting_that_is_left_out_differs_from_its_default(
    evaluate: Any, gymnast: CommandLine
) -> None:
    evaluate("left_out", right, "--rows", "2")
    evaluate("same", right, "--rows", "2", "environment.worked_turns=2")
    evaluate("none", right, "--rows", "2", "environment.worked_turns=0")
    compared = gymnast("eval", "--compare", "left_out", "same", "none")
    different = [line for line in compared.output.splitlines() if " differ in " in line]
    assert different == ["A and C differ in environment.worked_turns: 2 (default) and 0"]


def test_a_verdict_is_broken_between_words(
    evaluate: Any, gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, script in (("guess", wrong_at_times), ("know", right)):
        evaluate(folder, script, "--rows", "8")
    whole = gymnast("eval", "--compare", "guess", "know").output.splitlines()[-1]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    lines = gymnast("eval", "--compare", "guess", "know").output.splitlines()[-2:]
    assert all(len(line) <= 60 for line in lines)
    assert " ".join(line.strip() for line in lines) == whole


def test_what_does_not_pair_is_said_with_the_command_that_makes_it_pair(
    evaluate: Any, gymnast: CommandLine
) -> None:
    evaluate("guess", wrong_at_times, "--rows", "2")
    evaluate("rows", right, "--rows", "2", "evaluation.seed=1")
    refused = gymnast("eval", "--compare", "guess", "rows")
    assert refused.code == 2 and refused.errors.count("\n") == 1
    assert "guess and rows have no row in common, so none pair" in refused.errors
    command = refused.errors.rpartition(": gymnast ")[2]
    again = gymnast(*shlex.split(command))
    assert again.code == 0, again.errors
    place = again.output.splitlines()[-1].rpartition(" ")[2]
    assert place == "evaluations/rows_on_the_rows_of_guess", "a folder of neither"
    assert "2 rows pair" in gymnast("eval", "--compare", "guess", place).output
    refused = gymnast("eval", "--compare", "guess", "rows")
    assert refused.errors.endswith(f" --output {place}-2\n")


def test_a_model_here_can_follow_an_endpoint(evaluate: Any, gymnast: CommandLine) -> None:
    evaluate("guess", wrong_at_times, "--rows", "2")
    short = ("evaluation.max_new_tokens=4", "--rows", "1", "evaluation.seed=5")
    assert gymnast("eval", "tiny:", *ON_ARITHMETIC, *short, "--output", "tiny").code == 0
    refused = gymnast("eval", "--compare", "guess", "tiny")
    command = refused.errors.rpartition(": gymnast ")[2]
    again = gymnast(*shlex.split(command), "evaluation.max_new_tokens=4", "--output", "again")
    assert again.code == 0, again.errors
    assert "2 rows pair" in gymnast("eval", "--compare", "guess", "again").output


def test_what_cannot_be_compared_is_one_line(evaluate: Any, gymnast: CommandLine) -> None:
    evaluate("guess", wrong_at_times, "--rows", "2")
    rows = ("--data", "rows.jsonl", "data.columns={prompt: q.text}", "evaluation.max_new_tokens=4")
    shop = ("--environment", "shop.py:Shop", *rows, "environment.context_length=300")
    assert gymnast("eval", "tiny:", *shop, "--output", "shop").code == 0
    unkept = gymnast("eval", "run.yaml", "rollouts.keep=none", "--output", "unkept")
    assert unkept.code == 0
    Path("unended").mkdir()
    Path("unended/evaluation.json").write_text("{}")
    for arguments, said in (
        ([], "--compare: name the folders of two evaluations or runs, or of one run"),
        (["guess"], "--compare: guess is one evaluation; name another one to compare it with"),
        (["guess", "nope"], "nope: there is no such folder; name that of an evaluation or a run"),
        (
            ["guess", "run.yaml"],
            "--compare: run.yaml is no file of rollouts; name the folder of an",
        ),
        (["guess", "."], ".: has no evaluation; evaluate it with `gymnast eval .`"),
        (["guess", "unkept"], "unkept: has no episodes"),
        (["guess", "unended"], "unended: the evaluation has not ended; go on with `gymnast eval "),
        (["guess", "shop"], "--compare: guess was on gymnast/Arithmetic-v0, and shop on "),
        (["guess", "guess", "--rows", "3"], "--compare: compares what was evaluated; leave --rows"),
    ):
        refused = gymnast("eval", "--compare", *arguments)
        assert (refused.code, refused.errors.count("\n")) == (2, 1), refused.errors
        assert refused.errors.startswith(f"error: {said}"), refused.errors
