"""A dry run: what it finds odd about runs of a tiny model, and that it changes nothing."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gymnast.agents.loading.tiny import CHAT_TEMPLATE, tiny_model, tiny_tokenizer
from gymnast.envs import Environment
from gymnast.trainers import Trainer, load_config
from gymnast.trainers.build import build_trainer
from gymnast.trainers.dry_run import dry_run
from gymnast.trainers.dry_runs.prompts import Prompt
from gymnast.trainers.dry_runs.report import Report
from gymnast.trainers.dry_runs.shown import (
    PLAIN,
    SPECIAL,
    episode_lines,
    prompt_text,
    report_lines,
)
from gymnast.types import Sampling, Trajectory

SHOP = '''\
from gymnast.envs import Environment, tool

class Shop(Environment):
    """Sells fruit."""

    @tool
    def price(self, fruit: str) -> str:
        """Look up the price of a fruit.

        Args:
            fruit: What it is called.
        """
        return "3"

    def reward(self, episode):
        if "paid" in self.row:
            return self.row["paid"]
        return float(episode.answer == "3")
'''
# A policy that says what it is told to, in the place of the engine.
SCRIPT = """\
import contextlib
from gymnast.types import Completion

class Says:
    context_length = 2048

    def __init__(self, model, tokenizer, texts, logprob):
        self.tokenizer, self.texts, self.logprob, self.asked = tokenizer, texts, logprob, 0

    def awake(self):
        return contextlib.nullcontext()

    def update_weights(self, weights, version):
        pass

    async def generate(self, context_ids, sampling):
        text = self.texts[self.asked % len(self.texts)]
        self.asked += 1
        ids = self.tokenizer.encode(text, add_special_tokens=False) + [*sampling.stop_ids[:1]]
        ids = ids[: sampling.max_new_tokens]
        stop = "stop" if ids[-1] in sampling.stop_ids else "length"
        return Completion(ids, [self.logprob] * len(ids), stop)
"""
RUN: dict[str, Any] = {
    "model": {"name": "tiny:"},
    "environment": {"id": "shop.py:Shop", "max_turns": 2, "context_length": 500},
    "data": {"train": "rows.jsonl"},
    "algorithm": {"group_size": 4},
    "sampling": {"max_new_tokens": 16},
    "trainer": {"steps": 5, "rows_per_step": 2, "learning_rate": 1e-3},
    "evaluation": {"rows": 1},
    "output_dir": "out",
    "seed": 4,  # no turn happens to end
}
ROWS = [{"prompt": f"What does fruit {n} cost?"} for n in range(6)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(SHOP)
    Path("script.py").write_text(SCRIPT)
    return tmp_path


def tried(
    *overrides: str,
    rows: Sequence[Any] = ROWS,
    says: Sequence[str] | None = None,
    logprob: float = -6.9,  # of one token of the tiny model's 1,030, about
) -> Report:
    """A dry run of RUN, with a policy that says texts in turn where there are any."""
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    script = {"backend": "script.py:Says", "texts": says, "logprob": logprob}
    agent = {} if says is None else {"agent": script}
    Path("run.yaml").write_text(yaml.safe_dump(RUN | agent))
    return dry_run(load_config("run.yaml", overrides))


def oddities(report: Report) -> dict[str, str]:
    return {each.cause: each.text for each in report.oddities}


GOOD = '<tool_call>\n{"name": "price", "arguments": {"fruit": "pear"}}\n</tool_call>'


def test_a_run_that_learns_has_nothing_odd() -> None:
    report = tried(says=[GOOD, "3", "4", "5"], rows=ROWS)
    rewards = [episode.reward for group in report.groups for episode in group]
    assert 0 < sum(rewards) < len(rewards) == 16
    assert oddities(report) == {}
    assert "nothing odd was found" in [*report_lines(report)]
    assert (report.agent, report.prompts.of, report.prompts.rows) == ("Says", 5, 5)
    assert report.first is not None and report.first.messages[-1]["role"] == "assistant"


def test_seconds_of_a_step_are_those_of_its_episodes() -> None:
    costs = tried(says=[GOOD, "3", "4", "5"]).costs
    assert (costs.episodes, costs.learned, costs.step_episodes) == (16, 16, 8)
    assert costs.rollout_s is not None and costs.train_s is not None
    assert costs.rollout_s == pytest.approx(costs.played_s / 2)
    assert costs.train_s == pytest.approx(costs.learned_s / 2)
    assert costs.run_s == pytest.approx(5 * (costs.rollout_s + costs.train_s))
    assert costs.memory_bytes and costs.memory.startswith("a step takes up to ")


@pytest.mark.parametrize(("agent", "ahead"), [("{}", False), ("{device: cpu}", True)])
def test_sampling_takes_no_time_where_a_copy_samples_meanwhile(agent: str, ahead: bool) -> None:
    """The trained model samples in turn; how long tools overlap with training is not known."""
    costs = tried("trainer.max_staleness=1", f"agent={agent}").costs
    assert costs.rollout_s is not None and costs.train_s is not None
    both = (costs.rollout_s, costs.train_s)
    assert costs.step_s == pytest.approx(max(both) if ahead else sum(both))
    assert ("keys and values up to" in costs.memory) == (not ahead)


def test_episodes_are_those_of_the_first_step() -> None:
    """With the run's own seeds, so that what was seen is what comes."""
    report = tried("deterministic=true")
    prompts: list[list[int]] = []

    class Played:
        def on_step(self, step: int, metrics: Any, groups: Sequence[Sequence[Trajectory]]) -> None:
            prompts.extend(group[0].ids for group in groups)

        def __getattr__(self, name: str) -> Any:
            if name in ("on_start", "on_rollouts", "on_evaluation", "on_end"):
                return lambda *event: None
            raise AttributeError(name)

    config = load_config("run.yaml", ["deterministic=true", "trainer.steps=1"])
    build_trainer(config, observer=Played()).train()
    assert prompts == [group[0].ids for group in report.groups[:2]]


