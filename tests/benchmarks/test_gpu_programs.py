"""The programs of gpu.sh measure what their figures name; here tiny, on the CPU."""

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import gpu_episodes
import gpu_job
import gpu_logprobs
import gpu_sampling
import gpu_training
from gpu_engine import check_path, make_agent
from gpu_episodes import busy_threads, play_all
from gpu_figures import Figure, Goal, parse_figure
from gpu_models import SHAPES, TINY, random_model
from gpu_sampling import CASES, GROUP_SIZE, Case, make_prompts, measure_engine, tiny
from gymnast.agents import TransformersAgent
from train_step_batch import batch

ROOT = Path(__file__).parents[2]
SHORT = replace(
    gpu_episodes.tiny(gpu_episodes.CASES[0]), in_flight=12, enough=4, most_turns=2, prompt_tokens=8
)


def figures(out: str) -> list[Figure]:
    return [figure for line in out.splitlines() if (figure := parse_figure(line))]


def named(found: list[Figure], name: str) -> list[Figure]:
    return [figure for figure in found if figure.name == name]


def test_a_figure_is_read_back_from_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    made = [
        Figure("case: a", "rate", 1234.5, "tokens/s", "a | b", ">= 1 on an H200"),
        Figure("b", "rate", None),
    ]
    for figure in made:
        figure.report()
    out = capsys.readouterr().out
    assert figures(f"other output\n{out}") == made
    assert [figure.shown for figure in made] == ["1,234 tokens/s", "not measured"]


@pytest.mark.parametrize(
    ("goal", "value", "card", "shown"),
    [
        (Goal(100), 100.0, "NVIDIA H200", ">= 100 x on an H200: met"),
        (Goal(100), 99.0, "NVIDIA H200", ">= 100 x on an H200: missed"),
        (Goal(100), 99.0, "NVIDIA H100 80GB HBM3", ">= 100 x on an H100: missed"),
        (Goal(100, memory_bound=True), 70.0, "NVIDIA H100 NVL", ">= 70 x on an H100: met"),
        (Goal(100, memory_bound=True), 70.0, "NVIDIA H200", ">= 100 x on an H200: missed"),
        (Goal(0.5, at_least=False), 0.5, "NVIDIA H200", "<= 0.5 x on an H200: met"),
        (Goal(0.5, at_least=False), 0.6, "NVIDIA H200", "<= 0.5 x on an H200: missed"),
        (Goal(0.5, at_least=False), float("nan"), "NVIDIA H200", "<= 0.5 x on an H200: missed"),
        (Goal(100), float("nan"), "NVIDIA H200", ">= 100 x on an H200: missed"),
        (Goal(100), None, "NVIDIA H200", ">= 100 x on an H200"),
        (Goal(100), 500.0, "NVIDIA L4", ">= 100 x on an H200"),
    ],
)
def test_goals_are_for_their_card(goal: Goal, value: float | None, card: str, shown: str) -> None:
    assert goal.compare(value, "x", card) == shown


