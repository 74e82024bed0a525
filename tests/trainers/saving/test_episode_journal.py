"""The journal of an evaluation: what was written is found again, whatever a kill left of it."""

from pathlib import Path

import pytest

from gymnast.trainers.saving.episode_journal import EpisodeJournal
from gymnast.types import Branch, Span, StopReason, Trajectory

BRANCH = Branch([4, 5], [0, 1], [0.0, -0.5], 1, [Span(1, 2)], [0.5])


def episode(number: int) -> Trajectory:
    return Trajectory(
        ids=[*range(number, number + 40)],
        action_mask=[0] + [1] * 39,
        logprobs=[0.0] + [-0.1 / (number + 1)] * 39,
        prompt_length=1,
        turns=[Span(1, 40)],
        turn_rewards=[number / 3],
        stop_reason=StopReason.stop_tool,
        terminated=True,
        truncated=False,
        messages=[{"role": "user", "content": f"é {number}"}],
        metrics={"time/episode_s": 0.1 * number},
        row={"n": number},
        seed=2**62 + number,
        branches=[BRANCH] if number % 2 else (),
        order=[0, 1] if number % 2 else (),
    )


def test_what_was_written_is_found_at_the_next_start(tmp_path: Path) -> None:
    first = EpisodeJournal(tmp_path / "eval")
    assert first.find(0, 0) is None and not (tmp_path / "eval").exists()
    first.add(3, 1, episode(1))
    first.add(0, 0, None)  # left out
    second = EpisodeJournal(tmp_path / "eval")  # the first one was killed: it is not closed
    assert (second.find(3, 1), second.find(0, 0), len(second)) == (episode(1), None, 1)
    second.add(0, 0, episode(2))
    for journal in (first, second):
        journal.close()
    third = EpisodeJournal(tmp_path / "eval", process=1)
    assert (third.find(3, 1), third.find(0, 0)) == (episode(1), episode(2))


def test_a_torn_end_costs_the_episode_that_it_is_of_and_no_other(tmp_path: Path) -> None:
    journal = EpisodeJournal(tmp_path)
    ends = []
    for number in range(3):
        journal.add(number, 0, episode(number))
        (file,) = tmp_path.iterdir()
        ends.append(file.stat().st_size)
    whole = file.read_bytes()
    journal.close()
    for size in {0, 1, *ends, *(end - 1 for end in ends), *range(0, len(whole), 211)}:
        file.write_bytes(whole[:size])
        there = sum(end <= size for end in ends)
        found = EpisodeJournal(tmp_path)
        assert len(found) == there, size
        assert [found.find(n, 0) for n in range(there)] == [episode(n) for n in range(there)]


def test_processes_write_files_of_their_own(tmp_path: Path) -> None:
    both = [EpisodeJournal(tmp_path, process) for process in (0, 1)]
    for number, journal in enumerate(both):
        journal.add(number, 0, episode(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["001_00.arrows", "001_01.arrows"]
    assert len(EpisodeJournal(tmp_path)) == 2
    for journal in both:
        journal.close()
    with pytest.raises(FileExistsError):
        EpisodeJournal.add(_again(tmp_path), 0, 0, episode(0))


def _again(folder: Path) -> EpisodeJournal:
    """A journal whose file another process has made meanwhile."""
    journal = EpisodeJournal(folder)
    (folder / "002_00.arrows").touch()
    return journal