def test_nothing_is_written_and_a_run_in_the_folder_is_named(folder: Path) -> None:
    def files() -> set[Path]:
        return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}

    tried(says=["3"])
    before = files()
    tried(says=["3"])
    assert files() == before
    Path("out").mkdir()
    Path("out/metrics.jsonl").write_text('{"step": 1}\n')
    text = oddities(tried(says=["3"]))["output folder"]
    assert text.startswith("out already holds a run") and "output_dir=..." in text


def test_an_update_that_is_tried_changes_no_weight_and_no_optimizer() -> None:
    class Letters(Environment):
        """The share of small letters."""

        def reward(self, episode: Any) -> float:
            return sum(map(str.islower, episode.answer)) / max(1, len(episode.answer))

    groups: list[Any] = []

    class Keeps:
        def on_step(self, step: int, metrics: Any, played: Any) -> None:
            groups.extend(played)

        def __getattr__(self, name: str) -> Any:
            if name in ("on_start", "on_rollouts", "on_evaluation", "on_end"):
                return lambda *event: None
            raise AttributeError(name)

    model = tiny_model().bfloat16()  # with master weights
    trainer = Trainer(
        *(model, tiny_tokenizer(), Letters, [{"prompt": "Go."}]),
        sampling=Sampling(max_new_tokens=6),
        steps=1,
        rows_per_step=1,
        learning_rate=1e-3,
        tokens_per_microbatch=64,
        observer=Keeps(),
    )
    trainer.train()
    optimizer = trainer.learner.optimizer
    before = [weight.clone() for weight in model.parameters()]
    state = {name: repr(value) for name, value in optimizer.state_dict().items()}
    metrics = trainer.learner.try_update(groups)
    assert metrics["grad_norm"] > 0 and metrics["episodes/with_gradient"] == len(groups[0])
    assert all(map(torch.equal, before, model.parameters()))
    assert {name: repr(value) for name, value in optimizer.state_dict().items()} == state
    assert all(weight.grad is None for weight in model.parameters())
    assert trainer.learner.outcome_metrics(groups)["advantage/episodes"] <= 1


# ---- what is odd ----


def test_no_reward_at_all_and_no_turn_that_ends() -> None:
    """What an untrained model does."""
    found = oddities(tried())
    assert found["no reward"].startswith("none of 16 rollouts had a reward (cut off 16): ")
    assert "none of 16 turns ended with <|im_end|>: " in found["no stop"]
    assert "sampling.max_new_tokens (16). Raise it" in found["no stop"]
    assert "cut off" not in found  # the same, said again


