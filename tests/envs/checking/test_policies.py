"""check_env plays `solve` and does nothing, says which earns what, and asks for a `hint`."""

from typing import Any

import pytest

from gymnast.envs import Environment, Renderer, call, check_env, make, tool
from gymnast.errors import InfrastructureError, UserCodeError


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


def test_the_report_tells_what_solve_and_doing_nothing_earn(renderer: Renderer) -> None:
    report = check_env(Lamp(renderer))
    assert report.solved is not None
    assert [(each.reward, each.messages) for each in report.solved] == [(1.0, 2)] * 3
    assert [(each.reward, each.messages) for each in report.idle] == [(0.0, 1)] * 3
    assert str(report).splitlines()[-5:] == [
        "Rewards:",
        "",
        "  solve           1 (answered with message 2) on each of 3 rows",
        "  doing nothing   0 (answered with message 1) on each of 3 rows",
        "  other episodes  0 (each tool called once, random tokens)",
    ]


def test_a_reward_below_1_is_asked_about(renderer: Renderer) -> None:
    class Frugal(Lamp):
        pays = 0.5

    assert str(check_env(Frugal(renderer))).endswith(
        "solve earns 0.5; if an episode can earn more, solve must play that one"
    )


def test_doing_nothing_that_earns_as_much_as_solve_is_told(renderer: Renderer) -> None:
    class Lit(Lamp):
        """In one room of two the light is on already."""

        def setup(self, row: Any) -> None:
            self.light = "on" if row["prompt"].endswith(" 0.") else "off"

        def sample_row(self, rng: Any) -> Any:
            return {"prompt": f"Make light in room {rng.integers(2)}."}

    report = check_env(Lit(renderer))
    equal = [each.reward for each in report.idle].count(1.0)
    assert 0 < equal < 3
    assert str(report).endswith(
        f"warning: doing nothing earns as much as solve on {equal} of 3 rows; a policy learns "
        "there to do nothing"
    )


def test_doing_nothing_goes_on_where_the_environment_does(renderer: Renderer) -> None:
    class Host(Lamp):
        """Asks again until someone answers; each question costs something."""

        def respond(self, message: Any) -> Any:
            return None if message["content"] else [{"role": "user", "content": "Well?"}]

        def turn_reward(self, turn: Any) -> float:
            return -0.5

        def reward(self, episode: Any) -> Any:
            return 0.0 if self.light == "on" else -8.0

    report = check_env(Host(renderer, max_turns=4))
    assert [(each.reward, each.messages) for each in report.idle] == [(-10.0, 4)] * 3
    assert report.solved is not None, "which earns less than 0, but more than doing nothing"
    assert [each.reward for each in report.solved] == [-1.0] * 3
    assert min(report.rewards) == -10.0, "the rewards of all its turns"


def test_an_episode_that_cannot_be_judged_has_no_reward(renderer: Renderer) -> None:
    class Doubtful(Lamp):
        def reward(self, episode: Any) -> Any:
            return super().reward(episode) if episode.calls else None

    assert "\n  doing nothing   none (answered with message 1) on each of 3 rows" in str(
        check_env(Doubtful(renderer))
    )

    class Never(Doubtful):
        def reward(self, episode: Any) -> Any:
            return None if episode.answer == "Done." else 0.0

    with pytest.raises(AssertionError, match=r"solve earned no reward: it is None \(its calls: "):
        check_env(Never(renderer))


def test_an_episode_that_breaks_while_nothing_is_done_is_no_reward_of_0(renderer: Renderer) -> None:
    class Torn(Lamp):
        room = ""  # whose lamp breaks

        def respond(self, message: Any) -> Any:
            if self.row["prompt"] == self.room:
                raise InfrastructureError("the bulb's server is gone")

    env = Torn(renderer)
    env.reset(seed=2)
    Torn.room = env.row["prompt"]
    with pytest.raises(InfrastructureError, match=r"the episode broke: .*'s server is gone"):
        check_env(env)


def test_without_solve_doing_nothing_is_still_told(renderer: Renderer) -> None:
    class Mute(Lamp):
        solve = Environment.solve

    report = check_env(Mute(renderer))
    assert report.solved is None and len(report.idle) == 3
    assert "\n  solve           the class has none (docs/demonstrations.md)\n" in str(report)


def test_rows_may_have_no_solution(renderer: Renderer) -> None:
    class Unknown(Lamp):
        def solve(self, row: Any) -> Any:
            return None

    assert "\n  solve           has no solution for these rows\n" in str(
        check_env(Unknown(renderer))
    )


def test_a_solution_that_earns_nothing_fails(renderer: Renderer) -> None:
    class Dark(Lamp):
        says = "of"

    with pytest.raises(
        AssertionError, match=r"reward of 0; it must be > 0 \(its calls: \[<.*; row: "
    ):
        check_env(Dark(renderer))


def test_a_solution_that_earns_less_than_doing_nothing_fails(renderer: Renderer) -> None:
    class Idle(Lamp):
        def reward(self, episode: Any) -> Any:
            return 0.25 if self.light == "on" else 0.75

    with pytest.raises(AssertionError, match=r"0.25; doing nothing earned 0.75 \(its calls: "):
        check_env(Idle(renderer))


def test_a_solution_that_earns_less_than_another_episode_fails(renderer: Renderer) -> None:
    class Curious(Lamp):
        def reward(self, episode: Any) -> Any:
            return {"on": 0.25, "off": 0.0}.get(self.light, 0.5)

    with pytest.raises(AssertionError, match=r"0.25; an episode that solved nothing earned 0.5 \("):
        check_env(Curious(renderer))


def test_a_solution_that_is_wrong_is_the_users_mistake(renderer: Renderer) -> None:
    class Typo(Lamp):
        def solve(self, row: Any) -> Any:
            yield call("swich", to="on")
            yield "Done."

    with pytest.raises(UserCodeError, match=r"Typo.solve: message 1: the call swich"):
        check_env(Typo(renderer))


@pytest.mark.parametrize("name", ["Arithmetic", "Python", "SQL", "Shell", "Code"])
def test_the_built_in_environments_solve_their_rows(name: str, renderer: Renderer) -> None:
    """In boxes, where they have one, of the strongest backend that works here."""
    env = make(f"gymnast/{name}-v0", renderer)
    try:
        report = check_env(env)
    finally:
        env.close()
    assert report.solved is not None
    assert [each.reward for each in report.solved] == [1.0] * 3
    assert [each.reward for each in report.idle] == [0.0] * 3


def test_a_hint_is_asked_for(renderer: Renderer) -> None:
    class Loud(Lamp):
        def hint(self, row: Any) -> Any:
            return "Switch it on."

    with pytest.raises(UserCodeError, match=r"Loud\.hint: returned 'Switch it on\.'; it must"):
        check_env(Loud(renderer))
