"""An agent behind an endpoint: episodes in messages, in one environment, in many, and by a YAML."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from chat_fixtures import HANGS, KEY, Answer, Endpoint, refuses, says
from command_fixtures import CommandLine
from gymnast.agents import ChatAgent
from gymnast.envs import Environment, tool
from gymnast.errors import ConfigError, InfrastructureError
from gymnast.trainers import Trainer, collect, load_rollouts, rollout
from gymnast.trainers.saving.rollout_files import read_rollouts
from gymnast.types import Sampling, Span, StopReason, Trajectory

ROWS = [{"prompt": "What is 6 times 7?", "answer": 42}] * 3


class Product(Environment):
    """Multiplies."""

    @tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply two integers.

        Args:
            a: The first factor.
            b: The second factor.
        """
        return a * b

    def reward(self, episode: Any) -> float:
        return float(str(self.row["answer"]) in episode.answer)


def solves(request: dict[str, Any], number: int = 0) -> Answer:
    """Calls the tool, and says what came back."""
    last = request["messages"][-1]
    if last["role"] == "tool":
        return says(f"It is {last['content']}.")
    return says(None, ("multiply", '{"a": 6, "b": 7}'))


def agent(endpoint: Endpoint, **settings: Any) -> ChatAgent:
    return ChatAgent("tiny-model", base_url=endpoint.url, api_key_env="TEST_KEY", **settings)


def play(endpoint: Endpoint, **settings: Any) -> Trajectory:
    env = Product()
    try:
        sampling = Sampling(temperature=0.5, max_new_tokens=64)
        return asyncio.run(
            rollout(env, agent(endpoint, **settings), ROWS[0], seed=3, sampling=sampling)
        )
    finally:
        env.close()


def test_an_episode_is_played_through_the_tools_of_the_environment(endpoint: Endpoint) -> None:
    endpoint.script = solves
    episode = play(endpoint, prompt_price=1.0, completion_price=2.0)
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.answered)
    assert episode.messages[-1]["content"] == "It is 42."
    assert (episode.ids, episode.turns, episode.seed) == ([], [Span(0, 0)] * 2, 3)
    counted = {name: value for name, value in episode.metrics.items() if name.startswith("chat/")}
    assert counted == {
        "chat/requests": 2,
        "chat/retries": 0,
        "chat/prompt_tokens": 20,
        "chat/completion_tokens": 10,
        "chat/cost": pytest.approx(40e-6),
    }
    sent = endpoint.requests[0]
    assert (sent["temperature"], sent["max_tokens"]) == (0.5, 64)
    assert sent["tools"][0]["function"]["name"] == "multiply"


def test_parameters_take_precedence_and_none_leaves_a_field_out(endpoint: Endpoint) -> None:
    endpoint.script = solves
    play(endpoint, parameters={"temperature": None, "max_tokens": 9, "reasoning_effort": "low"})
    sent = endpoint.requests[0]
    assert "temperature" not in sent
    assert (sent["max_tokens"], sent["reasoning_effort"]) == (9, "low")


@pytest.mark.parametrize("arguments", ["{", '{"a": "six", "b": 7}', "[1]", ""])
def test_wrong_arguments_are_told_to_the_model_as_to_any_other(
    arguments: str, endpoint: Endpoint
) -> None:
    endpoint.answers(says(None, ("multiply", arguments)), says("I cannot."))
    episode = play(endpoint)
    assert episode.metrics["tools/errors"] == 1 and episode.reward == 0.0
    assert endpoint.requests[1]["messages"][-1]["role"] == "tool"


def gather(endpoint: Endpoint, **settings: Any) -> Any:
    return asyncio.run(
        collect(Product, agent(endpoint, **settings), ROWS, group_size=2, sampling=Sampling())
    )


def test_many_episodes_are_played_at_once_and_summed(endpoint: Endpoint) -> None:
    endpoint.script = solves
    groups = gather(endpoint)
    assert [[episode.reward for episode in group] for group in groups] == [[1.0, 1.0]] * 3
    assert groups.metrics["chat/prompt_tokens"] == 6 * 20
    assert groups.metrics["chat/requests"] == 12


