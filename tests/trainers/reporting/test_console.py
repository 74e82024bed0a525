"""What a run shows: one line a step in a log, a bar on a terminal, a few episodes in words."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from gymnast.trainers.base.observer import WAITING, Advice
from gymnast.trainers.reporting.console import RunConsole
from gymnast.trainers.reporting.lines import episode_table, step_line
from gymnast.trainers.reporting.shown_episodes import as_shown, pick_episodes
from gymnast.types import Message, Span, StopReason, Trajectory

METRICS = {"reward/mean": 0.5, "tokens/per_s": 812.4, "time/step_s": 21.3, "tools/errors": 2.0}


@pytest.fixture(autouse=True)
def _terminals_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tests are started from: nothing moves where TERM is dumb."""
    monkeypatch.setenv("TERM", "xterm-256color")


def trajectory(
    reward: float = 1.0, messages: list[Message] | None = None, turns: int = 2
) -> Trajectory:
    call = {"function": {"name": "add", "arguments": {"a": 1, "b": "[bold]x"}}}
    told: list[Message] = [
        {"role": "user", "content": "What is 5 plus 5?"},
        {"role": "assistant", "content": "10"},
        {"role": "user", "content": "What is 1 plus 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3\n\x1b[31m"},
        {"role": "assistant", "content": "It is 3.", "tool_calls": []},
    ]
    return Trajectory(
        ids=list(range(turns + 1)),
        action_mask=[0] + [1] * turns,
        logprobs=[0.0] * (turns + 1),
        prompt_length=1,
        turns=[Span(i + 1, i + 2) for i in range(turns)],
        turn_rewards=[0.0] * (turns - 1) + [reward],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        messages=told if messages is None else messages,
    )


def shown(*, terminal: bool, evaluated: bool = True) -> str:
    stream = io.StringIO()
    console = RunConsole(Console(file=stream, force_terminal=terminal, width=100, soft_wrap=True))
    groups = [[trajectory(0.25), trajectory(0.5)]]
    console.on_start({"steps": 3, "start": 0})
    if evaluated:
        console.on_evaluation(0, {"eval/reward/mean": 0.125, "eval/reward/std": 0.5}, groups)
    for step in (1, 2, 3):
        console.on_rollouts(step, 1, 2)
        console.on_step(step, METRICS, groups)
    console.on_end({"before": 0.125, "after": 0.75, "train/seconds": 64.2, "train/cpu_seconds": 99})
    return stream.getvalue()


def test_an_evaluation_says_how_many_calls_failed_by_bugs_in_tools() -> None:
    stream = io.StringIO()
    console = RunConsole(Console(file=stream, width=200))
    metrics = {"eval/reward/mean": 0.5, "eval/tools/errors/bug": 3.0}
    console.on_evaluation(0, metrics, [[trajectory()]])
    assert "calls that failed because of bugs in tools 3\n" in stream.getvalue()


@pytest.mark.parametrize(
    ("causes", "heading"),
    [
        (["solved"], "nothing left to learn"),
        (["too hard"], "not learning"),
        (["solved", "engine mismatch"], "not learning"),
    ],
)
def test_a_run_that_solved_its_rows_has_nothing_left_to_learn(
    causes: list[str], heading: str
) -> None:
    stream = io.StringIO()
    console = RunConsole(Console(file=stream, width=200))
    advice = [Advice(4, cause, "Do this", "docs/learning.md") for cause in causes]
    console.on_advice(advice[0])
    console.on_end({"advice": advice})
    own = "nothing left to learn" if causes[0] == "solved" else "not learning"
    text = stream.getvalue()
    assert f"step 4, {own}: {causes[0]}: Do this (docs/learning.md)\n" in text
    assert f"{heading} at the end: {', '.join(causes)} (see above and docs/learning.md)\n" in text


