"""The client of chat endpoints, by the real `openai` over real HTTP against a scripted server."""

import asyncio
import email.utils
import logging
import math
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from chat_fixtures import HANGS, KEY, Answer, Endpoint, refuses, says
from gymnast.chat_client import ChatClient, shared_client
from gymnast.chat_protocol import ChatReply, Usage
from gymnast.errors import ConfigError, EndpointError

TALK = [{"role": "user", "content": "Hi"}]
CALL = {
    "id": "a",
    "type": "function",
    "function": {"name": "price", "arguments": {"item": "tea"}},
}


def client(endpoint: Endpoint, **settings: Any) -> ChatClient:
    settings = {"base_url": endpoint.url, "api_key_env": "TEST_KEY"} | settings
    return ChatClient("tiny-model", **settings)


def ask(one: ChatClient, *args: Any) -> ChatReply:
    return asyncio.run(one.complete(*(args or (TALK,))))


# --- Answers


def test_a_request_that_was_answered_is_not_made_again_where_replies_are_kept(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.answers(says("First."), says("Second.", ("price", "{}")), says("Third."))
    folder = tmp_path / "judge/replies"

    def asked(one: ChatClient, **fields: Any) -> ChatReply:
        return asyncio.run(one.complete(TALK, (), fields, cache=folder))

    one = client(endpoint)
    first, again = asked(one), asked(client(endpoint))
    assert (first.message, first.finish_reason) == (again.message, again.finish_reason)
    assert (again.usage, one.usage.requests, len(endpoint.requests)) == (Usage(), 1, 1)
    second = asked(one, temperature=0.5)
    assert second.message == asked(one, temperature=0.5).message != first.message
    assert second.message["tool_calls"][0]["function"]["name"] == "price"
    assert asked(ChatClient("other", base_url=endpoint.url, api_key_env=None)) not in (first, again)
    assert ask(one).message["content"] == "Third."  # each is made where none are kept
    assert KEY not in "".join(file.read_text() for file in folder.iterdir())
    for broken in (b"{", b"[]", b"{}", b"\xff"):  # what is broken is asked for again
        (folder / next(folder.iterdir()).name).write_bytes(broken)
        assert asked(one).message and asked(one, temperature=0.5).message


def test_a_folder_that_cannot_be_written_is_named(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache: '.*file/replies' cannot be written .*; name"):
        asyncio.run(client(endpoint).complete(TALK, cache=tmp_path / "file/replies"))


def test_a_message_is_answered_and_counted(endpoint: Endpoint) -> None:
    endpoint.answers(says("Hello.", usage=(1000, 500)))
    one = client(endpoint, prompt_price=2.0, completion_price=4.0)
    reply = ask(one)
    assert reply.message == {"role": "assistant", "content": "Hello."}
    assert reply.finish_reason == "stop"
    assert reply.usage == Usage(1, 0, 1000, 500, 0.004)
    ask(one)  # on another event loop
    assert one.usage == Usage(2, 0, 2000, 1000, 0.008)
    assert endpoint.keys == [f"Bearer {KEY}"] * 2


def test_calls_come_back_with_their_arguments_as_they_were_written(endpoint: Endpoint) -> None:
    endpoint.answers(says(None, ("price", '{"item": "tea"'), ("price", "{}")))
    message = ask(client(endpoint)).message
    assert message["content"] == ""
    arguments = [call["function"]["arguments"] for call in message["tool_calls"]]
    assert arguments == ['{"item": "tea"', "{}"]
    assert message["tool_calls"][0]["id"] == "id0"


def test_what_is_sent_is_what_endpoints_take(endpoint: Endpoint) -> None:
    messages = [
        *TALK,
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
        {"role": "tool", "content": "2", "tool_call_id": "a", "name": "price"},
    ]
    tools = [{"type": "function", "function": {"name": "price", "parameters": {}}}]
    ask(client(endpoint), messages, tools, {"temperature": 0.5, "max_tokens": None})
    (sent,) = endpoint.requests
    assert sent["tools"] == tools and sent["temperature"] == 0.5 and "max_tokens" not in sent
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"item": "tea"}'
    assert sent["messages"][1]["content"] == "" and "reasoning_content" not in sent["messages"][1]
    assert sent["messages"][2] == messages[2]


def test_an_endpoint_that_counts_no_tokens_is_no_error(endpoint: Endpoint) -> None:
    endpoint.answers(says("Hello.", usage=None))
    assert ask(client(endpoint)).usage == Usage(requests=1)


def test_fields_that_openai_does_not_know_are_sent_too(endpoint: Endpoint) -> None:
    own = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "min_p": None}
    ask(client(endpoint), TALK, [], own)
    (sent,) = endpoint.requests
    assert (sent["top_k"], sent["chat_template_kwargs"]) == (20, {"enable_thinking": False})
    assert "min_p" not in sent


# --- What may pass


