"""`gymnast train --dry-run`: what it prints, and that it writes nothing."""

import json
from pathlib import Path

import pytest

from command_fixtures import CommandLine

DRY = ("train", "run.yaml", "--dry-run")


def files() -> dict[str, bytes]:
    """All files of the working folder but Python's own."""
    return {
        str(path): path.read_bytes()
        for path in Path().rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_shows_a_prompt_an_episode_and_costs_and_writes_nothing(gymnast: CommandLine) -> None:
    before = files()
    ended = gymnast(*DRY)
    assert (ended.code, ended.errors) == (0, "")
    lines = ended.output.splitlines()
    assert lines[0].startswith("the prompt of row 0 (Arithmetic): 316 tokens, 384 left ")
    assert lines[0].endswith(" for the episode (context_length 700)")
    assert "<|im_start|>|system|\\n" in lines  # tokens are parted where there are no colours
    assert "tools: add, multiply; as the chat template writes them:" in lines
    starts = [line.partition(":")[0] for line in lines]
    assert [name for name in starts if name in ("an episode", "prompts", "rollouts", "memory")] == [
        *("an episode", "prompts", "rollouts", "memory")
    ]
    assert any("16 by TransformersAgent" in line for line in lines)
    assert any(line.startswith("time: a step about ") for line in lines)
    assert any(line.startswith("odd: no stop: none of ") for line in lines)
    assert lines[-1] == "nothing was written; without --dry-run the run begins"
    assert files() == before
    assert not Path("out").exists()


def test_the_report_is_json_for_scripts(gymnast: CommandLine) -> None:
    ended = gymnast(*DRY, "--json")
    assert (ended.code, ended.errors) == (0, "")
    found = json.loads(ended.output)
    assert found["prompt"]["length"] == len(found["prompt"]["tokens"])
    assert found["prompt"]["tools"] == ["add", "multiply"]
    assert found["rollouts"]["episodes"] == 16
    assert [len(group) for group in found["rollouts"]["rewards"]] == [2] * 8
    costs = found["costs"]
    assert costs["step_episodes"] == 4
    assert costs["rollout_s"] == pytest.approx(costs["played_s"] * 4 / 16)
    assert costs["run_s"] == pytest.approx(2 * costs["step_s"])
    assert {"cause", "text"} == set(found["oddities"][0])


def test_less_is_printed_where_it_is_asked_for(gymnast: CommandLine) -> None:
    ended = gymnast(*DRY, "-q")
    assert ended.code == 0
    causes = [line.partition(":")[0] for line in ended.output.splitlines()]
    assert causes[:2] == ["no reward", "no stop"]


def test_what_does_not_load_ends_as_in_training(gymnast: CommandLine) -> None:
    ended = gymnast(*DRY, "environment.id=nowhere:Env")
    assert (ended.code, ended.output) == (2, "")
    assert ended.errors.startswith("error: environment.id: there is no module 'nowhere'")


def test_options_that_do_not_go_together_are_refused(
    gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = gymnast(*DRY, "--resume")
    assert (ended.code, ended.errors) == (
        2,
        "error: --dry-run: tries a run from its beginning; leave --resume out\n",
    )
    ended = gymnast("train", "run.yaml", "--json")
    assert (ended.code, ended.errors) == (
        2,
        "error: --json: prints what --dry-run finds; add that, or leave it out\n",
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    ended = gymnast(*DRY)
    assert ended.code == 2
    assert ended.errors.startswith("error: --dry-run: needs one process, and was launched in 2;")


def test_a_terminal_has_the_prompt_in_colours_unless_it_is_to_have_none(
    gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard output gets it, though what is awaited is shown on standard error."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    ended = gymnast(*DRY)
    assert ended.output.startswith("the prompt of row 0 ")
    assert "\x1b[1;30;48;5;222m<|im_start|>\x1b[0m\x1b[30;48;5;194msystem" in ended.output
    assert "an episode: reward " in ended.output and "odd: no stop: " in ended.output
    assert "an episode: reward " not in ended.errors
    monkeypatch.setenv("NO_COLOR", "1")
    assert "<|im_start|>|system|\\n\n" in gymnast(*DRY).output