def test_a_warm_up_is_a_line_a_step_and_an_evaluation() -> None:
    stream = io.StringIO()
    console = RunConsole(Console(file=stream, width=200))
    console.on_start({"steps": 3, "warmup_steps": 20})
    learned = {"warmup/loss": 0.51234, "warmup/grad_norm": 1.5, "warmup/episodes": 8.0}
    console.on_warmup_step(2, learned | {"warmup/tokens/trained": 240.0, "time/step_s": 0.25})
    console.on_evaluation(0, {"eval/reward/mean": 0.5, "warmup/step": 20.0}, [[trajectory()]])
    console.on_end({"before": 0.0, "after_warmup": 0.5, "after": 1.0})
    text = stream.getvalue()
    assert "warm-up 2/20  loss 0.512  grad 1.5  demonstrations 8  tokens 240  seconds 0.2\n" in text
    assert "evaluation after the warm-up: reward 0.500" in text
    assert "evaluation reward: 0.000 before, 0.500 after the warm-up, 1.000 after\n" in text


def test_a_log_gets_one_line_a_step_and_nothing_that_moves() -> None:
    text = shown(terminal=False)
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in text.splitlines()]
    assert lines == [
        "evaluation after step 0: reward 0.125  std 0.500  episodes 2",
        '  reward 0.25  answered  What is 1 plus 2? | add(a=1, b="[bold]x") | '
        r"-> 3 \x1b[31m | It is 3.",
        *(
            f"step {step}/3  reward 0.500  errors 2  tokens/s 812  seconds 21.3  left {left}"
            for step, left in ((1, "0:43"), (2, "0:21"), (3, "0:00"))
        ),
        "evaluation reward: 0.125 before, 0.750 after",
        "trained for 1:04 (99 CPU seconds)",
    ]
    assert "\x1b" not in text


def test_a_terminal_gets_a_bar_the_steps_and_a_table() -> None:
    text = shown(terminal=True)
    for part in ("step 1/3", "1/2 episodes", "0:21 left", "What is 1 plus 2?", "[bold]x", "0.25"):
        assert part in text
    assert "\x1b[31m" not in text  # a tool's output must not steer the terminal


def test_a_word_longer_than_its_column_is_folded_not_cut() -> None:
    stream = io.StringIO()
    word = "".join(map(str, range(60)))
    told: list[Message] = [
        {"role": "user", "content": "Write."},
        {"role": "assistant", "content": word, "tool_calls": []},
    ]
    Console(file=stream, width=60).print(episode_table([as_shown(trajectory(1.0, told, 1))]))
    episode = [line.split("│")[2].strip() for line in stream.getvalue().splitlines() if "│" in line]
    assert "".join(episode) == word


def test_without_an_evaluation_the_last_step_is_shown() -> None:
    text = shown(terminal=False, evaluated=False)
    assert text.count("What is 1 plus 2?") == 1


def test_a_console_whose_run_broke_can_be_closed() -> None:
    written = io.StringIO()
    console = RunConsole(Console(file=written, force_terminal=True))
    console.close()
    console.on_start({"steps": 3})
    console.close()
    console.close()
    shows_the_cursor_again = "\x1b[?25h"
    assert shows_the_cursor_again in written.getvalue()


def test_what_was_not_measured_is_not_shown() -> None:
    assert step_line(1, 2, {}) == "step 1/2"
    assert step_line(1, 2, {"episodes/left_out": 3}) == "step 1/2  episodes left out 3"
    reasons = {"deadline": 2, "infrastructure": 0, "user_code": 1}
    metrics = {"episodes/left_out": 3} | {f"episodes/left_out/{k}": v for k, v in reasons.items()}
    assert step_line(1, 2, metrics) == "step 1/2  episodes left out 3 (2 deadline, 1 user code)"
    bugs = {"tools/errors": 19.0, "tools/errors/bug": 17.0}
    assert (
        step_line(1, 2, bugs)
        == "step 1/2  errors 19  calls that failed because of bugs in tools 17"
    )
    broken = {"sandbox/broken": 0.25, "episodes/finished": 8}
    assert step_line(1, 2, broken) == "step 1/2  boxes that the policy broke 2"
    assert step_line(1, 2, broken | {"sandbox/broken": 0.0}) == "step 1/2"
    assert step_line(1, 2, {"grad_norm": 0.0}).endswith("the rewards of each row are alike")
    assert step_line(1, 2, {"grad_norm": 0.1}) == "step 1/2  grad 0.1"


def test_rows_that_an_evaluation_had_to_skip_are_shown() -> None:
    stream = io.StringIO()
    metrics = {"eval/reward/mean": 0.5, "eval/episodes/rows_skipped": 2.0}
    RunConsole(Console(file=stream)).on_evaluation(0, metrics, [[trajectory()]])
    assert stream.getvalue().splitlines()[0].endswith("  rows with too long a prompt 2")