def test_what_breaks_is_retried_counted_and_left_out(endpoint: Endpoint) -> None:
    endpoint.answers(*[refuses(500, retry_after="0")] * 1, says("It is 42."))
    groups = gather(endpoint, attempts=1)  # the first request breaks its episode's first attempt
    assert groups.metrics["episodes/retried"] == 1
    assert groups.metrics["episodes/finished"] == 6
    endpoint.answers(HANGS)
    groups = gather(endpoint, attempts=1, timeout_s=0.2)
    assert groups.metrics["episodes/left_out/infrastructure"] == 6


def test_a_wrong_key_ends_all_at_once(endpoint: Endpoint) -> None:
    endpoint.answers(refuses(401, f"bad key {KEY}"))
    with pytest.raises(ConfigError, match="refuses the key in TEST_KEY"):
        gather(endpoint)


def test_a_single_episode_raises_what_broke(endpoint: Endpoint) -> None:
    endpoint.answers(refuses(500, retry_after="0"))
    with pytest.raises(InfrastructureError, match="status 500"):
        play(endpoint, attempts=1)


def test_a_message_alone(endpoint: Endpoint) -> None:
    message = asyncio.run(agent(endpoint).reply([{"role": "user", "content": "Hi"}]))
    assert message == {"role": "assistant", "content": "Hello."}


def test_it_cannot_be_trained(endpoint: Endpoint, tokenizer: Any) -> None:
    from gymnast.agents.loading.tiny import tiny_model

    for given in (agent(endpoint), {"backend": "chat", "model": "m"}):
        with pytest.raises(ConfigError, match=r"agent.*(PolicyAgent|not trained)"):
            Trainer(tiny_model(), tokenizer, Product, ROWS, agent=given, observer=None)  # type: ignore[arg-type]


# --- By a YAML

YAML = """
model: {name: "tiny:"}
environment: {id: gymnast/Arithmetic-v0}
evaluation: {rows: 2}
output_dir: out
"""


def with_agent(endpoint: Endpoint, **settings: Any) -> str:
    named = {"backend": "chat", "model": "m", "base_url": endpoint.url, "api_key_env": "TEST_KEY"}
    return f"agent={json.dumps(named | settings)}"


