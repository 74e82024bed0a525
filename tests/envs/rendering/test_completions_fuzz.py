"""Whatever a policy samples: `parse` and `step` never raise, and masks stay aligned.

Completions are random, or right ones of each template mutated (`template_completions.py`). The
figures that a run prints say that it reached every way in which a turn can go.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.agents.loading.tiny import CHAT_TEMPLATE, tiny_tokenizer
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import TemplateError
from gymnast.trainers import rollout
from gymnast.types import StopReason, ToolCall, Trajectory
from template_completions import Calls, Completions
from template_corpus import load, tokenizer_for

FOLDER = Path(__file__).parent / "chat_templates"
TEMPLATES = {
    "hermes": CHAT_TEMPLATE,
    **{
        path.stem: path.read_text()
        for path in sorted(FOLDER.glob("*.jinja"))
        if path.stem != "positional"  # refused
    },
}
CALLS: Calls = [
    ("add", {"a": 1, "b": -2}),
    ("look", {"text": 'a "quoted"\nline', "places": ["x", "y"], "deep": True}),
    ("fail", {"why": "none"}),
    ("leave", {"note": "x"}),
    ("done", {"answer": "7"}),
]
KEYS = {"tool_calls", "errors", "stop_reason", "stop_ids", "tokens_left", "timings"}
ERRORS = {"malformed", "unknown_tool", "bad_arguments", "exception"}


class Desk(Environment):
    """Tools of every kind; after each step, what must hold of it is checked."""

    counts: Counter[str]
    left: int

    @tool
    def add(self, a: int, b: int) -> int:
        """Add.

        Args:
            a: One number.
            b: Another.
        """
        return a + b

    @tool
    async def look(self, text: str, places: list[str], deep: bool = False) -> dict[str, Any]:
        """Look for a text.

        Args:
            text: What.
            places: Where.
            deep: How.
        """
        await asyncio.sleep(0)
        return {"text": text, "places": places, "end": "<|im_end|>"}

    @tool
    def fail(self, why: str) -> str:
        """Fail.

        Args:
            why: Why.
        """
        raise ValueError(why)

    @tool
    def leave(self, note: str) -> str:
        """Leave.

        Args:
            note: A note.
        """
        self.end_episode()
        return note

    @tool(stop=True)
    def done(self, answer: str) -> str:
        """Answer.

        Args:
            answer: The answer.
        """
        return answer

    def reward(self, episode: Any) -> float:
        return 1.0

    async def areset(self, **settings: Any) -> Any:
        ids, info = await super().areset(**settings)
        self.left = info["tokens_left"]
        return ids, info

    async def astep(self, action: Any) -> Any:
        step = await super().astep(action)
        observation, reward, terminated, truncated, info = step
        self.left -= len(action) + len(observation)
        assert info["tokens_left"] == max(self.left, 0)
        assert info.keys() >= KEYS and isinstance(reward, float)
        assert (terminated or truncated) == (info["stop_reason"] is not None)
        assert not (terminated and truncated)
        assert all(isinstance(call, ToolCall) for call in info["tool_calls"])
        self.counts["calls"] += len(info["tool_calls"])
        self.counts["turns"] += 1
        for error in info["errors"]:
            self.counts[f"error: {error.kind}"] += 1
        if info["stop_reason"] is not None:
            self.counts[f"end: {info['stop_reason'].value}"] += 1
            assert "metrics" in info
        return step


def schemas() -> list[dict[str, Any]]:
    """What a policy is told of the tools."""
    with contextlib.closing(Desk(Renderer(tiny_tokenizer()))) as env:
        env.reset(options={"row": {"prompt": "Go."}})
        return env.tools


SCHEMAS = schemas()


@cache
def renderer_of(template: str) -> Renderer:
    return Renderer(tiny_tokenizer(), chat_template=TEMPLATES[template])


def check_parse(renderer: Renderer, ids: list[int], counts: Counter[str]) -> None:
    """Read a completion and check the message's shape."""
    message = renderer.parse(ids, context_ids=[1, 2, 3], tools=SCHEMAS)
    calls = message["tool_calls"]
    assert message["role"] == "assistant" and isinstance(message["content"], str)
    assert isinstance(message.get("reasoning_content", ""), str)
    assert all(isinstance(call.arguments, dict) for call in calls)
    assert len({call.id for call in calls}) == len(calls) and all(call.id for call in calls)
    json.dumps([call.to_dict() for call in calls])
    counts["parsed"] += 1
    counts["read"] += sum(call.error is None for call in calls)
    counts["unreadable"] += sum(call.error is not None for call in calls)
    counts["without calls"] += not calls


