"""The rollout benchmark plays what it says, on both sides, and reports what it measured."""

from pathlib import Path

import pytest

import rollout_engine
import rollout_loop
import rollout_peers
import rollout_plot
from rollout_gymnast import GymnastSide
from rollout_measure import Cost, median
from rollout_report import Point, Report, Target, difference
from rollout_script import (
    OBSERVED_TOKENS,
    PROMPT_TOKENS,
    TURN_TOKENS,
    Script,
    Workload,
    equal_plays,
    mixed_plays,
    workload,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def work() -> Workload:
    return workload([group[:2] for group in equal_plays(2)])


def test_prompts_and_turns_have_the_lengths_they_should(work: Workload) -> None:
    assert [len(ids) for ids in work.prompt_ids] == [PROMPT_TOKENS] * 2
    assert work.prompt_ids[0] != work.prompt_ids[1]
    lengths = {len(turn) for group in work.turns for turns in group for turn in turns}
    assert lengths == {TURN_TOKENS}


def test_the_mix_has_one_to_eight_calls_and_stays_the_same() -> None:
    plays = [play for group in mixed_plays() for play in group]
    calls = [len(play.calls) for play in plays]
    assert min(calls) >= 1
    assert max(calls) <= 8
    assert len(set(calls)) > 2
    assert all(20 <= call.wait_ms <= 500 for play in plays for call in play.calls)
    assert mixed_plays() == mixed_plays()


def test_members_begin_in_order_and_are_known_by_their_first_turn(work: Workload) -> None:
    script = Script(work)
    prompt, (first, second) = work.prompt_ids[1], work.turns[1]
    assert script.next_turn(prompt) == first[0]
    assert script.next_turn(prompt) == second[0]
    observation = [0, work.tokenizer.eos_token_id, 0]
    assert script.next_turn([*prompt, *second[0], *observation]) == second[1]
    with pytest.raises(LookupError, match="no episode of row 1"):
        script.next_turn([*prompt, 0])


def test_gymnast_plays_the_script(work: Workload) -> None:
    side = GymnastSide(rollout_peers.small_model(len(work.tokenizer), "cpu"), work)
    cost = side.run()
    expected = [turns for group in work.turns for turns in group]
    assert len(side.conversations) == len(expected)
    for (ids, mask), turns in zip(sorted(side.conversations), sorted(expected), strict=True):
        assert [i for i, sampled in zip(ids, mask, strict=True) if sampled] == [
            token for turn in turns for token in turn
        ]
        assert len(ids) == PROMPT_TOKENS + 3 * TURN_TOKENS + 2 * OBSERVED_TOKENS
    # Prompts once for each group; of what is sampled last no keys are computed.
    most = 2 * PROMPT_TOKENS + 4 * (3 * TURN_TOKENS + 2 * OBSERVED_TOKENS)
    assert most - 2 * PROMPT_TOKENS - 4 * TURN_TOKENS < cost.tokens < most
    assert cost.cpu_s > 0


@pytest.mark.filterwarnings("ignore")  # TRL's own
def test_trl_plays_the_same_conversations(work: Workload) -> None:
    pytest.importorskip("trl")
    ours, theirs = rollout_peers.compare(work, 1, "cpu")  # asserts that they are the same
    # The whole context in every turn: prompt, then 64 + 77 tokens more each time.
    turns = [
        PROMPT_TOKENS + n * (TURN_TOKENS + OBSERVED_TOKENS) + TURN_TOKENS - 1 for n in range(3)
    ]
    assert theirs.tokens == 4 * sum(turns)
    assert ours.tokens < theirs.tokens


def test_a_difference_is_told() -> None:
    assert difference([((1,), (0,)), ((2,), (1,))], [((2,), (1,)), ((1,), (0,))]) == ""
    assert difference([((1,), (0,))], [((1,), (1,))]) == "1 of 1 conversations differ"
    assert "2 conversations on one side, 1" in difference([1, 2], [1])


@pytest.mark.parametrize(
    "scenario", [rollout_engine.growth, rollout_engine.decode, rollout_loop.overhead]
)
def test_scenarios_without_a_peer_run_in_small(scenario: object) -> None:
    assert callable(scenario)
    report = scenario(True, "cpu")
    assert isinstance(report, Report)
    assert len(report.lines) > 3
    assert report.targets == []  # in small nothing is promised


def test_targets_say_whether_they_are_met() -> None:
    assert str(Target("ratio", 3.0, ">=", 2.5)) == "ratio: 3 (target >= 2.5): met"
    assert str(Target("share", 0.2, "<=", 0.15)) == "share: 0.2 (target <= 0.15): MISSED"


def test_medians_are_of_every_figure() -> None:
    assert median([Cost(1, 9, 5), Cost(2, 8, 5), Cost(9, 7, 5)]) == Cost(2, 8, 5)


@pytest.mark.filterwarnings("ignore")  # matplotlib's own
def test_the_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [Point(side, n, Cost(n, n, 100 * n)) for side in ("Gymnast", "TRL") for n in (1, 2)]
    rollout_plot.save_plot(points, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