@pytest.mark.parametrize(
    "broken",
    [
        refuses(429, retry_after="0"),
        refuses(500, retry_after="0"),
        refuses(503, retry_after="0"),
        refuses(408, retry_after="0"),
        refuses(429, retry_after=email.utils.formatdate(0, usegmt=True)),
    ],
)
def test_what_may_pass_is_tried_again(broken: Answer, endpoint: Endpoint) -> None:
    endpoint.answers(broken, broken, says("Hello."))
    reply = ask(client(endpoint))
    assert (reply.message["content"], reply.usage.retries) == ("Hello.", 2)
    assert len(endpoint.requests) == 3


def test_the_wait_that_an_endpoint_asks_for_is_kept(endpoint: Endpoint) -> None:
    endpoint.answers(refuses(429, retry_after="0.3"), says("Hello."))
    before = time.monotonic()
    ask(client(endpoint))
    assert time.monotonic() - before >= 0.3


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (refuses(500, "overloaded", retry_after="0"), "status 500: .*overloaded.* \\(2 attempts"),
        (Answer("<html>", headers={"Content-Type": "text/html"}), "answered .*\\(2 attempts"),
        (Answer({"choices": []}), "answered without a message \\(2 attempts"),
        (HANGS, "no answer within 0.2 s \\(2 attempts"),
        (refuses(400, "too long"), "status 400: .*too long"),
        (refuses(429, "pay", code="insufficient_quota"), "status 429: .*pay"),
    ],
)
def test_an_endpoint_that_goes_on_failing_is_an_infrastructure_failure(
    broken: Answer, said: str, endpoint: Endpoint
) -> None:
    endpoint.answers(broken)
    with pytest.raises(EndpointError, match=f"^tiny-model at 127.0.0.1:\\d+: {said}"):
        ask(client(endpoint, attempts=2, timeout_s=0.2 if broken is HANGS else 30.0))
    assert len(endpoint.requests) == (2 if "attempts" in said else 1)


def test_an_endpoint_that_is_not_there_is_named() -> None:
    one = ChatClient("m", base_url="http://127.0.0.1:9/v1", api_key_env=None, attempts=1)
    with pytest.raises(EndpointError, match=r"^m at 127.0.0.1:9: cannot be reached \("):
        ask(one)


# --- What will not


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_ends_at_once_and_names_the_variable(status: int, endpoint: Endpoint) -> None:
    endpoint.answers(refuses(status, f"Incorrect API key provided: {KEY}"))
    with pytest.raises(ConfigError) as caught:
        ask(client(endpoint))
    assert "refuses the key in TEST_KEY; correct the variable" in str(caught.value)
    assert KEY not in str(caught.value) and len(endpoint.requests) == 1


def test_a_model_that_is_not_there_ends_at_once(endpoint: Endpoint) -> None:
    endpoint.answers(refuses(404, "The model does not exist"))
    with pytest.raises(ConfigError, match=r"model: tiny-model at .* is not there: .*not exist"):
        ask(client(endpoint))


RENAMED = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
    "'max_completion_tokens' instead."
)
FIXED = (
    "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) "
    "value is supported."
)
EXTRA = '[{"type": "extra_forbidden", "loc": ["body", "top_k"]}]'


@pytest.mark.parametrize(
    ("status", "text", "way_out"),
    [
        (400, RENAMED, "parameters: {max_tokens: null, max_completion_tokens: 64} leaves"),
        (400, FIXED, "parameters: {temperature: null} leaves"),
        (422, EXTRA, "parameters: {top_k: null} leaves"),
    ],
)
def test_a_field_that_a_model_never_takes_ends_at_once_and_has_a_way_out(
    status: int, text: str, way_out: str, endpoint: Endpoint
) -> None:
    endpoint.answers(refuses(status, text))
    sent = {"max_tokens": 64, "temperature": 0.5, "top_k": 3}
    with pytest.raises(ConfigError, match=r"^parameters: tiny-model at .* does not take") as caught:
        ask(client(endpoint), TALK, [], sent)
    assert way_out in str(caught.value) and len(endpoint.requests) == 1


def test_a_limit_that_is_too_high_for_one_request_breaks_that_one(endpoint: Endpoint) -> None:
    endpoint.answers(refuses(400, "max_tokens must be at least 1, got -7: the prompt is too long"))
    with pytest.raises(EndpointError, match=r"got -7.*; parameters: \{max_tokens: null, max_com"):
        ask(client(endpoint), TALK, [], {"max_tokens": 64})


def test_both_names_of_the_limit_are_one_too_many(endpoint: Endpoint) -> None:
    endpoint.answers(refuses(400, "max_tokens and max_completion_tokens: not supported together"))
    with pytest.raises(ConfigError, match=r"; parameters: \{max_tokens: null\} leaves"):
        ask(client(endpoint), TALK, [], {"max_tokens": 64, "max_completion_tokens": 64})


