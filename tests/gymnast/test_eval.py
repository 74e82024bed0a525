"""`gymnast eval` of a model or an endpoint without a YAML: results, their places, and going on."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from chat_fixtures import KEY, Answer, Endpoint, refuses, says
from command_fixtures import CommandLine
from gymnast.trainers import load_config, load_rollouts
from gymnast.types import Trajectory

ON_ARITHMETIC = ("--environment", "gymnast/Arithmetic-v0", "environment.max_turns=2")
LONGEST_S = 60  # for a process that is to be killed
COUNT = '''\
from pathlib import Path
from gymnast.envs import Environment

class Count(Environment):
    """Count."""

    def __init__(self, **settings):
        rows = [{"prompt": f"Count to {n}.", "n": n} for n in range(5)]
        super().__init__(rows=rows, **settings)

    def reward(self, episode):
        said = str(episode.messages[-1]["content"])
        if said and self.row["n"] == 3 and Path("broken").exists():
            raise OSError("the shop is closed")
        return len(said) / 7 + self.row["n"]
'''


def asked(endpoint: Endpoint, *more: str) -> tuple[str, ...]:
    named = ("--endpoint", endpoint.url, "--model", "m", "--api-key-env", "TEST_KEY")
    return ("eval", *named, *ON_ARITHMETIC, *more)


def metrics_of(folder: str | Path) -> dict[str, Any]:
    (line,) = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return {name: number for name, number in json.loads(line).items() if "time/" not in name}


def without_times(trajectory: Trajectory) -> dict[str, Any]:
    fields = dict(vars(trajectory))
    kept = {name: n for name, n in trajectory.metrics.items() if not name.startswith("time/")}
    return fields | {"metrics": kept}


def episodes_of(folder: str | Path) -> list[tuple[int, int, dict[str, Any]]]:
    return [
        (saved.group, saved.member, without_times(saved.trajectory))
        for saved in load_rollouts(folder, evaluations=True)
    ]


# --- What is evaluated, and where it goes


def test_a_model_is_evaluated_without_a_yaml_and_once_more(gymnast: CommandLine) -> None:
    short = "evaluation.max_new_tokens=8"
    first = gymnast("eval", "tiny:", *ON_ARITHMETIC, "--rows", "3", "--group-size", "2", short)
    folder = Path("evaluations/tiny_Arithmetic-v0/001")
    assert (first.code, first.errors) == (0, "")
    assert first.output.endswith(f"\nmetrics and episodes are in {folder}\n")
    names = {"config.yaml", "environment.json", "evaluation.json", "metrics.jsonl", "rollouts"}
    assert {path.name for path in folder.iterdir()} == names
    config = load_config(folder / "config.yaml")
    assert (config.evaluation.rows, config.evaluation.group_size) == (3, 2)
    assert config.environment.settings == {"max_turns": 2}

    again = gymnast("eval", str(folder), "-q")
    assert again.output.startswith("reward ") and again.output.count("\n") == 1
    assert again.output.endswith(" in evaluations/tiny_Arithmetic-v0/002\n")
    assert metrics_of(folder) == metrics_of(folder.with_name("002"))
    assert episodes_of(folder) == episodes_of(folder.with_name("002"))


def test_a_run_is_evaluated_on_another_environment_and_a_model_of_it_by_its_folder(
    gymnast: CommandLine,
) -> None:
    assert gymnast("train", "run.yaml", "trainer.steps=1").code == 0
    Path("count.py").write_text(COUNT)
    on_count = ("--environment", "count.py:Count", "evaluation.max_new_tokens=4")
    ended = gymnast("eval", "out", *on_count)
    assert (ended.code, ended.errors) == (0, "")
    assert metrics_of("out/evaluations/001")["eval/rows"] == 5  # all that there are
    ended = gymnast("eval", "out/model", *on_count, "environment.context_length=300")
    assert ended.output.endswith(" evaluations/out_Count/001\n"), ended.errors
    assert metrics_of("out/evaluations/001") == metrics_of("evaluations/out_Count/001")


def test_all_rows_of_a_file_are_evaluated_in_the_folder_that_is_named(gymnast: CommandLine) -> None:
    rows = ("--data", "rows.jsonl", "data.columns={prompt: q.text}")
    short = ("evaluation.max_new_tokens=4", "environment.context_length=300")
    ended = gymnast(
        "eval", "tiny:", "--environment", "shop.py:Shop", *rows, *short, "--output", "mine"
    )
    assert (ended.code, ended.errors) == (0, "")
    assert metrics_of("mine")["eval/reward/mean"] == 1.5
    assert not Path("evaluations").exists()
    again = gymnast("eval", "mine")
    assert again.output.endswith(" are in mine-2\n"), again.errors
    over = gymnast("eval", "mine", "--resume")
    assert over.code == 2 and "the evaluation in mine has ended; leave --resume out" in over.errors


def test_an_endpoint_is_evaluated_without_a_yaml(endpoint: Endpoint, gymnast: CommandLine) -> None:
    endpoint.answers(says("It is 42.", usage=(1000, 10)))
    ended = gymnast(*asked(endpoint, "--rows", "2", "agent.prompt_price=5.0"))
    assert (ended.code, ended.errors) == (0, "")
    *_, header, numbers, last = ended.output.splitlines()
    assert header.split()[-5:] == ["prompt", "tokens", "completion", "tokens", "cost"]
    assert numbers.split()[-3:] == ["2000", "20", "0.01"]
    assert last == "metrics and episodes are in evaluations/m_Arithmetic-v0/001"
    kept = [path for path in Path("evaluations").rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if KEY.encode() in path.read_bytes()]


def test_an_endpoint_plays_the_rows_of_a_run(endpoint: Endpoint, gymnast: CommandLine) -> None:
    endpoint.answers(says("It is 42."))
    served = ("--endpoint", endpoint.url, "--model", "m", "--no-api-key")
    ended = gymnast("eval", "run.yaml", *served, "agent.attempts=1")
    assert ended.output.endswith(" are in out/evaluations/001\n"), ended.errors
    assert gymnast("eval", "run.yaml").code == 0
    of_endpoint, of_model = (
        [(each.trajectory.row, each.trajectory.seed) for each in load_rollouts(f, evaluations=True)]
        for f in ("out/evaluations/001", "out/evaluations/002")
    )
    assert of_endpoint == of_model


def test_an_endpoint_without_a_key_is_evaluated_once_more_by_its_folder(
    endpoint: Endpoint, gymnast: CommandLine
) -> None:
    endpoint.script = scripted
    served = ("--endpoint", endpoint.url, "--model", "m", "--no-api-key")
    assert gymnast("eval", *served, *ON_ARITHMETIC, "--rows", "2", "--output", "first").code == 0
    again = gymnast("eval", "first", "--output", "second")
    assert (again.code, again.errors) == (0, "")
    assert episodes_of("first") == episodes_of("second")


# --- Going on


def scripted(request: dict[str, Any], number: int) -> Answer:
    """An answer that depends on the request alone."""
    asked = str(request["messages"][-1]["content"])
    return says(f"It is {sum(map(ord, asked)) % 50}.", usage=(len(asked), 3))


def test_an_evaluation_that_was_killed_goes_on_and_comes_to_the_same(
    endpoint: Endpoint, gymnast: CommandLine
) -> None:
    size = ("--rows", "4", "--group-size", "3", "trainer.concurrency=2")
    endpoint.script = scripted
    whole = gymnast(*asked(endpoint, *size, "--output", "whole"))
    assert whole.code == 0, whole.errors
    assert len(endpoint.requests) == 12
    endpoint.requests.clear()
    seven = threading.Event()

    def until_seven(request: dict[str, Any], number: int) -> Answer:
        if number < 7:
            return scripted(request, number)
        seven.set()
        return Answer(None, hang=True)

    endpoint.script = until_seven
    process = subprocess.Popen(
        [sys.executable, "-m", "gymnast", *asked(endpoint, *size)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert seven.wait(LONGEST_S)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    folder = Path("evaluations/m_Arithmetic-v0/001")
    assert not (folder / "metrics.jsonl").exists() and not (folder / "rollouts").exists()
    endpoint.requests.clear()
    endpoint.script = scripted
    other = gymnast(*asked(endpoint, "--rows", "4", "--group-size", "2", "--resume"))
    assert (other.code, other.output) == (2, "")
    assert "evaluation.group_size: is 2, and the evaluation in " in other.errors
    assert f"go on with `gymnast eval {folder} --resume`, or leave --resume out\n" in other.errors
    other = gymnast(*asked(endpoint, "--rows", "5", "--group-size", "3", "--resume"))
    assert (other.code, other.errors) == (
        2,
        f"error: --resume: the evaluation in {folder} began with 4 rows, now there are 5: say "
        f"--rows 4, or go on with `gymnast eval {folder} --resume`\n",
    )
    assert len(endpoint.requests) == 0
    for place, *command in ((folder, "rollouts"), (folder.absolute(), "view", "--html", "x.html")):
        unended = gymnast(*command, str(place))
        assert (unended.code, unended.errors) == (
            2,
            f"error: {place}: the evaluation has not ended; go on with `gymnast eval {place} "
            "--resume`\n",
        )

    resumed = gymnast(*asked(endpoint, *size, "--resume"))
    assert (resumed.code, resumed.errors) == (0, "")
    assert re.match(r"going on: [567] of 12 episodes are there\n", resumed.output)
    assert 12 - 7 <= len(endpoint.requests) <= 12 - 7 + 2  # two at once were under way
    assert resumed.output.endswith(f" are in {folder}\n")
    assert metrics_of(folder) == metrics_of("whole")
    assert episodes_of(folder) == episodes_of("whole")
    assert not (folder / "episodes").exists()


def test_other_data_is_told_from_other_numbers_of_rows(gymnast: CommandLine) -> None:
    Path("count.py").write_text(COUNT)
    rows = Path("mine.jsonl")
    rows.write_text("".join(f'{{"prompt": "Count to {n}.", "n": {n}}}\n' for n in range(4)))
    short = ("evaluation.max_new_tokens=4", "--data", str(rows), "trainer.concurrency=1")
    command = ("eval", "tiny:", "--environment", "count.py:Count", *short, "--output", "mine")
    Path("broken").touch()
    assert gymnast(*command).code == 1
    rows.write_text(rows.read_text().replace("Count to 2.", "Count to two."))
    refused = gymnast(*command, "--resume")
    assert (refused.code, refused.errors) == (
        2,
        "error: --resume: the evaluation in mine began with other rows: the data is not as it was; "
        "leave --resume out to evaluate anew\n",
    )


def test_ctrl_c_says_how_to_go_on(endpoint: Endpoint, gymnast: CommandLine) -> None:
    two = threading.Event()

    def until_two(request: dict[str, Any], number: int) -> Answer:
        if number < 2:
            return scripted(request, number)
        two.set()
        return Answer(None, hang=True)

    endpoint.script = until_two
    command = asked(endpoint, "--rows", "4", "--output", "mine", "trainer.concurrency=1")
    process = subprocess.Popen(
        [sys.executable, "-m", "gymnast", *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert two.wait(LONGEST_S)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=LONGEST_S)
    finally:
        process.kill()
    assert (process.returncode, said) == (130, "")
    assert errors.endswith(
        "the episodes that are over are kept; to go on: gymnast eval mine --resume\ninterrupted\n"
    )
    endpoint.requests.clear()
    endpoint.script = scripted
    assert gymnast("eval", "mine", "--resume").code == 0
    assert len(endpoint.requests) == 2


def test_an_evaluation_that_failed_keeps_what_it_played(gymnast: CommandLine) -> None:
    Path("count.py").write_text(COUNT)
    target = ("tiny:", "--environment", "count.py:Count", "--group-size", "2")
    short = ("evaluation.max_new_tokens=4", "trainer.concurrency=1")
    command = ("eval", *target, *short, "--output", "mine")
    Path("broken").touch()
    failed = gymnast(*command)
    assert failed.code == 1 and "the shop is closed" in failed.errors
    assert failed.errors.endswith(
        "the episodes that are over are kept; to go on: gymnast eval mine --resume\n"
    )
    refused = gymnast(*command)
    assert refused.code == 2
    assert "--output: mine is a folder with files in it; continue it with --resume" in (
        refused.errors
    )
    Path("broken").unlink()
    resumed = gymnast("eval", "mine", "--resume")
    assert (resumed.code, resumed.errors) == (0, "")
    assert gymnast(*command[:-1], "other").code == 0
    assert metrics_of("mine") == metrics_of("other")
    assert episodes_of("mine") == episodes_of("other")


def test_nothing_is_kept_of_episodes_where_a_run_keeps_none(gymnast: CommandLine) -> None:
    ended = gymnast("eval", "run.yaml", "rollouts.keep=none")
    assert ended.code == 0, ended.errors
    names = {"config.yaml", "environment.json", "evaluation.json", "metrics.jsonl"}
    assert {path.name for path in Path("out/evaluations/001").iterdir()} == names


# --- Mistakes


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (refuses(401, f"bad key {KEY}"), 2, "refuses the key in TEST_KEY"),
        (refuses(404, "no model m"), 2, "is not there: no model m"),
    ],
)
def test_an_endpoint_that_refuses_is_one_line_and_leaves_nothing(
    answer: Answer, code: int, said: str, endpoint: Endpoint, gymnast: CommandLine
) -> None:
    endpoint.answers(answer)
    ended = gymnast(*asked(endpoint, "--rows", "2"))
    assert ended.code == code and said in ended.errors and ended.errors.count("\n") == 1
    assert KEY not in ended.errors and not Path("evaluations").exists()


def test_an_endpoint_that_is_not_there_is_one_line_before_anything_is_played(
    gymnast: CommandLine,
) -> None:
    dead = ("--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--no-api-key")
    ended = gymnast("eval", *dead, *ON_ARITHMETIC, "--rows", "1")
    assert (ended.code, ended.output) == (2, "")
    assert ended.errors == (
        "error: endpoint: nothing answers at http://127.0.0.1:9/v1 (connection refused); is the "
        "server running, and are host and port right?\n"
    )
    assert not Path("evaluations").exists()


def test_an_endpoint_that_is_broken_is_said_in_a_line(
    endpoint: Endpoint, gymnast: CommandLine
) -> None:
    endpoint.answers(refuses(500, "out of order"))
    served = ("--endpoint", endpoint.url, "--model", "m", "--no-api-key")
    ended = gymnast("eval", *served, *ON_ARITHMETIC, "--rows", "1", "agent.attempts=1")
    assert ended.code == 1 and "m at 127.0.0.1:" in ended.errors
    assert "Traceback" not in ended.errors and not Path("evaluations").exists()


def test_a_url_without_its_path_is_asked_whether_it_ends_in_v1(
    endpoint: Endpoint, gymnast: CommandLine
) -> None:
    endpoint.answers(refuses(404, "Not Found"))
    short = endpoint.url.removesuffix("/v1")
    served = ("--endpoint", f"{short}/", "--model", "m", "--no-api-key")
    ended = gymnast("eval", *served, *ON_ARITHMETIC, "--rows", "1")
    assert (ended.code, ended.errors) == (
        2,
        f"error: endpoint: {short} answers with status 404 (Not Found); does its URL end in /v1: "
        f"{short}/v1?\n",
    )


def test_a_key_that_is_not_set_is_said_before_anything_is_asked(
    endpoint: Endpoint, gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_KEY")
    ended = gymnast(*asked(endpoint))
    assert ended.code == 2 and "variable TEST_KEY is not set" in ended.errors
    assert not endpoint.requests


def test_a_missing_key_names_the_option_for_an_endpoint_without_one(
    endpoint: Endpoint, gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    served = ("--endpoint", endpoint.url, "--model", "m")
    refused = gymnast("eval", *served, "--environment", "gymnast/Arithmetic-v0")
    assert (refused.code, refused.errors.count("\n")) == (2, 1)
    assert "--no-api-key, says that the endpoint asks for no key" in refused.errors
