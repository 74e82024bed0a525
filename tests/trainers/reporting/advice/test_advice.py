"""A run that does not learn says so, why, and what to do; one that may learn says nothing.

The runs are real: an environment's tools, its errors, the trainer's updates. Only what the policy
says is scripted, where that matters.
"""

import asyncio
import itertools
import json
import logging
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents import load_model
from gymnast.envs import Environment, Mixture, call, tool
from gymnast.trainers import Trainer, make_algorithm
from gymnast.trainers.algorithms.losses import LOSSES, TokenLosses
from gymnast.trainers.base.observer import SMALL_PASSES, WAITING, Advice
from gymnast.trainers.reporting.advice.advisor import without_solve
from gymnast.trainers.reporting.advice.cases import Facts, advise
from gymnast.trainers.reporting.advice.history import History
from gymnast.trainers.reporting.advice.seen import KEPT, SeenStep
from gymnast.trainers.reporting.advice.speed import SpeedFacts
from gymnast.types import Completion, Sampling

STEPS = 2
END = "<|im_end|>"


class Shop(Environment):
    """A price list; the reward is half of how many the first call asked for."""

    @tool
    def price(self, fruit: str, count: int = 1) -> int:
        """Look up a price.

        Args:
            fruit: Which.
            count: How many.
        """
        return {"apple": 3}[fruit] * count

    def reward(self, episode: Any) -> float:
        return float(sum(call.arguments.get("count", 0) for call in episode.calls[:1])) / 2


class Solved(Shop):
    """The same with a solution."""

    def solve(self, row: Any) -> Any:
        yield call("price", fruit="apple", count=2)
        yield "3"