def test_boxes_that_the_policy_broke_in_an_evaluation_are_shown() -> None:
    stream = io.StringIO()
    metrics = {"eval/reward/mean": 0.5, "eval/sandbox/broken": 0.5, "eval/episodes/finished": 4.0}
    RunConsole(Console(file=stream)).on_evaluation(0, metrics, [[trajectory()]])
    assert stream.getvalue().splitlines()[0].endswith("  boxes that the policy broke 2")


def test_a_whole_step_fits_a_line_of_a_hundred_columns() -> None:
    stream = io.StringIO()
    console = RunConsole(Console(file=stream, force_terminal=True, width=100))
    metrics = {
        "reward/mean": 0.159,
        "reward/std": 0.345,
        "grad_norm": 0.126,
        "tools/calls": 139.0,
        "tools/errors": 24.0,
        "tokens/per_s": 1171.2,
        "time/step_s": 149.3,
    }
    console.on_step(10, metrics, [])
    assert len(stream.getvalue().splitlines()) == 1


def test_a_log_has_the_rates_that_a_region_shows() -> None:
    metrics = METRICS | {"perf/mfu": 0.4123, "perf/waiting_share": 0.2}
    for terminal in (True, False):
        stream = io.StringIO()
        console = RunConsole(Console(file=stream, force_terminal=terminal, width=100))
        console.on_step(10, metrics, [])
        assert ("tokens/s 812  MFU 41.2%  idle 20%  " in stream.getvalue()) != terminal


def test_what_is_slow_is_no_reason_why_nothing_is_learned() -> None:
    stream = io.StringIO()
    console = RunConsole(Console(file=stream, width=200))
    causes = [Advice(9, "no calls", "Nobody calls.", "a.md"), Advice(9, WAITING, "Raise.", "b.md")]
    for advice in causes:
        console.on_advice(advice)
    console.on_end({"advice": causes})
    lines = [line.partition(" ")[2] for line in stream.getvalue().splitlines()]
    assert lines[:2] == [
        "step 9, not learning: no calls: Nobody calls. (a.md)",
        f"step 9, slow: {WAITING}: Raise. (b.md)",
    ]
    assert lines[-2:] == [
        "not learning at the end: no calls (see above and a.md)",
        f"slow at the end: {WAITING} (see above and b.md)",
    ]


def test_a_long_line_is_broken_between_words_on_a_terminal_and_never_in_a_log() -> None:
    for terminal in (True, False):
        stream = io.StringIO()
        console = RunConsole(Console(file=stream, force_terminal=terminal, width=30))
        console.on_evaluation(0, {"eval/reward/mean": 0.125, "eval/reward/std": 0.25}, [])
        lines = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
        assert (len(lines) > 1) == terminal
        told = " ".join(line.strip() for line in lines)
        assert "reward 0.125  std 0.250" in told.replace("125 std", "125  std")


def test_a_shown_episode_begins_after_the_worked_turns() -> None:
    episode = as_shown(trajectory())
    assert episode.prompt == "What is 1 plus 2?"
    assert episode.events == ['add(a=1, b="[bold]x")', "-> 3\n\x1b[31m", "It is 3."]


def test_a_call_that_could_not_be_read_is_shown_as_written() -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Go"}]},
        {"role": "assistant", "content": "", "tool_calls": [], "raw": "<tool_call>{oops"},
        {"role": "tool", "content": {"error": "not JSON"}},
        {"role": "assistant", "content": None},
    ]
    episode = as_shown(trajectory(messages=messages))
    assert episode.events == ["<tool_call>{oops", '-> {"error": "not JSON"}', "(nothing)"]
    assert "Go" in episode.prompt


def test_the_episodes_shown_are_the_worst_the_best_and_one_between() -> None:
    groups = [[trajectory(reward)] for reward in (0.5, 0.0, 1.0, 0.25, 0.75)]
    assert [episode.reward for episode in pick_episodes(groups)] == [0.0, 0.5, 1.0]
    assert [episode.reward for episode in pick_episodes(groups[:2])] == [0.0, 0.5]
    assert pick_episodes([[], [trajectory(messages=[])]]) == []
