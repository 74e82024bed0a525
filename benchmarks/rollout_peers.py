"""Scenarios side by side with TRL: equal turns, a slow tool, a realistic mix.

Both sides are made once, warmed up with one run of a single turn, and then run in turn; figures are
medians. After every run the conversations of the two sides are compared, token by token and mask by
mask.
"""

from collections.abc import Sequence
from typing import Any

from gymnast.agents.loading.tiny import tiny_model
from rollout_gymnast import GymnastSide
from rollout_measure import Cost, in_turns
from rollout_report import HEAD, Point, Report, Target, difference
from rollout_script import Play, Workload, equal_plays, mixed_plays, workload
from rollout_trl import TrlSide

TARGET_CPU, TARGET_TOKENS, TARGET_WALL, TARGET_EPISODES = 2.5, 0.15, 5.0, 5.0


def small_model(vocab_size: int, device: str) -> Any:
    """A random Qwen3: hidden size 256, 4 layers, long enough for every scenario."""
    model = tiny_model(
        vocab_size,
        hidden_size=256,
        intermediate_size=768,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
    )
    return model.to(device)


def compare(work: Workload, repetitions: int, device: str) -> tuple[Cost, Cost]:
    """Measure the medians of Gymnast's costs and of TRL's.

    Raises:
        AssertionError: The two sides did not play the same conversations.
    """
    vocabulary = len(work.tokenizer)
    ours = GymnastSide(small_model(vocabulary, device), work)
    theirs = TrlSide(small_model(vocabulary, device), work)

    def checked() -> Cost:
        cost = theirs.run()
        found = difference(ours.conversations, theirs.conversations)
        assert not found, f"Gymnast and TRL played different conversations: {found}"
        return cost

    gymnast, trl = in_turns([ours.run, checked], repetitions)
    return gymnast, trl


def warm_up(device: str) -> None:
    """Run both sides once, for lazy imports and caches of code."""
    compare(workload(_smaller(equal_plays(1), 2)), 1, device)


def _smaller(plays: Sequence[Sequence[Play]], group_size: int) -> list[list[Play]]:
    return [list(group[:group_size]) for group in plays]


def turns(quick: bool, device: str) -> Report:
    """Compare equal turns without latency."""
    report = Report("Equal turns, a tool without latency, 16 episodes in 2 groups", [HEAD])
    warm_up(device)
    for count, repetitions in {1: 3, 2: 3, 4: 3, 8: 3}.items():
        if quick and count > 2:
            break
        plays = equal_plays(count)
        work = workload(_smaller(plays, 2) if quick else plays)
        ours, theirs = compare(work, 1 if quick else repetitions, device)
        for side, cost in (("Gymnast", ours), ("TRL", theirs)):
            report.add(f"{count} turns, {side}", cost)
            report.points.append(Point(side, count, cost))
    if not quick:
        report.targets += [
            Target("8 turns: CPU, TRL / Gymnast", theirs.cpu_s / ours.cpu_s, ">=", TARGET_CPU),
            Target(
                "8 turns: tokens pushed, Gymnast / TRL",
                ours.tokens / theirs.tokens,
                "<=",
                TARGET_TOKENS,
            ),
        ]
    return report


def slow_tool(quick: bool, device: str) -> Report:
    """Compare turns with a tool of 0.2 s in each."""
    count = 1 if quick else 4
    report = Report(f"{count} turns, a tool of 0.2 s in each", [HEAD])
    warm_up(device)
    plays = equal_plays(count, wait_ms=200)
    work = workload(_smaller(plays, 2) if quick else plays)
    ours, theirs = compare(work, 1 if quick else 3, device)
    report.add("Gymnast", ours)
    report.add("TRL", theirs)
    ratio = theirs.wall_s / ours.wall_s
    if not quick:
        report.targets.append(Target("wall time, TRL / Gymnast", ratio, ">=", TARGET_WALL))
    return report


def mix(quick: bool, device: str) -> Report:
    """Compare a realistic mix of turns, lengths and latencies."""
    report = Report(
        "A mix: 1 to 8 turns (geometric), lengths log-normal, tools of 20 to 500 ms", [HEAD]
    )
    warm_up(device)
    plays = mixed_plays()
    work = workload(_smaller(plays, 2) if quick else plays)
    ours, theirs = compare(work, 1 if quick else 3, device)
    calls = [len(turns) - 1 for group in work.turns for turns in group]
    report.lines.append(f"turns with a call, by episode: {sorted(calls)}")
    for side, cost in (("Gymnast", ours), ("TRL", theirs)):
        report.add(side, cost)
        report.lines.append(f"{'':30} | {work.episodes * 60 / cost.wall_s:.0f} episodes a minute")
    ratio = theirs.wall_s / ours.wall_s
    if not quick:
        report.targets.append(
            Target("episodes a minute, Gymnast / TRL", ratio, ">=", TARGET_EPISODES)
        )
    return report
