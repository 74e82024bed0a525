"""`gymnast eval --compare`: what pairs, what is said of it, and what cannot be compared."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from chat_fixtures import Answer, Endpoint, says
from command_fixtures import CommandLine, Ran

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
    assert "they differ: evaluation.group_size is 2 in guess, 1 in know" in lines
    assert "B and A: 8 rows pair by row and seed (2 only in B)" in lines
    changed = [line for line in lines if re.match(r"row \d+ +\+1\.000 +0\.000 +1\.000", line)]
    assert changed and all(" times " in line for line in changed)
    *_, header, numbers = lines
    assert header.startswith("95% intervals") and header.endswith("won/tied/lost")
    won = numbers.split()[-1].split("/")
    assert int(won[0]) == len(changed) <= 5 and won[2] == "0"
    share = int(won[0]) / 8
    assert re.search(rf"A {1 - share:.3f} +B 1\.000 +\+{share:.3f} \[-?\d\.\d+, \d\.\d+\]", numbers)

    turned = gymnast("eval", "--compare", "know", "guess", "-q")
    assert re.match(rf"B - A: reward -{share:.3f} \[.*\]  pass@1 -.*  rows 8\n$", turned.output)
    same = gymnast("eval", "--compare", "know", "know", "guess", "-v")
    assert "B - A  all rows    10  A 1.000  B 1.000  0.000 " in same.output
    assert "C - A  all rows     8" in same.output


def test_a_run_is_compared_with_itself_before_and_after(gymnast: CommandLine) -> None:
    assert gymnast("train", "run.yaml", "trainer.steps=1").code == 0
    compared = gymnast("eval", "--compare", "out")
    assert (compared.code, compared.errors) == (0, "")
    assert compared.output.startswith(
        "A  out after step 0  out/model\nB  out after step 1  out/model\n"
    )
    assert "B and A: 3 rows pair by row and seed\n" in compared.output
    assert gymnast("eval", "out").code == 0  # of the trained model, on the same rows and seeds
    compared = gymnast("eval", "--compare", "out", "out/evaluations/001")
    assert "B and A: 3 rows pair by row and seed\n" in compared.output, compared.errors
    named = gymnast("eval", "--compare", "out/rollouts/eval_00000.parquet", "out")
    assert "B and A: 3 rows pair by row and seed\n" in named.output, named.errors


def test_what_does_not_pair_is_said_with_the_command_that_makes_it_pair(
    evaluate: Any, gymnast: CommandLine
) -> None:
    evaluate("guess", wrong_at_times, "--rows", "2")
    evaluate("rows", right, "--rows", "2", "evaluation.seed=1")
    evaluate("seeds", right, "--rows", "2", "seed=1")
    refused = gymnast("eval", "--compare", "guess", "rows")
    assert refused.code == 2 and refused.errors.count("\n") == 1
    assert "guess and rows have no row in common, so none pair" in refused.errors
    refused = gymnast("eval", "--compare", "guess", "seeds")
    assert (
        "guess and seeds have the same rows, but played them with different seeds (seed is 0 and "
        "1), so none pair"
    ) in refused.errors
    command = refused.errors.rpartition(": gymnast ")[2]
    again = gymnast(*shlex.split(command), "--output", "again")
    assert again.code == 0, again.errors
    assert "2 rows pair" in gymnast("eval", "--compare", "guess", "again").output


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
        (["guess", "."], ".: has no evaluation; evaluate it with `gymnast eval .`"),
        (["guess", "unkept"], "unkept: has no episodes"),
        (["guess", "unended"], "unended: the evaluation has not ended; go on with `gymnast eval "),
        (["guess", "shop"], "--compare: guess was on gymnast/Arithmetic-v0, and shop on "),
        (["guess", "guess", "--rows", "3"], "--compare: compares what was evaluated; leave --rows"),
    ):
        refused = gymnast("eval", "--compare", *arguments)
        assert (refused.code, refused.errors.count("\n")) == (2, 1), refused.errors
        assert refused.errors.startswith(f"error: {said}"), refused.errors
