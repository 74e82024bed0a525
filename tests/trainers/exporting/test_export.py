"""A run's model, or its adapters alone, in a folder with a card; and on a hub."""

import base64
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from command_fixtures import CommandLine
from gymnast.agents import load_model
from gymnast.trainers.exporting.card import rewards

# peft reads it of a model.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

ONE = ["trainer.steps=1", "trainer.rows_per_step=1", "evaluation.rows=1"]


@pytest.fixture
def run(gymnast: CommandLine) -> Path:
    lora = "model.lora={rank: 2, target: [q_proj]}"
    assert gymnast("train", "run.yaml", *ONE, lora, "-q").code == 0
    return Path("out")


def test_a_model_and_its_adapters_are_the_same(run: Path, gymnast: CommandLine) -> None:
    assert gymnast("export", "out", "--output", "whole").output == (
        "the model is in whole, with README.md\n"
    )
    assert gymnast("export", "out", "--adapter", "--output", "alone").code == 0
    merged = AutoModelForCausalLM.from_pretrained("whole")
    adapted: Any = PeftModel.from_pretrained(load_model("tiny:")[0], "alone")
    tokenizer = AutoTokenizer.from_pretrained("alone")
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained("whole").chat_template
    ids = torch.tensor([tokenizer.encode("What is 3 plus 4?")])
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-5)


def test_the_card_says_how_it_came_about(run: Path, gymnast: CommandLine) -> None:
    assert gymnast("export", "out", "--adapter", "--output", "alone").code == 0
    card = ModelCard.load(Path("alone/README.md"))
    assert card.data.library_name == "peft" and card.data.pipeline_tag == "text-generation"
    assert {"gymnast", "grpo"} <= {*card.data.tags}
    assert card.data.base_model is None  # tiny: is no hub's
    for said in ("`tiny:`", "`gymnast/Arithmetic-v0`", "steps: 1", "before", "Gymnast 0", "torch"):
        assert said in card.text, said
    assert str(Path.cwd()) not in card.text


def test_what_the_card_says_to_run_runs(run: Path, gymnast: CommandLine) -> None:
    for way in ("--adapter", "--merged"):
        assert gymnast("export", "out", way, "--output", f"out{way}").code == 0
        text = Path(f"out{way}/README.md").read_text()
        code = text.partition("```python\n")[2].partition("```")[0]
        exec(compile(code, way, "exec"), {})


def test_rewards_are_those_of_the_first_and_the_last_evaluation(tmp_path: Path) -> None:
    lines = [{"step": 0, "eval/reward/mean": 0.25}, {"step": 1}, {"step": 2, "eval/reward/mean": 1}]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 3, "ev')
    assert rewards(tmp_path) == (2, 0.25, 1.0)
    (tmp_path / "metrics.jsonl").unlink()
    assert rewards(tmp_path) == (0, None, None)


def test_what_cannot_be_exported_is_refused_in_a_line(run: Path, gymnast: CommandLine) -> None:
    Path("full").mkdir()
    Path("full/x").write_text("")
    for arguments, says in {
        ("export", "full", "--output", "x"): "full: has no config.yaml",
        ("export", "out", "--output", "full"): "--output: full is there already",
        ("export", "out", "--output", "x", "--merged", "--adapter"): "leave one of them out",
        ("export", "out", "--output", "x", "--private"): "--private: is about a repository on",
        ("export", "out", "--output", "x", "--push", "one"): "--push: must be org/name, as ",
        ("export", "out", "--output", "x", "--push", "a b/c"): "--push: must be org/name as the",
    }.items():
        ran = gymnast(*arguments)
        assert ran.code == 2 and says in ran.errors
    Path("out/adapters").rename("elsewhere")
    assert "export it with --merged" in gymnast("export", "out", "--adapter", "-o", "x").errors
    Path("out/model").rename("away")
    assert "has not ended" in gymnast("export", "out", "-o", "x").errors
    assert not Path("x").exists()


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as an upload of small files asks for."""

    files: dict[str, bytes]
    keys: set[str | None]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.keys.add(self.headers.get("Authorization"))
        answer: dict[str, Any] = {"url": "https://huggingface.co/org/trained", "id": "org/trained"}
        if self.path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            regular = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            answer = {"files": [{"path": file["path"], **regular} for file in asked]}
        elif self.path.endswith("/commit/main"):
            lines = [json.loads(line)["value"] for line in body.splitlines()]
            for value in lines:
                if "path" in value:
                    self.files[value["path"]] = base64.b64decode(value["content"])
            answer = {
                "commitUrl": "https://huggingface.co/org/trained/commit/abc",
                "commitOid": "abc",
            }
        elif self.path.endswith("/validate-yaml"):
            answer = {"errors": [], "warnings": []}
        self._answer(answer)

    def do_GET(self) -> None:
        self._answer({"id": "org/trained", "sha": "abc", "siblings": []})

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def _answer(self, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def hub() -> Iterator[tuple[str, type[Hub]]]:
    handler = type("OneHub", (Hub,), {"files": {}, "keys": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_adapters_are_pushed_to_a_hub(run: Path, hub: tuple[str, type[Hub]]) -> None:
    """In a process of its own, since the hub's library reads its address when it is imported."""
    address, at_hub = hub
    command = ["export", "out", "--adapter", "--output", "alone", "--push", "org/trained"]
    ended = subprocess.run(
        [sys.executable, "-m", "gymnast", *command],
        env=os.environ | {"HF_ENDPOINT": address, "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert "pushed to" in ended.stdout
    assert at_hub.keys == {"Bearer hf_test"}
    here = {path.name: path.read_bytes() for path in Path("alone").iterdir()}
    assert at_hub.files == here
    assert 'from_pretrained(base, "org/trained")' in here["README.md"].decode()


def test_a_hub_that_cannot_be_reached_is_not_one_to_log_in_to(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ended = subprocess.run(
        [sys.executable, "-m", "gymnast", "export", "out", "-o", "alone", "--push", "org/trained"],
        env=os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_TOKEN": "hf_test"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2, ended.stderr
    assert "check that the hub can be reached. The export is in alone: `hf upload" in ended.stderr
    assert "log in" not in ended.stderr
