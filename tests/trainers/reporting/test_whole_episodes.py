"""Whole episodes: every message, the newest episode first, and nothing that steers a terminal."""

import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from gymnast.trainers.reporting.whole_episodes import Samples, whole_episode
from gymnast.types import Message, Span, StopReason, Trajectory


def trajectory(*messages: Message, reward: float = 1.0) -> Trajectory:
    return Trajectory(
        ids=[0, 1],
        action_mask=[0, 1],
        logprobs=[0.0, 0.0],
        prompt_length=1,
        turns=[Span(1, 2)],
        turn_rewards=[reward],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        messages=list(messages),
    )


def written(shown: RenderableType | None, width: int = 60) -> str:
    assert shown is not None
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(shown)
    return stream.getvalue()


def test_every_message_is_shown_in_full() -> None:
    long = "word " * 100
    call = {"function": {"name": "add", "arguments": {"a": 1, "b": "[bold]x"}}}
    text = written(
        whole_episode(
            trajectory(
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Add."},
                {"role": "assistant", "content": long, "tool_calls": [call]},
                {"role": "tool", "name": "add", "content": "3\n\x1b[31m"},
                {"role": "assistant", "content": "It is 3."},
            ),
            "step 7",
        )
    )
    assert "step 7: reward 1, answered, 1 turn, sampled tokens 1" in " ".join(text.split())
    assert text.count("word") == 100
    for part in ("[system]", "Be brief.", '-> add(a=1, b="[bold]x")', "[tool add]", r"\x1b[31m"):
        assert part in text
    assert all(len(line) <= 60 for line in text.splitlines())


def test_the_newest_is_first_and_each_is_shown_in_turn() -> None:
    samples = Samples()
    assert samples.take() is None
    first, second = (trajectory({"role": "user", "content": each}) for each in ("one", "two"))
    samples.replace("step_00001", [[first], [trajectory()], [second]])
    shown = [written(samples.take()) for _ in range(3)]
    assert ["two" in text for text in shown] == [True, False, True]
    assert "step_00001/2/0: " in shown[0]
    assert "step_00001/0/0: " in shown[1]
    samples.replace("step_00002", [[first]])
    assert "step_00002/0/0: " in written(samples.take())


@given(text=st.text())
def test_no_text_of_an_episode_steers_a_terminal(text: str) -> None:
    told: list[Any] = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "", "raw": text, "tool_calls": [{"error": text}]},
        {"role": "tool", "name": text, "content": text},
    ]
    shown = written(whole_episode(trajectory(*told), text))
    assert all(
        each.isprintable() or each in "\n\t \u200c\u200d" or each.isspace() for each in shown
    )
    assert "\x1b" not in shown and "\r" not in shown