def test_an_endpoint_is_evaluated(endpoint: Endpoint, gymnast: CommandLine) -> None:
    Path("run.yaml").write_text(YAML)
    endpoint.answers(says("It is 42.", usage=(100, 10)))
    ended = gymnast("eval", "run.yaml", with_agent(endpoint, prompt_price=5.0))
    assert (ended.code, ended.errors) == (0, "")
    assert ended.output.endswith("\nmetrics and episodes are in out/evaluations/001\n")
    folder = Path("out/evaluations/001")
    (line,) = (folder / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    assert metrics["eval/episodes/finished"] == metrics["eval/rows"] == 2
    assert metrics["eval/chat/prompt_tokens"] == 200
    assert metrics["eval/chat/cost"] == pytest.approx(200 * 5e-6)
    saved = load_rollouts(folder, evaluations=True)
    assert [each.trajectory.messages[-1]["content"] for each in saved] == ["It is 42."] * 2
    assert (folder / "config.yaml").exists()
    kept = [path for path in Path("out").rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("command", "settings", "said"),
    [
        ("train", {}, "agent.backend: chat answers in messages, without token ids"),
        ("eval", {"api_key_env": KEY}, "agent.api_key_env: must be the name of an environment"),
        ("eval", {"api_key_env": "NO_SUCH_KEY"}, "variable NO_SUCH_KEY is not set"),
        ("eval", {"modle": "x"}, "agent.modle: chat has no such setting"),
        ("eval", {"base_url": "here"}, "agent.base_url: must begin with http:// or https://"),
        (
            "eval",
            {"base_url": "http://h:x"},
            "agent.base_url: must have a host and, if it has a po",
        ),
        ("eval", {"model": ""}, "agent.model: must be the name of a model"),
        ("eval", {"parameters": [1]}, "agent.parameters: must be a mapping of further fields of"),
        ("eval", {"parameters": "low"}, "agent.parameters: must be a mapping of further fields"),
        ("eval", {"parameters": {"stream": True}}, "agent.parameters.stream: is not to be set"),
    ],
)
def test_a_wrong_input_is_one_line(
    command: str, settings: dict[str, Any], said: str, endpoint: Endpoint, gymnast: CommandLine
) -> None:
    Path("run.yaml").write_text(YAML)
    ended = gymnast(command, "run.yaml", with_agent(endpoint, **settings))
    assert ended.code == 2 and said in ended.errors and ended.errors.count("\n") == 1
    assert KEY not in ended.errors
    assert not list(Path("out").rglob("metrics.jsonl"))


def test_an_endpoint_that_refuses_the_key_is_one_line(
    endpoint: Endpoint, gymnast: CommandLine
) -> None:
    Path("run.yaml").write_text(YAML)
    endpoint.answers(refuses(401, f"bad key {KEY}"))
    ended = gymnast("eval", "run.yaml", with_agent(endpoint))
    assert ended.code == 2 and "refuses the key in TEST_KEY" in ended.errors
    assert KEY not in ended.errors and ended.errors.count("\n") == 1


def test_an_endpoint_that_is_dead_is_one_line(endpoint: Endpoint, gymnast: CommandLine) -> None:
    Path("run.yaml").write_text(YAML)
    dead = with_agent(endpoint, base_url="http://127.0.0.1:9/v1", attempts=1)
    ended = gymnast("eval", "run.yaml", dead)
    assert ended.code == 2 and ended.errors.count("\n") == 1
    assert "nothing answers at http://127.0.0.1:9/v1 (connection refused)" in ended.errors


# --- Demonstrations


def demos(endpoint: Endpoint, gymnast: CommandLine, *options: str) -> Any:
    named = ("--base-url", endpoint.url, "--api-key-env", "TEST_KEY", "--rows", "2")
    return gymnast("demos", "gymnast/Arithmetic-v0", "--chat", "m", *named, *options)


def test_the_episodes_that_pass_become_demonstrations(
    endpoint: Endpoint, gymnast: CommandLine
) -> None:
    endpoint.answers(says("I do not know."))
    ended = demos(endpoint, gymnast)
    assert ended.code == 1 and "none of 2 episodes has a reward of at least 1" in ended.errors
    ended = demos(endpoint, gymnast, "--min-reward", "0")
    assert ended.code == 0 and "m: 2 requests, 20 prompt and 10 completion tokens" in ended.output
    (first, _) = read_rollouts("demos.parquet")
    assert first.trajectory.messages[-1]["content"] == "I do not know."
    endpoint.answers(refuses(401))
    ended = demos(endpoint, gymnast)
    assert ended.code == 2 and "refuses the key in TEST_KEY" in ended.errors
    assert ended.errors.startswith("error: --api-key-env: m at ")
    endpoint.answers(refuses(404, "no such model"))
    assert demos(endpoint, gymnast).errors.startswith("error: --chat: m at ")
    ended = demos(endpoint, gymnast, "--api-key-env", KEY)
    assert ended.code == 2 and KEY not in ended.errors
    assert ended.errors.startswith("error: --api-key-env: must be the name of an environment")


def test_an_endpoint_without_a_key_plays_demonstrations(
    endpoint: Endpoint, gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    named = ("gymnast/Arithmetic-v0", "--chat", "m", "--base-url", endpoint.url, "--rows", "1")
    ended = gymnast("demos", *named)
    assert ended.code == 2 and "or say --no-api-key if the endpoint asks for none" in ended.errors
    ended = gymnast("demos", *named, "--min-reward", "0", "--no-api-key")
    assert ended.code == 0 and endpoint.keys == ["Bearer none"]
    endpoint.answers(refuses(401))
    ended = gymnast("demos", *named, "--no-api-key")
    assert "asks for a key; name its environment variable with --api-key-env" in ended.errors
