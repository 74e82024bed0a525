"""Two training processes, one vLLM server: the first starts it, both sample their own rows."""

from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from gymnast.trainers.saving.rollout_files import read_rollouts
from process_runs import in_two_processes, lines

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("launching_processes.py")


def test_the_first_process_starts_a_server_for_both(vllm_command: str, tmp_path: Path) -> None:
    (tmp_path / "command").write_text(vllm_command)
    one, other = (found["launched"] for found in in_two_processes(SCRIPT, tmp_path, longest_s=600))
    assert one["urls"] == other["urls"] and len(one["urls"]) == 1
    assert one["weights"] == other["weights"]
    for step in (1, 2):
        (path,) = (tmp_path / "run/rollouts").glob(f"*{step}.parquet")
        played = [saved.trajectory for saved in read_rollouts(path)]
        assert {span.version for each in played for span in each.versions} == {step - 1}
    trained = [line for line in lines(tmp_path / "run/metrics.jsonl") if "loss" in line]
    assert [line["episodes/finished"] for line in trained] == [len(played)] * 2
    assert all(line["servers/requests"] >= len(played) for line in trained)
    with pytest.raises(URLError):
        urlopen(one["urls"][0], timeout=5)
