"""What the author of a program is told of how it ended."""

import logging
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from gymnast.envs import Program, Renderer, check_env, make
from gymnast.errors import DataError, NoRequest
from program_fixtures import script

ROW = {"prompt": "What is 1 plus 2?", "level": 7}


def asks_for_two(base_url: str, api_key: str, task: dict[str, Any]) -> None:
    """Ask for what the endpoint does not give, and keep its reason to itself."""
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0)
    with client, pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "Go."}], n=2
        )


def asks_elsewhere(base_url: str, api_key: str, task: dict[str, Any]) -> None:
    """Leave out the /v1 of the address, and keep the reason to itself."""
    client = openai.OpenAI(base_url=base_url.removesuffix("/v1"), api_key=api_key, max_retries=0)
    with client, pytest.raises(openai.NotFoundError):
        client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "Go."}]
        )


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (asks_for_two, r"exit code 0\. Its last one got: n: one request gets one answer; got 2"),
        (asks_elsewhere, r"got: There is no /chat/completions; there are /v1/chat/completions"),
    ],
)
def test_one_whose_requests_are_refused_is_told_why(
    renderer: Renderer, function: Any, why: str
) -> None:
    env = make(Program, renderer, function=function)
    with pytest.raises(NoRequest, match=why):
        env.reset(options={"row": ROW})
    env.close()


@pytest.mark.parametrize("command", [["python3", "agent.py"], "exec python3 agent.py"])
def test_a_file_of_another_folder_is_named_with_its_place(
    renderer: Renderer, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = tmp_path / "agent.py"
    agent.write_text("")
    env = make(Program, renderer, command=command)
    with pytest.raises(NoRequest, match=rf"where 'agent\.py' is: write '{agent}'"):
        env.reset(options={"row": ROW})
    env.close()


def fails_after_its_answer(base_url: str, api_key: str, task: dict[str, Any]) -> None:
    """Have a bug after the first answer."""
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "Go."}]
        )
    task["nothing"]


def say(env: Any, text: str) -> dict[str, Any]:
    """Begin an episode and say one message."""
    env.reset(options={"row": ROW})
    *_, info = env.step(env.renderer.encode({"role": "assistant", "content": text}))
    return dict(info)


def test_a_failure_is_shown_once_and_counted_each_time(
    renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    env = make(Program, renderer, function=fails_after_its_answer)
    with caplog.at_level(logging.WARNING):
        found = [say(env, "Three.")["metrics"]["program/failed"] for _ in range(2)]
    env.close()
    assert found == [1.0, 1.0]
    [warning] = [record.getMessage() for record in caplog.records]
    for part in ("exit code 1", "program/failed", "'level': 7", "KeyError: 'nothing'"):
        assert part in warning
    assert "running.py" not in warning  # the author's own frames alone


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (script("ask(said)"), {}),
        (script("ask(said); import time; time.sleep(60)"), {"episode_timeout_s": 1.5}),
    ],
)
def test_what_ends_well_or_is_ended_has_not_failed(
    renderer: Renderer, caplog: pytest.LogCaptureFixture, command: Any, settings: Any
) -> None:
    env = make(Program, renderer, command=command, **settings)
    assert say(env, "Three.")["metrics"]["program/failed"] == 0.0
    env.close()
    assert not caplog.records


def test_a_column_that_the_row_lacks_is_named(renderer: Renderer) -> None:
    env = make(Program, renderer, command=["true"], shown=["levels"])
    why = r"shown names the column 'levels'.*Did you mean 'level'\?.*It has: prompt, level"
    with pytest.raises(DataError, match=why):
        env.reset(options={"row": ROW})
    env.close()


class Weather(Program):
    """Offers a tool of its own."""

    @staticmethod
    def function(base_url: str, api_key: str, task: dict[str, Any]) -> None:
        """Ask once, with the tool."""
        schema: Any = {"type": "function", "function": {"name": "weather", "parameters": {}}}
        with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
            client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "Go."}], tools=[schema]
            )

    def sample_row(self, rng: Any) -> Any:
        """Always the same."""
        return ROW


class Quiet(Weather):
    """Offers none."""

    @staticmethod
    def function(base_url: str, api_key: str, task: dict[str, Any]) -> None:
        """Ask with nothing but the standard library."""
        request = urllib.request.Request(
            f"{base_url}/chat/completions",
            b'{"model": "policy", "messages": [{"role": "user", "content": "Go."}]}',
            {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            answer.read()


def test_a_check_shows_the_tools_that_a_program_brings(renderer: Renderer) -> None:
    shown = str(check_env(Weather(renderer)))
    assert "The program runs its own tools, of which none was called here: weather." in shown
    assert "other episodes  1 (random tokens)" in shown
    assert "warning: doing nothing earns 1 or more on each row" in shown
    assert "The program offers no tools in its first request." in str(check_env(Quiet(renderer)))
