"""Servers of the Model Context Protocol from PyPI and npm, over stdio and streamable HTTP."""

import json
import os
import pickle
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.envs import Renderer, check_env, make
from gymnast.envs.adapters.mcp.environment import McpEnvironment
from gymnast.errors import ConfigError, DataError, InfrastructureError
from gymnast.types import StopReason
from mcp_fixtures import ODD, ROW, play, told

pytestmark = pytest.mark.adapters
Calls = Callable[..., dict[str, Any]]
TIME = ["mcp-server-time", "--local-timezone", "Europe/Paris"]
EVERYTHING = "mcp-server-everything"


@pytest.fixture
def everything() -> list[str]:
    """The command of npm's server, which has all that there is."""
    if shutil.which(EVERYTHING) is None:
        pytest.skip("needs npm install -g @modelcontextprotocol/server-everything")
    return [EVERYTHING]


@pytest.fixture
def url(everything: list[str]) -> Iterator[str]:
    """The address at which it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PORT": str(port)}
    command = [*everything, "streamableHttp"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        for _ in range(300):
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


def test_the_server_of_times_converts_them(calls: Calls) -> None:
    env = make("mcp:time", command=TIME)
    arguments = {"source_timezone": "Asia/Tokyo", "time": "14:30", "target_timezone": "Asia/Dubai"}
    right, wrong, missing = play(
        env,
        calls(("convert_time", arguments)),
        calls(("get_current_time", {"timezone": "Mars"})),
        calls(("convert_time", {"time": "14:30"})),
    )
    assert json.loads(told(right))["target"]["datetime"].endswith("T09:30:00+04:00")
    assert told(wrong).startswith("Error: get_current_time: ToolFailed: ") and "Mars" in told(wrong)
    assert [error.kind for error in (*wrong.info["errors"], *missing.info["errors"])] == [
        "exception",
        "bad_arguments",
    ]
    env.close()


def test_the_server_of_git_changes_a_repository(calls: Calls, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for key, value in (("user.name", "A"), ("user.email", "a@localhost")):
        subprocess.run(["git", "-C", str(tmp_path), "config", key, value], check=True)
    (tmp_path / "page.md").write_text("One page.\n")
    env = make("mcp:git", command=["mcp-server-git", "--repository", str(tmp_path)])
    repository = {"repo_path": str(tmp_path)}
    outcomes = play(
        env,
        calls(("git_add", {**repository, "files": ["page.md"]})),
        calls(("git_commit", {**repository, "message": "A page"})),
        calls(("git_log", repository)),
        calls(("git_status", {"repo_path": "/nowhere"})),
    )
    assert "A page" in told(outcomes[2]) and not outcomes[2].info["errors"]
    assert told(outcomes[3]).startswith("Error: git_status: ToolFailed: ")
    env.close()
    log = subprocess.run(["git", "-C", str(tmp_path), "log", "--format=%s"], capture_output=True)
    assert log.stdout == b"A page\n"


def plays_everything(env: Any, calls: Calls) -> None:
    messages = [
        calls(("echo", {"message": "hi"})),
        calls(("get-sum", {"a": 1, "b": 2})),
        calls(("get-tiny-image", {})),
        calls(("get-structured-content", {"location": "Chicago"})),
        calls(("get-resource-reference", {"resourceType": "Blob", "resourceId": 1})),
        calls(("get-annotated-message", {"messageType": "error"})),
        calls(("list_resources", {})),
        calls(("read_resource", {"uri": "demo://resource/dynamic/text/1"})),
        calls(("read_resource", {"uri": "demo://nothing"})),
    ]
    outcomes = play(env, *messages)
    results = list(map(told, outcomes))
    assert results[:2] == ["Echo: hi", "The sum of 1 and 2 is 3."]
    assert "[image/png, " in results[2] and results[2].endswith("is the MCP logo.")
    assert set(json.loads(results[3])) == {"temperature", "conditions", "humidity"}
    assert "demo://resource/dynamic/blob/1: text/plain, " in results[4]
    assert results[5] == "Error: Operation failed"  # what the server says, which is no failure
    assert "demo://resource/dynamic/text/{resourceId} (Dynamic Text Resource)" in results[6]
    assert results[7].startswith("Resource 1: This is a plaintext resource")
    assert results[8].startswith("Error: read_resource: ToolFailed: ")
    assert "Everything Server" in env.messages[0]["content"]
    assert [bool(outcome.info["errors"]) for outcome in outcomes] == [*[False] * 8, True]


def test_the_server_with_everything_plays_by_stdio(calls: Calls, everything: list[str]) -> None:
    env = make("mcp:everything", command=everything, resources=True)
    plays_everything(env, calls)
    env.close()


def test_the_server_with_everything_plays_at_its_url(calls: Calls, url: str) -> None:
    env = make("mcp:everything", url=url, resources=True)
    plays_everything(env, calls)
    env.close()


def test_a_prompt_of_the_server_begins_the_episode(everything: list[str]) -> None:
    env = make("mcp:everything", command=everything, instructions=False, offer=["echo"])
    prompt = {"name": "args-prompt", "arguments": {"city": "Rome"}}
    play(env, row={"mcp_prompt": prompt})
    assert env.messages == [{"role": "user", "content": "What's weather in Rome?"}]
    assert [tool["function"]["name"] for tool in env.tools] == ["echo"]
    with pytest.raises(DataError, match="mcp:everything: the prompt 'none'"):
        play(env, row={"mcp_prompt": "none"})
    env.close()


def test_a_url_that_nobody_answers_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = make("mcp:none", url=f"http://127.0.0.1:{free.getsockname()[1]}/mcp")
        with pytest.raises(
            InfrastructureError, match=r"mcp:none: the server cannot be used \(Conn"
        ):
            play(env)
    env.close()


def test_a_server_is_named_in_the_file_of_another_client(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID", "odd tools")
    servers = {
        "odd": {"command": ODD[0], "args": [*ODD[1:], "${SAID}"]},
        "far": {"type": "sse", "url": "http://127.0.0.1:1/sse"},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    env = make("mcp:odd", servers=str(file))
    play(env)
    assert "a_b_c_d" in {tool["function"]["name"] for tool in env.tools}
    assert env.messages[0] == {"role": "system", "content": "Be odd."}
    env.close()
    with pytest.raises(ConfigError, match=r"has no server 'od'. Did you mean 'odd'\? It has: odd"):
        make("mcp:od", servers=str(file))
    with pytest.raises(ConfigError, match="only stdio and http are spoken"):
        make("mcp:far", servers=str(file))
    monkeypatch.delenv("SAID")
    with pytest.raises(ConfigError, match="needs the variable SAID"):
        make("mcp:odd", servers=str(file))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "neither is given"),
        ({"command": TIME, "url": "http://127.0.0.1"}, "both are given"),
        ({"command": "mcp-server-time"}, "must be a list of words"),
        ({"command": ["no-such-program"]}, "there is no program 'no-such-program'"),
        ({"url": "localhost:8000"}, r"must begin with http\(s\)"),
        ({"command": TIME, "session": "own"}, "session must be 'episode' or 'shared'"),
        ({"command": TIME, "env": {"A": 1}}, "env must map names to texts"),
        ({"command": TIME, "start_timeout_s": 0}, "start_timeout_s must be > 0"),
    ],
)
def test_a_setting_that_means_nothing_is_told(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make("mcp:time", **settings)


def test_tools_that_are_offered_are_there(odd: Any) -> None:
    env = odd(offer=["add", "ad"])
    with pytest.raises(ConfigError, match="has no tool 'ad', which offer names"):
        play(env)


def test_a_process_gets_no_variable_that_is_not_given(
    everything: list[str], calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "gold")
    env = make("mcp:everything", command=everything, env={"GIVEN": "brass"})
    (variables,) = play(env, calls(("get-env", {})))
    assert json.loads(told(variables))["GIVEN"] == "brass" and "gold" not in told(variables)
    env.close()


class Adder(McpEnvironment):
    """A server whose sum is rewarded."""

    name = "adder"
    command = ODD

    def reward(self, episode: Any) -> float:
        return float(episode.calls[-1].result)


def test_a_subclass_rewards(calls: Calls) -> None:
    env = make(Adder, instructions=False)
    end = play(env, calls(("add", {"a": 3})), {"role": "assistant", "content": "Three."})[1]
    assert end.reward == 3.0 and end.info["stop_reason"] is StopReason.answered
    assert type(pickle.loads(pickle.dumps(type(env)))) is type(Adder)
    made = type(make("mcp:odd", command=ODD))
    assert pickle.loads(pickle.dumps(made)) is made
    env.close()


@pytest.mark.parametrize(
    "settings",
    [{"command": ODD, "offer": ["add", "say"]}, {"command": TIME, "session": "shared"}],
    ids=["own", "shared"],
)
def test_it_keeps_to_the_conventions_of_environments(
    settings: dict[str, Any], renderer: Renderer
) -> None:
    env = make("mcp:server", renderer, rows=[ROW], **settings)
    check_env(env)
    env.close()
