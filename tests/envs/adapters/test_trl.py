"""What is written for TRL plays as it is: classes, lists of tools, reward functions."""

import asyncio
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium.utils.env_checker
import pytest
from transformers.utils import get_json_schema

import trl_fixtures
from gymnast.agents import ScriptedAgent
from gymnast.envs import Outcome, Renderer, check_env, make
from gymnast.errors import ConfigError, DataError, ToolDefinitionError, UnknownEnvironment
from gymnast.trainers import rollout
from trl_fixtures import MADE, Shop

Calls = Callable[..., dict[str, Any]]
Play = Callable[..., list[Outcome]]
ROW = {"prompt": [{"role": "user", "content": "Sell."}], "fruit": "pear"}
DONE = {"role": "assistant", "content": "A pear."}


@pytest.fixture(autouse=True)
def nothing_made() -> Iterator[None]:
    MADE.clear()
    yield
    MADE.clear()


# --- Environments


def test_a_class_plays_as_it_is(calls: Calls, play: Play) -> None:
    env = make("trl:trl_fixtures:Shop")
    asked = calls(
        ("price", {"fruit": "pear", "count": 2}), ("buy", {"count": 2}), ("shout", {"text": "hey"})
    )
    outcomes = play(env, asked, calls(("price", {"fruit": "stone"})), DONE, row=ROW)
    assert [message["content"] for message in outcomes[0].messages] == ["6", '{"bought": 2}', "HEY"]
    (failed,) = outcomes[1].info["errors"]
    assert failed.kind == "exception" and "ValueError: there is no stone" in failed.message
    assert outcomes[2].reward == 2.0 and outcomes[2].info["reward_parts"] == {"Shop": 2.0}
    (shop,) = MADE
    assert shop.row == ROW


def test_what_reset_says_ends_the_prompt() -> None:
    env = make("trl:trl_fixtures:Shop")
    system = {"role": "system", "content": "Be brief."}
    env.reset(options={"row": {**ROW, "prompt": [system, *ROW["prompt"]]}})
    assert env.messages == [system, {"role": "user", "content": "Sell. We have pears."}]
    env.reset(options={"row": {"prompt": "Sell."}})
    assert env.messages == [{"role": "user", "content": "Sell."}]
    env.reset(options={"row": {"fruit": "fig"}})
    assert env.messages == [{"role": "user", "content": " We have figs."}]
    env.reset()
    assert env.messages == [{"role": "user", "content": ""}]
    assert MADE[0].row == {"prompt": env.messages}
    env.close()
    assert len(MADE) == 1  # made once, reset often


def test_tools_are_those_that_transformers_would_show() -> None:
    env = make("trl:trl_fixtures:Shop", tools="TOOLS")
    env.reset(options={"row": ROW})
    methods = [getattr(Shop(), name) for name in ("buy", "look", "price", "shout")]
    expected = [get_json_schema(tool) for tool in [*trl_fixtures.TOOLS, *methods]]
    shown = {tool["function"]["name"]: tool["function"] for tool in env.tools}
    for function in (schema["function"] for schema in expected):
        ours = shown.pop(function["name"])
        assert ours["description"] == function["description"]
        theirs = function["parameters"]["properties"]
        assert ours["parameters"]["properties"].keys() == theirs.keys()
        for name, parameter in ours["parameters"]["properties"].items():
            assert parameter["type"] == theirs[name]["type"]
            assert parameter.get("description") == theirs[name].get("description")
    assert not shown
    env.close()


def test_a_row_names_one_of_several_environments(calls: Calls, play: Play) -> None:
    env = make("trl:trl_fixtures:BOTH", reward_funcs="short")
    for name, tools in {"shop": ["buy", "look", "price", "shout"], "library": ["borrow"]}.items():
        outcomes = play(env, DONE, row={**ROW, "environment": name})
        assert [tool["function"]["name"] for tool in env.tools] == tools
        expected = {"short": 1 / 8} | ({"Shop": 0.0} if name == "shop" else {})
        assert outcomes[0].info["reward_parts"] == expected
    with pytest.raises(DataError, match="'cinema'; there are: shop, library"):
        env.reset(options={"row": {**ROW, "environment": "cinema"}})
    env.close()


def test_a_function_may_make_the_environment(calls: Calls, play: Play) -> None:
    (outcome,) = play(make("trl:trl_fixtures:made"), calls(("look", {})), row=ROW)
    assert outcome.messages[0]["content"] == "Shelves."


