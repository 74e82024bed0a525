"""The in-process engine as the GPU benchmarks make it, and what they report of it."""

from collections.abc import Sequence
from typing import Any

import torch

from gpu_figures import Figure
from gymnast.agents import TransformersAgent


def make_agent(model: Any, device: str, max_batch: int, context_length: int) -> TransformersAgent:
    """Make an agent that samples over pages; on a CPU that is a trial of the same code.

    Args:
        model: Of `random_model`.
        device: "cuda" or "cpu".
        max_batch: Requests that are sampled at once.
        context_length: The longest context with its completion, in tokens.
    """
    budget = 2**26
    if device == "cuda":
        budget = torch.cuda.get_device_properties(0).total_memory // 2
    return TransformersAgent(
        model,
        max_batch=max_batch,
        context_length=context_length,
        kv_budget_bytes=budget,
        executor="pages",
    )


def check_path(agent: TransformersAgent, device: str, metrics: Sequence[dict[str, float]]) -> None:
    """Make sure that a figure is of the path that it is meant for.

    Args:
        agent: That sampled.
        device: "cuda" or "cpu".
        metrics: Everything that its `metrics` returned so far.

    Raises:
        RuntimeError: It sampled otherwise than over pages, or on a GPU without CUDA graphs.
    """
    if agent.executor != "pages":
        raise RuntimeError(f"sampled with {agent.executor!r} instead of 'pages': see the log")
    if device == "cuda" and not sum(each["engine/captures"] for each in metrics):
        raise RuntimeError("sampled over pages without CUDA graphs: see the log")


def report_engine(
    case: str,
    agent: TransformersAgent,
    wall_s: float,
    measured: dict[str, float],
    metrics: Sequence[dict[str, float]],
) -> None:
    """Report where the time of a measurement went.

    Args:
        case: Its title.
        agent: That sampled.
        wall_s: Its seconds.
        measured: The agent's metrics of them.
        metrics: Everything that its `metrics` returned so far.
    """
    device_s, host_s = measured["time/engine/device_s"], measured["time/engine/host_s"]
    preempted = sum(each["engine/preempted"] for each in metrics)
    note = (
        f"device {device_s:.3g} s, scheduler {host_s:.3g} s, wall {wall_s:.3g} s; "
        f"{preempted:.0f} preempted"
    )
    Figure(case, "device share", round(device_s / wall_s, 3), note=note).report()
    captures = sum(each["engine/captures"] for each in metrics)
    seconds = sum(each["time/engine/capture_s"] for each in metrics)
    note = f"in {seconds:.2f} s; sampled with {agent.executor!r}"
    Figure(case, "graphs captured", captures, note=note).report()
    if agent.self_check_nats is not None:
        Figure(case, "self-check", agent.self_check_nats, "nats").report()
