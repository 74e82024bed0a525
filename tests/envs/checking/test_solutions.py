"""check_env plays `solve`, says where it solves nothing, and asks for a `hint`."""

from typing import Any

import pytest

from gymnast.envs import Environment, Renderer, call, check_env, make, tool
from gymnast.errors import UserCodeError


class Lamp(Environment):
    """Switch the lamp on."""

    pays, says = 1.0, "on"

    def setup(self, row: Any) -> None:
        self.light = "off"

    @tool
    def switch(self, to: str) -> str:
        """Switch the lamp."""
        self.light = to
        return f"It is {to}."

    def sample_row(self, rng: Any) -> Any:
        return {"prompt": f"Make light in room {rng.integers(1000)}."}

    def reward(self, episode: Any) -> Any:
        return self.pays * (self.light == "on")

    def solve(self, row: Any) -> Any:
        yield call("switch", to=self.says)
        yield "Done."


def test_the_report_tells_what_solve_earns(renderer: Renderer) -> None:
    report = check_env(Lamp(renderer))
    assert report.solved is not None
    assert [(each.reward, each.messages) for each in report.solved] == [(1.0, 2)] * 3
    assert "Rewards of what solve plays: 1 (answered with message 2), 1" in str(report)
    assert "can earn more" not in str(report)


def test_a_reward_below_1_is_asked_about(renderer: Renderer) -> None:
    class Frugal(Lamp):
        pays = 0.5

    assert str(check_env(Frugal(renderer))).endswith(
        "; if an episode can earn more, solve must play that one"
    )


def test_without_solve_nothing_is_said(renderer: Renderer) -> None:
    class Mute(Lamp):
        solve = Environment.solve

    report = check_env(Mute(renderer))
    assert report.solved is None and "solve" not in str(report)


def test_rows_may_have_no_solution(renderer: Renderer) -> None:
    class Unknown(Lamp):
        def solve(self, row: Any) -> Any:
            return None

    assert str(check_env(Unknown(renderer))).endswith(
        "solve has no solution for the rows that were tried."
    )


def test_a_solution_that_earns_nothing_fails(renderer: Renderer) -> None:
    class Dark(Lamp):
        says = "of"

    with pytest.raises(AssertionError, match=r"solve earned a reward of 0; it must be > 0 \(row: "):
        check_env(Dark(renderer))


def test_a_solution_that_earns_less_than_an_empty_answer_fails(renderer: Renderer) -> None:
    class Idle(Lamp):
        def reward(self, episode: Any) -> Any:
            return 0.25 if self.light == "on" else 0.75

    with pytest.raises(AssertionError, match=r"reward of 0.25; an episode that solved nothing"):
        check_env(Idle(renderer))


def test_a_solution_that_is_wrong_is_the_users_mistake(renderer: Renderer) -> None:
    class Typo(Lamp):
        def solve(self, row: Any) -> Any:
            yield call("swich", to="on")
            yield "Done."

    with pytest.raises(UserCodeError, match=r"Typo.solve: message 1: the call swich"):
        check_env(Typo(renderer))


@pytest.mark.parametrize("name", ["Arithmetic", "Python", "Shell", "Code"])
def test_the_built_in_environments_solve_their_rows(name: str, renderer: Renderer) -> None:
    """In boxes, where they have one, of the strongest backend that works here."""
    env = make(f"gymnast/{name}-v0", renderer)
    try:
        report = check_env(env)
    finally:
        env.close()
    assert report.solved is not None
    assert [each.reward for each in report.solved] == [1.0] * 3


def test_a_hint_is_asked_for(renderer: Renderer) -> None:
    class Loud(Lamp):
        def hint(self, row: Any) -> Any:
            return "Switch it on."

    with pytest.raises(UserCodeError, match=r"Loud\.hint: returned 'Switch it on\.'; it must"):
        check_env(Loud(renderer))
