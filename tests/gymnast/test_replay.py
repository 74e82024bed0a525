"""`gymnast replay`: saved episodes played again with their actions, and where they differ."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_fixtures import CommandLine
from gymnast.agents import ScriptedAgent
from gymnast.trainers import collect, play_messages, rollout
from gymnast.trainers.inspecting.index import Index
from gymnast.trainers.replaying.stage import Stage, set_stage
from gymnast.trainers.rollouts.rewards import add_rewards
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Message, Sampling, Trajectory

MARKET = '''\
from gymnast.envs import Environment, tool

class Market(Environment):
    def __init__(self, *arguments, word="one", price=1.0, answers=1, **settings):
        super().__init__(*arguments, **settings)
        self.word, self.price, self.answers = word, price, answers

    @tool
    def buy(self, what: str) -> str:
        """Buy something."""
        return f"{self.word} {what}, no. {int(self.np_random.integers(10**6))}"

    def respond(self, message):
        self.answers -= 1
        return [{"role": "user", "content": "Go on."}] if self.answers > 0 else None

    def reward(self, episode):
        return self.price

class Fair(Market):
    """Another."""

def long(trajectory):
    return float(trajectory.action_tokens)
'''
RUN: dict[str, Any] = {
    "model": {"name": "tiny:"},
    "environment": {"id": "market.py:Market", "max_turns": 4, "context_length": 700},
    "data": {"train": "goods.jsonl"},
}
ROW = {"prompt": "Buy a pear."}


@pytest.fixture
def market(shop_folder: Path) -> None:
    Path("market.py").write_text(MARKET)
    Path("goods.jsonl").write_text("".join(json.dumps({**ROW, "n": n}) + "\n" for n in range(4)))
    Path("out").mkdir()


def configure(**environment: Any) -> dict[str, Any]:
    """Write the run's config with other settings of its environment."""
    changed = {**RUN, "environment": {**RUN["environment"], **environment}}
    return write(changed)


def write(config: dict[str, Any]) -> dict[str, Any]:
    located = json.loads(json.dumps(config).replace("market.py", str(Path("market.py").resolve())))
    located["data"] = located.get("data") and {"train": str(Path("goods.jsonl").resolve())}
    Path("out/config.yaml").write_text(yaml.safe_dump(located))
    return config


def save(stage: Stage, trajectory: Trajectory, name: str = "step_00001") -> None:
    write_rollouts(f"out/rollouts/{name}.parquet", [[trajectory]], tokenizer=stage.tokenizer)


@pytest.fixture
def played(market: None, say: Callable[..., list[int]]) -> Stage:
    """A run whose one episode bought a pear, in tokens."""
    configure()
    stage = set_stage(Path("out"))
    agent = ScriptedAgent([say("", ("buy", {"what": "pear"})), say("Done.")])
    env = stage.task.make_env()
    save(stage, asyncio.run(rollout(env, agent, ROW, seed=3, sampling=Sampling())))
    return stage


def test_the_same_environment_does_the_same(played: Stage, gymnast: CommandLine) -> None:
    ran = gymnast("replay", "out", "step_00001/0/0")
    assert (ran.code, ran.output) == (
        0,
        "step_00001/0/0: the same: 2 turns, reward 1, answered\n",
    ), ran.errors


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"word": "two"}, "the observation differs after turn 1"),
        ({"system_prompt": "Be quick."}, "the prompt differs before the first turn"),
        ({"price": 0.5}, "the reward differs after turn 2"),
        ({"max_turns": 1}, "the end differs after turn 1"),
        ({"answers": 2}, "the end differs after turn 2"),
    ],
)
def test_it_says_where_another_environment_first_differs(
    played: Stage, gymnast: CommandLine, setting: dict[str, Any], said: str
) -> None:
    configure(**setting)
    ran = gymnast("replay", "out", "step_00001/0/0")
    assert ran.code == 1, ran.errors
    first, *diff = ran.output.splitlines()
    assert first == f"step_00001/0/0: {said}"
    assert diff[:2] == ["--- saved", "+++ found"]


def test_the_diff_shows_both_texts(played: Stage, gymnast: CommandLine) -> None:
    configure(word="two")
    lines = gymnast("replay", "out", "step_00001/0/0").output.splitlines()
    [before] = [line for line in lines if line.startswith("-one pear, no. ")]
    assert f"+two{before[len('-one') :]}" in lines