def test_every_workload_of_the_goals_is_a_case() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    short = {(case.model, case.episodes) for case in CASES if case.prompt_tokens == 300}
    assert short == {
        *(("SmolLM2-135M", episodes) for episodes in (64, 256)),
        *(("Qwen3-0.6B", episodes) for episodes in (64, 256)),
        *(("Qwen3-1.7B", episodes) for episodes in (64, 128, 256)),
        ("Qwen3-4B", 64),
    }
    long = {(case.prompt_tokens, case.shared_tokens) for case in CASES if case.prompt_tokens > 300}
    assert long == {(3_000, 0), (3_000, 2_700), (16_000, 15_700)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_groups_share_their_tokens_and_no_others(case: Case) -> None:
    case = tiny(case)
    prompts = make_prompts(case, 1000)
    assert {len(prompt) for prompt in prompts} == {case.prompt_tokens}
    assert len(prompts) == case.episodes
    firsts = {tuple(prompt[: case.shared_tokens]) for prompt in prompts}
    assert len(firsts) == (case.episodes // GROUP_SIZE if case.shared_tokens else 1)
    if case.shared_tokens < case.prompt_tokens:
        assert len({prompt[case.shared_tokens] for prompt in prompts}) > 1
    assert make_prompts(case, 1000) == prompts


@pytest.mark.parametrize(
    ("name", "millions"),
    [("SmolLM2-135M", 135), ("Qwen3-0.6B", 596), ("Qwen3-1.7B", 1721), ("Qwen3-4B", 4022)],
)
def test_shapes_have_the_weights_of_the_public_models(name: str, millions: int) -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(SHAPES[name]())
    assert round(model.num_parameters() / 1e6) == millions


def test_the_work_of_a_step_counts_prompts_as_both_sides_do() -> None:
    model, groups = random_model(TINY, "cpu"), batch("equal", 4, 4, 900, shorter=10)
    work = gpu_training.work_of(groups, model)
    lengths = [len(g.prompt) + len(e.ids) for g in groups for e in g.episodes]
    assert work.tokens == sum(lengths)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(lengths[0])[None])
    whole = 3 * counter.get_total_flops() * len(lengths)
    assert work.nominal_flops == pytest.approx(whole, rel=0.1)
    assert work.actual_flops < work.nominal_flops


def test_the_engine_and_generate_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ["smollm2-135m-64", "qwen3-0.6b-64-3000-shared-2700"]
    assert gpu_sampling.main(["--device", "cpu", "--tiny", "--cases", *cases]) == 0
    found = figures(capsys.readouterr().out)
    engine, generate = named(found, "engine"), named(found, "generate")
    assert (len(engine), len(generate)) == (2, 1)
    for figure in [*engine, *generate]:
        assert figure.value is not None and figure.value > 0
        assert (figure.unit, figure.note) == ("tokens/s", "8 tokens an episode")
    assert [figure.goal[:11] for figure in engine] == [">= 17,000 t", ">= 14,000 t"]
    shares = named(found, "device share")
    assert len(shares) == 2 and all(0 < (figure.value or 0) < 1 for figure in shares)


@pytest.mark.parametrize("executor", ["rows", "pages"])
def test_a_figure_of_another_path_is_refused(executor: Literal["rows", "pages"]) -> None:
    agent = TransformersAgent(random_model(TINY, "cpu"), executor=executor, kv_budget_bytes=10**7)
    with pytest.raises(RuntimeError, match="rows" if executor == "rows" else "CUDA graphs"):
        check_path(agent, "cuda", [agent.metrics()])


def test_the_agent_has_a_row_for_every_episode() -> None:
    agent = make_agent(random_model(TINY, "cpu"), "cpu", 100, 64)
    check_path(agent, "cpu", [])
    with busy_threads(0):
        ready, ended = asyncio.run(play_all(agent, SHORT, 12, 60.0, seed=0))
    assert ended == 12
    assert ready.wall_s > 0 and 0 < ready.device_s < ready.wall_s and ready.tokens > 0


def test_only_time_with_enough_ready_requests_counts() -> None:
    agent = make_agent(random_model(TINY, "cpu"), "cpu", 12, 64)
    never = replace(SHORT, enough=13)
    ready, ended = asyncio.run(play_all(agent, never, 12, 60.0, seed=0))
    assert ended == 12
    assert (ready.wall_s, ready.device_s, ready.tokens) == (0, 0, 0)


def test_episodes_end_with_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    case = replace(gpu_episodes.tiny(gpu_episodes.CASES[0]), tool_s=(60.0, 60.0), enough=9)
    gpu_episodes.measure(random_model(TINY, "cpu"), "cpu", 0.5, case=case)
    (figure,) = figures(capsys.readouterr().out)
    assert figure.value is None
    assert "never ready" in figure.note and figure.goal == ">= 0.9 on an H200"


def test_episodes_with_busy_tools_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    name = "qwen3-0.6b-tools-8-threads"
    assert gpu_sampling.main(["--device", "cpu", "--tiny", "--cases", name]) == 0
    found = figures(capsys.readouterr().out)
    (share,) = named(found, gpu_episodes.SHARE)
    assert 0.3 < (share.value or 0) < 1.1  # a launch is counted whole where it was read
    assert share.goal == ">= 0.75 on an H200"
    assert named(found, gpu_episodes.RATE)[0].value


def test_sampler_and_learner_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--tiny", "--cases", gpu_logprobs.NAME]
    assert gpu_sampling.main(arguments) == 0
    found = {figure.name: figure for figure in figures(capsys.readouterr().out)}
    values = {name: figure.value or 0.0 for name, figure in found.items()}
    goals = {"bfloat16 head": "<= 0.014 nats", "float32 head": "<= 0.008 nats"}
    for head, goal in goals.items():
        assert found[f"sampler to learner, {head}"].goal.startswith(goal)
        assert 0 < values[f"sampler to learner, {head}"] < 0.014
        own = values[f"model's own forward to float32, {head}"]
        assert 0 < values[f"sampler to float32, {head}"] <= 1.2 * own
    kinds = ("sampler", "learner", "model's own forward")
    for kind in kinds:  # logits are rounded less
        near, far = (
            values[f"{kind} to float32, {head}"] for head in ("float32 head", "bfloat16 head")
        )
        assert near < far


def test_at_least_4096_logprobs_are_compared() -> None:
    assert gpu_logprobs.CASE.episodes * gpu_logprobs.CASE.sampled_tokens >= 4096


def test_a_case_without_time_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--tiny", "--seconds", "0", "--cases", "qwen3-4b-64"]
    assert gpu_sampling.main(arguments) == 0
    (figure,) = figures(capsys.readouterr().out)
    assert (figure.value, figure.note) == (None, "no time was left")


def test_a_case_ends_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(TINY, 8, 1, prompt_tokens=2000, shared_tokens=0)
    measure_engine(random_model(TINY, "cpu"), "cpu", 0.0, case=case)
    (figure,) = figures(capsys.readouterr().out)
    assert figure.value is None
    assert "took longer than 0 s" in figure.note


@pytest.mark.slow
def test_sampled_tokens_are_cut_to_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(TINY, 8, 1, prompt_tokens=20, shared_tokens=20, sampled_tokens=4000)
    measure_engine(random_model(TINY, "cpu"), "cpu", 8.0, case=case)
    found = figures(capsys.readouterr().out)
    (figure,) = named(found, "engine")
    assert figure.value is not None
    assert 4 < int(figure.note.split()[0]) < 4000
    assert named(found, "engine, a step")[0].value


def test_a_failing_case_leaves_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Case(TINY, 8, 1, prompt_tokens=5000, shared_tokens=0)  # longer than the model takes
    good = Case(TINY, 8, 1, sampled_tokens=8)
    monkeypatch.setattr(gpu_sampling, "CASES", [broken, good])
    assert gpu_sampling.main(["--device", "cpu", "--cases", broken.name, good.name]) == 1
    found = named(figures(capsys.readouterr().out), "engine")
    assert [figure.value is None for figure in found] == [True, False]
    assert "UsageError" in found[0].note


def test_training_steps_are_measured() -> None:
    names = ["equal", "lora", "long"]
    # In a process of its own: TRL takes a folder of the tests named vllm for the package.
    script = str(ROOT / "benchmarks/gpu_training.py")
    command = [sys.executable, script, "--device", "cpu", "--tiny", "--cases", *names]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = figures(ended.stdout)
    groups = batch("equal", 4, 4, 900, shorter=10)
    tokens = {
        "equal": sum(len(each.prompt) + len(e.ids) for each in groups for e in each.episodes),
        "lora": 2 * 64,
        "long": 256,
    }
    steps = {figure.case: figure for figure in named(found, "a step")}
    for figure in named(found, "rate"):
        step, case = steps[figure.case], figure.case.partition(",")[0]
        assert step.note == "median of 3 after the first"
        assert figure.value == pytest.approx(tokens[case] / (step.value or 0.0), rel=0.02)
    cases = [case for case in gpu_training.CASES if case.name in names]
    assert list(steps) == [
        f"{case.name}, {side.title}"
        for theirs in (False, True)
        for case in cases
        for side in case.sides
        if (side.settings is None) == theirs
    ]
    measured = {case for case, figure in steps.items() if figure.value}
    with_trl = importlib.util.find_spec("trl") is not None
    assert measured == {case for case in steps if with_trl or "TRL" not in case}
    ratios = {figure.case: figure.value for figure in named(found, "time / TRL's")}
    assert len(ratios) == (2 if with_trl else 0)


def test_the_sandbox_of_a_job_is_named() -> None:
    assert gpu_job.strongest_sandbox(ROOT / "examples/arithmetic.yaml") == ""
    named = gpu_job.strongest_sandbox(ROOT / "examples/code.yaml")
    assert re.fullmatch(r"\w+Sandbox|none: .+", named)


@pytest.mark.parametrize(
    ("ending", "seconds", "judged"), [("finished", 61.0, "missed"), ("interrupted", 50.0, "")]
)
def test_only_a_finished_job_meets_its_goal(ending: str, seconds: float, judged: str) -> None:
    text = gpu_job.compare_with_goal("arithmetic.yaml", seconds, ending == "finished", "H200")
    assert text == "<= 60 s on an H200" + (f": {judged}" if judged else "")
    assert gpu_job.compare_with_goal("tiny.yaml", seconds, True, "H200") == ""


@pytest.mark.slow
def test_the_job_is_run_to_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    config = str(ROOT / "examples/tiny.yaml")
    assert gpu_job.main([config, "--device", "cpu"]) == 0
    found = figures(capfd.readouterr().out)
    values = {figure.name: figure.value for figure in found}
    assert values["steps"] == 3
    assert values.keys() >= {"a step", "sampled", "reward before", "reward after"}
    assert named(found, "whole command")[0].note == "finished"


@pytest.mark.slow
def test_a_job_is_interrupted_at_its_time(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    endless = tmp_path / "endless.yaml"
    text = (ROOT / "examples/tiny.yaml").read_text().replace("steps: 3", "steps: 100000")
    endless.write_text(text.replace("digits.py", os.fspath(ROOT / "examples/digits.py")))
    assert gpu_job.main([str(endless), "--device", "cpu", "--seconds", "75"]) == 0
    found = figures(capfd.readouterr().out)
    assert named(found, "whole command")[0].note == "interrupted by its time limit"
    assert 0 < (named(found, "steps")[0].value or 0) < 100_000


@pytest.mark.slow
def test_a_job_that_fails_is_reported(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "wrong.yaml"
    config.write_text("model: {name: 'tiny:'}\n")
    assert gpu_job.main([str(config), "--device", "cpu"]) == 1
    found = named(figures(capfd.readouterr().out), "whole command")
    assert found[0].note.startswith("exit code ")