def test_a_list_of_tools_is_an_environment(calls: Calls, play: Play) -> None:
    env = make("trl:trl_fixtures:TOOLS", reward_funcs=["short"])
    asked = calls(("add", {"a": 2, "b": 3}), ("wait", {"seconds": 0.5}))
    first, last = play(env, asked, {"role": "assistant", "content": "5"})
    assert [message["content"] for message in first.messages] == ["5", "waited 0.5 s"]
    assert last.reward == 0.5


# --- Rewards


def test_reward_functions_are_called_as_by_trl(calls: Calls, play: Play) -> None:
    names = ["short", "trl_fixtures:fitting", trl_fixtures.judged]
    env = make("trl:trl_fixtures:Shop", reward_funcs=names, reward_weights=[1, 2, 10])
    *_, last = play(env, calls(("buy", {"count": 3})), DONE, row=ROW)
    assert last.info["reward_parts"] == pytest.approx(
        {"Shop": 3.0, "short": 1 / 8, "fitting": 2.0, "judged": 3.0}
    )
    assert last.info["metrics"]["sold"] == 3.0
    stone = {**ROW, "fruit": "stone"}
    (last,) = play(env, DONE, row=stone)
    assert "fitting" not in last.info["reward_parts"]


def test_a_reward_function_alone_is_an_environment(play: Play) -> None:
    (last,) = play(make("trl:trl_fixtures:short"), DONE)
    assert last.reward == 1 / 8
    (last,) = play(make("trl:trl_fixtures:fitting"), DONE, row={**ROW, "fruit": "stone"})
    assert last.info["no_reward"] is True


def test_what_a_reward_function_is_given(renderer: Renderer, calls: Calls) -> None:
    given: dict[str, Any] = {}

    def keeps(**arguments: Any) -> list[float]:
        given.update(arguments)
        return [1.0]

    env = make("trl:trl_fixtures:Shop", renderer, reward_funcs=[keeps])
    env.reset(options={"row": ROW})
    turns = [renderer.encode(calls(("buy", {"count": 1})), tools=env.tools), renderer.encode(DONE)]
    asyncio.run(rollout(env, ScriptedAgent(turns), ROW))
    env.close()
    assert given["prompts"] == [[{"role": "user", "content": "Sell. We have pears."}]]
    (completion,) = given["completions"]
    assert [message["role"] for message in completion] == ["assistant", "tool", "assistant"]
    (called,) = completion[0]["tool_calls"]
    assert called["function"] == {"name": "buy", "arguments": {"count": 1}}
    assert completion[1]["name"] == "buy" and completion[2]["content"] == "A pear."
    assert given["completion_ids"] == [[*turns[0], *turns[1]]]
    assert given["fruit"] == ["pear"] and given["environments"] == [MADE[0]]
    assert "prompt" not in given and given["trainer_state"] is None


def test_two_functions_of_a_name_are_told_apart(play: Play) -> None:
    env = make("trl:trl_fixtures:short", reward_funcs=["short", "short"])
    (last,) = play(env, DONE)
    assert list(last.info["reward_parts"]) == ["short", "short_#2", "short_#3"]


# --- Names, checks


FILE = '''
class Counter:
    """Counts."""

    def __init__(self): self.count = 0
    def reset(self, **row): self.count = 0
    def up(self, by: int) -> int:
        """Count up.

        Args:
            by: How far.
        """
        self.count += by
        return self.count
    def get_reward(self): return self.count

def even(completions, environments, **row):
    return [float(environments[0].count % 2 == 0)]
'''


def test_a_file_has_all_of_it(tmp_path: Path, calls: Calls, play: Play) -> None:
    (tmp_path / "counter.py").write_text(FILE)
    (tmp_path / "other.py").write_text("def one(completions, **row): return [1.0]")
    env = make(
        f"trl:{tmp_path}/counter.py:Counter", reward_funcs=["even", "other.py:one"], max_turns=1
    )
    (outcome,) = play(env, calls(("up", {"by": 2})))
    assert outcome.info["reward_parts"] == {"Counter": 2.0, "even": 1.0, "one": 1.0}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trl:trl_fixtures:Shopp", "Did you mean 'Shop'"),
        ("trl:nowhere_at_all:Shop", "there is no module 'nowhere_at_all'"),
        ("trl:nowhere.py:Shop", "there is no file"),
        ("trl:trl_fixtures:Base", "not a class with a method reset"),
        ("trl:trl_fixtures:GATE", "not a class with a method reset"),
        ("trl:", "'trl:' names nothing"),
    ],
)
def test_a_name_that_means_nothing(name: str, message: str) -> None:
    with pytest.raises((ConfigError, UnknownEnvironment)) as refused:
        make(name)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward_funcs": ["shorter"]}, "Did you mean 'short'"),
        ({"reward_funcs": ["short"], "reward_weights": [1, 2]}, "reward_weights has 2 numbers"),
        ({"reward_funcs": [3]}, "3 is no function"),
        ({"tools": [lambda: None]}, "is not a function with a name"),
        ({"timeout_s": 0}, "timeout_s must be > 0"),
    ],
)
def test_a_setting_that_does_not_hold(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ToolDefinitionError)) as refused:
        make("trl:trl_fixtures:Shop", **settings)
    assert message in str(refused.value)


