"""Row tags: columns and expressions that divide rows, and the names of the divisions."""

from typing import Any

import pytest

from gymnast.errors import ConfigError
from gymnast.trainers.evaluation.tags import check_tags, divide, tag_expressions

ROWS: list[dict[str, Any]] = [
    {"a": 7, "operation": "add", "the topic": "x/y", "hard": True},
    {"a": 70, "operation": "multiply", "the topic": "x y", "hard": False},
    {"a": 99, "operation": "add", "meta": {"level": 3}},
]


def divided(by: Any) -> dict[str, list[int]]:
    return divide(ROWS, tag_expressions(by))


def test_a_column_divides_rows_by_its_values() -> None:
    assert divided(["operation"]) == {"operation=add": [0, 2], "operation=multiply": [1]}


def test_an_expression_has_a_name() -> None:
    assert divided({"large": "a > `50`", "level": "meta.level"}) == {
        "large=false": [0],
        "large=true": [1, 2],
        "level=3": [2],
    }


def test_a_row_in_which_an_expression_finds_nothing_is_in_no_division() -> None:
    assert divided(["hard"]) == {"hard=false": [1], "hard=true": [0]}


def test_names_and_values_hold_nothing_that_a_metrics_name_could_be_cut_at() -> None:
    assert divided(["the topic"]) == {"the_topic=x_y": [0, 1]}


def test_a_dot_in_a_column_is_a_letter_of_its_name_and_in_an_expression_a_step() -> None:
    rows = [{"a.b": 1, "a": {"b": 2}}]
    assert divide(rows, tag_expressions(["a.b"])) == {"a.b=1": [0]}
    assert divide(rows, tag_expressions({"a.b": "a.b"})) == {"a.b=2": [0]}


def test_a_tag_must_find_something_in_the_rows_of_one_environment() -> None:
    check_tags([[{"x": 1}], ROWS], tag_expressions(["operation", "x"]))
    with pytest.raises(ConfigError) as caught:
        check_tags([ROWS], tag_expressions(["operatoin"]))
    assert str(caught.value) == (
        'evaluation.by.operatoin: must find something in an evaluation row, got "operatoin" (the '
        "columns: a, hard, meta, operation, the topic); did you mean operation?"
    )


def test_a_value_that_differs_in_each_row_is_no_tag() -> None:
    rows = [{"prompt": f"What is {n} plus 1?"} for n in range(101)]
    check_tags([rows[:100]], tag_expressions(["prompt"]))
    with pytest.raises(ConfigError, match=r"evaluation.by.prompt: must have at most 100 values,"):
        check_tags([rows], tag_expressions(["prompt"]))


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ({"size": "a >"}, "evaluation.by.size: must be a jmespath expression"),
        (["a b", "a_b"], "evaluation.by: names 'a_b' twice"),
        ({"n": "lenght(a)"}, "evaluation.by.n: 'lenght.*cannot be applied to row 0: Unknown fun"),
        ({"n": "contains(operation, `1`)"}, "evaluation.by.n: 'cont.*cannot be applied to row 0"),
    ],
)
def test_an_expression_that_does_not_hold_is_named(by: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        divided(by)
