"""A run's folder as a run leaves it, with episodes that a test makes: two groups of two a step."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Message, Span, StopReason, Trajectory, VersionSpan

CONFIG = """\
model: {name: "tiny:"}
environment: {id: /somewhere/shop.py:Shop, max_turns: 3}
algorithm: {name: grpo}
trainer: {steps: 4}
"""
ADVICE = {"step": 2, "cause": "no calls", "text": "Show it a call.", "page": "docs/learning.md"}


def episode(
    tokenizer: Any,
    said: str = "The price is 3.",
    *,
    asked: str = "What does tea cost?",
    result: str = "3",
    reward: float = 1.0,
    metrics: Mapping[str, float] | None = None,
    stop_reason: StopReason = StopReason.answered,
    row: Mapping[str, Any] | None = None,
    tool: str = "price",
    arguments: Any = None,
) -> Trajectory:
    """An episode of one call, its result, and what is said then; all of its tokens decode."""
    call = {"name": tool, "arguments": {"item": "tea"} if arguments is None else arguments}
    pieces = [f"user: {asked}\n", json.dumps(call), f"\ntool: {result}\n", said]
    ids = [list(tokenizer.encode(each, add_special_tokens=False)) for each in pieces]
    mask = [bit for each, bit in zip(ids, (0, 1, 0, 1), strict=True) for _ in each]
    ends = [sum(map(len, ids[: n + 1])) for n in range(4)]
    turns = [Span(ends[0], ends[1]), Span(ends[2], ends[3])]
    written = {"id": "c1", "type": "function", "function": call}
    messages: list[Message] = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "", "tool_calls": [written]},
        {"role": "tool", "tool_call_id": "c1", "name": tool, "content": result},
        {"role": "assistant", "content": said},
    ]
    return Trajectory(
        ids=[token for each in ids for token in each],
        action_mask=mask,
        logprobs=[-0.25 * bit for bit in mask],
        prompt_length=ends[0],
        turns=turns,
        turn_rewards=[0.0, reward],
        stop_reason=stop_reason,
        terminated=stop_reason.terminated,
        truncated=not stop_reason.terminated,
        messages=messages,
        tools=[{"type": "function", "function": {"name": tool, "parameters": {}}}],
        versions=[VersionSpan(*turn, 7) for turn in turns],
        reward_parts={"right": reward, "environment": 0.0},
        metrics={"tools/calls": 1.0, f"tools/calls/{tool}": 1.0, **(metrics or {})},
        row={"prompt": asked, "item": "tea"} if row is None else row,
        seed=2**62 + 1,
    )


def write_run(
    folder: Path, tokenizer: Any, steps: Sequence[Sequence[Sequence[Trajectory]]]
) -> Path:
    """The folder of a run with so many steps, each with its groups."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "advice.jsonl").write_text(json.dumps(ADVICE) + "\n")
    lines: list[dict[str, Any]] = [{"step": 0, "eval/reward/mean": 0.25}]
    for step, groups in enumerate(steps, 1):
        rewards = [member.reward for group in groups for member in group]
        mean = sum(rewards) / len(rewards)
        lines.append({"step": step, "reward/mean": mean, "loss": None, "time/step_s": 30.0})
        lines[-1] |= {"entropy": 0.5 / step, "episodes/stop/answered": 1.0, "tools/calls": 4}
        advantages = [
            [[(member.reward - mean) * bit for bit in member.action_mask] for member in group]
            for group in groups
        ]
        path = folder / "rollouts" / f"step_{step:05d}.parquet"
        write_rollouts(path, groups, tokenizer=tokenizer, advantages=advantages)
    lines.append({"step": len(steps), "eval/reward/mean": 0.75})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def plain_run(folder: Path, tokenizer: Any) -> Path:
    """Two steps of two rows, of which one fails in the first step, and answers in the second."""

    def cake(said: str, **given: Any) -> Trajectory:
        asked = "What does cake cost?"
        return episode(tokenizer, said, asked=asked, row={"prompt": asked, "n": 2}, **given)

    def step(*, answers: bool) -> list[list[Trajectory]]:
        failed = {"tools/errors": 1.0, "tools/errors/timeout": 1.0}
        said = "Cake is 5." if answers else "I do not know."
        return [
            [episode(tokenizer), episode(tokenizer, "It is 4.", reward=0.0)],
            [
                cake(said, reward=float(answers), metrics={} if answers else failed),
                cake("No.", reward=0.0, stop_reason=StopReason.max_turns),
            ],
        ]

    return write_run(folder, tokenizer, [step(answers=False), step(answers=True)])