def test_a_method_that_cannot_be_a_tool_is_told_before_any_run(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("class Bare:\n def reset(self): pass\n def go(self): pass")
    with pytest.raises(ToolDefinitionError, match="'go' has no docstring"):
        make(f"trl:{tmp_path}/bare.py:Bare")


def test_the_checks_are_clean_and_environments_are_pickled(renderer: Renderer) -> None:
    env = make("trl:trl_fixtures:Shop", renderer, rows=[ROW])
    assert {tried.call.partition("(")[0] for tried in check_env(env).tools} == {
        "buy",
        "look",
        "price",
        "shout",
    }
    gymnasium.utils.env_checker.check_env(env, skip_render_check=True)
    env.reset(seed=1)
    other = pickle.loads(pickle.dumps(env))
    assert type(other) is type(env)
    other.reset(seed=1)
    assert other.messages == env.messages
    env.close()
    other.close()


def test_a_thousand_episodes_leave_nothing_behind(calls: Calls) -> None:
    env = make("trl:trl_fixtures:Shop", reward_funcs=["short"])

    async def run() -> list[float]:
        earned = []
        for count in range(1000):
            await env.areset(options={"row": ROW})
            await env.act(calls(("price", {"fruit": "pear"}), ("buy", {"count": count % 7})))
            earned.append((await env.act(DONE)).reward)
        return earned

    assert asyncio.run(run()) == [count % 7 + 1 / 8 for count in range(1000)]
    assert len(MADE) == 1
    env.close()
    for thread in threading.enumerate():
        if "trl:" in thread.name:
            thread.join(10)
            assert not thread.is_alive()


# --- TRL itself, in a process of its own

TRL = """
import asyncio, json, sys
import trl_fixtures
from datasets import Dataset
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from trl import GRPOConfig, GRPOTrainer

row, messages = json.loads(sys.argv[1])
tokenizer = tiny_tokenizer()
tokenizer.response_template = {}  # TRL knows none for this one
trainer = GRPOTrainer(
    model=tiny_model(),
    args=GRPOConfig(output_dir=sys.argv[2], report_to="none", use_cpu=True, bf16=False),
    reward_funcs=[trl_fixtures.short, trl_fixtures.fitting, trl_fixtures.judged],
    train_dataset=Dataset.from_list([row] * 8),
    processing_class=tokenizer,
    tools=trl_fixtures.TOOLS,
    environment_factory=trl_fixtures.Shop,
)
(shop,) = trainer._environment_pool[None]
said = shop.reset(**row)
asyncio.run(shop.buy(count=3))
trainer.environments = [shop]
rewards = trainer._calculate_rewards([row], [messages[:1]], [messages[1:]], [[1, 2]])
parts = dict(zip(trainer.reward_func_names, rewards[0].tolist()))
print(json.dumps([[tool.__name__ for tool in trainer.tools], said, parts]))
"""


@pytest.mark.adapters
def test_trl_finds_the_same_tools_and_rewards(calls: Calls, play: Play, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    names = ["short", "fitting", "judged"]
    env = make("trl:trl_fixtures:Shop", tools="TOOLS", reward_funcs=names)
    *_, last = play(env, calls(("buy", {"count": 3})), DONE, row=ROW)
    command = [sys.executable, "-c", TRL, json.dumps([ROW, env.messages]), str(tmp_path)]
    paths = [os.path.dirname(trl_fixtures.__file__), os.environ.get("PYTHONPATH", "")]
    given = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    ended = subprocess.run(command, env=given, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    tools, said, parts = json.loads(ended.stdout.splitlines()[-1])
    assert [tool["function"]["name"] for tool in env.tools] == tools
    assert env.messages[0]["content"] == f"Sell.{said}"
    assert last.info["reward_parts"] == pytest.approx(parts)
