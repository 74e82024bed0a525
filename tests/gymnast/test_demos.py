"""`gymnast demos`: what it prints and writes, from a solution and from saved rollouts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from command_fixtures import CommandLine
from gymnast.trainers.saving.rollout_files import read_rollouts, write_rollouts
from gymnast.types import Span, StopReason, Trajectory

STORE = '''\
from gymnast.envs import Environment, call, tool

class Store(Environment):
    @tool
    def price(self, fruit: str) -> int:
        """Look up what a fruit costs."""
        return self.row["prices"][fruit]

    def reward(self, episode):
        return float(str(self.row["answer"]) in episode.answer)

    def solve(self, row):
        [price] = yield call("price", fruit=row["fruit"])
        yield f"It costs {price['content']} cents."
'''
ROWS = """\
{"prompt": "What does a fig cost?", "fruit": "fig", "prices": {"fig": 12}, "answer": 12}
{"prompt": "What does a plum cost?", "fruit": "plum", "prices": {"fig": 7}, "answer": 7}
{"prompt": "What does a pear cost?", "fruit": "pear", "prices": {"pear": 9}, "answer": 10}
"""


@pytest.fixture
def store(shop_folder: Path) -> Path:
    (shop_folder / "store.py").write_text(STORE)
    (shop_folder / "prices.jsonl").write_text(ROWS)
    return shop_folder


def test_the_rows_that_are_solved_are_written_and_the_others_named(
    store: Path, gymnast: CommandLine
) -> None:
    ran = gymnast("demos", "store.py:Store", "--data", "prices.jsonl", "--out", "new/kept.parquet")
    assert ran.code == 0, ran.errors
    assert ran.output == (
        "played 3 rows: 2 to their end; mean reward 0.5; 2 turns (at most 2); calls: price 2\n"
        "1 demonstration is in new/kept.parquet; left out: 1 failed, 1 with less than 1\n"
    )
    assert ran.errors.splitlines() == [
        "row 1 (What does a plum cost?): Store.solve: message 1: the call price(fruit='plum') "
        "failed: price: KeyError: 'plum'",
        "row 2 (What does a pear cost?): reward 0, not 1 (answered after 2 turns)",
    ]

    [saved] = read_rollouts("new/kept.parquet")
    assert saved.trajectory.reward == 1.0
    assert [m["role"] for m in saved.trajectory.messages] == [
        *("user", "assistant", "tool", "assistant")
    ]
    assert saved.trajectory.ids == [] and saved.tokenizer is None
    assert saved.trajectory.tools[0]["function"]["name"] == "price"


def test_rows_of_its_own_are_drawn_by_a_seed(gymnast: CommandLine) -> None:
    def questions(*options: str) -> list[str]:
        ran = gymnast("demos", "gymnast/Arithmetic-v0", "worked_turns=0", "--rows", "5", *options)
        assert ran.code == 0, ran.errors
        assert "played 5 rows: 5 to their end; mean reward 1; 2 turns" in ran.output
        return [
            str(each.trajectory.messages[0]["content"]) for each in read_rollouts("demos.parquet")
        ]

    first = questions()
    assert len(set(first)) == 5
    assert questions() == first
    assert not {*questions("--seed", "1")} & {*first}


def test_worked_turns_in_the_prompt_are_not_counted_as_calls(gymnast: CommandLine) -> None:
    ran = gymnast("demos", "gymnast/Arithmetic-v0", "worked_turns=2", "--rows", "1")
    calls = ran.output.partition("calls: ")[2].splitlines()[0]
    assert calls in ("add 1", "multiply 1")


def trajectory(reward: float, ids: list[int], *, no_reward: bool = False) -> Trajectory:
    count = len(ids)
    return Trajectory(
        ids=ids,
        action_mask=[0, *[1] * (count - 1)],
        logprobs=[0.0, *[-1.0] * (count - 1)],
        prompt_length=1,
        turns=[Span(1, count)],
        turn_rewards=[reward],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        messages=[{"role": "user", "content": "Go"}, {"role": "assistant", "content": "é"}],
        no_reward=no_reward,
    )


def test_the_best_of_a_run_are_taken_as_they_are(
    gymnast: CommandLine, encode: Callable[[str], list[int]], tokenizer: object
) -> None:
    ids = encode("Go é")
    good, poor = trajectory(1.0, ids), trajectory(0.4, ids)
    unknown = trajectory(1.0, ids, no_reward=True)
    write_rollouts("out/rollouts/step_00001.parquet", [[poor, good]], tokenizer=tokenizer)
    write_rollouts("out/rollouts/step_00002.parquet", [[good], [unknown]], tokenizer=tokenizer)
    write_rollouts("out/rollouts/eval_00000.parquet", [[good]], tokenizer=tokenizer)

    ran = gymnast("demos", "--from", "out", "--min-reward", "0.5")
    assert (ran.code, ran.output) == (0, "2 demonstrations, of 4 episodes, are in demos.parquet\n")
    [before] = read_rollouts("out/rollouts/eval_00000.parquet")
    for saved in read_rollouts("demos.parquet"):
        assert saved.trajectory == good
        assert (saved.tokenizer, saved.text) == (before.tokenizer, before.text)
        assert saved.token_ends == before.token_ends and saved.tokenizer is not None

    ran = gymnast("demos", "--from", "out/rollouts/step_00001.parquet", "--out", "one.parquet")
    assert ran.output == "1 demonstration, of 2 episodes, is in one.parquet\n"
    ran = gymnast("demos", "--from", "out", "--min-reward", "2")
    assert ran.code == 1
    assert ran.errors.startswith("failed: none of 4 episodes has a reward of at least 2, so ")


def test_rollouts_of_two_tokenizers_are_taken_one_by_one(
    gymnast: CommandLine, encode: Callable[[str], list[int]], tokenizer: object
) -> None:
    good = trajectory(1.0, encode("Go"))
    write_rollouts("out/rollouts/step_00001.parquet", [[good]], tokenizer=tokenizer)
    write_rollouts("out/rollouts/step_00002.parquet", [[good]])
    ran = gymnast("demos", "--from", "out")
    assert ran.code == 2 and not Path("demos.parquet").exists()
    assert "of 2 (in step_00001, step_00002, for example); take the files of rollouts" in ran.errors
    assert gymnast("demos", "--from", "out/rollouts/step_00002.parquet").code == 0


LONG = """\
from gymnast.envs import Environment

