"""What an endpoint says where it refuses a request is told, whatever shape its answer has."""

import asyncio
from typing import Any

import pytest

from chat_fixtures import Answer, Endpoint
from gymnast.chat_client import ChatClient
from gymnast.errors import ConfigError, EndpointError


def ask(endpoint: Endpoint, **fields: Any) -> None:
    client = ChatClient("tiny-model", base_url=endpoint.url, api_key_env=None)
    asyncio.run(client.complete([{"role": "user", "content": "Hi"}], parameters=fields))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"error": {"message": "too long", "type": "x"}}, "too long"),
        ({"error": "too long"}, "too long"),
        ({"object": "error", "message": "too long", "code": 400}, "too long"),
        ({"detail": "too long"}, "too long"),
        ({"detail": [{"loc": ["messages"], "msg": "long"}]}, '[{"loc": ["messages"], "msg": "l'),
        ({"reason": "too long"}, '{"reason": "too long"}'),
        ("too\n  long", "too long"),
        ("", "Error code: 400"),
        (["too long"], '["too long"]'),
    ],
)
def test_the_words_of_a_refusal_are_told(body: Any, told: str, endpoint: Endpoint) -> None:
    endpoint.answers(Answer(body, 400))
    with pytest.raises(EndpointError) as caught:
        ask(endpoint)
    assert f"status 400: {told}" in str(caught.value)


def test_a_field_is_found_in_the_detail_of_a_refusal(endpoint: Endpoint) -> None:
    endpoint.answers(Answer({"detail": "Unexpected fields in the request: {'top_k'}"}, 422))
    with pytest.raises(ConfigError, match=r"does not take top_k .* parameters: \{top_k: null\}"):
        ask(endpoint, top_k=3)
    assert len(endpoint.requests) == 1
