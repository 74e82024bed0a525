"""The trainer with an agent that has no model in this process: it learns as with its own engine."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents import PolicyWeights, TransformersAgent, load_model
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.envs import Environment, make
from gymnast.errors import ConfigError, UsageError, UserCodeError
from gymnast.trainers import SavedTrajectory, Trainer, collect, load_config, load_rollouts, rollout
from gymnast.trainers.build import build_trainer
from gymnast.trainers.rollouts.environments import environment_factory
from gymnast.trainers.saving.rollout_files import read_rollouts
from gymnast.types import Completion, Sampling
from process_agent import ProcessAgent, Server
from process_runs import assert_same_run, difference, in_two_processes, sampled, written

AGENT_FILE = Path(__file__).parents[1] / "agents/process_agent.py"
ROWS = [{"prompt": word} for word in ("Go.", "Say.", "Now.", "Then.", "Well.")]
TOKENIZER = tiny_tokenizer()
GREEDY = Sampling(temperature=0.0, max_new_tokens=8)


class SmallLetters(Environment):
    """The share of small letters in the answer."""

    def reward(self, episode: Any) -> float:
        text = episode.answer
        return sum(letter in "abcdefghijklmnopqrstuvwxyz" for letter in text) / max(1, len(text))


def make_trainer(model: Any = None, **settings: Any) -> Trainer:
    small: dict[str, Any] = {
        "sampling": Sampling(max_new_tokens=8),
        "group_size": 4,
        "rows_per_step": 3,
        "steps": 3,
        "learning_rate": 1e-3,
        "eval_rows": ROWS[:3],
        "observer": None,
    }
    return Trainer(model or tiny_model(), TOKENIZER, SmallLetters, ROWS, **(small | settings))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def engines_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the engine in this process."""
    folder = tmp_path_factory.mktemp("runs") / "engine"
    make_trainer(output_dir=folder).train()
    return folder


def test_a_run_is_the_one_with_the_engine_in_this_process(
    engines_run: Path, server: Server, tmp_path: Path
) -> None:
    trainer = make_trainer(
        output_dir=tmp_path / "run", agent=ProcessAgent(None, address=server.address)
    )
    trainer.train()
    assert sampled(tmp_path / "run") == sampled(engines_run)
    assert_same_run(tmp_path / "run", engines_run)
    assert difference(tmp_path / "run", engines_run) < 1e-3


def test_after_every_update_it_samples_as_the_engine_in_this_process_would(server: Server) -> None:
    agent = ProcessAgent(None, address=server.address)
    trainer = make_trainer(agent=agent, steps=1, eval_rows=None)
    greedy = []
    for step in (1, 2, 3):
        trainer.steps = step
        trainer.train()
        greedy.append(greedy_ids(agent))
        assert greedy[-1] == greedy_ids(TransformersAgent(trainer.model))
    assert greedy[0] != greedy[1] != greedy[2]  # or the weights would not tell


def greedy_ids(agent: Any) -> list[list[int]]:
    make_env = environment_factory(SmallLetters, TOKENIZER, agent.context_length)
    with agent.awake():
        rollouts = asyncio.run(collect(make_env, agent, ROWS, group_size=1, sampling=GREEDY))
    return [trajectory.ids for trajectory in rollouts.trajectories]


def test_adapters_are_handed_over_merged(server: Server) -> None:
    model, _ = load_model("tiny:", lora={"rank": 4}, tokenizer=TOKENIZER)
    agent = ProcessAgent(None, address=server.address)
    trainer = make_trainer(model, agent=agent, steps=2, learning_rate=0.02, eval_rows=None)
    before = greedy_ids(TransformersAgent(tiny_model()))
    trainer.train()
    assert greedy_ids(agent) == greedy_ids(TransformersAgent(model)) != before


def test_an_agent_that_has_no_weights_yet_gets_them_before_an_evaluation(server: Server) -> None:
    agent = ProcessAgent(None, address=server.address)
    begun = len(agent.events())
    make_trainer(agent=agent).evaluate()
    kinds = [event.kind for event in agent.events()[begun:]]
    assert kinds == ["begin", "end", "sample", *["sample"] * (len(kinds) - 3)]