class Long(Environment):
    def setup(self, row):
        return [{"role": "user", "content": row["text"]}]

    def reward(self, episode):
        return 1.0

    def solve(self, row):
        if row["text"] == "ask":
            yield input()
        raise ValueError("first line\\n" + 1000 * "x")
"""


def test_a_long_row_is_one_short_line_and_input_ends_at_once(
    shop_folder: Path, gymnast: CommandLine
) -> None:
    (shop_folder / "long.py").write_text(LONG)
    rows = [{"text": "ask"}, {"text": 1000 * "word "}]
    (shop_folder / "long.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ran = gymnast("demos", "long.py:Long", "--data", "long.jsonl")
    asked, raised, failed = ran.errors.splitlines()
    assert asked == "row 0 ({'text': 'ask'}): Long.solve: EOFError: EOF when reading a line"
    assert raised.startswith("row 1 ({'text': 'word word word")
    assert "...): Long.solve: ValueError: first line xxx" in raised and len(raised) < 400
    assert failed == "failed: none of 2 rows was played to its end, so demos.parquet is not written"
    assert (ran.code, ran.output) == (1, "played 2 rows: 0 to their end\n")


def test_the_rollouts_of_an_earlier_version_are_taken_too(gymnast: CommandLine) -> None:
    span = {"prompt_length": 1, "turns": [[1, 3]], "terminated": True, "truncated": False}
    tokens = {"ids": [1, 2, 3], "action_mask": [0, 1, 1], "logprobs": [0.0, -1.0, None]}
    said = {"messages": [{"role": "user", "content": "Go"}], "stop_reason": "answered"}
    lines = [
        {**tokens, **span, **said, "turn_rewards": [reward], "group": 0} for reward in (1.0, 0.0)
    ]
    file = Path("old/rollouts/step_00001.jsonl")
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for place in ("old", str(file)):
        ran = gymnast("demos", "--from", place)
        assert (ran.code, ran.errors) == (0, "")
        assert ran.output == "1 demonstration, of 2 episodes, is in demos.parquet\n"
        [saved] = read_rollouts("demos.parquet")
        assert saved.trajectory.ids == [1, 2, 3] and saved.trajectory.reward == 1.0


WRONG = [
    ("", "ENV: name an environment (`gymnast envs` lists some), or --from RUN"),
    ("shop.py:Shop", "demos: Shop has no `solve`, which says how an episode is solved."),
    ("store.py:Store", "store.py:Store: makes no rows of its own"),
    ("store.py:Store --data prices.csv", "prices.csv: "),
    ("store.py:Store --data rows.jsonl", "rows.jsonl"),
    ("store.py:Store price=3 --data prices.jsonl", "Store has no setting 'price'"),
    ("store.py:Stor", "Stor"),
    ("gymnast/Arithmetic-v0 --out demos.json", "--out: must end in .parquet, got 'demos.json'"),
    ("gymnast/Arithmetic-v0 --min-reward nan", "--min-reward: must be a finite number, got nan"),
    ("--from out --min-reward inf", "--min-reward: must be a finite number, got inf"),
    ("gymnast/Arithmetic-v0 --row 3", "--row: there is no such option; did you mean --rows?"),
    (
        "gymnast/Arithmetic-v0 min_operand=1 max_operand=1",
        "--rows: must be <= 2, got 64: the environment's sample_row gave no row but the same 2 in ",
    ),
    ("gymnast/Arithmetic-v0 --from out", "--from takes the episodes of a run; leave ENV out"),
    ("--from out --rows 3", "--from takes the episodes of a run; leave --rows out"),
    ("store.py:Store --base-url http://a/v1", "--base-url: is that of --chat's endpoint; name"),
    ("store.py:Store --no-api-key", "--no-api-key: is that of --chat's endpoint; name its model"),
    ("store.py:Store --api-key-env A", "--api-key-env: is that of --chat's endpoint; name its"),
    ("store.py:Store --chat m --no-api-key --api-key-env A", "--api-key-env names a key and --no"),
    ("store.py:Store --chat m --api-key-env NO_KEY", "variable NO_KEY is not set; set it, name "),
    (
        "store.py:Store --chat m --base-url http://a:x",
        "--base-url: must have a host and, if it has",
    ),
    ("--from out --chat m", "--from takes the episodes of a run; leave --chat out"),
    ("--from out --no-api-key", "--from takes the episodes of a run; leave --no-api-key out"),
    ("store.py:Store --out store.py/d.parquet", "--out: store.py is no folder that can be written"),
    ("--from have.parquet --out have.parquet", "--out: have.parquet is the file of --from; name"),
    ("--from out --out folder.parquet", "--out: folder.parquet is a folder; name a file"),
    ("--from nowhere", "nowhere: there is no such folder"),
    ("--from run.yaml", "run.yaml: cannot be read"),
]


@pytest.mark.parametrize(("arguments", "beginning"), WRONG)
def test_a_mistake_is_one_line(
    arguments: str, beginning: str, store: Path, gymnast: CommandLine
) -> None:
    Path("folder.parquet").mkdir()
    Path("have.parquet").touch()
    ran = gymnast("demos", *arguments.split())
    assert (ran.code, ran.output) == (2, "")
    [line] = ran.errors.splitlines()
    assert line.startswith("error: ") and beginning in line
