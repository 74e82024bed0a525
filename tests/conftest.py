"""Real tokens for every test: one tiny tokenizer, its renderer, and calls in its dialect."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.agents.tiny import tiny_tokenizer
from gymnast.envs import Renderer


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


@pytest.fixture(scope="session")
def encode(tokenizer: Any) -> Callable[[str], list[int]]:
    """Text to ids, as a policy would sample them; the template's markup is one token each."""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    return encode


@pytest.fixture(scope="session")
def write_call() -> Callable[..., str]:
    """A call in the tiny template's dialect."""

    def write_call(name: str, /, **arguments: Any) -> str:
        payload = json.dumps({"name": name, "arguments": arguments})
        return f"<tool_call>\n{payload}\n</tool_call>"

    return write_call