def test_what_is_saved_in_messages_is_replayed_in_messages(
    market: None, gymnast: CommandLine, calls: Callable[..., Message]
) -> None:
    configure()
    stage = set_stage(Path("out"))
    script = [
        calls(("buy", {"what": "pear"})),
        calls(("buy", "{oops")),
        {"role": "assistant", "content": "Done."},
    ]

    async def speak(messages: list[Message], tools: Any) -> Any:
        return script[sum(message["role"] == "assistant" for message in messages)]

    save(stage, asyncio.run(play_messages(stage.task.make_env(), speak, ROW, seed=3)))
    ran = gymnast("replay", "out", "step_00001/0/0")
    assert (ran.code, ran.output) == (
        0,
        "step_00001/0/0: the same: 3 turns, reward 1, answered (in messages: it has no tokens)\n",
    ), ran.errors
    configure(word="two")
    ran = gymnast("replay", "out", "step_00001/0/0")
    assert ran.code == 1
    assert ran.output.startswith("step_00001/0/0: the observation differs after turn 1\n")


def test_reward_functions_of_the_run_are_asked_again(
    market: None, gymnast: CommandLine, say: Callable[..., list[int]]
) -> None:
    config = configure()
    write({**config, "rewards": [{"function": "market.py:long", "weight": 0.5}]})
    stage = set_stage(Path("out"))
    agent = ScriptedAgent([say("Done.")])
    own = asyncio.run(rollout(stage.task.make_env(), agent, ROW, seed=3))
    with_all = asyncio.run(add_rewards(own, stage.rewards))
    assert with_all is not None and with_all.reward > own.reward
    save(stage, with_all)
    assert gymnast("replay", "out", "step_00001/0/0").code == 0
    write({**config, "rewards": [{"function": "market.py:long", "weight": 1.0}]})
    assert "the reward differs after turn 1" in gymnast("replay", "out", "step_00001/0/0").output


def test_of_a_mixture_the_environment_of_the_row_plays(
    market: None, gymnast: CommandLine, say: Callable[..., list[int]]
) -> None:
    members = [{"id": "market.py:Market"}, {"id": "market.py:Fair", "word": "a fair"}]
    shared = {"max_turns": 4, "context_length": 700}
    rows: list[dict[str, Any]] = [
        {**ROW, "environment": name, "n": n} for n in range(3) for name in ("Market", "Fair")
    ]
    Path("goods.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write({**RUN, "environment": {"mixture": members, **shared}})
    stage = set_stage(Path("out"))
    agent = ScriptedAgent([say("", ("buy", {"what": "pear"})), say("Done.")])
    found = asyncio.run(
        collect(stage.task.make_env, agent, rows[:2], group_size=1, sampling=Sampling())
    )
    write_rollouts("out/rollouts/step_00001.parquet", found, tokenizer=stage.tokenizer)
    ran = gymnast("replay", "out", "--all")
    assert (ran.code, ran.output.splitlines()[-1]) == (0, "2 of 2 are the same, 0 differ")
    assert [entry.environment for entry in Index("out").entries()] == ["Market", "Fair"]
    members[1]["word"] = "no"
    write({**RUN, "environment": {"mixture": members, **shared}})
    ran = gymnast("replay", "out", "--all")
    assert (ran.code, ran.output.splitlines()[-1]) == (1, "1 of 2 are the same, 1 differ")


def test_an_evaluation_in_a_further_environment_is_played_in_that_one(
    played: Stage, gymnast: CommandLine
) -> None:
    evaluation = {
        "rows": 1,
        "environments": {
            "fair": {
                **{"id": "market.py:Fair", "word": "a fair", "context_length": 700},
                **{"data": str(Path("goods.jsonl").resolve()), "rows": 1},
            }
        },
    }
    write({**RUN, "evaluation": evaluation})
    agent = ScriptedAgent(lambda ids: played.tokenizer.encode("Done.", add_special_tokens=False))
    stage = set_stage(Path("out"))
    make_env: Any = stage.task.evaluation_environments["fair"].environment
    save(stage, asyncio.run(rollout(make_env(), agent, ROW)), "eval_00001_fair")
    assert gymnast("replay", "out", "eval_00001_fair/0/0").code == 0
    write(RUN)
    ran = gymnast("replay", "out", "eval_00001_fair/0/0")
    assert ran.code == 2
    assert "is of an evaluation in 'fair', and the run's config.yaml has no" in ran.errors


def test_a_run_of_a_model_is_replayed_with_its_worked_turns(gymnast: CommandLine) -> None:
    assert gymnast("train", "run.yaml", "-q").code == 0
    ran = gymnast("replay", "out", "--all")
    assert (ran.code, ran.output.splitlines()[-1]) == (0, "8 of 8 are the same, 0 differ")
    assert gymnast("replay", "out", "--all", "--evaluations", "--step", "0").code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "ROLLOUT: name one"),
        ("step_00001/0/0 --all", "--all: replays every episode, and step_00001/0/0 names one"),
        ("step_00001/0/0 --step 1", "ROLLOUT: is one episode"),
        ("step_00001/9/0", "step_00001/9/0: there is no such episode"),
        ("--all --step 7", "--step 7: the run has no training episodes of this step; it has those"),
        ("--all --min-reward nan", "--min-reward: must be a number"),
    ],
)
def test_mistakes_are_named(played: Stage, gymnast: CommandLine, options: str, said: str) -> None:
    ran = gymnast("replay", "out", *options.split())
    assert ran.code == 2
    assert ran.errors.startswith(f"error: {said}")


