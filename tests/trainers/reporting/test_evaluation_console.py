"""An evaluation on the console: how far it is, what is missing, and the table last."""

import io

import pytest
from rich.console import Console

from gymnast.trainers.evaluation.progress import Progress, SoFar, Watched
from gymnast.trainers.reporting.evaluation_console import EvaluationConsole, progress_line
from gymnast.types import Span, StopReason, Trajectory

MODULE = "gymnast.trainers.reporting.evaluation_console"
METRICS = {
    "eval/reward/mean": 0.5,
    "eval/reward/low": 0.25,
    "eval/reward/high": 0.75,
    "eval/reward/std": 0.5,
    "eval/pass@1": 0.5,
    "eval/rows": 4.0,
    "eval/episodes/finished": 7.0,
    "eval/episodes/left_out": 1.0,
    "eval/episodes/left_out/infrastructure": 1.0,
    "eval/chat/prompt_tokens": 1200.0,
    "eval/chat/cost": 0.0345,
}


@pytest.fixture(autouse=True)
def _terminals_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tests are started from: nothing moves where TERM is dumb."""
    monkeypatch.setenv("TERM", "xterm-256color")


def episode(reward: float) -> Trajectory:
    return Trajectory(
        ids=[1, 2],
        action_mask=[0, 1],
        logprobs=[0.0, -1.0],
        prompt_length=1,
        turns=[Span(1, 2)],
        turn_rewards=[reward],
        stop_reason=StopReason.max_turns,
        terminated=False,
        truncated=True,
        messages=[{"role": "user", "content": "Go."}, {"role": "assistant", "content": "[red]No"}],
        metrics={"chat/cost": 0.25},
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_the_table_is_written_last(terminal: bool) -> None:
    written = io.StringIO()
    console = EvaluationConsole(Console(file=written, force_terminal=terminal, width=100))
    with console.showing():
        console.on_episode(SoFar(1, 8, reward=0.5))
        console.on_evaluation(0, METRICS, [[episode(0.5)]])
    text = written.getvalue()
    assert "evaluation: 7 episodes  std 0.500" in text
    assert "episodes left out 1 (1 infrastructure)" in text
    assert "[red]No" in text, "text of a model is no markup"
    places = [text.index(part) for part in ("[red]No", "evaluation: ", "95% intervals", "all rows")]
    assert places == sorted(places)
    after = text[places[-1] :]
    assert all(number in after for number in ("0.500", "[0.250, 0.750]", "1200", "0.0345"))
    assert "\x1b" in text if terminal else "\x1b" not in text


@pytest.mark.parametrize(
    ("seconds", "written_at"),
    [
        (20, []),  # an evaluation of seconds has its end
        (100, [30, 60, 90]),
        (3600, [*range(30, 601, 30), 632, 666, 702, 739]),
    ],
)
def test_elsewhere_a_line_is_written_now_and_then(
    seconds: int, written_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now)
    written = io.StringIO()
    console = EvaluationConsole(Console(file=written))
    with console.showing():
        for over in range(1, seconds + 1):
            now = float(over)
            console.on_episode(SoFar(over, seconds, reward=0.25))
    lines = [line.split(" ", 1)[1] for line in written.getvalue().splitlines()]
    assert all(line.endswith(f" of {seconds} episodes  reward 0.250") for line in lines)
    assert [int(line.split()[0]) for line in lines][: len(written_at) or None] == written_at
    assert len(lines) < 70


def test_an_evaluation_that_goes_on_says_what_is_there() -> None:
    written = io.StringIO()
    EvaluationConsole(Console(file=written)).on_resumed(170, 600)
    assert written.getvalue() == "going on: 170 of 600 episodes are there\n"


def test_episodes_of_before_and_their_cost_are_in_the_line() -> None:
    assert progress_line(SoFar(3, 8, 2, 0.125, 0.5)) == (
        "3 of 8 episodes  2 from before  reward 0.125  cost 0.5"
    )
    assert progress_line(SoFar(0, 8)) == "0 of 8 episodes"


class _Seen:
    def __init__(self) -> None:
        self.seen: list[SoFar] = []

    def on_episode(self, so_far: SoFar) -> None:
        self.seen.append(so_far)

    def on_resumed(self, before: int, total: int) -> None: ...

    def on_evaluation(self, step: int, metrics: object, groups: object) -> None: ...


class _Kept(dict[tuple[int, int], Trajectory]):
    def find(self, row_index: int, member: int) -> Trajectory | None:
        return self.get((row_index, member))

    def add(self, row_index: int, member: int, trajectory: Trajectory | None) -> None:
        if trajectory is not None:
            self[row_index, member] = trajectory


def test_each_episode_counts_once_whether_it_is_played_or_found() -> None:
    seen, kept = _Seen(), _Kept({(0, 0): episode(1.0)})
    watched = Watched(Progress(3, seen), kept)
    assert watched.find(0, 0) is not None and watched.find(0, 1) is None
    watched.add(0, 1, episode(0.0))
    watched.add(0, 2, None)  # left out
    assert seen.seen == [
        SoFar(1, 3, 1, 1.0, 0.25),
        SoFar(2, 3, 1, 0.5, 0.5),
        SoFar(3, 3, 1, 0.5, 0.5),
    ]
    assert set(kept) == {(0, 0), (0, 1)}