SOLVE = """
    def solve(self, row):
        from gymnast.envs import call

        [result] = yield call("price", fruit="pear")
        yield row.get("answer", result["content"])
"""


@pytest.mark.parametrize(
    ("settings", "rows", "said"),
    [
        ((), ROWS, None),
        (("environment.max_turns=1",), ROWS, "with this run's settings `solve` does not reach its"),
        ((), [{**row, "answer": "4"} for row in ROWS], "`solve` earns 0 on the first row, so"),
    ],
)
def test_where_nothing_is_earned_the_solution_is_played_with_the_settings_of_the_run(
    settings: Sequence[str], rows: Sequence[Any], said: str | None
) -> None:
    Path("shop.py").write_text(SHOP + SOLVE)
    found = oddities(tried(*settings, rows=rows, says=["no"]))
    assert "no reward" in found
    assert ("solve" in found) == (said is not None)
    assert said is None or said in found["solve"]


def test_a_warm_up_that_the_run_has_comes_after_what_a_dry_run_plays() -> None:
    Path("shop.py").write_text(SHOP + SOLVE)
    warmup = "warmup={demonstrations: solve, steps: 3}"
    enough = "see whether the warm-up of 3 steps, which a dry run leaves out, is enough"
    found = oddities(tried(warmup))
    assert enough in found["no stop"] and "or the warm-up, which" in found["no reward"]
    found = oddities(tried(warmup, "sampling.max_new_tokens=64", says=["4"]))
    assert found["no calls"].endswith(
        f"{enough} (warmup.steps, warmup.learning_rate), or show worked turns "
        "(environment.worked_turns: 2)"
    )


def test_turns_most_of_which_are_cut() -> None:
    found = oddities(tried(says=["a very long answer " * 5, "a b c " * 20, "4"]))
    assert "no stop" not in found
    assert found["cut off"].startswith("sampling.max_new_tokens (16) cut 6")
    assert "of the episodes of this dry run: raise it" in found["cut off"]


@pytest.mark.parametrize(
    ("says", "cause", "text"),
    [
        (["4"], "no calls", "no episode of this dry run called a tool, though price can be called"),
        (["<tool_call>price</tool_call>"], "malformed calls", "100% of the calls of this dry run"),
        ([GOOD.replace("price", "cost")], "unknown tools", "name a tool that is not offered"),
        ([GOOD.replace("fruit", "name")], "wrong arguments", "that the tool does not take"),
    ],
)
def test_calls_that_go_wrong(says: list[str], cause: str, text: str) -> None:
    report = tried("sampling.max_new_tokens=64", says=says)
    found = oddities(report)
    assert text in found[cause]
    assert f"({cause} 16)" in found["no reward"]
    assert "warm up (warmup: {demonstrations: solve, steps: 20})" in found[cause]


def test_few_calls_are_not_called_none() -> None:
    found = oddities(tried("sampling.max_new_tokens=64", says=["4", GOOD, *["4"] * 30]))
    assert "no calls" not in found
    assert found["few calls"].startswith("only 6% of the episodes of this dry run called a tool, ")


@pytest.mark.parametrize(
    ("paid", "cause"), [((1.0,), "solved"), ((0.0, 0.5), "no spread"), ((0.0,), "too hard")]
)
def test_rewards_that_are_alike_in_every_group(paid: tuple[float, ...], cause: str) -> None:
    rows = [{"prompt": f"Fruit {n}?", "paid": paid[n % len(paid)]} for n in range(6)]
    report = tried("sampling.max_new_tokens=64", rows=rows, says=[GOOD, "Four."])
    found = oddities(report)
    assert "in this dry run all episodes of each row had the same reward" in found[cause]
    assert ("no reward" in found) == (max(paid) == 0)


def test_prompts_that_are_too_long_and_little_room() -> None:
    rows = [*ROWS, {"prompt": "pear " * 400}, {"prompt": "pear " * 500}, {"prompt": "pears? " * 52}]
    report = tried("evaluation=null", rows=rows, says=["3"])
    assert len(report.prompts.too_long) == 2
    longest = max(n for n in report.prompts.too_long.values() if n is not None)
    found = oddities(report)
    assert found["prompts too long"].startswith(
        f"2 of 9 prompts leave no token to act (the longest has {longest:,} tokens), and training "
    )
    assert "raise environment.context_length" in found["prompts too long"]
    assert len(report.episodes) == 16  # of rows that fit
    left = report.prompts.left
    assert left is not None
    report = tried(f"sampling.max_new_tokens={left + 1}", "evaluation=null", rows=rows, says=["3"])
    assert found.get("little room") is None or left < 16
    assert f"leaves {left} tokens" in oddities(report)["little room"]


