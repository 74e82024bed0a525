"""What test_other_agents.py runs in two real processes, whose agents share one server.

python shared_server.py FOLDER      FOLDER/addresses.json has the server of each scenario
"""

import json
import sys
from pathlib import Path

from gymnast.agents.loading.tiny import tiny_model
from process_agent import ProcessAgent
from two_processes import ROWS, Found, fsdp2, run_scenarios, train


def replicated(folder: Path) -> Found:
    """The same settings as `engines_run` of the tests."""
    address = json.loads((folder / "addresses.json").read_text())["replicated"]
    return trained(folder / "replicated", address)


def sharded(folder: Path) -> Found:
    """FSDP2."""
    address = json.loads((folder / "addresses.json").read_text())["sharded"]
    with fsdp2():
        return trained(folder / "sharded", address)


def trained(folder: Path, address: str) -> Found:
    model = tiny_model()
    agent = ProcessAgent(model, address=address)
    return train(model=model, agent=agent, output_dir=folder, steps=3, eval_rows=ROWS[:3])[1]


if __name__ == "__main__":
    run_scenarios([replicated, sharded], Path(sys.argv[1]))
