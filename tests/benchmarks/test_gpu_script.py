"""gpu.sh: its options, the time of its parts, what it reports of one that fails, and its page."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import gpu_job
import gpu_machine
import gpu_run
from gpu_figures import Figure
from gpu_machine import Setup, SetupError
from gpu_run import PartResult, count_tests, make_page, part_seconds, run_part

ROOT = Path(__file__).parents[2]


def run_code(code: str, limit: float = 60.0) -> PartResult:
    return run_part("job", [sys.executable, "-c", code], os.environ, limit)


@pytest.mark.parametrize(
    "arguments",
    [["--only", "nonsense"], ["--only"], ["--seconds", "0"], ["--device", "tpu"], ["x"]],
)
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        gpu_run.main(arguments)
    assert error.value.code == 2


def test_only_takes_several_parts_and_may_be_repeated() -> None:
    assert gpu_run.parse_options(["--only", "job", "tests"]).only == ["job", "tests"]
    assert gpu_run.parse_options(["--only", "job", "--only", "tests"]).only == ["job", "tests"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nothing_is_measured_without_a_gpu() -> None:
    before = gpu_run.PAGE.read_text()
    done = subprocess.run(
        [ROOT / "benchmarks/gpu.sh", "--only", "job"],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "nothing was measured" in done.stderr
    assert done.stdout == ""
    assert gpu_run.PAGE.read_text() == before


def test_parts_share_the_time_that_is_left() -> None:
    names = list(gpu_run.SHARES)
    assert part_seconds(285, names[:1]) == 285
    left = 285.0
    for index in range(len(names)):
        left -= part_seconds(left, names[index:])
    assert left == pytest.approx(0)
    assert part_seconds(-3, names) == 1.0


def test_every_part_has_a_command() -> None:
    for name in gpu_run.SHARES:
        command = gpu_run.part_command(name, "python", "cuda", ["job.yaml", "code.yaml"], 100.0)
        assert command[0] == "python"
        assert (f"{name}.yaml" in command) == (name in ("job", "code"))


def test_the_main_job_may_take_as_long_as_its_goal() -> None:
    left, goal = gpu_run.TOTAL_S - gpu_run.RESERVE_S - gpu_run.KILL_S, 60.0
    share = gpu_run.SHARES["job"] / sum(gpu_run.SHARES.values()) * left
    command = gpu_run.part_command("job", "python", "cuda", ["job.yaml", "code.yaml"], share)
    assert float(command[-1]) - gpu_job.SAVE_S >= goal


def test_a_part_gives_its_figures_and_prints_as_it_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figure = Figure("case", "rate", 2.0, "tokens/s")
    line = f"import sys; sys.path.append({str(ROOT / 'benchmarks')!r})\n"
    result = run_code(f"{line}from gpu_figures import Figure; {figure!r}.report(); print('end')")
    assert (result.failure, result.figures, result.tail) == ("", [figure], ["end"])
    assert "case: rate: 2 tokens/s" in capsys.readouterr().out


def test_a_part_that_fails_is_reported_with_its_last_lines() -> None:
    result = run_code("print('before'); raise SystemExit('out of luck')")
    assert result.failure == "exit code 1"
    assert result.tail == ["before", "out of luck"]


def test_a_part_is_interrupted_at_its_limit() -> None:
    result = run_code("import time\nprint('begun', flush=True)\ntime.sleep(600)", limit=3)
    assert result.failure == "stopped after 3 s"
    assert result.tail[0] == "begun" and result.tail[-1] == "KeyboardInterrupt"


def test_a_part_that_ignores_interrupts_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "KILL_S", 1.0)
    ignoring = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    result = run_code(ignoring, limit=2)
    assert result.failure == "stopped after 2 s"
    assert result.seconds < 60


def test_what_a_part_leaves_running_ends_with_it() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=-3, stderr=-3).pid)"
    status = Path(f"/proc/{run_code(code).tail[-1]}/status")
    until = time.monotonic() + 30  # a killed process takes a moment to be gone
    while status.exists() and "zombie" not in status.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert time.monotonic() < until


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("43 passed, 2 failed in 35.01s", {"passed": 43, "failed": 2}),
        ("1 error in 3.00s", {"error": 1}),
        ("12 passed, 1 skipped, 4000 deselected in 60.1s (0:01:00)", {"passed": 12, "skipped": 1}),
        ("no tests ran in 0.10s", {}),
    ],
)
def test_tests_are_counted(line: str, counts: dict[str, int]) -> None:
    found = count_tests(["SKIPPED [1] a.py: 3 failed tests", line])
    assert {figure.name: figure.value for figure in found} == counts


def test_the_page_has_one_table_and_the_failures() -> None:
    figure = Figure("A | B", "rate", 5.0, "tokens/s", "n", ">= 4 tokens/s")
    good = PartResult("sampling", "python a.py", 12.4, [figure])
    bad = PartResult("job", "python b.py", 3.0, failure="exit code 1", tail=["```", "why"])
    page = make_page(["H100, driver 580.", "Commit abc."], [good, bad], 16.0)
    assert "| sampling | A \\| B | rate | 5 tokens/s | >= 4 tokens/s | n |" in page
    assert "| job | whole part | time | 3 s |  | FAILED: exit code 1 |" in page
    assert page.count("| part | case | figure |") == 1
    assert page.index("H100") < page.index("| part |") < page.index("## job: exit code 1")
    assert "```text\n'''\nwhy\n```" in page


def test_the_page_goes_to_out_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(gpu_run, "PAGE", tmp_path / "RESULTS_GPU.md")
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    gpu_run.write_page("page")
    for folder in (tmp_path, tmp_path / "out"):
        assert (folder / "RESULTS_GPU.md").read_text() == "page"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `.gpu/`."""
    monkeypatch.setattr(gpu_machine, "FOLDER", tmp_path)
    monkeypatch.setattr(gpu_machine, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(gpu_machine, "COMMIT_FILE", tmp_path / "wheels/COMMIT")
    monkeypatch.setattr(gpu_run, "COMMIT_FILE", tmp_path / "wheels/COMMIT")
    return tmp_path


def test_the_job_needs_all_parts_of_the_weights(folder: Path) -> None:
    whole = os.urandom(2500)
    for number in (1, 2, 3):
        assert Setup.prepare(sys.executable).job == "examples/tiny.yaml"
        part = folder / f"weights-{number}/a-1-py3-none-any.whl.{number}of3"
        part.parent.mkdir()
        part.write_bytes(whole[1000 * (number - 1) : 1000 * number])
    setup = Setup.prepare(sys.executable)
    assert (setup.job, setup.code) == ("examples/arithmetic.yaml", "examples/code.yaml")
    assert setup.env["PIP_NO_INDEX"] == "1"
    joined = Path(setup.env["PIP_FIND_LINKS"]) / "a-1-py3-none-any.whl"
    assert joined.read_bytes() == whole
    for number in (1, 2, 3):  # a later call brings other folders along
        shutil.rmtree(folder / f"weights-{number}")
    assert Setup.prepare(sys.executable).job == "examples/arithmetic.yaml"


def test_a_python_without_gymnast_is_refused(folder: Path) -> None:
    bare = Path(sys.base_prefix) / "bin/python3"
    with pytest.raises(SetupError, match=str(bare)):
        Setup.prepare(str(bare))


def test_wheels_of_other_sources_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "wheels").mkdir()
    (folder / "wheels/gymnast-0-py3-none-any.whl").write_bytes(b"")
    (folder / "wheels/COMMIT").write_text("abc 0123456789abcdef\n")
    monkeypatch.setattr(gpu_machine, "PYTHON_VERSION", sys.version_info[:2])
    with pytest.raises(SetupError, match=r"gpu_wheels\.sh"):
        Setup.prepare(sys.executable)


