"""The programs of gpu.sh measure what their figures name; here tiny, on the CPU."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import gpu_job
import gpu_sampling
import gpu_training
from gpu_figures import Figure, parse_figure
from gpu_models import SHAPES, TINY, random_model, training_flops
from gpu_sampling import CASES, GROUP_SIZE, Case, make_prompts, measure_engine, tiny
from train_step_batch import batch

ROOT = Path(__file__).parents[2]


def figures(out: str) -> list[Figure]:
    return [figure for line in out.splitlines() if (figure := parse_figure(line))]


def named(found: list[Figure], name: str) -> list[Figure]:
    return [figure for figure in found if figure.name == name]


def test_a_figure_is_read_back_from_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    made = [Figure("case: a", "rate", 1234.5, "tokens/s", "a | b"), Figure("b", "rate", None)]
    for figure in made:
        figure.report()
    out = capsys.readouterr().out
    assert figures(f"other output\n{out}") == made
    assert [figure.shown for figure in made] == ["1,234 tokens/s", "not measured"]


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


def test_training_flops_are_three_forward_passes() -> None:
    model, tokens = random_model(TINY, "cpu"), 16
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(tokens)[None])
    assert training_flops(model, tokens, tokens) == pytest.approx(
        3 * counter.get_total_flops(), rel=0.02
    )


def test_the_engine_and_generate_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ["smollm2-135m-64", "qwen3-0.6b-64-3000-shared-2700"]
    assert gpu_sampling.main(["--device", "cpu", "--tiny", "--cases", *cases]) == 0
    found = figures(capsys.readouterr().out)
    engine, generate = named(found, "engine"), named(found, "generate")
    assert (len(engine), len(generate)) == (2, 1)
    for figure in [*engine, *generate]:
        assert figure.value is not None and figure.value > 0
        assert (figure.unit, figure.note) == ("tokens/s", "8 tokens an episode")


def test_a_case_without_time_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "cpu", "--tiny", "--seconds", "0", "--cases", "qwen3-4b-64"]
    assert gpu_sampling.main(arguments) == 0
    (figure,) = figures(capsys.readouterr().out)
    assert (figure.value, figure.note) == (None, "no time was left")


def test_a_case_ends_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(TINY, 8, prompt_tokens=2000, shared_tokens=0)
    measure_engine(random_model(TINY, "cpu"), case, "cpu", seconds=0.0)
    (figure,) = figures(capsys.readouterr().out)
    assert figure.value is None
    assert "took longer than 0 s" in figure.note


@pytest.mark.slow
def test_sampled_tokens_are_cut_to_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(TINY, 8, prompt_tokens=20, shared_tokens=20, sampled_tokens=4000)
    measure_engine(random_model(TINY, "cpu"), case, "cpu", seconds=8.0)
    found = figures(capsys.readouterr().out)
    (figure,) = named(found, "engine")
    assert figure.value is not None
    assert 4 < int(figure.note.split()[0]) < 4000
    assert named(found, "engine, a step")[0].value


def test_a_failing_case_leaves_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Case(TINY, 8, prompt_tokens=5000, shared_tokens=0)  # longer than the model takes
    monkeypatch.setattr(gpu_sampling, "CASES", [broken, Case(TINY, 8, sampled_tokens=8)])
    assert gpu_sampling.main(["--device", "cpu"]) == 1
    found = named(figures(capsys.readouterr().out), "engine")
    assert [figure.value is None for figure in found] == [True, False]
    assert "UsageError" in found[0].note


@pytest.mark.filterwarnings("ignore")  # TRL's own
def test_training_steps_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_training.main(["--device", "cpu", "--tiny"]) == 0
    found = figures(capsys.readouterr().out)
    groups = batch("equal", 4, 4, 900, shorter=10)
    tokens = sum(len(group.prompt) + len(one.ids) for group in groups for one in group.episodes)
    steps = {figure.case: figure for figure in named(found, "a step")}
    for figure in named(found, "rate"):
        step = steps[figure.case]
        assert step.note == "median of 3 after the first"
        assert figure.value == pytest.approx(tokens / (step.value or 0.0), rel=0.02)
    measured = {case.partition(",")[0] for case, figure in steps.items() if figure.value}
    with_trl = importlib.util.find_spec("trl") is not None
    assert measured == ({"Gymnast", "TRL"} if with_trl else {"Gymnast"})
    assert len(steps) == len(gpu_training.SIDES)


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
