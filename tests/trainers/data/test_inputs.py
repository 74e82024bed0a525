"""What is wrong from Python: each kind of mistake is answered with a sentence and a way out."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gymnast.agents import ScriptedAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer
from gymnast.errors import GymnastError
from gymnast.trainers import Trainer, collect, rollout
from gymnast.trainers.data.rows import DatasetRows
from gymnast.trainers.distributed.processes import launched
from gymnast.types import Sampling

ROWS = [{"prompt": "Go."}]


class DataFrame:
    """What can be told of a table of pandas without importing it."""

    columns, iloc = ("prompt",), ()

    def to_dict(self) -> None: ...


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a model's name for a model": (
        {"model": "tiny:"},
        "model: must be a model of Transformers, got 'tiny:'; load one with "
        "gymnast.agents.load_model: model, tokenizer = load_model('tiny:', dtype='bfloat16')",
    ),
    "no tokenizer": (
        {"tokenizer": None},
        "tokenizer: must be a tokenizer of Transformers, got None; gymnast.agents.load_model "
        "returns it with the model",
    ),
    "no rows": (
        {"rows": None},
        "rows: must be a list of dicts or a RowSource, got None; a row is a dict such as "
        "{'prompt': 'What is 2 + 3?', 'answer': 5}",
    ),
    "an empty list of rows": (
        {"rows": []},
        "rows: is empty; training needs at least one row",
    ),
    "a table": (
        {"rows": DataFrame()},
        "rows: must be a list of dicts or a RowSource, got a DataFrame; pass "
        "frame.to_dict('records')",
    ),
    "a file's name for its rows": (
        {"rows": "rows.jsonl"},
        "rows: must be a list of dicts or a RowSource, got 'rows.jsonl'; "
        "gymnast.trainers.load_rows('rows.jsonl') reads a file",
    ),
    "one row for several": (
        {"rows": {"prompt": "Go.", "answer": 1}},
        "rows: must be a list of dicts or a RowSource, got a dict with the keys prompt, answer; "
        "one row is [row]",
    ),
    "rows that are text": (
        {"rows": [*ROWS, "Go."]},
        "rows: must be a list of dicts or a RowSource, and row 1 is 'Go.'",
    ),
    "rows for evaluation that are text": (
        {"eval_rows": ["Go."]},
        "eval_rows: must be a list of dicts, and row 0 is 'Go.'",
    ),
    "an array of numbers for evaluation rows": (
        {"eval_rows": np.array([1.0, 2.0])},
        "eval_rows: must be a list of dicts, and row 0 is np.float64(1.0)",
    ),
    "an array of several dimensions": (
        {"eval_rows": np.array(5)},
        "eval_rows: must be a list of dicts, got an array of the shape ()",
    ),
    "evaluation rows without end": (
        {"eval_rows": DatasetRows(ROWS, seed=0)},
        "eval_rows: must be a list of dicts, got <gymnast.trainers.data.rows.DatasetRows object",
    ),
    "sampling as a dict": (
        {"sampling": {"temperature": 0.7, "max_new_tokens": 8}},
        "sampling: must be a gymnast.types.Sampling, got {'temperature': 0.7, 'max_new_tokens': 8}"
        "; write Sampling(temperature=0.7, max_new_tokens=8)",
    ),
    "a number as text": (
        {"steps": "3"},
        "steps: must be a whole number, got '3'",
    ),
    "an environment instead of what makes it": (
        {"environment": Environment()},
        "environment: must be an id, a class or a function that makes an environment, got ",
    ),
    "a learning rate of zero": (
        {"learning_rate": 0},
        "learning_rate: must be > 0, got 0",
    ),
}


def trainer(own: Any, **changes: Any) -> Trainer:
    given = {
        "model": tiny_model(),
        "tokenizer": own,
        "environment": Environment.from_tools([], reward=lambda episode: 0.0),
        "rows": ROWS,
        "sampling": Sampling(max_new_tokens=4),
        "group_size": 2,
        "rows_per_step": 1,
        "steps": 1,
        "observer": None,
    }
    return Trainer(**{**given, **changes})


@pytest.mark.parametrize(("changes", "said"), WRONG.values(), ids=list(WRONG))
def test_a_trainer_says_what_is_wrong(tokenizer: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(GymnastError) as caught:
        trainer(tokenizer, **changes)
    assert str(caught.value).startswith(said), caught.value


def test_rows_to_evaluate_with_are_of_the_same_kind(tokenizer: Any) -> None:
    with pytest.raises(GymnastError, match=r"rows: must be a list of dicts, got"):
        trainer(tokenizer).evaluate("rows.jsonl")  # type: ignore[arg-type]


def test_an_array_of_rows_is_evaluated_like_a_list(tokenizer: Any) -> None:
    rows: Any = np.array([{"prompt": "Go."}, {"prompt": "Stop."}])
    assert trainer(tokenizer, eval_rows=rows).train()["after"] == 0
    assert trainer(tokenizer).evaluate(rows)["eval/rows"] == 2


def test_rollouts_say_so_too(renderer: Renderer) -> None:
    sampling: Any = {"temperature": 1.0}
    agent = ScriptedAgent([[1]])

    def make() -> Environment:
        return Environment(renderer)

    calls: list[Callable[[], Any]] = [
        lambda: rollout(make(), agent, ROWS[0], sampling=sampling),
        lambda: collect(make, agent, ROWS, group_size=1, sampling=sampling),
    ]
    for call in calls:
        with pytest.raises(GymnastError, match=r"write Sampling\(temperature=1.0\)"):
            asyncio.run(call())
    table: Any = DataFrame()
    with pytest.raises(GymnastError, match="got a DataFrame"):
        asyncio.run(collect(make, agent, table, group_size=1, sampling=Sampling()))


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda:77", "gpu"):
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", name)
        with pytest.raises(GymnastError) as caught:
            launched()
        said = str(caught.value)
        assert said.startswith("ACCELERATE_TORCH_DEVICE: must be a device of this machine (cpu")
        assert f"got '{name}': " in said


# Settings that hold and are hardly meant


def test_rows_that_repeat_within_a_step_are_told(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="gymnast"):
        made = trainer(tokenizer, rows=[{"prompt": "Go."}, {"prompt": "Stop."}], rows_per_step=3)
        made.evaluate(ROWS)
        assert caplog.messages == [], "nothing is trained"
        made.train()
    assert caplog.messages[0] == (
        "rows_per_step: 3 is more than the 2 training rows, so a step has each row up to 2 "
        "times; lower it, or give more rows"
    )


def test_a_learning_rate_beyond_all_use_is_told(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="gymnast"):
        trainer(tokenizer, learning_rate=1e-3).train()
        assert caplog.messages == []
        trainer(tokenizer, learning_rate=1e30).train()
    assert caplog.messages[0].startswith(
        "learning_rate: 1e+30 is far above what language models learn with (1e-6 to 1e-5 for all "
    )
