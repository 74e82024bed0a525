"""docs/agents.md: its example of an endpoint plays, and its table has every setting."""

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from chat_fixtures import KEY, Answer, Endpoint, refuses, says
from command_fixtures import CommandLine
from gymnast.chat_client import ChatClient
from gymnast.envs import make
from pages import ROOT, files

PAGE = ROOT / "docs/agents.md"
SECTION = PAGE.read_text().partition("\n## A model behind an endpoint\n")[2]


def test_the_example_plays(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    endpoint.answers(says("It is 42.", usage=(4_000_000, 1)))
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    code = code.replace("http://localhost:8000/v1", endpoint.url)
    body = "".join(f"    {line}\n" for line in code.splitlines())
    env: Any = make("gymnast/Arithmetic-v0", None)
    names: dict[str, Any] = {"env": env, "row": {"prompt": "6 times 7?", "answer": 42}}
    exec(f"async def example():\n{body}", names)
    asyncio.run(names["example"]())
    env.close()
    assert capsys.readouterr().out == "1.0 1.0\n"


def test_the_example_of_a_model_that_reasons_is_evaluated(
    endpoint: Endpoint, gymnast: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint refuses what OpenAI's refuse with models that reason."""

    def strictly(request: dict[str, Any], number: int) -> Answer:
        for name in ("max_tokens", "temperature", "top_p"):
            if name in request:
                return refuses(400, f"Unsupported parameter: {name!r} is not supported")
        return says("It is 42.")

    endpoint.script = strictly
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    Path("reasoning.yaml").write_text(files(PAGE)["reasoning.yaml"])
    url = f"agent.base_url={endpoint.url}"
    ended = gymnast("eval", "reasoning.yaml", url)
    assert (ended.code, ended.errors) == (0, "")
    assert {each["max_completion_tokens"] for each in endpoint.requests} == {512}
    assert {each["reasoning_effort"] for each in endpoint.requests} == {"low"}

    ended = gymnast("eval", "reasoning.yaml", url, "agent.parameters={temperature: null}")
    (line,) = ended.errors.splitlines()
    assert ended.code == 2 and line.startswith("error: parameters: gpt-5-mini at 127.0.0.1:")
    assert "parameters: {max_tokens: null, max_completion_tokens: " in line


def test_the_table_has_every_setting() -> None:
    first = re.findall(r"^\| (`.*?) \|", SECTION, re.MULTILINE)
    named = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert named == [*inspect.signature(ChatClient).parameters, "parameters"]
