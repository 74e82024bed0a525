"""What `check_env` says of rows that come back from saved rollouts as something else."""

import ast
import datetime
from typing import Any

import numpy as np
import pytest

from gymnast.envs import Environment, Mixture, Renderer, check_env
from gymnast.trainers.records.json_text import from_json, to_json

KEYS = ", and `gymnast replay` and `gymnast rescore` read what is saved; use text keys"


class Library(Environment):
    """Its rows have what a subclass says, from the second seed on."""

    lent: Any = None
    books: Any = ()

    def sample_row(self, rng: Any) -> Any:
        return {"prompt": "Go.", "books": self.books, "lent": self.lent}

    def reward(self, episode: Any) -> float:
        return 0.0


def odd(renderer: Renderer, **columns: Any) -> tuple[str, ...]:
    report = check_env(type("Library", (Library,), columns)(renderer))
    assert all(f"odd: {sentence}" in str(report).splitlines() for sentence in report.odd)
    return report.odd


@pytest.mark.parametrize(
    ("lent", "said"),
    [
        (
            {605: True},
            "row['lent'] has the key 605, and is saved with '605': rows are saved as JSON, where "
            f"keys that are numbers become text{KEYS}",
        ),
        (
            [{"at": {None: 3}}],
            "row['lent'][0]['at'] has the key None, and is saved with 'null': rows are saved as "
            f"JSON, where keys that are not text become text{KEYS}",
        ),
        (
            {(1, 2): 3},
            "row['lent'] has the key (1, 2), and cannot be saved: rows are saved as JSON, whose "
            "keys are text; use text keys",
        ),
        ({5}, "row['lent'] is of type set, and is saved as the text '{5}': "),
        (datetime.date(2024, 2, 1), "is of type date, and is saved as the text '2024-02-01': "),
        (b"a", "is of type bytes, and is saved as the text \"b'a'\": "),
        (np.zeros(2), "is of type ndarray, and is saved as a list: rows are saved as JSON, and"),
    ],
)
def test_what_saving_changes_is_odd(lent: Any, said: str, renderer: Renderer) -> None:
    [sentence] = odd(renderer, lent=lent)
    assert said in sentence


@pytest.mark.parametrize("lent", [{605: 1}, {None: 1}, {5}, b"a", datetime.date(2024, 2, 1)])
def test_it_becomes_what_is_saved(lent: Any, renderer: Renderer) -> None:
    [sentence] = odd(renderer, lent=lent)
    _, _, after = sentence.partition(" and is saved ")
    said = ast.literal_eval(after.partition(": ")[0].split(maxsplit=1)[1].removeprefix("the text "))
    saved = from_json(to_json(lent))
    assert said in saved if isinstance(lent, dict) else said == saved


@pytest.mark.parametrize(
    "lent", [{"605": True}, (1, 2), [1.5, None, "a"], np.int64(3), float("nan"), {}]
)
def test_what_comes_back_as_it_was_or_nearly_is_not(lent: Any, renderer: Renderer) -> None:
    assert odd(renderer, lent=lent) == ()


def test_each_column_is_named_once_whatever_the_rows(renderer: Renderer) -> None:
    class Shelf(Library):
        def sample_row(self, rng: Any) -> Any:
            number = int(rng.integers(1000))
            return {"prompt": "Go.", "at": {number: 1, number + 1: 2}, "open": {number}}

    first, second = check_env(Shelf(renderer)).odd
    assert first.startswith("row['at'] has the key ") and second.startswith("row['open'] is of ")
    assert len(check_env(Mixture({Shelf: 1, Library: 1}, renderer=renderer)).odd) == 2
