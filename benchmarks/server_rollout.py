"""Rollouts through one vLLM server: Gymnast beside TRL, on the same conversations.

    python benchmarks/server_rollout.py --vllm VENV/bin/vllm --trl VENV/bin/python
        [--only 16-sync 256-async ...] [--output server_rollout.json] [--quick]

The server is a real vLLM with a random Qwen3 of 4 layers; a logits processor inside it forces the
turns of a script (`server_script.py`): four calls of a tool that waits 0.2 s, then an answer. The
weights are fixed. Both sides play the same episodes, each in a process of its own
(`server_side_gymnast.py`, `server_side_trl.py`), and the conversations are compared token
by token. `sampling` is what the server takes for the same requests without tools, each sent as soon
as the one before is answered. TRL runs in an environment with vLLM, which its client imports.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gymnast.agents.vllm.launch import Launch, Launched
from rollout_peers import small_model
from rollout_script import tokenizer

HERE = Path(__file__).parent
SETTINGS = "GYMNAST_SERVER_SCRIPT"  # as in server_script.py, which imports vLLM
CALL = '<tool_call>{"name": "get", "arguments": {}}</tool_call>'
CALLS = 4
CASES = [f"{tokens}-{tool}" for tokens in (16, 64, 256) for tool in ("sync", "async")]
TARGET = 5.0  # times Gymnast's wall time beyond sampling


def script(made: Any, tokens: int) -> dict[str, Any]:
    """The turns of an episode, each of so many tokens."""
    call = made.encode(CALL, add_special_tokens=False)
    word, stop = made.encode(" the", add_special_tokens=False), made.eos_token_id
    assert len(call) < tokens, f"a call takes {len(call) + 1} tokens, more than {tokens}"
    return {
        "call": [*word * (tokens - 1 - len(call)), *call, stop],
        "answer": [*word * (tokens - 1), stop],
        "turn_start": made.encode("<|im_start|>assistant", add_special_tokens=False),
        "calls": CALLS,
    }


def measure(python: str, side: str, settings: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Run a side in a process of its own; returns its measurements."""
    path = folder / "settings.json"
    path.write_text(json.dumps(settings))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
    ended = subprocess.run(
        [python, HERE / side, path], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def compare(settings: dict[str, Any], trl_python: str, folder: Path) -> dict[str, float]:
    """Run both sides, one after the other; returns medians.

    Raises:
        AssertionError: They did not play the same conversations.
    """
    ours = measure(sys.executable, "server_side_gymnast.py", settings, folder)
    theirs = measure(trl_python, "server_side_trl.py", settings, folder)
    for one, other in zip(ours, theirs, strict=True):
        assert sorted(one["conversations"]) == sorted(other["conversations"]), "not the same"
    sampling = statistics.median(each["sampling_s"] for each in ours)
    found = {"sampling_s": sampling}
    for name, runs in (("gymnast", ours), ("trl", theirs)):
        wall = statistics.median(each["wall_s"] for each in runs)
        found[f"{name}/wall_s"], found[f"{name}/beyond_s"] = wall, wall - sampling
        found[f"{name}/cpu_s"] = statistics.median(each["cpu_s"] for each in runs)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--vllm", required=True, help="the command of a vLLM")
    options.add_argument("--trl", required=True, help="the Python of an environment with TRL")
    options.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="CASE")
    options.add_argument("--output", type=Path, help="where to write the figures (JSON)")
    options.add_argument("--quick", action="store_true", help="in small: does everything run?")
    given = options.parse_args(arguments)
    made = tokenizer()
    rows, group_size = (1, 4) if given.quick else (2, 8)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.json").write_text("{}")
        launch = Launch(
            command=[given.vllm],
            options=[
                *("--logits-processors", "server_script:Forced", "--max-model-len", "4096"),
                *("--enforce-eager", "--max-logprobs", "-1"),
                # The CPU build dies where it splits the prompt of a request with a seed.
                *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"),
            ],
            environment={
                "PYTHONPATH": str(HERE),
                SETTINGS: str(folder / "script.json"),
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_API_KEY": "",  # TRL's client sends none
                "HF_HUB_OFFLINE": "1",
            },
        )
        model = small_model(len(made), "cpu").to(torch.bfloat16)
        model.save_pretrained(folder / "model")
        made.save_pretrained(folder / "model")
        server = Launched(launch, model, made, "policy")
        for case in ["16-async"] if given.quick else given.only:
            tokens, tool = int(case.partition("-")[0]), case.partition("-")[2]
            (folder / "script.json").write_text(json.dumps(script(made, tokens)))
            settings = {
                "url": server.urls[0],
                "model": str(folder / "model"),
                "prompts": [f"Row {row}:" + " the" * 300 for row in range(rows)],
                "group_size": group_size,
                "max_new_tokens": 8 * tokens + 1024,
                "tool": tool,
                "repetitions": 1 if given.quick else 3,
            }
            found = {"tokens": tokens, "tool": tool, **compare(settings, given.trl, folder)}
            print(row_of(found), flush=True)
            if given.output:
                known = json.loads(given.output.read_text()) if given.output.exists() else {}
                given.output.write_text(json.dumps(known | {case: found}, indent=1) + "\n")
        server.end()


def row_of(result: dict[str, Any]) -> str:
    """A row of the table."""
    ours, theirs = result["gymnast/beyond_s"], result["trl/beyond_s"]
    ratio = f"{theirs / ours:.1f}" if ours > 0 else "Gymnast takes no more than sampling"
    cells = [
        *(result["tokens"], result["tool"], f"{result['sampling_s']:.2f}"),
        *(f"{result['gymnast/wall_s']:.2f}", f"{result['trl/wall_s']:.2f}"),
        *(f"{ours:.2f}", f"{theirs:.2f}"),
        f"{ratio} ({'met' if TARGET * ours <= theirs else 'not met'})",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