# --- By name


def test_a_yaml_names_an_agent_and_its_settings(
    engines_run: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(AGENT_FILE, tmp_path / "mine.py")
    text = f"""
        model: {{name: "tiny:"}}
        environment: {{id: gymnast/Arithmetic-v0, max_turns: 2, context_length: 1024}}
        agent: {{backend: "mine.py:ProcessAgent", address: {server.address}}}
        algorithm: {{group_size: 2}}
        sampling: {{max_new_tokens: 8}}
        trainer: {{steps: 1, rows_per_step: 2}}
        output_dir: {tmp_path}/run
    """
    (tmp_path / "run.yaml").write_text(text.replace("\n        ", "\n"))
    begun = len(server.events())
    build_trainer(load_config(tmp_path / "run.yaml")).train()
    events = server.events()[begun:]
    assert [event.version for event in events if event.kind == "end"] == [0, 1]
    assert len([event for event in events if event.kind == "sample"]) >= 4
    assert versions(load_rollouts(tmp_path / "run", step=1)) == {0}


class Counting(TransformersAgent):
    """Counts what it is asked for."""

    asked = 0

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        self.asked += 1
        return await super().generate(context_ids, sampling)

    def metrics(self) -> dict[str, float]:
        asked, self.asked = self.asked, 0
        return {"counting/asked": float(asked)}


def test_what_an_agent_counts_is_in_the_metrics_of_every_step(tmp_path: Path) -> None:
    model = tiny_model()
    make_trainer(model, agent=Counting(model), eval_rows=None, output_dir=tmp_path).train()
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [line["counting/asked"] for line in lines] == [12.0, 12.0, 12.0]


def versions(saved: list[SavedTrajectory]) -> set[int]:
    return {span.version for each in saved for span in each.trajectory.versions}


def test_the_agent_of_the_docs_trains(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/agents.md").read_text()
    for name, block in re.findall(r"```\w+\n# (copy_agent\.\w+)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(block)
    short = ["sampling.max_new_tokens=4", "trainer.rows_per_step=1", "evaluation.rows=2"]
    config = load_config(tmp_path / "copy_agent.yaml", [f"output_dir={tmp_path}/run", *short])
    trainer = build_trainer(config)
    assert trainer.train()["steps"] == trainer.agent.version == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"backend": "transformer"}, "agent.backend: .*Did you mean 'transformers'"),
        ({"backend": "nowhere:Agent"}, "agent.backend: .*'nowhere'"),
        ({"backend": "gymnast.types:Agent"}, "agent.backend: .*has no 'Agent'"),
        ({"max_bach": 3}, "agent.max_bach: .*no such setting. Did you mean 'max_batch'"),
        ({"max_batch": 0}, "max_batch: must be >= 1, got 0"),
        ({"kv_budget_bytes": 10**9}, "kv_budget_bytes: .*set one of them"),
        (TransformersAgent(tiny_model()), "kv_budget_bytes: .*give it to the agent"),
        ("transformers", "agent: must be a mapping or an agent; write {'backend': 'transformers'}"),
        (object(), "agent: must be a .*PolicyAgent.* has no generate, context_length"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_is_no_agent_is_refused(agent: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_trainer(agent=agent, kv_budget_bytes=10**8)


def test_an_agent_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def agent(model, tokenizer):\n    raise OSError('no GPU 7')\n")
    with pytest.raises(UserCodeError, match=r"agent '.*mine.py:agent': OSError: no GPU 7") as info:
        make_trainer(agent={"backend": f"{file}:agent"})
    assert isinstance(info.value.__cause__, OSError)


def test_an_agent_that_returns_no_completion_is_refused() -> None:
    class Ids:
        async def generate(self, context_ids: list[int], sampling: Sampling) -> Any:
            return [1, 2]

    env = make("gymnast/Arithmetic-v0", tiny_tokenizer())
    with pytest.raises(ConfigError, match=r"Ids.generate must return a .*Completion, got \[1, 2\]"):
        asyncio.run(rollout(env, Ids(), None, seed=0))


# --- Going on


def test_a_resumed_run_hands_its_weights_over_before_the_first_sample(
    engines_run: Path, server: Server, tmp_path: Path
) -> None:
    make_trainer(agent=ProcessAgent(None, address=server.address), eval_rows=None).train()
    for steps, resume in ((2, False), (3, True)):
        agent = ProcessAgent(None, address=server.address)  # whose server has other weights
        begun = len(agent.events())
        trainer = make_trainer(
            agent=agent, steps=steps, output_dir=tmp_path / "run", eval_every_steps=1
        )
        trainer.train(resume=resume)
        events = agent.events()[begun:]
        assert [event.kind for event in events[:3]] == ["begin", "end", "sample"]
        versions = [event.version for event in events if event.kind == "end"]
        assert versions == ([2, 3] if resume else [0, 1, 2])
    assert difference(tmp_path / "run", engines_run) < 1e-3
    assert (
        sampled(tmp_path / "run")["step_00003.parquet"]
        == sampled(engines_run)["step_00003.parquet"]
    )


class Lost(TransformersAgent):
    """Cannot take the weights of the second step."""

    def update_weights(self, weights: PolicyWeights, version: int) -> None:
        if version == 2:
            raise ConnectionError("all servers are gone")
        super().update_weights(weights, version)


def test_where_weights_cannot_be_handed_over_the_step_before_is_saved(tmp_path: Path) -> None:
    model = tiny_model()
    trainer = make_trainer(model, agent=Lost(model), output_dir=tmp_path / "run")
    with pytest.raises(ConnectionError, match="all servers are gone"):
        trainer.train()
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step_00002"]
    again = make_trainer(output_dir=tmp_path / "run")
    assert again.train(resume=True)["steps"] == 3
    assert [line["step"] for line in written(tmp_path / "run")] == [0, 1, 2, 3, 3]


# --- Several processes


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    """Runs of two processes that share a server: where they are, and what their servers did."""
    folder = tmp_path_factory.mktemp("shared")
    servers = {name: Server(update_s=0.5) for name in ("replicated", "sharded")}
    addresses = {name: server.address for name, server in servers.items()}
    (folder / "addresses.json").write_text(json.dumps(addresses))
    path = os.pathsep.join([str(AGENT_FILE.parent), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        in_two_processes(Path(__file__).with_name("shared_server.py"), folder, longest_s=300)
    yield {name: (folder / name, server.events()) for name, server in servers.items()}
    for server in servers.values():
        server.close()


@pytest.mark.processes
@pytest.mark.parametrize("name", ["replicated", "sharded"])
def test_processes_that_share_a_server_train_as_one(
    shared: Mapping[str, Any], engines_run: Path, name: str
) -> None:
    run, _ = shared[name]
    assert sampled(run) == sampled(engines_run)
    assert_same_run(run, engines_run)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["replicated", "sharded"])
def test_one_process_hands_over_and_nobody_samples_before_all_have_the_weights(
    shared: Mapping[str, Any], name: str
) -> None:
    run, events = shared[name]
    assert {event.process for event in events if event.kind in ("begin", "end")} == {0}
    assert [event.version for event in events if event.kind == "end"] == [0, 1, 2, 3]
    assert not [event for event in events if event.kind == "refuse"]
    for path in (run / "rollouts").iterdir():
        kind, step = path.stem.split("_")
        version = int(step) - (kind == "step")
        assert versions(read_rollouts(path)) == {version}


@pytest.mark.processes
@pytest.mark.parametrize("name", ["replicated", "sharded"])
def test_each_process_samples_its_own_rows(shared: Mapping[str, Any], name: str) -> None:
    _, events = shared[name]
    for version in (1, 2):  # of three rows by four, process 0 has the first and the last
        asked = [event for event in events if event.kind == "sample" and event.version == version]
        ours, theirs = ([e.context for e in asked if e.process == process] for process in (0, 1))
        assert (len(ours), len(theirs)) == (8, 4)
        assert not {*ours} & {*theirs}