def test_without_a_config_nothing_can_be_replayed(played: Stage, gymnast: CommandLine) -> None:
    Path("out/config.yaml").unlink()
    ran = gymnast("replay", "out", "step_00001/0/0")
    assert ran.code == 2 and "has no config.yaml beside its rollouts" in ran.errors
    assert ran.errors.endswith("or the environment: --environment FILE.py:Class\n")
    ran = gymnast("replay", "out", "step_00001/0/0", "--environment", "market.py:Market")
    assert (ran.code, ran.output) == (
        0,
        "step_00001/0/0: the same: 2 turns, reward 1, answered (in messages: no run says the "
        "tokenizer of its tokens)\n",
    ), ran.errors


def test_demonstrations_are_replayed_in_the_environment_that_is_named(
    shop_folder: Path, gymnast: CommandLine
) -> None:
    assert gymnast("demos", "gymnast/Arithmetic-v0", "--rows", "3").code == 0
    ran = gymnast("replay", "demos.parquet", "--all", "--environment", "gymnast/Arithmetic-v0")
    assert (ran.code, ran.output.splitlines()[-1]) == (0, "3 of 3 are the same, 0 differ")
    ran = gymnast("replay", "demos.parquet", "--all", "--environment", "gymnast/Arithmetik-v0")
    assert (ran.code, ran.output) == (2, "")
    assert "there is no environment 'gymnast/Arithmetik-v0'. Did you mean" in ran.errors


def test_turns_that_a_program_never_read_cannot_be_replayed(
    played: Stage, gymnast: CommandLine
) -> None:
    saved = Index("out").entry("step_00001/0/0").load().trajectory
    save(played, replace(saved, metrics={"program/unreceived": 1.0}))
    ran = gymnast("replay", "out", "step_00001/0/0")
    assert ran.code == 2 and "its program never read 1 of its turns" in ran.errors
    ran = gymnast("replay", "out", "--all")
    assert (ran.code, ran.output.splitlines()[-1]) == (
        0,
        "0 of 1 are the same, 0 differ, 1 cannot be replayed",
    )


PROGRAM = """\
import json, urllib.request
from pathlib import Path
from gymnast.envs import Program

def said(base_url, api_key, messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]

def ask(base_url, api_key, task):
    messages = [{"role": "user", "content": task["prompt"]}]
    messages.append(said(base_url, api_key, messages))
    messages.append({"role": "user", "content": Path("second.txt").read_text()})
    said(base_url, api_key, messages)
    said(base_url, api_key, [{"role": "user", "content": "Something else."}])

class Asking(Program):
    function = staticmethod(ask)

    def reward(self, episode):
        return float(len(episode.turns))
"""


def test_a_program_is_run_again_in_all_its_contexts(
    market: None, gymnast: CommandLine, say: Callable[..., list[int]]
) -> None:
    Path("asking.py").write_text(PROGRAM)
    Path("second.txt").write_text("And now?")
    environment = {"id": str(Path("asking.py").resolve()) + ":Asking", "context_length": 700}
    write({**RUN, "environment": environment})
    stage = set_stage(Path("out"))
    agent = ScriptedAgent(lambda ids: say(f"I have read {len(ids)} tokens."))
    save(stage, asyncio.run(rollout(stage.task.make_env(), agent, ROW)))
    ran = gymnast("replay", "out", "step_00001/0/0")
    assert ran.code == 0, ran.output
    assert ran.output.startswith("step_00001/0/0: the same: 3 turns, reward 3, environment (a prog")
    Path("second.txt").write_text("And later?")
    ran = gymnast("replay", "out", "step_00001/0/0")
    assert ran.code == 1
    first, *_, last = ran.output.splitlines()
    assert first == "step_00001/0/0: the observation differs after turn 1"
    assert last.startswith("a program has the loop: what it asks may depend on time")


def test_an_episode_in_a_box_is_replayed_in_a_box(
    market: None, gymnast: CommandLine, say: Callable[..., list[int]]
) -> None:
    environment = {"id": "gymnast/Python-v0", "sandbox": "local", "context_length": 700}
    write({**RUN, "environment": environment, "data": None, "evaluation": {"rows": 1}})
    stage = set_stage(Path("out"))
    agent = ScriptedAgent([say("", ("python", {"code": "print(6 * 7)"})), say("It is 42.")])
    row = {"prompt": "What is 6 times 7?", "answer": 42}
    save(stage, asyncio.run(rollout(stage.task.make_env(), agent, row)))
    ran = gymnast("replay", "out", "step_00001/0/0")
    assert (ran.code, ran.output) == (
        0,
        "step_00001/0/0: the same: 2 turns, reward 1, answered\n",
    ), ran.errors
