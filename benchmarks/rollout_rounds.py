"""The scenario of `deterministic`: what sampling in rounds costs, compared with in flight.

Both play the same conversations on the same model; only the order in which requests are served
differs. TRL has no part in it.
"""

from rollout_gymnast import GymnastSide
from rollout_measure import in_turns
from rollout_peers import small_model
from rollout_report import HEAD, Report, difference
from rollout_script import equal_plays, mixed_plays, workload


def rounds(quick: bool, device: str) -> Report:
    """Compare equal turns, a slow tool and a mix, in flight and in rounds."""
    report = Report("deterministic: rounds beside requests in flight, 16 episodes", [HEAD])
    cases = {
        "4 turns, no latency": equal_plays(4),
        "4 turns, 0.2 s tool": equal_plays(4, wait_ms=200),
        "mix": mixed_plays(),
    }
    for name, plays in cases.items():
        work = workload([list(group[:2]) for group in plays[:1]] if quick else plays)
        model = small_model(len(work.tokenizer), device)
        in_flight = GymnastSide(model, work)
        in_rounds = GymnastSide(model, work, deterministic=True)
        in_flight.run()  # lazy imports and caches of code
        costs = in_turns([in_flight.run, in_rounds.run], 1 if quick else 3)
        found = difference(in_flight.conversations, in_rounds.conversations)
        assert not found, f"in flight and in rounds, other conversations were played: {found}"
        for side, cost in zip(("in flight", "in rounds"), costs, strict=True):
            report.add(f"{name}, {side}", cost)
        wall, cpu = costs[1].wall_s / costs[0].wall_s, costs[1].cpu_s / costs[0].cpu_s
        report.lines.append(f"{'':30} | {wall:.2f} times the wall time, {cpu:.2f} of CPU")
    return report
