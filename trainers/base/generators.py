"""The global random generators of a process: Python's, NumPy's and torch's.

Gymnast draws from none of them; it derives its seeds from where they are used
(`trainers/base/seeds.py`). A user's environment, reward or loss may draw from them, so a run seeds
them at its start and keeps their states in its checkpoints.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gymnast.trainers.base.seeds import derive


def seed_generators(*place: int | str) -> None:
    """Seed all of them, each for a place; see `gymnast.trainers.base.seeds.derive`."""
    random.seed(derive(*place, "python"))
    np.random.seed(derive(*place, "numpy") % 2**32)
    torch.manual_seed(derive(*place, "torch"))  # of the accelerators too


@contextmanager
def seeded_separately(*place: int | str) -> Iterator[None]:
    """Seed all of them for a place while the block runs, then restore their states."""
    states = generator_states()
    seed_generators(*place)
    try:
        yield
    finally:
        restore_generators(states)


def generator_states() -> dict[str, Any]:
    """Their states, as lists, numbers and tensors."""
    version, internal, gauss = random.getstate()
    numpys: Any = np.random.get_state(legacy=False)
    states = {
        "python": {"version": version, "internal": list(internal), "gauss": gauss},
        "numpy": numpys | {"state": _plain(numpys["state"])},
        "torch": torch.get_rng_state(),
    }
    if torch.accelerator.is_available():
        states["accelerator"] = _accelerator_module().get_rng_state()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Restore their states; an accelerator's generator keeps its own if none was saved."""
    python = states["python"]
    random.setstate((python["version"], tuple(python["internal"]), python["gauss"]))
    key = np.array(states["numpy"]["state"]["key"], dtype=np.uint32)
    np.random.set_state(states["numpy"] | {"state": states["numpy"]["state"] | {"key": key}})
    torch.set_rng_state(states["torch"])
    if "accelerator" in states and torch.accelerator.is_available():
        _accelerator_module().set_rng_state(states["accelerator"])


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in state.items()}


def _accelerator_module() -> Any:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    return torch.get_device_module(device)
