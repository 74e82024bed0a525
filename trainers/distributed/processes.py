"""Several processes: how they are joined, and the one exchange that follows what each does alone.

    torchrun or `accelerate launch` starts the processes, `launched` joins them
    each works alone (rollouts hold no collectives), however long that takes
    `together` waits for all: every process gets all results, or every process raises

accelerate sums the gradients; `sharding.py` and `learner/optimizers/zero.py` divide weights and
optimizer.
"""

import atexit
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from accelerate.utils import InitProcessGroupKwargs, gather_object, patch_environment

from gymnast.errors import ConfigError, GymnastError, UserCodeError, first_line

T = TypeVar("T")

# One process may wait for the rollouts of another for hours. That a process died is noticed by the
# launcher, which ends the others.
LONGEST_WAIT = timedelta(days=7)
# Environment variables by which accelerate hands its settings on, what they must be, and why.
MUST_BE = {
    "ACCELERATE_USE_MEGATRON_LM": ("false", "Megatron-LM is not supported"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": (
        "false",
        "every process computes whole sequences with all layers; leave parallelism_config out",
    ),
    "ACCELERATE_MIXED_PRECISION": (
        "no",
        "set mixed_precision: 'no' and the run's model.dtype; master weights are float32 anyway",
    ),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (
        "1",
        "a step takes as many micro-batches as its tokens fill (trainer.tokens_per_microbatch)",
    ),
}


@dataclass(frozen=True)
class _Failure:
    """What a process raised, in a form that can be sent."""

    process: int
    kind: type[GymnastError] | None
    hook: str
    message: str

    def exception(self) -> Exception:
        text = f"process {self.process}: {self.message}"
        if self.kind is None:
            return RuntimeError(text)
        if issubclass(self.kind, UserCodeError):
            return self.kind(self.hook, None, text)
        return self.kind(text)


def launched(trackers: Sequence[GeneralTracker] = ()) -> Accelerator:
    """This process among those that a launcher started; the only one, where none did.

    Where the machine has no accelerator, several processes are joined by gloo.

    Args:
        trackers: What metrics go to, in the main process.

    Raises:
        ConfigError: The launcher's settings ask for what training does not do.
    """
    for name, (value, reason) in MUST_BE.items():
        given = os.environ.get(name, value)
        if given.lower() != value:
            raise ConfigError(f"accelerate launch: {name} must be {value}, got {given}: {reason}")
    # DeepSpeed is called by `learner/optimizers/zero.py`; accelerate would want to make optimizer
    # and steps.
    with patch_environment(ACCELERATE_USE_DEEPSPEED="false"):
        _check_device(os.environ.get("ACCELERATE_TORCH_DEVICE", "cpu"))
        return Accelerator(
            cpu="LOCAL_RANK" in os.environ and not torch.accelerator.is_available(),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
            log_with=list(trackers) or None,
        )


def _check_device(name: str) -> None:
    """The device that the user named; what accelerate chooses itself is there."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        kind = torch.accelerator.current_accelerator()
        count = torch.accelerator.device_count() if kind is not None else 0
        there = ", ".join(["cpu", *(f"{kind}:{number}" for number in range(count))])
        raise ConfigError(
            f"ACCELERATE_TORCH_DEVICE: must be a device of this machine ({there}), got {name!r}: "
            f"{first_line(error)}"
        ) from error


def together(accelerator: Accelerator, work: Callable[[], T]) -> list[T]:
    """Do some work in every process; returns the results of all, in the order of processes.

    A collective call: every process makes it, and waits for the others. The work itself holds no
    collectives, so processes may differ in what they do, how long it takes, and whether it fails.

    Args:
        accelerator: Of this process.
        work: Its result can be pickled, where there are several processes.

    Raises:
        Exception: What the work raised here; else what it raised in the first other process where
            it did: the same exception of Gymnast's, or a RuntimeError for any other.
    """
    if accelerator.num_processes == 1:
        return [work()]
    process, error = accelerator.process_index, None
    outcome: Any
    try:
        outcome = work()
        sent = pickle.dumps(outcome)
    except Exception as raised:
        error = raised
        sent = pickle.dumps(_failure(process, raised))
    outcomes = [pickle.loads(each) for each in gather_object([sent])]
    if error is not None:
        raise error
    for other in outcomes:
        if isinstance(other, _Failure):
            raise other.exception()
    outcomes[process] = outcome  # what was not sent keeps causes and tracebacks
    return outcomes


def end(accelerator: Accelerator) -> None:
    """Leave the other processes; where there are any, end this one, after its exit functions.

    Python is not torn down then: a thread of torch's process groups that still ends, and asks for
    Python in vain, would abort the process, and the launcher would take the run for a failed one.

    Args:
        accelerator: Of this process.
    """
    accelerator.end_training()
    if accelerator.num_processes > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _failure(process: int, error: Exception) -> _Failure:
    ours = isinstance(error, GymnastError)
    return _Failure(
        process=process,
        kind=type(error) if ours else None,  # type: ignore[arg-type]
        hook=getattr(error, "hook", ""),
        message=str(error) if ours else f"{type(error).__name__}: {error}",
    )
