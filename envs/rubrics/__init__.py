"""Rubrics: rewards made of named parts, from comparisons to judges.

    from gymnast.envs import Environment, rubrics

    class Shop(Environment):
        reward = rubrics.all_of(
            price=rubrics.weighted(rubrics.numeric("price", tolerance=0.01), 0.8),
            brief=rubrics.weighted(rubrics.regex(r"\\A.{1,80}\\Z"), 0.2),
        )

`docs/rubrics.md` is the guide. Where to begin reading: `rubric.py` (what all share), `combining.py`
(rubrics of rubrics), `comparing.py` (the shortest kinds).
"""

from gymnast.envs.rubrics.combining import all_of, gate, weighted, weighted_sum
from gymnast.envs.rubrics.comparing import Exact as exact
from gymnast.envs.rubrics.comparing import Numeric as numeric
from gymnast.envs.rubrics.reading import answer_of
from gymnast.envs.rubrics.rubric import Rubric

__all__ = [
    "Rubric",
    "all_of",
    "answer_of",
    "exact",
    "gate",
    "numeric",
    "weighted",
    "weighted_sum",
]
