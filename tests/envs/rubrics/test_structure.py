"""Expressions and schemas, also where a policy or a schema would have them take forever."""

import asyncio
import time
from typing import Any

import pytest

from gymnast.envs import Environment, rubrics
from gymnast.errors import ConfigError, DataError, UserCodeError
from rubric_fixtures import reward

SLOW, TEXT = r"^(.*?,){20}P", "1," * 40  # takes ages: a comma belongs to any repetition


@pytest.mark.parametrize(
    ("rubric", "answer", "earned"),
    [
        (rubrics.regex(r"\d+"), "It is 4.", 1.0),
        (rubrics.regex(r"\d+"), "It is four.", 0.0),
        (rubrics.regex(r"\d+", whole=True), "It is 4.", 0.0),
        (rubrics.regex(r"\d+", whole=True), "4", 1.0),
        (rubrics.regex("yes"), "YES", 0.0),
        (rubrics.regex("yes", ignore_case=True), "YES", 1.0),
    ],
)
def test_an_expression_matches_or_does_not(rubric: Any, answer: str, earned: float) -> None:
    assert reward(rubric, answer) == earned


def test_an_expression_that_takes_too_long_is_the_authors_mistake() -> None:
    class Slow(Environment):
        reward = rubrics.regex(SLOW, timeout_s=0.2)

    environment = Slow()
    environment.reset(options={"row": {"prompt": "Go."}})
    begun = time.process_time()
    with pytest.raises(UserCodeError, match=r"Slow\.reward: TimeoutError: .*more than 0.2 s"):
        asyncio.run(environment.act({"role": "assistant", "content": TEXT}))
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("pattern", ["(", "", None, 3])
def test_what_is_no_expression_is_refused(pattern: Any) -> None:
    with pytest.raises(ConfigError, match="regex: pattern must be a regular expression, got"):
        rubrics.regex(pattern)


# --- JSON

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer"}},
    "patternProperties": {"^x-": {"type": "number"}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("answer", "earned"),
    [
        ('{"name": "Ada", "age": 36}', 1.0),
        ('{"name": "ada"}', 0.0),
        ('{"name": "Ada", "age": "36"}', 0.0),
        ('{"name": "Ada", "x-height": 1.7}', 1.0),
        ('{"name": "Ada", "x-height": "tall"}', 0.0),
        ('{"age": 36}', 0.0),
        ('{"name": "Ada"', 0.0),
        ('{"name": "Ada", "age": NaN}', 0.0),
        ('Here it is:\n```json\n{"name": "Ada"}\n```\nDone.', 1.0),
        ('```\n{"name": "Ada"}\n```\nor\n```\n{"name": 1}\n```', 0.0),
        ('```json\n{"name": "Ada ```x"}\n```', 1.0),
        ('```json\n{"name": "Ada"}', 1.0),
        ("x```\n" * 20_000 + "\n```", 0.0),
        ("", 0.0),
        ("[" * 100_000, 0.0),
        ('{"name": "Ada", "more": ' + "[" * 900 + "]" * 900 + "}", 1.0),
    ],
)
def test_json_fits_a_schema_or_does_not(answer: str, earned: float) -> None:
    assert reward(rubrics.json_schema(PERSON), answer) == earned


def test_a_schema_may_stand_in_the_row_as_text_too() -> None:
    rubric = rubrics.json_schema("schema")
    for schema in ({"type": "integer"}, '{"type": "integer"}'):
        assert reward(rubric, "4", schema=schema) == 1.0
        assert reward(rubric, '"4"', schema=schema) == 0.0
    for wrong in ({"type": "whole"}, "{", 7):
        with pytest.raises(DataError, match=r"column 'schema' (must be|is no valid)"):
            reward(rubric, "4", schema=wrong)


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"pattern": SLOW}, f'"{TEXT}"'),
        ({"patternProperties": {SLOW: {}}}, f'{{"{TEXT}": 1}}'),
        ({"additionalProperties": False, "patternProperties": {SLOW: {}}}, f'{{"{TEXT}": 1}}'),
    ],
)
def test_a_pattern_of_a_schema_cannot_take_forever(schema: Any, answer: str) -> None:
    with pytest.raises(TimeoutError, match=r"took more than 0\.2 s of processor time"):
        reward(rubrics.json_schema(schema, timeout_s=0.2), answer)


def test_references_lead_into_the_schema_and_nowhere_else() -> None:
    inside = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    assert reward(rubrics.json_schema(inside), "4") == 1.0
    outside = rubrics.json_schema({"$ref": "http://127.0.0.1:9/schema.json"})
    with pytest.raises(ConfigError, match=r"refers to 'http://127.*put that into its \$defs"):
        reward(outside, "4")


def test_further_properties_are_those_that_no_name_and_no_pattern_has() -> None:
    closed: dict[str, Any] = {"properties": {"a": {}}, "patternProperties": {"^x-": {}}}
    rubric = rubrics.json_schema({**closed, "additionalProperties": False})
    answers = ('{"a": 1, "x-b": 2}', '{"a": 1, "b": 2}', "[1]")
    assert [reward(rubric, answer) for answer in answers] == [1, 0, 1]
    numbers = rubrics.json_schema({**closed, "additionalProperties": {"type": "number"}})
    assert [reward(numbers, answer) for answer in ('{"b": 2}', '{"b": "2"}')] == [1, 0]
    with pytest.raises(ConfigError, match="search without a limit of time; write additionalPro"):
        rubrics.json_schema({**closed, "unevaluatedProperties": False})


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match="json_schema: schema is no valid JSON schema: 'whole'"):
        rubrics.json_schema({"type": "whole"})
    with pytest.raises(ConfigError, match="json_schema: extract must be a regular expression"):
        rubrics.json_schema({}, extract="(")


@pytest.mark.parametrize("answer", ["1" * 310, "-" + "9" * 4000, "1e400", "9" * 5000, "1e308"])
def test_numbers_of_any_size_fit_or_do_not(answer: str) -> None:
    of_tenths = rubrics.json_schema({"type": "number", "multipleOf": 0.1})
    assert reward(of_tenths, answer) == 0.0
    assert reward(rubrics.json_schema({"type": "number"}), answer) == (
        1.0 if "e4" not in answer and len(answer) < 5000 else 0.0
    )