def test_a_key_that_is_not_set_is_named_before_anything_is_sent(endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH_KEY is not set"):
        ask(client(endpoint, api_key_env="NO_SUCH_KEY"))
    assert endpoint.requests == []


def test_an_endpoint_without_a_key_gets_none(endpoint: Endpoint) -> None:
    ask(client(endpoint, api_key_env=None))
    assert endpoint.keys == ["Bearer none"]


ADDRESS = "must have a host and, if it has a port, a number from 1 to 65535 after the colon"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"api_key_env": KEY}, "api_key_env: must be the name of an environment variable"),
        ({"base_url": "localhost:8000"}, "base_url: must begin with http:// or https://"),
        ({"base_url": "http://host:99999/v1"}, f"base_url: {ADDRESS}, got 'http://host:99999/v1'"),
        ({"base_url": "http://host:abc/v1"}, f"base_url: {ADDRESS}, got 'http://host:abc/v1'; for"),
        ({"base_url": "http://host:0/v1"}, f"base_url: {ADDRESS}, got 'http://host:0/v1'; for ex"),
        ({"base_url": "http://[::1/v1"}, f"base_url: {ADDRESS}, got 'http://[::1/v1'; for example"),
        ({"base_url": "http://:80/v1"}, f"base_url: {ADDRESS}, got 'http://:80/v1'; for example h"),
        ({"timeout_s": 0}, "timeout_s: must be a number > 0, got 0"),
        ({"timeout_s": math.inf}, "timeout_s: must be a number > 0, got inf"),
        ({"base_url": f"http://user:{KEY}@host/v1"}, "base_url: must have neither a name nor a"),
        ({"base_url": f"user:{KEY}@host/v1"}, "base_url: must have neither a name nor a"),
        ({"max_concurrent": True}, "max_concurrent: must be a whole number >= 1, got True"),
        ({"max_concurrent": 0.5}, "max_concurrent: must be a whole number >= 1, got 0.5"),
        ({"attempts": 0.5}, "attempts: must be a whole number >= 1, got 0.5"),
        ({"requests_per_minute": -1}, "requests_per_minute: must be a number > 0, got -1"),
        ({"prompt_price": -0.5}, "prompt_price: must be a number >= 0, got -0.5"),
    ],
)
def test_a_wrong_setting_is_named_and_a_key_never_shown(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ChatClient("m", **wrong)
    assert str(caught.value).startswith(said) and KEY not in str(caught.value)


def test_a_wrong_url_of_the_environment_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://host:abc")
    with pytest.raises(ConfigError, match=f"^OPENAI_BASE_URL: {ADDRESS}, got 'http://host:abc'"):
        ChatClient("m")


# --- Keys


def test_the_key_is_in_no_error_log_or_pickle(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    one = client(endpoint, attempts=1)
    endpoint.answers(says("Hello."), refuses(500, f"your key {KEY} is fine, we are not"))
    ask(one)
    with pytest.raises(EndpointError) as caught:
        ask(one)
    assert "your key <key> is fine" in str(caught.value)
    assert caught.value.__cause__ is None
    for text in (str(caught.value), repr(one), str(one), str(vars(one)), caplog.text):
        assert KEY not in text
    assert KEY.encode() not in pickle.dumps(one)


def test_a_client_works_after_it_was_pickled(endpoint: Endpoint) -> None:
    one = client(endpoint)
    ask(one)
    assert ask(pickle.loads(pickle.dumps(one))).message["content"] == "Hello."


# --- Limits


def test_so_many_requests_at_once_and_no_more(endpoint: Endpoint) -> None:
    def slowly(request: dict[str, Any], number: int) -> Answer:
        time.sleep(0.05)
        return says("Hello.")

    endpoint.script = slowly
    one = client(endpoint, max_concurrent=2)

    async def many() -> None:
        await asyncio.gather(*(one.complete(TALK) for _ in range(6)))

    asyncio.run(many())
    assert endpoint.most_at_once == 2


def test_so_many_requests_a_minute_and_no_more(endpoint: Endpoint) -> None:
    one = client(endpoint, requests_per_minute=600)

    async def many() -> None:
        await asyncio.gather(*(one.complete(TALK) for _ in range(4)))

    before = time.monotonic()
    asyncio.run(many())
    assert time.monotonic() - before >= 0.3


def test_clients_of_equal_settings_are_one_with_one_limit(endpoint: Endpoint) -> None:
    def slowly(request: Any, number: int) -> Any:
        time.sleep(0.02)
        return says("Hello.")

    endpoint.script = slowly
    settings: dict[str, Any] = {"base_url": endpoint.url, "api_key_env": None}

    async def ask_all() -> None:
        made = [shared_client(model="m", **settings, max_concurrent=2) for _ in range(6)]
        await asyncio.gather(*(each.complete(TALK) for each in made))

    asyncio.run(ask_all())
    assert (len(endpoint.requests), endpoint.most_at_once) == (6, 2)
    assert shared_client(model="m", **settings) is not shared_client(model="n", **settings)
    with pytest.raises(ConfigError, match=r"modle: a ChatClient has no such setting.*model"):
        shared_client(modle="m")
    with pytest.raises(ConfigError, match="model: is required"):
        shared_client(**settings)
