"""What test_processes.py runs in two processes: runs, after each of which the processes part.

    python parting_processes.py FOLDER

What a trainer holds is freed after they have parted, as at the end of a program.
"""

import gc
import importlib
import json
import os
import sys
from pathlib import Path

from accelerate.state import AcceleratorState, GradientState, PartialState

ROUNDS = 30


def part_again_and_again(folder: Path) -> None:
    """Train for one step, part, and free what there is, many times."""
    scenarios = importlib.import_module("two_processes")
    first_port = int(os.environ["MASTER_PORT"])
    for number in range(ROUNDS):
        os.environ["MASTER_PORT"] = str(first_port + number)
        trainer = scenarios.make_trainer(steps=1, rows_per_step=2, observer=None)
        trainer.train()
        trainer.accelerator.end_training()
        del trainer
        gc.collect()
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        print(number, flush=True)
    found = {"parted": ROUNDS}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    part_again_and_again(Path(sys.argv[1]))