class Keeps:
    """An observer with `on_advice`."""

    def __init__(self) -> None:
        self.advice: list[Advice] = []
        self.summary: Any = None

    def on_start(self, trainer_info: Any) -> None: ...

    def on_rollouts(self, step: int, done: int, total: int) -> None: ...

    def on_step(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_evaluation(self, step: int, metrics: Any, groups: Any) -> None: ...

    def on_end(self, summary: Any) -> None:
        self.summary = summary

    def on_advice(self, advice: Advice) -> None:
        self.advice.append(advice)


@pytest.fixture
def heard(tokenizer: Any, encode: Callable[[str], list[int]]) -> Callable[..., dict[str, str]]:
    """Returns what a run whose policy says some texts in turn, or what it samples, is told."""

    def hear(*texts: str, environment: Any = Shop, **settings: Any) -> dict[str, str]:
        keeps = Keeps()
        trainer = make_trainer(tokenizer, environment, observer=keeps, **settings)
        if texts:
            says(trainer, [encode(text) for text in texts], encode(f"No.{END}"))
        trainer.train()
        assert keeps.summary["advice"] == trainer.advisor.standing
        return {advice.cause: advice.text for advice in keeps.advice}

    return hear


def make_trainer(tokenizer: Any, environment: Any, **settings: Any) -> Trainer:
    given: dict[str, Any] = {
        "group_size": 2,
        "rows_per_step": 2,
        "steps": STEPS,
        "sampling": Sampling(max_new_tokens=200),
        "learning_rate": 1e-3,
    }
    model = load_model("tiny:", tokenizer=tokenizer)[0]
    return Trainer(model, tokenizer, environment, [{"prompt": "Go."}], **given | settings)


def says(trainer: Trainer, turns: list[list[int]], end: list[int]) -> None:
    """Have the policy say each of some turns in an episode's first, and `end` in all others."""
    started, prompts = itertools.count(), list[list[int]]()  # all episodes have one prompt

    async def generate(context_ids: list[int], sampling: Sampling) -> Completion:
        if not prompts:
            prompts.append(list(context_ids))
        ids = turns[next(started) % len(turns)] if context_ids == prompts[0] else end
        stop: Literal["stop", "length"] = "stop"
        if len(ids) > sampling.max_new_tokens:
            ids, stop = ids[: sampling.max_new_tokens], "length"
        return Completion(ids, [-7.0] * len(ids), stop)

    trainer.agent.generate = generate  # type: ignore[method-assign]


def test_no_calls_says_how_to_show_some(heard: Callable[..., dict[str, str]]) -> None:
    told = heard(f"I do not know.{END}")
    assert told["no calls"] == (
        "no episode of the last 2 steps called a tool, though price can be called: write the hook "
        "`solve` of Shop, then show worked turns (environment.worked_turns: 2) or warm up (warmup: "
        "{demonstrations: solve, steps: 20})"
    )
    assert "too hard" not in told, "what explains it says more"
    told = heard(f"I do not know.{END}", environment=Solved)
    assert "can be called: show worked turns (environment.worked_turns: 2) or" in told["no calls"]


def test_each_environment_of_a_mixture_needs_a_solution_of_its_own() -> None:
    assert without_solve(lambda: Mixture({Solved: 2, Shop: 1})) == "Shop"
    assert without_solve(lambda: Mixture({Solved: 1})) == ""


def test_worked_turns_that_are_shown_already_are_not_advised(
    heard: Callable[..., dict[str, str]], renderer: Any
) -> None:
    def shows() -> Solved:
        return Solved(renderer, rows=[{"prompt": "Do."}, {"prompt": "Try."}], worked_turns=1)

    told = heard(f"I do not know.{END}", environment=shows)
    assert told["no calls"].endswith(
        "can be called: warm up (warmup: {demonstrations: solve, steps: 20})"
    )


@pytest.mark.parametrize(
    ("steps", "worked", "said"),
    [
        (2, 0, "of 2 steps), or show worked turns (environment.worked_turns: 2)"),
        (1, 1, "of 1 step)"),
    ],
)
def test_a_warm_up_that_the_run_has_is_to_be_raised(
    steps: int, worked: int, said: str, heard: Callable[..., dict[str, str]], renderer: Any
) -> None:
    def shows() -> Solved:
        rows = [{"prompt": "Do."}, {"prompt": "Try."}]
        return Solved(renderer, rows=rows, worked_turns=worked)

    warmup = {"demonstrations": "solve", "steps": steps}
    told = heard(f"I do not know.{END}", environment=shows, warmup=warmup)
    assert told["no calls"].endswith(
        "though price can be called: raise warmup.steps or warmup.learning_rate (there is a "
        f"warm-up {said}"
    )


def test_calls_that_cannot_be_read_are_shown_with_what_they_were_told(
    heard: Callable[..., dict[str, str]],
) -> None:
    told = heard(f"<tool_call>{{oops\x1b[31m}}</tool_call>{END}", environment=Solved)
    said = told["malformed calls"]
    assert said.startswith("100% of the calls of the last 2 steps could not be read, most often ")
    assert r"like <tool_call>{oops\x1b[31m}</tool_call>" in said
    assert 'with the error "call 1 could not be read' in said
    assert said.endswith("or warm up (warmup: {demonstrations: solve, steps: 20})")


def test_unknown_tools_and_wrong_arguments_are_shown(
    heard: Callable[..., dict[str, str]], write_call: Callable[..., str]
) -> None:
    told = heard(write_call("prices", of="apple") + END)
    assert (
        'like prices(of="apple"), which was answered "\'prices\': There is no such tool.'
        in (told["unknown tools"])
    )
    told = heard(write_call("price", fruit="apple", count="x") + END)
    assert "unknown tools" not in told
    assert (
        'have arguments that the tool does not take, most often like price(fruit="apple"'
        in (told["wrong arguments"])
    )
    assert (
        'answered "price(fruit: str, count: int = 1): argument "count": '
        in (told["wrong arguments"])
    )


class Charges(Shop):
    """Takes a little for each character, so that rewards differ, and pays nothing."""

    def reward(self, episode: Any) -> float:
        return -1e-4 * len(str(episode.messages))


class Pays(Charges):
    """The same, and pays for having called."""

    def reward(self, episode: Any) -> float:
        return 1 + super().reward(episode)


@pytest.mark.parametrize("environment", [Charges, Pays])
@pytest.mark.parametrize(
    ("calls", "cause"),
    [(('prices(of="a")',), "unknown tools"), ((), "no calls")],
)
def test_a_small_penalty_does_not_silence_advice_where_nothing_is_earned(
    environment: type[Shop],
    calls: tuple[str, ...],
    cause: str,
    heard: Callable[..., dict[str, str]],
    write_call: Callable[..., str],
) -> None:
    wrong = write_call("prices", of="a")
    texts = (wrong + END, f"{wrong}{wrong}{END}") if calls else (f"No.{END}", f"No, none.{END}")
    told = heard(*texts, environment=environment)
    assert (cause in told) == (environment is Charges)


def test_the_commonest_form_is_shown(
    heard: Callable[..., dict[str, str]], write_call: Callable[..., str]
) -> None:
    calls = [write_call(name, of=n) for n, name in enumerate(("buy", "cost", "cost", "cost"))]
    told = heard("\n".join(calls) + END)
    assert "most often like cost(of=1)" in told["unknown tools"]


def test_an_exception_of_a_tool_is_no_wrong_argument(
    heard: Callable[..., dict[str, str]], write_call: Callable[..., str]
) -> None:
    told = heard(write_call("price", fruit="plum") + END)
    assert set(told) <= {"too hard", "engine mismatch"}


@pytest.mark.parametrize(
    ("counts", "cause", "words"),
    [
        ((0,), "too hard", "the lowest (0.000), so there is nothing to learn from"),
        ((2,), "solved", "the highest (1.000): the task is solved; give harder rows"),
        ((0, 0, 1, 1), "no spread", "50% of the rows the lowest, 50% the highest"),
    ],
)
def test_groups_whose_rewards_are_all_alike(
    counts: tuple[int, ...],
    cause: str,
    words: str,
    heard: Callable[..., dict[str, str]],
    write_call: Callable[..., str],
) -> None:
    told = heard(*(write_call("price", fruit="apple", count=count) + END for count in counts))
    assert words in told[cause]
    assert set(told) <= {cause, "engine mismatch"}


@pytest.mark.parametrize(
    ("limit", "settings", "environment"),
    [
        ("sampling.max_new_tokens (8)", {"sampling": Sampling(max_new_tokens=8)}, {}),
        ("environment.max_turns", {}, {"max_turns": 1}),
        ("environment.max_tokens", {}, {"max_tokens": 12}),
    ],
)
def test_what_cuts_most_episodes_is_named(
    limit: str,
    settings: dict[str, Any],
    environment: dict[str, Any],
    heard: Callable[..., dict[str, str]],
    write_call: Callable[..., str],
    renderer: Any,
) -> None:
    call = write_call("price", fruit="apple", count=0) + END
    told = heard(call, environment=lambda: Shop(renderer, **environment), **settings)
    assert told["cut off"].startswith(f"{limit} cut 100% of the episodes of the last 2 steps: ")
    assert "malformed calls" not in told, "a call that was cut off is not malformed"


def test_an_engine_that_is_another_policy_is_told(heard: Callable[..., dict[str, str]]) -> None:
    told = heard(f"12{END}", f"twelve{END}", environment=Talks)
    assert "engine/kl is" in told["engine mismatch"]
    assert "model.float32_head: true" in told["engine mismatch"]


class Talks(Environment):
    """No tools; the reward is how many digits there are among the characters."""

    def reward(self, episode: Any) -> float:
        return sum(map(str.isdigit, episode.answer)) / max(1, len(episode.answer))


def test_a_run_that_may_learn_hears_nothing(heard: Callable[..., dict[str, str]]) -> None:
    settings = {"group_size": 4, "sampling": Sampling(max_new_tokens=12)}
    assert heard(environment=Digits, steps=3, **settings) == {}, "it needs no tool to learn"


class Digits(Talks):
    """The same with a tool that nobody needs."""

    @tool
    def digit(self) -> int:
        """Draw a digit."""
        return 5


# --- The optimisation


FEW: dict[str, Any] = {
    "group_size": 4,
    "rows_per_step": 1,
    "sampling": Sampling(max_new_tokens=8),
}


def test_a_solved_task_that_limits_cut_hears_that_it_is_solved(
    heard: Callable[..., dict[str, str]],
) -> None:
    told = heard(environment=Talks, steps=8, learning_rate=0.3, **FEW)
    assert set(told) == {"solved"}


def test_updates_that_are_skipped_are_told(heard: Callable[..., dict[str, str]]) -> None:
    def broken(*given: Any, **options: Any) -> TokenLosses:
        found = LOSSES["clipped"](*given, **options)
        return replace(found, losses=found.losses * math.nan)

    told = heard(environment=Talks, steps=4, algorithm=make_algorithm("grpo", loss=broken), **FEW)
    assert told["skipped updates"].startswith("3 of the last 3 optimisation steps were skipped")


def test_long_gradients_are_told_where_the_reward_does_not_rise(
    heard: Callable[..., dict[str, str]],
) -> None:
    # With one row, a group may have no gradient; by chance, this seed's rewards do not rise.
    two = FEW | {"rows_per_step": 2, "seed": 2}
    told = heard(environment=Talks, steps=10, max_grad_norm=1e-3, learning_rate=1e-9, **two)
    assert "as trainer.max_grad_norm (0.001; the shortest was " in told["long gradients"]
    assert "sampling.max_new_tokens (8) cut 100%" in told["cut off"]


def test_a_reward_that_falls_is_told(heard: Callable[..., dict[str, str]]) -> None:
    good, bad = [f"12{END}", f"1a{END}"], [f"ab{END}", f"a1{END}"]
    told = heard(*good * 10, *bad * 10, environment=Talks, steps=10)
    began, now = re.findall(r"0\.\d+", told["falling reward"])[:2]
    assert (float(began), float(now)) == (0.75, 0.25)


def steps(*metrics: dict[str, float]) -> History:
    history = History()
    for number, measured in enumerate(metrics, start=1):
        history.add(SeenStep(number, measured, episodes=8))
    return history


@pytest.mark.parametrize(
    ("name", "first", "last", "reward", "cause"),
    [
        ("entropy", 1.0, 0.05, 0.4, "entropy collapsed"),
        ("entropy", 1.0, 0.05, 0.95, None),  # nearly solved
        ("entropy", 1.0, 0.2, 0.4, None),
        ("entropy", 1.0, 3.5, 0.4, "entropy exploded"),
        ("entropy", 0.1, 0.5, 0.4, None),
        ("engine/kl", 0.001, 0.02, 0.4, "engine mismatch"),
        ("engine/kl", 0.001, 0.005, 0.4, None),
        ("engine/kl", 0.2, 0.2, 0.4, "engine mismatch"),
        ("clipped", 0.6, 0.6, 0.4, "clipped tokens"),
    ],
)
def test_the_bounds_of_numbers(
    name: str, first: float, last: float, reward: float, cause: str | None
) -> None:
    plain = {"reward/mean": reward, "reward/std": 0.4, "advantage/episodes": 1.0}
    told = [plain | {name: value} for value in [first] * 5 + [last] * 10]
    found = advise(steps(*told), Facts(lambda: "", 1.0, 64))
    assert [advice.cause for advice in found] == ([cause] if cause else [])


@given(st.lists(st.dictionaries(st.sampled_from(KEPT), st.floats(-10, 10)), max_size=14))
def test_any_numbers_give_sentences_and_a_state_that_is_restored(
    measured: list[dict[str, float]],
) -> None:
    history, facts = steps(*measured), Facts(lambda: "Shop", 1.0, 64)
    again = History.from_dict(json.loads(json.dumps(history.to_dict())))
    assert advise(history, facts) == advise(again, facts)


# --- Speed


class Sleeps(Digits):
    """Begins with a second at a slow service."""

    async def setup(self, row: Any) -> None:
        await asyncio.sleep(1.0)


SHORT: dict[str, Any] = {"steps": 5, "sampling": Sampling(max_new_tokens=2)}


@pytest.mark.parametrize(
    ("settings", "ways"),
    [
        (
            {"concurrency": 2},
            "raise trainer.concurrency (it is 2; a step has 4 episodes), or raise "
            "trainer.max_staleness to 1 (it is 0), so that",
        ),
        ({}, "raise trainer.max_staleness to 1 (it is 0), so that"),
        ({"deterministic": True}, None),
    ],
)
def test_a_run_that_waits_for_its_environment_hears_it(
    settings: dict[str, Any], ways: str | None, heard: Callable[..., dict[str, str]]
) -> None:
    told = heard(environment=Sleeps, **SHORT | settings)
    if ways is None:
        assert WAITING not in told
        return
    said, _, advice = told[WAITING].partition(": ")
    share = re.fullmatch(
        r"the CPU waited for tools and environments (\d+)% of the last 5 steps", said
    )
    assert share is not None and 50 < int(share[1]) <= 100
    assert advice.startswith(ways)


def test_a_run_that_computes_hears_nothing_of_waiting(heard: Callable[..., dict[str, str]]) -> None:
    assert WAITING not in heard(environment=Digits, **SHORT | {"steps": 6})


FACTS = SpeedFacts("GPU", True, 64, 64, 0, True, 512)


@pytest.mark.parametrize(
    ("metrics", "facts", "causes"),
    [
        ({"perf/waiting_share": 0.62}, FACTS, {WAITING}),
        ({"perf/waiting_share": 0.62}, FACTS._replace(can_be_stale=False), set()),
        ({"perf/waiting_share": 0.62}, FACTS._replace(max_staleness=1), {WAITING}),
        ({"perf/waiting_share": 0.62}, FACTS._replace(max_staleness=1, concurrency=128), set()),
        ({"perf/waiting_share": 0.62}, FACTS._replace(deterministic=True), set()),
        ({"perf/waiting_share": 0.5}, FACTS, set()),
        ({}, FACTS, set()),
        ({"perf/training_share": 0.71, "tokens/trained": 9000.0}, FACTS, {SMALL_PASSES}),
        ({"perf/training_share": 0.71, "tokens/trained": 500.0}, FACTS, set()),
        ({"perf/training_share": 0.5, "tokens/trained": 9000.0}, FACTS, set()),
        (
            {"perf/training_share": 0.71, "tokens/trained": 9000.0},
            FACTS._replace(tokens_per_microbatch=None),
            set(),
        ),
        (
            {"perf/training_share": 0.71, "tokens/trained": 9000.0},
            FACTS._replace(tokens_per_microbatch=4096),
            set(),
        ),
        (
            {"perf/training_share": 0.71, "tokens/trained": 9000.0},
            FACTS._replace(trains_on_gpu=False),
            set(),
        ),
    ],
)
def test_the_bounds_of_speed(
    metrics: dict[str, float], facts: SpeedFacts, causes: set[str]
) -> None:
    for count in (4, 5):
        found = advise(steps(*[metrics] * count), Facts(lambda: "", 1.0, 64, speed=facts))
        assert {advice.cause for advice in found} == (causes if count == 5 else set())
        assert all(advice.heading == "slow" for advice in found)
        assert all(advice.page == "docs/symptoms.md" for advice in found)


# --- Who is told, and how often


def test_a_cause_is_said_once_and_kept_in_the_runs_folder(
    tokenizer: Any, encode: Callable[[str], list[int]], tmp_path: Path
) -> None:
    keeps = Keeps()
    trainer = make_trainer(tokenizer, Shop, observer=keeps, steps=4, output_dir=tmp_path / "run")
    says(trainer, [encode(f"No.{END}")], [])
    trainer.train()
    assert [(advice.step, advice.cause) for advice in keeps.advice] == [(2, "no calls")]
    lines = (tmp_path / "run/advice.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [asdict(advice) for advice in keeps.advice]
    (standing,) = trainer.advisor.standing
    assert standing.step == 4


def test_what_changes_is_said(
    tokenizer: Any, encode: Callable[[str], list[int]], write_call: Callable[..., str]
) -> None:
    keeps = Keeps()
    trainer = make_trainer(tokenizer, Shop, observer=keeps, steps=6)
    says(trainer, [encode(f"No.{END}")] * 12 + [encode(write_call("sell") + END)] * 12, [2])
    trainer.train()
    told = [(advice.step, advice.cause) for advice in keeps.advice]
    assert told == [(2, "no calls"), (4, "unknown tools")]


def test_a_resumed_run_says_what_the_whole_run_says(
    tokenizer: Any, encode: Callable[[str], list[int]], tmp_path: Path
) -> None:
    def run(name: str, steps: int, *, resume: bool = False) -> list[str]:
        folder = tmp_path / name
        settings = {"steps": steps, "checkpoint_every_steps": 1, "keep_checkpoints": 3}
        trainer = make_trainer(tokenizer, Shop, observer=None, output_dir=folder, **settings)
        says(trainer, [encode(f"No.{END}")], [])
        trainer.train(resume=resume)
        found = folder / "advice.jsonl"
        return found.read_text().splitlines() if found.exists() else []

    assert run("parts", 1) == []
    whole = run("whole", 3)
    assert run("parts", 3, resume=True) == whole != []
    for step in (2, 3):
        shutil.rmtree(tmp_path / f"parts/checkpoints/step_{step:05d}")
    assert run("parts", 3, resume=True) == whole, "what is said anew is dropped first"


@pytest.mark.parametrize("observer", [None, "without"])
def test_without_an_observer_that_takes_it_advice_is_logged(
    observer: Any,
    tokenizer: Any,
    encode: Callable[[str], list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Old(Keeps):
        on_advice = None  # type: ignore[assignment]

    trainer = make_trainer(tokenizer, Shop, observer=observer and Old())
    says(trainer, [encode(f"No.{END}")], [])
    with caplog.at_level(logging.WARNING):
        trainer.train()
    said = [text for text in caplog.messages if ", not learning: " in text]
    assert len(said) == 1
    assert said[0].startswith("step 2, not learning: no calls: no episode of the last 2 steps")
    assert said[0].endswith("(docs/learning.md)")
