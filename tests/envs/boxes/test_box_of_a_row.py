"""Boxes whose image and limits are those of the row."""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from gymnast.envs import Environment, tool
from gymnast.errors import UserCodeError
from gymnast.sandboxes import SandboxSpec


class Chooses(Environment):
    """Says how long a command may run in the box of this episode."""

    sandbox_spec = SandboxSpec(timeout_s=5.0)

    def __init__(self, renderer: Any = None, **settings: Any) -> None:
        super().__init__(renderer, sandbox="local", **settings)

    def sandbox_spec_for(self, row: Mapping[str, Any], spec: SandboxSpec) -> Any:
        return dataclasses.replace(spec, env={"NAME": row["name"]}) if "name" in row else spec

    @tool
    async def name(self) -> str:
        """Say the name."""
        return (await self.sandbox.aexec("echo $NAME")).stdout.strip()

    async def reward(self, episode: Any) -> float:
        graded = await self.run_grader(f'[ "$NAME" = "{self.row.get("name", "")}" ]')
        return float(graded is not None and graded.verdict == "ok")


async def _names(env: Environment, rows: list[dict[str, Any]]) -> list[tuple[str, float]]:
    said = []
    for row in rows:
        await env.areset(options={"row": {"prompt": "Go.", **row}})
        call = {"type": "function", "function": {"name": "name", "arguments": "{}"}, "id": "a"}
        outcome = await env.act({"role": "assistant", "content": "", "tool_calls": [call]})
        ended = await env.act({"role": "assistant", "content": "Done."})
        said.append((str(outcome.messages[0]["content"]), ended.reward))
    await env.aclose()
    return said


def test_each_episode_has_a_box_of_the_spec_that_its_row_has_chosen() -> None:
    rows = [{"name": "one"}, {"name": "two"}, {}, {"name": "one"}]
    assert asyncio.run(_names(Chooses(), rows)) == [
        ("one", 1.0),
        ("two", 1.0),
        ("", 1.0),
        ("one", 1.0),
    ]


def test_the_settings_say_what_the_episode_has() -> None:
    async def specs() -> list[Mapping[str, str]]:
        env, seen = Chooses(), []
        for row in ({"name": "one"}, {}):
            await env.areset(options={"row": {"prompt": "Go.", **row}})
            seen.append(env.box_settings.spec.env)
        await env.aclose()
        return seen

    assert asyncio.run(specs()) == [{"NAME": "one"}, {}]


def test_what_is_no_spec_is_refused_with_the_row() -> None:
    class Wrong(Chooses):
        def sandbox_spec_for(self, row: Mapping[str, Any], spec: SandboxSpec) -> Any:
            return "an image"

    with pytest.raises(UserCodeError, match=r"'an image'; it must return a SandboxSpec"):
        Wrong().reset(options={"row": {"prompt": "Go."}})
