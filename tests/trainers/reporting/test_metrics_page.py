"""docs/metrics.md describes every name that a run writes."""

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents import ChatAgent, load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.vllm.server import Server, open_session
from gymnast.agents.vllm.servers import Servers
from gymnast.agents.vllm.versions import KnownWeights, probe
from gymnast.envs import Environment, Mixture, NextRequest, Renderer, Score, rubrics, tool
from gymnast.sandboxes import SandboxSpec
from gymnast.trainers import Kl, Reward, Teacher, Trainer, make_algorithm
from gymnast.types import Completion, Sampling

PAGE = Path(__file__).parents[3] / "docs/metrics.md"


def described() -> list[re.Pattern[str]]:
    """The names in the first columns of the page's tables; <...> stands for any name."""
    first = re.findall(r"^\| (`.*?) \|", PAGE.read_text().partition("## Trackers")[0], re.M)
    names = [name for cell in first for name in re.findall(r"`([^`]+)`", cell)]
    return [re.compile("(eval/)?" + re.sub("<[a-z]+>", "[^/]+", name)) for name in names]


class Shop(Environment):
    """A tool that works now and then, a box, a metric, parts of the reward."""

    sandbox_spec = SandboxSpec()

    @tool
    def price(self, item: int) -> int:
        """Look up a price.

        Args:
            item: Its number.
        """
        return 100 // item

    @tool
    def weight(self) -> int:
        """Weigh what is there; nobody has written how."""
        return self.scales.weigh()  # type: ignore[attr-defined, no-any-return]

    def hint(self, row: Any) -> Any:
        return [{"role": "user", "content": "Look up a price."}]

    def reward(self, episode: Any) -> Any:
        text = episode.answer
        return {"length": len(text) / 100, "calls": float(len(episode.tool_calls))}

    def solve(self, row: Any) -> Any:
        yield "Well."

    def metrics(self, episode: Any) -> Any:
        return {"words": float(len(episode.answer.split()))}


class Counts(rubrics.Rubric):
    """A rubric that reports a number beside what it found, as a judge does."""

    def score(self, episode: Any, environment: Any = None) -> Score:
        return Score({"": 1.0}, {"requests": 2.0})


class Judged(Shop):
    """The same with a rubric as its reward."""

    reward = rubrics.all_of(said=Counts())


REWARDS = itertools.cycle([1.0, 2e18])  # of which the second is too large to learn from


class Asks(Environment):
    """A program that has the loop, and asks in a context of its own each time."""

    def setup(self, row: Any) -> None:
        self.left = 2

    def next_request(self, message: Any, cut: bool) -> NextRequest | None:
        self.left -= 1
        prompt = [{"role": "user", "content": f"{self.left} more."}]
        return None if self.left < 0 else NextRequest(None, prompt)  # type: ignore[arg-type]

    def reward(self, episode: Any) -> float:
        return next(REWARDS)


def first_calls_a_tool(trainer: Trainer, calls: list[list[int]]) -> None:
    """The engine's first answers are calls, so that a run has all metrics of tools."""
    sample = trainer.agent.generate

    async def generate(context_ids: list[int], sampling: Sampling) -> Completion:
        if calls:
            ids = calls.pop()
            return Completion(ids, [-1.0] * len(ids), "stop")
        return await sample(context_ids, sampling)

    trainer.agent.generate = generate  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def written(
    tokenizer: Any,
    encode: Callable[[str], list[int]],
    write_call: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> set[str]:
    """The names in the metrics.jsonl of runs that have, together, everything with metrics."""
    folder = tmp_path_factory.mktemp("run")
    teacher = Teacher("base", estimator="exact")
    algorithm = make_algorithm(
        "grpo",
        kl=Kl(0.1),
        teacher=teacher,
        entropy_bonus=0.1,
        importance_cap=2.0,
        importance_bounds=[0.0, 9.0],
        demonstration_weight=0.1,
    )
    lora = {"rank": 2, "extra": {"modules_to_save": ["norm"]}}
    trainer = Trainer(
        load_model("tiny:", lora=lora, tokenizer=tokenizer)[0],
        tokenizer,
        lambda: Shop(Renderer(tokenizer), sandbox="local"),
        [{"prompt": "Go."}],
        algorithm=algorithm,
        warmup={"demonstrations": "solve", "steps": 1, "min_reward": 0.0},
        rewards=[Reward("brevity", lambda trajectory: -trajectory.action_tokens / 10)],
        group_size=4,
        rows_per_step=2,
        steps=2,
        adapter_learning_rate=1e-4,
        peak_tflops=0.1,
        sampling=Sampling(max_new_tokens=8),
        eval_rows=[{"prompt": "Say."}, {"prompt": "Tell."}],
        eval_group_size=2,
        output_dir=folder,
    )
    texts = [write_call("price", item=2), write_call("price", item=0), write_call("prices")]
    texts.append(write_call("weight"))
    first_calls_a_tool(trainer, [encode(f"{text}<|im_end|>") for text in texts])
    trainer.train()
    chooses_rows = Trainer(
        tiny_model(),
        tokenizer,
        Mixture({Judged: 1}, Renderer(tokenizer), sandbox="local"),
        [{"prompt": "Go.", "environment": "Judged"}],
        group_size=2,
        rows_per_step=1,
        steps=1,
        dynamic_sampling={"most_rows": 2},  # which does not go with a teacher
        curriculum={},
        agent={"backend": "transformers", "executor": "pages"},
        sampling=Sampling(max_new_tokens=8),
        output_dir=folder / "chooses_rows",
    )
    chooses_rows.train()
    ahead = Trainer(
        tiny_model(),
        tokenizer,
        lambda: Asks(Renderer(tokenizer)),
        [{"prompt": "Go."}],
        agent={"backend": "transformers", "device": "cpu"},
        max_staleness=1,
        group_size=2,
        rows_per_step=1,
        steps=2,
        sampling=Sampling(max_new_tokens=8),
        output_dir=folder / "ahead",
    )
    ahead.train()
    texts = [path.read_text() for path in folder.rglob("metrics.jsonl")]
    lines = [line for text in texts for line in text.splitlines()]
    beside = {*ChatAgent("m", api_key_env=None).speaker().metrics(), *asyncio.run(of_servers())}
    return {name for line in lines for name in json.loads(line)} - {"step"} | beside


async def of_servers() -> dict[str, float]:
    """What a `VLLMAgent` counts, of servers that nobody has asked yet."""
    known, session = KnownWeights(), open_session(None)
    servers = Servers(
        [Server("http://127.0.0.1:9", session, "KEY", known.name)],
        known,
        probe("policy", known),
        request_timeout_s=1.0,
        lost_after_s=1.0,
        sleep=known.load,
    )
    counted = servers.metrics()
    await servers.close()
    return counted


def test_every_name_that_a_run_writes_is_on_the_page(written: set[str]) -> None:
    missing = [n for n in sorted(written) if not any(p.fullmatch(n) for p in described())]
    assert missing == []


def test_every_name_on_the_page_is_written_by_a_run(written: set[str]) -> None:
    unwritten = [p.pattern for p in described() if not any(p.fullmatch(n) for n in written)]
    assert unwritten == []


def test_every_area_is_there(written: set[str]) -> None:
    areas = {name.partition("/")[0] for name in written}
    assert areas >= {"reward", "reward_parts", "advantage", "tools", "episodes", "tokens", "time"}
    assert areas >= {"engine", "grad_norm", "learning_rate", "updates", "eval"}
