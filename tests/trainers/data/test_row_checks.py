"""Rows are checked before a run: what would end it late is refused, and no more than that."""

from typing import Any

import pytest

from gymnast.envs import Environment, Renderer
from gymnast.errors import DataError
from gymnast.trainers.data.row_checks import check_rows

PARTS = {"prompt": {"question": "What is 2 + 3?"}}


class FromPrompt(Environment):
    def reward(self, episode: Any) -> float:
        return 1.0


class FromParts(FromPrompt):
    def setup(self, row: Any) -> Any:
        return [{"role": "user", "content": row["prompt"]["question"]}]


def test_what_a_prompt_holds_is_the_affair_of_an_environments_own_setup(
    renderer: Renderer,
) -> None:
    check_rows([PARTS], FromParts(renderer), "rows.jsonl")
    with pytest.raises(DataError, match=r"row 0: the row's 'prompt' is \{'question'"):
        check_rows([PARTS], FromPrompt(renderer), "rows.jsonl")
    with pytest.raises(DataError, match="row 1: the row has no 'prompt'"):
        check_rows([PARTS, {}], FromParts(renderer), "rows.jsonl")


def test_tools_that_only_an_episode_has_may_be_named_by_a_row(renderer: Renderer) -> None:
    class Changing(FromPrompt):
        def tools_for(self, row: Any) -> Any:
            return [{"name": tool, "description": "Go."} for tool in row["offers"]]

    rows = [{"prompt": "Go.", "offers": ["walk"], "tools": ["walk"]}]
    check_rows(rows, Changing(renderer), "rows.jsonl")
    with pytest.raises(DataError, match=r"row 0: the row's 'tools' names 'walk'"):
        check_rows(rows, FromPrompt(renderer), "rows.jsonl")