NAMES_ONLY = CHAT_TEMPLATE.replace("tool | tojson", "tool.function.name")


def test_a_template_that_lost_what_a_tool_does() -> None:
    Path("names.jinja").write_text(NAMES_ONLY)
    found = oddities(tried("model.chat_template=names.jinja", says=["3"]))
    assert found["lost tool"].startswith(
        "the chat template leaves the description of the tool price, the parameter fruit of price "
        "out of the prompt"
    )
    assert "(model.chat_template)" in found["lost tool"]


def test_a_template_that_drops_thoughts_of_earlier_turns() -> None:
    said = {"role": "assistant", "content": "Which?", "reasoning_content": "Unclear."}
    prompt = [{"role": "user", "content": "Hello."}, said, {"role": "user", "content": "A pear."}]
    found = oddities(tried("evaluation=null", rows=[{"prompt": prompt}] * 2, says=["3"]))
    assert found["lost text"].startswith(
        "the chat template leaves the thoughts of message 2 (assistant) out of the prompt of row 0 "
        "(in 2 of 2 prompts): "
    )


def test_a_step_that_does_not_fit_into_memory() -> None:
    report = tried(
        *("trainer.rows_per_step=100000", "trainer.tokens_per_microbatch=100000000"), says=["3"]
    )
    found = oddities(report)
    assert "a step does not fit into memory" in found["memory"]
    assert "Lower trainer.tokens_per_microbatch" in found["memory"]
    assert (report.costs.memory, report.costs.step_s) == ("", None)
    assert len(report.episodes) == 16  # they are played all the same


def test_episodes_that_the_loss_leaves_out() -> None:
    found = oddities(tried("algorithm.masked_stop_reasons=[max_tokens]"))
    assert "every rollout ended in a way that algorithm.masked_stop_reasons" in found["masked"]


def test_an_engine_that_says_other_log_probabilities_than_the_trainer() -> None:
    found = oddities(tried(says=["3"], logprob=-1.0))
    assert "engine/kl is" in found["engine mismatch"]
    assert "a token in this dry run: set model.float32_head" in found["engine mismatch"]


def test_a_gradient_that_is_not_finite() -> None:
    found = oddities(tried("algorithm.old_logprobs=engine", says=["3"], logprob=math.nan))
    assert "is not finite" in found["not finite"] and "float32" in found["not finite"]


def test_episodes_that_break_are_left_out() -> None:
    Path("shop.py").write_text(
        SHOP.replace(
            'return "3"',
            "from gymnast.errors import InfrastructureError; raise InfrastructureError('no till')",
        )
    )
    found = oddities(tried("sampling.max_new_tokens=64", says=[GOOD, "3", "4"]))
    assert "infrastructure" in found["left out"]


def test_settings_that_are_hardly_intended() -> None:
    found = oddities(tried("trainer.learning_rate=5", says=["3"]))
    assert "learning_rate" in found["settings"]


REWARD = """
    def reward(self, episode):
        if "paid" in self.row:
            return self.row["paid"]
        return float(episode.answer == "3")
"""
PAYS = "def pays(trajectory):\n    return 1.0\n"


def test_a_class_without_a_reward_unless_the_run_pays(caplog: pytest.LogCaptureFixture) -> None:
    Path("shop.py").write_text(SHOP.replace(REWARD, "") + PAYS)
    said = "Shop has no reward, so every episode of it gets 0 and teaches nothing: write reward("
    unscored = tried(says=["3"])
    assert oddities(unscored)["unscored"].startswith(said)
    assert "no reward" in oddities(unscored) and "no reward" not in unscored.expected
    paying = ("rewards=[{function: 'shop.py:pays'}]", "trainer.steps=1", "evaluation=null")
    assert "unscored" not in oddities(tried(*paying, says=["3"]))
    build_trainer(load_config("run.yaml", paying), observer=None).train()
    assert said not in caplog.text
    unpaid = (*paying[1:], "output_dir=unpaid")
    build_trainer(load_config("run.yaml", unpaid), observer=None).train()
    assert [text.startswith(said) for text in caplog.messages].count(True) == 1


