"""An evaluation of an endpoint by several processes: each plays its share, and one writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from chat_fixtures import Endpoint, says
from gymnast.shared_threads import limit_threads, thread_limit
from gymnast.trainers import load_config, load_rollouts
from gymnast.trainers.evaluate import evaluate
from process_runs import free_port

LONGEST_S = 120  # for both processes; one that hangs fails then
YAML = """
model: {name: "tiny:"}
environment: {id: gymnast/Arithmetic-v0}
evaluation: {rows: 3, group_size: 2}
output_dir: out
"""


def launched(folder: Path, *command: str) -> list[tuple[int, str, str]]:
    """Run a command of Gymnast's in two processes: the code and the output of each."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "gymnast.cli", *command],
            cwd=folder,
            env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        said = [process.communicate(timeout=LONGEST_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *each) for process, each in zip(processes, said, strict=True)]


def evaluated(folder: Path, endpoint: Endpoint) -> list[tuple[int, str, str]]:
    (folder / "run.yaml").write_text(YAML)
    agent = {"backend": "chat", "model": "m", "base_url": endpoint.url, "api_key_env": None}
    return launched(folder, "eval", "run.yaml", f"agent={json.dumps(agent)}")


def test_two_processes_share_the_rows_and_one_writes(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answers(says("It is 42.", usage=(100, 10)))
    first, second = evaluated(tmp_path, endpoint)
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert first[1].endswith("\nmetrics and episodes are in out/evaluations/001\n")
    assert second[1] == "" and "Traceback" not in first[2] + second[2]
    assert len(endpoint.requests) == 6  # three rows, two episodes each, once

    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run.yaml"]
    folder = tmp_path / "out/evaluations/001"
    assert [path.name for path in folder.parent.iterdir()] == ["001"]
    (line,) = (folder / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    assert (metrics["eval/rows"], metrics["eval/chat/prompt_tokens"]) == (3, 600)
    saved = load_rollouts(folder, evaluations=True)
    assert [(each.group, each.member) for each in saved] == [
        (row, member) for row in range(3) for member in range(2)
    ]
    questions = [str(each.trajectory.messages[-2]["content"]) for each in saved]
    assert len(set(questions)) == 3 and questions[::2] == questions[1::2]


def test_sync_code_has_as_many_threads_as_in_training(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answers(says("It is 42."))
    (tmp_path / "run.yaml").write_text(YAML)
    agent = {"backend": "chat", "model": "m", "base_url": endpoint.url, "api_key_env": None}
    settings = [f"agent={json.dumps(agent)}", "trainer.max_threads=2", f"output_dir={tmp_path}/out"]
    try:
        evaluate(load_config(tmp_path / "run.yaml", settings))
        assert thread_limit() == 2
    finally:
        limit_threads()
