"""docs/agents.md: its example of an endpoint plays, and its table has every setting."""

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from chat_fixtures import KEY, Endpoint, says
from gymnast.chat_client import ChatClient
from gymnast.envs import make

PAGE = (Path(__file__).parents[2] / "docs/agents.md").read_text()
SECTION = PAGE.partition("\n## A model behind an endpoint\n")[2]


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


def test_the_table_has_every_setting() -> None:
    first = re.findall(r"^\| (`.*?) \|", SECTION, re.MULTILINE)
    named = [name for cell in first for name in re.findall(r"`(\w+)`", cell)]
    assert named == [*inspect.signature(ChatClient).parameters, "parameters"]
