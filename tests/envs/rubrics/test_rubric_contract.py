"""What holds for every kind of rubric: named, deterministic, picklable, alike everywhere."""

import asyncio
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from chat_fixtures import Endpoint, says
from gymnast.envs import Environment, rubrics
from gymnast.envs.rubrics import Rubric
from gymnast.trainers import Reward
from gymnast.trainers.rollouts.rewards import add_rewards
from gymnast.types import Span, StopReason, Trajectory
from rubric_fixtures import played, score

MBPP = {
    "text": "Write a function double that doubles a number.",
    "prompt": "Write a function double that doubles a number.",
    "test_list": ["assert double(1) == 2", "assert double(2) == 4"],
}
SCHEMA = {"type": "object", "required": ["city"]}


@dataclass(frozen=True)
class Case:
    """A rubric, an answer that earns 1.0 and one that earns 0.0."""

    rubric: Rubric
    right: str
    wrong: str
    row: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "exact": Case(rubrics.exact("city"), "Bern", "Bonn", {"city": "Bern"}),
    "numeric": Case(rubrics.numeric(tolerance=0.01), "About 2.5", "About 2.6", {"answer": 2.5}),
    "regex": Case(rubrics.regex(r"^\d+$"), "12", "12 or so"),
    "json_schema": Case(rubrics.json_schema(SCHEMA), '{"city": "Bern"}', '{"city'),
    "result_set": Case(rubrics.result_set(), "[[2], [1]]", "[[2]]", {"rows": [[1], [2]]}),
    "unit_tests": Case(
        rubrics.unit_tests(sandbox="local"),
        "```python\ndef double(n):\n    return 2 * n\n```",
        "```python\ndef double(n):\n    return 0\n```",
        MBPP,
    ),
    "judge": Case(
        rubrics.judge("Is it polite?", "a-judge", api_key_env=None), "Thank you.", "Go away."
    ),
    "all_of": Case(
        rubrics.all_of(rubrics.exact(), rubrics.regex("^B")), "Bern", "Oslo", {"answer": "Bern"}
    ),
    "weighted": Case(rubrics.weighted(rubrics.exact(), 1.0), "Bern", "Oslo", {"answer": "Bern"}),
    "weighted_sum": Case(rubrics.weighted_sum(rubrics.exact()), "Bern", "Oslo", {"answer": "Bern"}),
    "gate": Case(
        rubrics.gate(rubrics.regex("^B"), rubrics.exact()), "Bern", "Oslo", {"answer": "Bern"}
    ),
}


@pytest.fixture(params=CASES, autouse=False)
def case(
    request: pytest.FixtureRequest, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Case]:
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    endpoint.script = lambda asked, _: says(
        f"VERDICT: {'yes' if 'Thank you' in asked['messages'][-1]['content'] else 'no'}"
    )
    yield CASES[request.param]


def trajectory(case: Case, answer: str) -> Trajectory:
    return Trajectory(
        ids=[1, 2],
        action_mask=[0, 1],
        logprobs=[0.0, -1.0],
        prompt_length=1,
        turns=[Span(1, 2)],
        turn_rewards=[0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        row={"prompt": "Go.", **case.row},
        messages=[{"role": "user", "content": "Go."}, {"role": "assistant", "content": answer}],
    )


def outcome(reward: Any, case: Case, answer: str) -> Any:
    """The last info of an episode of a class with this reward."""

    environment = type("Answering", (Environment,), {"reward": reward})()

    async def play() -> Any:
        await environment.areset(options={"row": {"prompt": "Go.", **case.row}})
        return await environment.act({"role": "assistant", "content": answer})

    return asyncio.run(play())


def test_it_tells_right_from_wrong_and_says_the_same_again(case: Case) -> None:
    for answer, earned in ((case.right, 1.0), (case.wrong, 0.0)):
        episode = played(answer, case.row)
        first, second = score(case.rubric, episode), score(case.rubric, episode)
        assert first is not None and first.reward == earned
        assert first == second


def test_every_part_and_every_metric_has_a_name(case: Case) -> None:
    found = score(case.rubric, played(case.right, case.row))
    assert found is not None
    assert found.parts and all(found.parts)
    assert all(name.startswith("rubrics/") and len(name) > 8 for name in found.metrics)


def test_it_says_the_same_after_a_pickle(case: Case) -> None:
    copied = pickle.loads(pickle.dumps(case.rubric))
    assert copied == case.rubric
    for answer in (case.right, case.wrong):
        episode = played(answer, case.row)
        assert score(copied, episode) == score(case.rubric, episode)


def test_an_awaited_rubric_says_the_same(case: Case) -> None:
    async def later(episode: Any) -> Any:
        await asyncio.sleep(0)
        found = case.rubric.score(episode)
        return await found if asyncio.iscoroutine(found) else found

    for answer in (case.right, case.wrong):
        episode = played(answer, case.row)
        named = rubrics.all_of(one=case.rubric)
        assert score(rubrics.all_of(one=later), episode) == score(named, episode)


def test_as_the_reward_of_a_class_it_says_the_same(case: Case) -> None:
    for answer in (case.right, case.wrong):
        wanted = score(case.rubric, played(answer, case.row))
        assert wanted is not None
        found = outcome(case.rubric, case, answer)
        assert found.reward == wanted.reward
        assert found.info["reward_parts"] == wanted.parts
        assert {**found.info["metrics"], **wanted.metrics} == found.info["metrics"]


def test_as_a_reward_of_a_config_it_says_the_same_of_a_trajectory(case: Case) -> None:
    for answer, earned in ((case.right, 1.0), (case.wrong, 0.0)):
        given = trajectory(case, answer)
        found = asyncio.run(add_rewards(given, [Reward("named", case.rubric, 0.5)]))
        assert found is not None and found.reward == 0.5 * earned
        own = {name for name in found.reward_parts if name != "environment"}
        assert own and all(name.partition("/")[0] == "named" for name in own)


def test_every_kind_is_in_this_suite() -> None:
    assert set(rubrics.KINDS) <= set(CASES)
