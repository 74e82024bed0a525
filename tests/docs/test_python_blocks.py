"""The Python of pages that no test of their own reads runs, with what they speak of as given."""

import ast
import asyncio
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch

from gymnast.agents import PolicyWeights, TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.envs import Environment, Renderer, make
from gymnast.sandboxes import LocalSandbox
from gymnast.trainers import RayWorkers, Trainer, collect
from gymnast.types import Sampling
from harbor_fixtures import MakeTask
from pages import ROOT, defining, languages

TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Letters(Environment):
    """Rewards every letter."""

    def reward(self, episode: Any) -> float:
        return float(sum(map(str.isalpha, episode.answer)))


@pytest.fixture
def given(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_parts: None
) -> dict[str, Any]:
    """What pages speak of as given."""
    monkeypatch.chdir(tmp_path)
    model, renderer = tiny_model(), Renderer(tokenizer)
    return {
        "Trainer": Trainer,
        "agent": TransformersAgent(model),
        "collect": collect,
        "environment": Letters,
        "make_env": lambda: Letters(renderer, max_tokens=4),
        "model": model,
        "renderer": renderer,
        "rows": [{"prompt": str(number)} for number in range(8)],
        "sampling": Sampling(max_new_tokens=4),
        "tokenizer": tokenizer,
    }


def run(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block, which may await, and return its names."""

    async def awaited() -> None:
        code = compile(source, "block", "exec", flags=TOP_LEVEL_AWAIT, dont_inherit=True)
        ended = eval(code, names)
        if inspect.iscoroutine(ended):
            await ended

    asyncio.run(awaited())
    return names


def blocks(page: str) -> list[str]:
    return languages(ROOT / "docs" / page)["python"]


def test_an_agent_of_several_processes_sends_weights_once() -> None:
    names = run(defining(ROOT / "docs/agents.md", "update_weights"), {})
    server = create_autospec(SimpleNamespace(replace=lambda weights, version: None))
    for index in (0, 1):
        weights = PolicyWeights(torch.nn.Linear(1, 1), process_index=index)
        names["update_weights"](SimpleNamespace(server=server), weights, 3)
    server.replace.assert_called_once()
    sent, version = server.replace.call_args.args
    assert (set(sent), version) == ({"weight", "bias"}, 3)


def test_the_algorithms_and_rewards_of_the_page(given: dict[str, Any]) -> None:
    made, ranks, by_token, rewards = blocks("algorithms.md")
    assert run(made, given)["algorithm"].epochs == 2
    run(by_token, run(ranks, {}))

    async def ask_a_judge(messages: Any, answer: str) -> float:
        return float(answer in messages[-1]["content"])

    names = run(rewards, {"ask_a_judge": ask_a_judge})
    said = [{"role": "assistant", "content": "It is 42."}]
    episode = SimpleNamespace(action_tokens=10, messages=said, row={"answer": "42"})
    assert names["brevity"](episode) == -0.01
    assert asyncio.run(names["judged"](episode)) == 1.0
    episode.row = {}
    assert asyncio.run(names["judged"](episode)) is None


def test_workers_of_a_cluster_collect(given: dict[str, Any]) -> None:
    """Of what needs Ray, the calls are those that there are; tests marked `ray` make them."""
    (source,) = blocks("clusters.md")
    workers, collects = create_autospec(RayWorkers), create_autospec(collect)
    run(source, given | {"RayWorkers": workers, "collect": collects})
    workers.assert_called_once_with(4, cpus=1)
    assert collects.await_count == 1


def test_the_tasks_of_a_folder_are_an_environment(
    given: dict[str, Any], make_task: MakeTask
) -> None:
    make_task("sum")
    (source,) = blocks("harbor.md")
    (row,) = run(source, given)["env"].rows
    assert row["task"] == "sum"


def test_what_a_box_printed_is_shown_safely(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = blocks("isolation.md")
    with LocalSandbox() as box:
        box.exec("printf '\\033[2J' > found.txt")
        run(source, {"box": box})
    assert capsys.readouterr().out == "\\x1b[2J\n"


def test_trainers_have_trackers(given: dict[str, Any]) -> None:
    (source,) = blocks("metrics.md")
    made: list[Trainer] = []
    run(source, given | {"Trainer": lambda *args, **named: made.append(Trainer(*args, **named))})
    assert len(made) == 2
    for trainer in made:
        (tracker,) = trainer.accelerator.log_with
        assert tracker.name == "tensorboard"


def test_groups_come_as_they_end(given: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    streamed, contexts = blocks("rollouts.md")
    group = run(streamed, given)["group"]
    lines = capsys.readouterr().out.splitlines()
    assert sorted(int(line.split()[0]) for line in lines) == list(range(8))
    trajectory = group[0]
    run(contexts, {"trajectory": trajectory})
    length, tokens, sampled, *_ = capsys.readouterr().out.split()
    assert [int(length), int(tokens), int(sampled)] == [
        trajectory.prompt_length,
        len(trajectory.ids),
        trajectory.action_tokens,
    ]


def test_groups_without_spread_are_replaced(given: dict[str, Any]) -> None:
    (source,) = blocks("sampling.md")
    batch = run(source, given)["batch"]
    assert 0 < len(batch) <= 8 and all(group.has_spread for group in batch)


def test_the_hint_of_a_page_is_what_other_questions_were_answered() -> None:
    (source,) = blocks("distillation.md")
    shop = make(run(source, {})["Shop"])
    row = {"prompt": "What do 3 pears cost?", "prices": {"pear": 5}, "answer": 15}
    shop.reset(options={"row": row})
    assert len(shop.hint(row)) == 12
    said = asyncio.run(shop.act({"role": "assistant", "content": "15."}))
    assert said.reward == 1.0


def test_a_schedule_falls_at_the_end() -> None:
    (source,) = blocks("optimization.md")
    schedule = run(source, {})["warm_stable_decay"]
    assert [schedule(done) for done in (0.0, 0.8, 0.9, 1.0)] == pytest.approx([1, 1, 0.5, 0])


def test_a_short_answer_is_rewarded() -> None:
    short = run(defining(ROOT / "docs/saved_episodes.md", "short"), {})["short"]
    answers = [SimpleNamespace(messages=[{"content": "a" * length}]) for length in (79, 80)]
    assert [short(answer) for answer in answers] == [1.0, 0.0]


def test_a_row_of_sql_is_solved(play: Any, calls: Any) -> None:
    (text,) = languages(ROOT / "docs/sql.md")["json"]
    row = json.loads(text)
    done = {"role": "assistant", "content": "Done."}
    solve = calls(("sql", {"query": row["solution"]}))
    assert play(make("gymnast/SQL-v0"), solve, done, row=row)[-1].reward == 1.0
    assert play(make("gymnast/SQL-v0"), done, row=row)[-1].reward == 0.0