def parse_many(renderers: dict[str, Renderer], number: int, seed: int) -> Counter[str]:
    """Parse so many completions, in rotation over the templates."""
    counts: Counter[str] = Counter()
    drawing = {
        name: Completions(renderer, SCHEMAS, CALLS, seed + index)
        for index, (name, renderer) in enumerate(renderers.items())
    }
    for index in range(number):
        name = list(renderers)[index % len(renderers)]
        ids = drawing[name].draw()
        try:
            check_parse(renderers[name], ids, counts)
        except Exception as error:
            text = renderers[name].tokenizer.decode([n for n in ids if 0 <= n < 2**31])
            error.add_note(f"{name}, completion {index} of seed {seed}: {ids} {text[:2000]!r}")
            raise
    return counts


async def play_many(renderers: dict[str, Renderer], number: int, seed: int) -> Counter[str]:
    """Play episodes, in rotation over the templates, until they have so many turns."""
    counts: Counter[str] = Counter()
    chance = random.Random(seed)
    drawing = {
        name: Completions(renderer, SCHEMAS, CALLS, seed + index)
        for index, (name, renderer) in enumerate(renderers.items())
    }
    while counts["turns"] < number:
        name = list(renderers)[counts["episodes"] % len(renderers)]
        counts["episodes"] += 1
        prompt = len(renderers[name].prompt([{"role": "user", "content": "Go."}], SCHEMAS))
        env = Desk(
            renderers[name],
            max_turns=chance.randint(1, 8),
            max_tokens=chance.choice([None, 60, 400, 2000]),
            context_length=chance.choice([None, prompt + 90, prompt + 900]),
        )
        env.counts = counts
        said: list[list[int]] = []
        seen: list[int] = []

        def say(
            context: list[int],
            said: list[list[int]] = said,
            seen: list[int] = seen,
            own: Completions = drawing[name],
        ) -> list[int]:
            assert context[: len(seen)] == seen  # it only grows
            said.append(own.draw())
            seen[:] = context
            return said[-1]

        try:
            trajectory = await rollout(env, ScriptedAgent(say), {"prompt": "Go."})
            check_alignment(trajectory, said)
        except Exception as error:
            text = renderers[name].tokenizer.decode([n for n in said[-1] if 0 <= n < 2**31])
            error.add_note(f"{name}, episode {counts['episodes']} of seed {seed}: {text[:2000]!r}")
            raise
        finally:
            await env.aclose()
    return counts


def check_alignment(trajectory: Trajectory, said: list[list[int]]) -> None:
    """Ids, mask and logprobs have one length; the mask is 1 on what was sampled, and only there."""
    ids, mask = trajectory.ids, trajectory.action_mask
    assert len(ids) == len(mask) == len(trajectory.logprobs)
    sampled = [number for number, one in zip(ids, mask, strict=True) if one]
    spans = [ids[turn.start : turn.end] for turn in trajectory.turns]
    assert sampled == list(chain(*spans))
    assert all(whole[: len(span)] == span for whole, span in zip(said, spans, strict=True))
    json.dumps(trajectory.messages)


def report(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


ENDS = {
    f"end: {reason.value}"
    for reason in StopReason
    if reason not in (StopReason.timeout, StopReason.error)
}


def check_figures(counts: Counter[str]) -> None:
    assert counts.keys() >= ENDS | {f"error: {kind}" for kind in ERRORS}, report(counts)


def test_parse_never_raises() -> None:
    counts = parse_many({name: renderer_of(name) for name in TEMPLATES}, 1200, seed=0)
    assert min(counts["read"], counts["unreadable"], counts["without calls"]) > 50, report(counts)


def test_step_never_raises_and_masks_stay_aligned() -> None:
    renderers = {name: renderer_of(name) for name in TEMPLATES}
    check_figures(asyncio.run(play_many(renderers, 400, seed=1)))


@pytest.mark.network
def test_completions_of_real_templates() -> None:
    renderers = {}
    for template in load():
        with contextlib.suppress(TemplateError):
            renderers[template.name] = Renderer(tokenizer_for(template))
    assert len(renderers) >= 165
    counts = parse_many(renderers, 3400, seed=4)
    assert min(counts["read"], counts["unreadable"], counts["without calls"]) > 500, report(counts)
    check_figures(asyncio.run(play_many(renderers, 800, seed=5)))


@pytest.mark.slow
def test_a_hundred_thousand_completions(capsys: pytest.CaptureFixture[str]) -> None:
    renderers = {name: renderer_of(name) for name in TEMPLATES}
    parsed = parse_many(renderers, 50_000, seed=2)
    played = asyncio.run(play_many(renderers, 50_000, seed=3))
    with capsys.disabled():
        print(f"\nparse: {report(parsed)}\nstep: {report(played)}")
    assert parsed["parsed"] + played["turns"] >= 100_000
    check_figures(played)
