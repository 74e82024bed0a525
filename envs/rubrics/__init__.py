r"""Rubrics: rewards made of named parts, from comparisons to judges.

    from gymnast.envs import Environment, rubrics

    class Shop(Environment):
        reward = rubrics.all_of(
            price=rubrics.weighted(rubrics.numeric("price", tolerance=0.01), 0.8),
            brief=rubrics.weighted(rubrics.regex(r"\A.{1,80}\Z"), 0.2),
        )

`docs/rubrics.md` is the guide. Where to begin reading: `rubric.py` (what all share), `combining.py`
(rubrics of rubrics), `comparing.py` (the shortest kinds).
"""

from gymnast.envs.rubrics.combining import all_of, gate, weighted, weighted_sum
from gymnast.envs.rubrics.comparing import Exact as exact
from gymnast.envs.rubrics.comparing import Numeric as numeric
from gymnast.envs.rubrics.comparing import last_number, same_number, same_text
from gymnast.envs.rubrics.judging import Judge as judge
from gymnast.envs.rubrics.reading import answer_of
from gymnast.envs.rubrics.result_rows import ResultSet as result_set
from gymnast.envs.rubrics.result_rows import same_rows
from gymnast.envs.rubrics.rubric import Rubric
from gymnast.envs.rubrics.structure import JsonSchema as json_schema
from gymnast.envs.rubrics.structure import Regex as regex
from gymnast.envs.rubrics.unit_testing import UnitTests as unit_tests

KINDS: dict[str, type[Rubric]] = {
    kind.name: kind for kind in (exact, numeric, regex, json_schema, result_set, unit_tests, judge)
}
"""The rubrics that a YAML's `rewards` names by one word."""

__all__ = [
    "KINDS",
    "Rubric",
    "all_of",
    "answer_of",
    "exact",
    "gate",
    "json_schema",
    "judge",
    "last_number",
    "numeric",
    "regex",
    "result_set",
    "same_number",
    "same_rows",
    "same_text",
    "unit_tests",
    "weighted",
    "weighted_sum",
]
