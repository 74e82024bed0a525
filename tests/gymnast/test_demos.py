"""`gymnast demos`: what it prints and writes, from a solution and from saved rollouts."""

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
        "1 demonstrations are in new/kept.parquet\n"
    )
    broken, poor = ran.errors.splitlines()
    assert broken.startswith("row 1: Store.solve: message 1: the call price(fruit='plum') failed")
    assert poor.startswith("row 2: reward 0, not 1 (answered after 2 turns; row: {'prompt': ")

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
    assert ran.output == "1 demonstrations, of 2 episodes, are in one.parquet\n"
    ran = gymnast("demos", "--from", "out", "--min-reward", "2")
    assert ran.code == 1
    assert ran.errors.startswith("failed: none of 4 episodes has a reward of at least 2, so ")


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
        "--rows: must be < 2, got 64: the environment's sample_row gave nothing new",
    ),
    ("gymnast/Arithmetic-v0 --from out", "--from takes the episodes of a run; leave ENV out"),
    ("--from out --rows 3", "--from takes the episodes of a run; leave --rows out"),
    ("store.py:Store --base-url http://a/v1", "--base-url: is that of --chat's endpoint; name"),
    ("--from nowhere", "nowhere: there is no such folder"),
    ("--from run.yaml", "run.yaml: cannot be read"),
]


@pytest.mark.parametrize(("arguments", "beginning"), WRONG)
def test_a_mistake_is_one_line(
    arguments: str, beginning: str, store: Path, gymnast: CommandLine
) -> None:
    ran = gymnast("demos", *arguments.split())
    assert (ran.code, ran.output) == (2, "")
    [line] = ran.errors.splitlines()
    assert line.startswith("error: ") and beginning in line