def test_what_random_weights_explain_is_said_once_for_all(tmp_path: Path) -> None:
    last = [*report_lines(tried())][-1]
    assert last == "no reward, no stop and no calls are expected of tiny:, whose weights are random"
    report = tried("trainer.learning_rate=5", "sampling.max_new_tokens=64", says=["4"])
    assert [*oddities(report)] == ["settings", "no reward", "no calls"]
    assert report.expected == ["no reward", "no calls"]
    tiny_model().save_pretrained(tmp_path / "trained")
    tiny_tokenizer().save_pretrained(tmp_path / "trained")
    assert tried(f"model.name={tmp_path / 'trained'}").expected == []


# ---- other runs ----


def test_a_mixture_shows_the_environment_of_its_first_row() -> None:
    mixture = (
        "environment={mixture: [{id: 'shop.py:Shop', name: shop, data: rows.jsonl}, "
        "{id: gymnast/Arithmetic-v0, name: sums}], context_length: 700}"
    )
    report = tried(mixture, "data=null", "evaluation.rows=2")
    assert report.prompts.first is not None
    assert report.prompts.first.environment in ("shop", "sums")
    assert report.prompts.of is None
    assert len(report.episodes) == 16


def test_an_environment_of_a_mixture_that_pays_nothing_is_named() -> None:
    paying = SHOP.replace("Shop", "Paying").replace('float(episode.answer == "3")', "1.0")
    Path("paying.py").write_text(paying)
    mixture = (
        "environment={mixture: [{id: 'shop.py:Shop', name: shop, data: rows.jsonl}, "
        "{id: 'paying.py:Paying', name: paying, data: rows.jsonl}], context_length: 700}"
    )
    report = tried(mixture, "data=null", "evaluation=null", says=["4"])
    rewards = [episode.reward for episode in report.episodes]
    found = oddities(report)["no reward"]
    assert found.startswith(f"none of {rewards.count(0.0)} rollouts of shop had a reward (no calls")


def test_a_prompt_is_told_apart_by_colours_or_by_bars() -> None:
    report = tried(says=["3"])
    prompt = report.prompts.first
    assert isinstance(prompt, Prompt)
    assert prompt.tools_text.startswith("<|im_start|>system\nTools:\n{")
    assert "".join(token.text for token in prompt.tokens).endswith("<|im_start|>assistant\n")
    colored = prompt_text(prompt, colors=True)
    styles = [span.style for span in colored.spans]
    assert set(styles) == {*PLAIN, SPECIAL}
    assert styles[0] == SPECIAL  # <|im_start|>
    assert len(styles) == len(prompt.tokens)
    plain = prompt_text(prompt, colors=False)
    assert plain.plain.startswith("<|im_start|>|system|\\n\nT|o|o|l|s|:|\\n\n")
    assert not plain.spans or {span.style for span in plain.spans} == {""}


PROGRAM = """\
import openai

def ask(base_url, api_key, task):
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for _ in range(2):  # two contexts
            message = {"role": "user", "content": task["prompt"]}
            client.chat.completions.create(model="policy", messages=[message])
"""


def test_a_program_is_tried_with_the_requests_that_it_makes() -> None:
    Path("agent.py").write_text(PROGRAM)
    Path("pays.py").write_text("def pays(episode, result):\n    return 1.0\n")
    environment = (
        "environment={id: gymnast/Program-v0, function: 'agent.py:ask', reward: 'pays.py:pays', "
        "context_length: 500}"
    )
    report = tried(environment)
    assert report.first is not None and len(report.first.contexts) == 2
    lines = [*episode_lines(report.first)]
    assert [line for line in lines if line.startswith("context ")] == ["context 0", "context 1"]
    assert report.prompts.first is not None and report.prompts.first.environment == "Program"
    assert "solved" in oddities(report)


def test_a_run_with_a_warm_up_is_tried_before_it() -> None:
    report = tried(
        "environment={id: gymnast/Arithmetic-v0, context_length: 700}",
        *("data=null", "warmup={demonstrations: solve, steps: 3}", "evaluation.rows=2"),
    )
    assert any("before 3 steps of warm-up" in line for line in report_lines(report))