def test_the_commit_is_named_without_git(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_run, "ROOT", tmp_path)  # without .git
    assert gpu_run.commit_name() == "unknown"
    (folder / "wheels").mkdir()
    (folder / "wheels/COMMIT").write_text(f"abc-dirty {gpu_machine.source_digest()}\n")
    assert gpu_run.commit_name() == "abc-dirty"
    (folder / "wheels/COMMIT").write_text("abc 0123456789abcdef\n")
    assert gpu_run.commit_name() == "abc, changed since"


@pytest.mark.slow
def test_a_failing_part_leaves_the_others(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.png", "*.json")
    for name in ("benchmarks", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "examples/tiny.yaml").write_text("model: {nam: 'tiny:'}\n")
    page = tmp_path / "benchmarks/RESULTS_GPU.md"
    before = page.read_text()
    done = subprocess.run(
        ["benchmarks/gpu.sh", "--device", "cpu", "--only", "sampling", "job"],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "| job | whole part | time |" in done.stdout and "FAILED: exit code 1" in done.stdout
    assert "nam" in done.stdout.partition("## job")[2]  # the last lines of its output
    assert "Commit unknown." in done.stdout
    assert done.stdout.count("| engine |") == 11
    assert page.read_text() == before and not (tmp_path / "RESULTS_GPU.md").exists()
