"""What test_ahead_processes.py runs in two real processes: one function a scenario.

    python ahead_processes.py FOLDER

Each process writes what each of its scenarios found to FOLDER/<process>.json.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnast.agents import load_model
from gymnast.trainers import Trainer
from two_processes import (
    PROCESS,
    TOKENIZER,
    Found,
    Keeps,
    SmallLetters,
    TypoInOne,
    error_of,
    fingerprint,
    fsdp2,
    make_trainer,
    run_scenarios,
    train,
)

AHEAD: dict[str, Any] = {
    "agent": {"backend": "transformers", "device": "cpu"},
    "max_staleness": 2,
    "steps": 5,
}
BY_TRAINED = AHEAD | {"agent": None}  # the trained model samples between two updates


class SlowInOne(SmallLetters):
    """Every episode of the second process waits."""

    async def setup(self, row: Any) -> None:
        await asyncio.sleep(0.3 * PROCESS)


class KeepsRows(Keeps):
    """Keeps the positions of the rows, too."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[int]] = []

    def on_step(self, step: int, metrics: Mapping[str, float], groups: Any) -> None:
        super().on_step(step, metrics, groups)
        self.rows.append([group.row_index for group in groups])


def plain(folder: Path) -> Found:
    trainer, found = train(environment=SlowInOne, **AHEAD)
    return found | {"settled": settled(trainer)}


def plain_by_trained(folder: Path) -> Found:
    trainer, found = train(environment=SlowInOne, **BY_TRAINED)
    return found | {"settled": settled(trainer)}


def adapters_by_trained(folder: Path) -> Found:
    model, _ = load_model("tiny:", lora={"rank": 4}, tokenizer=TOKENIZER)
    return train(environment=SlowInOne, model=model, **BY_TRAINED)[1]


def settled(trainer: Trainer) -> Any:
    return trainer.loop.state.parts["ahead"].state_dict()


def divided(folder: Path) -> Found:
    """The weights are in parts over both."""
    with fsdp2():
        return train(environment=SlowInOne, **AHEAD)[1]


def divided_by_trained(folder: Path) -> Found:
    with fsdp2():
        return train(environment=SlowInOne, **BY_TRAINED)[1]


def fewer_rows_than_processes(folder: Path) -> Found:
    return train(rows_per_step=1, **AHEAD)[1]


def typo_in_one(folder: Path) -> Found:
    return error_of(environment=TypoInOne, **AHEAD)


def typo_in_one_by_trained(folder: Path) -> Found:
    return error_of(environment=TypoInOne, **BY_TRAINED)


class InterruptedInOne(SlowInOne):
    """The second process gets Ctrl-C in its fourth group."""

    rewards = 0

    def reward(self, episode: Any) -> float:
        type(self).rewards += 1
        if PROCESS == 1 and type(self).rewards == 14:
            os.kill(os.getpid(), signal.SIGINT)
        return super().reward(episode)


def interrupted_in_one(folder: Path) -> Found:
    """Then a trainer of the same settings resumes the run."""
    settings = {"environment": InterruptedInOne, "output_dir": folder / "run", **AHEAD}
    first, second = KeepsRows(), KeepsRows()
    trainer = make_trainer(observer=first, **settings)
    summary = trainer.train()
    again = make_trainer(observer=second, **settings)
    again.train(resume=True)
    return {
        "stopped_by": summary["stopped_by"],
        "stopped_after": summary["steps"],
        "rows": first.rows + second.rows,
        "settled": settled(again),
        "weights": fingerprint(again.model),
    }


SCENARIOS = [
    plain,
    plain_by_trained,
    adapters_by_trained,
    divided,
    divided_by_trained,
    fewer_rows_than_processes,
    typo_in_one,
    typo_in_one_by_trained,
    interrupted_in_one,
]

if __name__ == "__main__":
    run_scenarios(SCENARIOS, Path(sys.argv[1]))
