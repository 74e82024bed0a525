"""One client for endpoints that speak OpenAI's chat completions, for agents, judges and users.

It tries again what may pass (a full or broken server, a timeout, a lost connection), keeps to a
number of requests at once and a minute, counts tokens and what they cost, and keeps replies in a
folder where it is asked to. A key is known by the name of its environment variable alone: it is
read when a request is made, and is in no configuration, error, log or pickle. What requests and
answers look like is in `chat_protocol.py`.
"""

import asyncio
import importlib.util
import inspect
import math
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from gymnast.chat_protocol import (
    PASSING,
    ChatReply,
    KeptReply,
    Problem,
    Usage,
    as_sent,
    check_url,
    host_of,
    lacks_path,
    never_taken,
    read_message,
    read_refusal,
    refused_fields,
    shown_url,
    without_fields,
)
from gymnast.errors import ConfigError, EndpointError
from gymnast.lookup import did_you_mean

OPENAI_URL = "OPENAI_BASE_URL"  # the environment variable


class ChatClient:
    """Asks one model of an OpenAI-compatible endpoint.

        client = ChatClient("gpt-5-mini", prompt_price=0.25, completion_price=2.0)
        reply = await client.complete([{"role": "user", "content": "Hi"}])

    It may be used on several event loops, one after another, and can be pickled.

    Args:
        model: The model's name at the endpoint.
        base_url: Of the endpoint, "http://localhost:8000/v1" for instance; by default OpenAI's, or
            what the environment variable OPENAI_BASE_URL says.
        api_key_env: The name of the environment variable that holds the key; None where the
            endpoint asks for none.
        timeout_s: How long one request may take.
        attempts: How often a request is made, at most.
        max_concurrent: Requests under way at once.
        requests_per_minute: At most so many begin in a minute, evenly spaced; None: any number.
        prompt_price: What a million prompt tokens cost.
        completion_price: What a million completion tokens cost.

    Raises:
        ConfigError: A value does not hold, or the package `openai` is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key_env: str | None = "OPENAI_API_KEY",
        timeout_s: float = 120.0,
        attempts: int = 5,
        max_concurrent: int = 16,
        requests_per_minute: float | None = None,
        prompt_price: float = 0.0,
        completion_price: float = 0.0,
    ) -> None:
        if importlib.util.find_spec("openai") is None:
            raise ConfigError("chat: the package openai is missing; pip install 'gymnast-rl[chat]'")
        if not isinstance(model, str) or not model:
            raise ConfigError(f"model: must be the name of a model, got {model!r:.100}")
        check_url("base_url", base_url)
        if base_url is None:
            check_url(OPENAI_URL, os.environ.get(OPENAI_URL) or None)
        _check_key_name(api_key_env)
        _check_above(0, timeout_s=timeout_s)
        _check_counts(attempts=attempts, max_concurrent=max_concurrent)
        if requests_per_minute is not None:
            _check_above(0, requests_per_minute=requests_per_minute)
        _check_above(None, prompt_price=prompt_price, completion_price=completion_price)
        self.model, self.base_url, self.api_key_env = model, base_url, api_key_env
        self.timeout_s, self.attempts, self.max_concurrent = timeout_s, attempts, max_concurrent
        self.requests_per_minute = requests_per_minute
        self.prompt_price, self.completion_price = prompt_price, completion_price
        self.usage = Usage()
        self._begin()

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        parameters: Mapping[str, Any] | None = None,
        *,
        cache: str | Path | None = None,
    ) -> ChatReply:
        """Ask for the next message of a conversation.

        Args:
            messages: In OpenAI's shape.
            tools: Schemas of the tools that may be called.
            parameters: Further fields of the request, those of OpenAI and of the endpoint's own:
                `temperature`, `max_tokens`, `top_k`, ...; those that are None are left out.
            cache: A folder that keeps replies by their requests, for judges and whoever wants the
                same reply to the same request: one that was answered before, in this process or
                another, is not made again, and its `usage` is none. None: each request is made.

        Raises:
            ConfigError: The key is missing or wrong, the endpoint has no such model, or its model
                takes no such field; or the folder cannot be written.
            EndpointError: The endpoint cannot be reached or does not answer as it should, also
                after `attempts` attempts.
        """
        request: dict[str, Any] = {"model": self.model, "messages": list(map(as_sent, messages))}
        if tools:
            request["tools"] = list(tools)
        fields = {name: value for name, value in (parameters or {}).items() if value is not None}
        kept = None
        if cache is not None:
            url = self.base_url or os.environ.get(OPENAI_URL)
            kept = KeptReply.of(Path(cache), url, request | {"fields": fields})
            if (before := kept.read()) is not None:
                return before
        client, free = self._of_this_loop()
        problem = Problem("")
        for attempt in range(self.attempts):
            if attempt:
                await asyncio.sleep(problem.wait_s(attempt))
            async with free:
                await self._turn()
                answer = await self._ask(client, request, fields)
            if not isinstance(answer, Problem):
                reply = self._reply(answer, retries=attempt)
                self.usage += reply.usage
                if kept is not None:
                    kept.write(reply)
                return reply
            problem = answer
            if not problem.passing:
                break
        tried = f" ({attempt + 1} attempts)" if attempt else ""
        raise EndpointError(f"{self}: {problem.text}{tried}")

    def __str__(self) -> str:
        """The model and the host, without what a URL may hold besides."""
        return f"{self.model} at {host_of(self.base_url or os.environ.get(OPENAI_URL))}"

    def __getstate__(self) -> dict[str, Any]:
        """What belongs to an event loop, and with it the key, is left out."""
        return {k: v for k, v in vars(self).items() if k not in ("_loops", "_next_at")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def _begin(self) -> None:
        self._loops: WeakKeyDictionary[Any, tuple[Any, asyncio.Semaphore]] = WeakKeyDictionary()
        self._next_at = 0.0

    def _of_this_loop(self) -> tuple[Any, asyncio.Semaphore]:
        """The client of the running event loop, and what limits its requests."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            import openai

            client = openai.AsyncOpenAI(
                api_key=self.key() or "none",
                base_url=self.base_url,
                timeout=self.timeout_s,
                max_retries=0,  # counted and limited here
                # No connection outlives its request: nobody says when a loop is about to end.
                default_headers={"Connection": "close"},
            )
            self._loops[loop] = client, asyncio.Semaphore(self.max_concurrent)
        return self._loops[loop]

    def key(self) -> str | None:
        """The key, out of its environment variable; None where the endpoint asks for none.

        Raises:
            ConfigError: The variable is not set.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            raise ConfigError(
                f"api_key_env: the environment variable {self.api_key_env} is not set; set it, or "
                "name another one (--api-key-env); null, or --no-api-key, says that the endpoint "
                "asks for no key"
            )
        return key

    async def _turn(self) -> None:
        """Wait until another request may begin."""
        if self.requests_per_minute is None:
            return
        now = time.monotonic()
        begins = max(now, self._next_at)
        self._next_at = begins + 60 / self.requests_per_minute
        await asyncio.sleep(begins - now)

    async def _ask(
        self, client: Any, request: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> Any | Problem:
        """Make one request; returns the completion, or what went wrong."""
        import openai

        try:
            async with asyncio.timeout(self.timeout_s):
                completion = await client.chat.completions.create(
                    **request, extra_body=fields or None
                )
        except (TimeoutError, openai.APITimeoutError):
            return Problem(f"no answer within {self.timeout_s:g} s", passing=True)
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            text = f"cannot be reached ({type(cause).__name__}: {cause})"
            return Problem(self._without_key(text), passing=True)
        except openai.APIStatusError as error:
            return self._refused(error, fields)
        except (openai.OpenAIError, ValueError) as error:  # an answer that cannot be read
            return Problem(f"answered {self._without_key(repr(error)):.200}", passing=True)
        choices = getattr(completion, "choices", None)
        if not choices or choices[0].message is None:
            return Problem("answered without a message", passing=True)
        return completion

    def _refused(self, error: Any, fields: Mapping[str, Any]) -> Problem:
        """What a status says.

        Raises:
            ConfigError: The key is wrong, there is no such model, or it never takes a field that
                was sent: no request will pass.
        """
        status = error.status_code
        if status in (401, 403):
            which = (
                "asks for a key; name its environment variable with api_key_env"
                if self.api_key_env is None
                else f"refuses the key in {self.api_key_env}; correct the variable, or name another"
            )
            raise ConfigError(f"api_key_env: {self} {which} (status {status})") from None
        text = self._without_key(read_refusal(error.body) or str(error.message))
        url = self.base_url or os.environ.get(OPENAI_URL)
        if status == 404 and lacks_path(url):
            shown = shown_url(url).rstrip("/")
            raise ConfigError(
                f"endpoint: {shown} answers with status 404 ({text:.200}); does its URL end in "
                f"/v1: {shown}/v1?"
            ) from None
        if status == 404:
            raise ConfigError(f"model: {self} is not there: {text:.200}") from None
        said = f"status {status}: {text:.300}"
        if named := refused_fields(status, text, fields):
            way_out = f"{without_fields(named, fields)} leaves what is null out of the requests"
            if never_taken(text):
                raise ConfigError(
                    f"parameters: {self} does not take {', '.join(named)} ({said}); {way_out}"
                ) from None
            said += f"; {way_out}"
        spent = error.code == "insufficient_quota"
        return Problem(
            said,
            passing=(status in PASSING or status >= 500) and not spent,
            retry_after=error.response.headers.get("retry-after"),
        )

    def _without_key(self, text: str) -> str:
        key = os.environ.get(self.api_key_env) if self.api_key_env else None
        return text.replace(key, "<key>") if key else text

    def _reply(self, completion: Any, retries: int) -> ChatReply:
        used = completion.usage
        prompt = getattr(used, "prompt_tokens", None) or 0
        written = getattr(used, "completion_tokens", None) or 0
        cost = (prompt * self.prompt_price + written * self.completion_price) / 1e6
        usage = Usage(1, retries, prompt, written, cost)
        reason = completion.choices[0].finish_reason or ""
        return ChatReply(read_message(completion), reason, usage)


def _check_key_name(name: Any) -> None:
    """The name of a variable; what is none may be the key itself, and is not shown."""
    if name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
        raise ConfigError(
            "api_key_env: must be the name of an environment variable, such as OPENAI_API_KEY, and "
            "never the key itself"
        )


def _check_counts(**values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: must be a whole number >= 1, got {value!r:.100}")


def _check_above(least: float | None, **values: Any) -> None:
    """Each must be a number above `least`; without it, at least 0."""
    for name, value in values.items():
        rule = "a number >= 0" if least is None else f"a number > {least:g}"
        number = not isinstance(value, bool) and isinstance(value, int | float)
        in_range = (
            number and math.isfinite(value) and (value >= 0 if least is None else value > least)
        )
        if not in_range:
            raise ConfigError(f"{name}: must be {rule}, got {value!r:.100}")


def shared_client(**settings: Any) -> ChatClient:
    """The client of this process with these settings, so that its limits hold for all who ask.

    Environments are made by the dozen: one that asks an endpoint takes the client's settings as a
    mapping, from a YAML say, and gets here the client that the others have.

    Args:
        settings: Keywords of `ChatClient`.

    Raises:
        ConfigError: One is unknown, missing or wrong.
    """
    known = list(inspect.signature(ChatClient).parameters)
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known) or f" It has: {', '.join(known)}."
            raise ConfigError(f"{name}: a ChatClient has no such setting.{hint}")
    if "model" not in settings:
        raise ConfigError("model: is required; name a model of the endpoint")
    kind = repr(sorted(settings.items()))
    with _lock:
        if kind not in _clients:
            _clients[kind] = ChatClient(**settings)
        return _clients[kind]


_clients: dict[str, ChatClient] = {}
_lock = threading.Lock()
