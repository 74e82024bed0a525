"""What a vLLM server samples in `server_rollout.py`: a script's turns, forced where it samples.

A logits processor of vLLM's, loaded by the server itself (`--logits-processors
server_script:Forced`), so that both sides get the same turns at the price of sampling them. The
model is random; what an episode says next depends on how many turns its context holds. It imports
nothing of Gymnast: the server has an environment of its own.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

SETTINGS = "GYMNAST_SERVER_SCRIPT"  # the path of a JSON file


class Forced(AdapterLogitsProcessor):  # type: ignore[misc]
    """Leaves the script's token as the only choice."""

    def is_argmax_invariant(self) -> bool:
        """No: it decides."""
        return False

    def new_req_logits_processor(
        self, params: Any
    ) -> Callable[[list[int], list[int], torch.Tensor], torch.Tensor] | None:
        """The processor of one request; the script may have changed since the last one."""
        script = json.loads(Path(os.environ[SETTINGS]).read_text())
        start: list[int] = script["turn_start"]

        def force(prompt: list[int], said: list[int], logits: torch.Tensor) -> torch.Tensor:
            begun = sum(prompt[at : at + len(start)] == start for at in range(len(prompt)))
            turn = script["answer"] if begun > script["calls"] else script["call"]
            token = turn[min(len(said), len(turn) - 1)]
            kept = logits[token].clone()
            logits.fill_(-torch.inf)
            logits[token] = kept
            return logits

        return force
