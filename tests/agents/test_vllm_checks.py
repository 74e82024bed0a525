"""Servers that a run cannot use are refused before it begins, each with what to change."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents import VLLMAgent, load_model, make_agent
from gymnast.agents.backends import check_agent
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.errors import ConfigError
from gymnast.trainers import Trainer, load_config
from gymnast.trainers.build import build_trainer
from vllm_fixtures import Serve

RUN = """
model: {{name: "tiny:", dtype: bfloat16}}
environment: {{id: gymnast/Arithmetic-v0, max_turns: 2}}
agent: {{backend: vllm, urls: [{url}]}}
"""

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "agent.backend: vllm needs the urls of servers that run"),
    ({"urls": ["http://a"], "launch": {"command": ["vllm"]}}, "and one of the two alone"),
    ({"urls": "http://a"}, "agent.urls: must be a list of URLs of vLLM servers, such as"),
    ({"urls": []}, "agent.urls: must be a list of URLs"),
    ({"urls": ["localhost:8000"]}, "agent.urls: each must begin with http:// or https://"),
    ({"urls": [8000]}, "agent.urls: each must begin with http:// or https://"),
    ({"urls": ["http://a/", "http://a/v1"]}, "agent.urls: names http://a twice"),
    ({"urls": ["http://127.0.0.1:9"]}, "agent.urls: a vLLM server cannot be used: .*:9/v1/models"),
    ({"urls": ["http://a"], "request_timeout_s": 0}, "agent.request_timeout_s: must be > 0"),
    ({"url": "http://a"}, "agent.url: vllm has no such setting. Did you mean 'urls'?"),
    ({"launch": ["vllm"]}, "agent.launch: must be a mapping such as {command:"),
    ({"launch": {}}, "agent.launch.command: is required"),
    ({"launch": {"command": "vllm"}}, r"agent.launch.command: must be a list such as \[/path"),
    ({"launch": {"command": ["/no/vllm"]}}, "agent.launch.command: /no/vllm is not there"),
    ({"launch": {"command": [__file__]}}, "agent.launch.command: .* is no program that can be run"),
    ({"launch": {"command": ["sh"], "servers": 0}}, "agent.launch.servers: must be a whole"),
    ({"launch": {"command": ["sh"], "options": "--x"}}, "agent.launch.options: must be a list"),
    (
        {"launch": {"command": ["sh"], "options": ["--hf-overrides={}"]}},
        "agent.launch.options: --hf-overrides is set by the run",
    ),
    (
        {"launch": {"command": ["sh"], "environment": {"A": 1}}},
        "agent.launch.environment: must map",
    ),
    (
        {"launch": {"command": ["sh"], "comand": []}},
        "agent.launch.comand: there is no such setting",
    ),
    (
        {"urls": ["http://a"], "share_device": True},
        "agent.share_device: goes with servers that the",
    ),
    (
        {"launch": {"command": ["sh"]}, "share_device": 1},
        "agent.share_device: must be true or false",
    ),
    ({"urls": ["http://a"], "deterministic": True}, "deterministic: needs an agent whose batches"),
]


@pytest.mark.parametrize(("settings", "said"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_settings_are_refused_before_a_model_is_loaded(
    settings: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_agent(tiny_tokenizer(), backend="vllm", **settings)


def test_a_device_is_shared_with_one_training_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings: dict[str, Any] = {"launch": {"command": ["sh"]}}
    assert check_agent(tiny_tokenizer(), backend="vllm", **settings) is None
    with pytest.raises(ConfigError, match=r"agent.share_device: is for one .* this run has 2"):
        check_agent(tiny_tokenizer(), backend="vllm", share_device=True, **settings)
    with pytest.raises(ConfigError, match=r"share_device: is for one .* this run has 2"):
        VLLMAgent(["http://127.0.0.1:9"], share_device=True)


@pytest.mark.vllm
def test_the_shared_server_is_taken_with_slashes_and_the_path_of_its_api(vllm_url: str) -> None:
    for url in (f"{vllm_url}/", f"{vllm_url}/v1", f"{vllm_url}/v1/"):
        assert check_agent(tiny_tokenizer(), backend="vllm", urls=[url]) == 1024


@pytest.mark.vllm
def test_another_vocabulary_is_refused(vllm_url: str) -> None:
    smaller, larger = tiny_tokenizer(700), tiny_tokenizer()
    larger.add_tokens(["<one_more>"])
    other = tiny_tokenizer(1029)  # has all tokens but the last of those that were merged
    other.add_tokens(["<another>"])
    with pytest.raises(ConfigError, match=r"urls: .* has another vocabulary .* its token \d+ is"):
        VLLMAgent([vllm_url], tokenizer=smaller)
    with pytest.raises(ConfigError, match=r"has logits for 1,030 tokens, and .* ids up to 1,030;"):
        VLLMAgent([vllm_url], tokenizer=larger)
    with pytest.raises(ConfigError, match=r"its token 1025 is '.*', the run's is '<tool_call>'"):
        VLLMAgent([vllm_url], tokenizer=other)


@pytest.mark.vllm
def test_a_model_that_is_not_served_is_refused(vllm_url: str) -> None:
    with pytest.raises(ConfigError, match="serves policy, and not 'smol'; start it with --served"):
        VLLMAgent([vllm_url], model="smol")


@pytest.mark.vllm
def test_a_shorter_context_than_the_environments_is_refused(vllm_url: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(url=vllm_url))
    run = f"output_dir={tmp_path / 'run'}"
    said = "environment.context_length: must be <= 1024, the longest context of the servers"
    with pytest.raises(ConfigError, match=said):
        build_trainer(load_config(path, [run, "environment.context_length=2000"]))
    config = load_config(path, [run])  # the servers' is the default
    assert build_trainer(config).agent.context_length == 1024


@pytest.mark.vllm
def test_a_deterministic_run_is_refused(vllm_url: str) -> None:
    model, tokenizer = load_model("tiny:", dtype="bfloat16")
    agent = make_agent(model, tokenizer, backend="vllm", urls=[vllm_url])
    for given in (agent, {"backend": "vllm", "urls": [vllm_url]}):
        with pytest.raises(ConfigError, match="deterministic: needs an agent whose batches"):
            Trainer(
                model, tokenizer, "gymnast/Arithmetic-v0", [{}], agent=given, deterministic=True
            )


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("options", "environment", "said"),
    [
        (
            ["--logprobs-mode", "raw_logprobs"],
            {},
            "log-probabilities .* are not those of the distribution .* start it with "
            "--logprobs-mode processed_logprobs",
        ),
        (["--no-enable-scale-out"], {}, "start the server with --enable-scale-out"),
        (
            ["--api-key", "right"],
            {"VLLM_SERVER_DEV_MODE": "0"},
            "status 401: .*; put the server's key into VLLM_API_KEY",
        ),
    ],
)
def test_servers_that_were_started_otherwise_are_refused(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    environment: dict[str, str],
    said: str,
) -> None:
    servers = serve(options=options, environment=environment)

    def check() -> int | None:
        return check_agent(tiny_tokenizer(), backend="vllm", urls=servers.urls)

    monkeypatch.setenv("VLLM_API_KEY", "wrong")
    with pytest.raises(ConfigError, match=f"agent.urls: .*{said}"):
        check()
    if "--api-key" in options:
        monkeypatch.setenv("VLLM_API_KEY", "right")
        VLLMAgent(servers.urls).close()  # which can be evaluated
        with pytest.raises(ConfigError, match="start the server with VLLM_SERVER_DEV_MODE=1"):
            check()
    servers.end()
