"""OpenAI's chat completions on the wire: where they are, what is sent, and what is answered.

Nothing here sends anything: that is `chat_client.py`.
"""

import hashlib
import json
import os
import random
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gymnast.errors import ConfigError
from gymnast.types import Message

LONGEST_WAIT_S = 60.0
SENT = ("role", "content", "tool_calls", "tool_call_id", "name")  # of each message
PASSING = (408, 409, 429)  # and all from 500 on
INVALID = (400, 422)  # something in the request itself is refused
_NEVER = re.compile(
    r"unsupported|not support(ed)?\b|unrecogni[sz]ed|unknown|extra_forbidden|extra inputs"
    r"|unexpected (field|parameter|argument|keyword)",
    re.I,
)


@dataclass(frozen=True)
class Usage:
    """What requests took.

    Attributes:
        requests: How many were answered.
        retries: How many were made again.
        prompt_tokens: As the endpoint counts them.
        completion_tokens: Likewise.
        cost: In the currency of the prices.
    """

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        """The sum of both."""
        return Usage(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


@dataclass(frozen=True)
class ChatReply:
    """An answer of an endpoint.

    Attributes:
        message: The assistant's, in OpenAI's shape; arguments of calls are text, as they came.
        finish_reason: "stop", "length", "tool_calls", ...
        usage: What it took.
    """

    message: Message
    finish_reason: str
    usage: Usage


@dataclass(frozen=True)
class KeptReply:
    """The place in a cache where the reply to one request is, once it was answered."""

    path: Path

    @classmethod
    def of(cls, folder: Path, url: str | None, request: Mapping[str, Any]) -> "KeptReply":
        """The place of a request to an endpoint.

        Raises:
            ConfigError: The folder cannot be made.
        """
        with _written(folder):
            folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps([url, request], sort_keys=True)
        return cls(folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json")

    def read(self) -> ChatReply | None:
        """The reply, which took nothing; None where there is none yet."""
        try:
            kept = json.loads(self.path.read_text())
            return ChatReply(kept["message"], kept["finish_reason"], Usage())
        except (OSError, ValueError, TypeError, KeyError):  # no file, or none of ours
            return None

    def write(self, reply: ChatReply) -> None:
        """Keep a reply, whole or not at all.

        Raises:
            ConfigError: The folder cannot be written.
        """
        kept = {"message": reply.message, "finish_reason": reply.finish_reason}
        whole = self.path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        with _written(self.path.parent):
            whole.write_text(json.dumps(kept))
            whole.replace(self.path)


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cache: {str(folder)!r} cannot be written ({error}); name another folder"
        ) from error


@dataclass(frozen=True)
class Problem:
    """Why a request was not answered.

    Attributes:
        text: In words.
        passing: Whether it may be answered later.
        retry_after: The header of this name: seconds, or a date.
    """

    text: str
    passing: bool = False
    retry_after: str | None = None

    def wait_s(self, attempt: int) -> float:
        """How long to wait before an attempt: what the endpoint asks for, or longer each time."""
        backoff = min(0.5 * 2 ** (attempt - 1), LONGEST_WAIT_S) * random.uniform(0.75, 1.25)
        if self.retry_after is None:
            return backoff
        try:
            asked = float(self.retry_after)
        except ValueError:
            try:
                asked = parsedate_to_datetime(self.retry_after).timestamp() - time.time()
            except ValueError:
                return backoff
        return min(max(asked, 0.0), LONGEST_WAIT_S)


def as_sent(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as endpoints take it: no further keys, and arguments of calls as text."""
    sent = {name: message[name] for name in SENT if message.get(name) is not None}
    sent.setdefault("content", "")
    if "tool_calls" in sent:
        sent["tool_calls"] = [_call_as_sent(call) for call in sent["tool_calls"]]
        if not sent["tool_calls"]:
            del sent["tool_calls"]
    return sent


def _call_as_sent(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function.get("arguments"), str):
        function["arguments"] = json.dumps(function.get("arguments") or {}, default=str)
    return {"type": "function", **call, "function": function}


def read_message(completion: Any) -> Message:
    """The assistant's message of a completion, as `openai` has read it."""
    said = completion.choices[0].message
    message: Message = {"role": "assistant", "content": said.content or ""}
    calls = [call.model_dump(exclude_none=True) for call in said.tool_calls or ()]
    if calls:
        message["tool_calls"] = [call for call in calls if "function" in call]
    thought = getattr(said, "reasoning_content", None)
    if isinstance(thought, str):
        message["reasoning_content"] = thought
    return message


def read_refusal(body: Any) -> str:
    """What an endpoint says in words where it refuses a request; "" where it says nothing.

    OpenAI's `message`, the `detail` of servers that are made with FastAPI, or all that was sent.

    Args:
        body: Of its answer, as `openai` has read it: text, or what was in JSON.
    """
    if isinstance(body, Mapping):
        body = body.get("message") or body.get("detail") or body
    text = body if isinstance(body, str) else json.dumps(body) if body else ""
    return " ".join(text.split())


def refused_fields(status: int, text: str, parameters: Mapping[str, Any]) -> list[str]:
    """Which of the fields that were sent an endpoint complains about.

    Args:
        status: Of its answer.
        text: Of its answer.
        parameters: The fields of the request, without model, messages and tools.
    """
    if status not in INVALID:
        return []
    return [name for name in parameters if re.search(rf"\b{re.escape(name)}\b", text)]


def never_taken(text: str) -> bool:
    """Whether a complaint about a field holds for every request, not just for this one.

    A limit that is too high for the rest of a context, say, is a matter of this request alone.
    """
    return _NEVER.search(text) is not None


def without_fields(names: Iterable[str], parameters: Mapping[str, Any]) -> str:
    """The setting that leaves fields out of all requests: "parameters: {temperature: null}"."""
    given = dict.fromkeys(names, "null")
    if "max_tokens" in given:
        given["max_completion_tokens"] = str(parameters["max_tokens"])
    if parameters.keys() >= {"max_tokens", "max_completion_tokens"}:  # one of them, and not both
        given = {"max_tokens": "null"}
    return f"parameters: {{{', '.join(f'{name}: {value}' for name, value in given.items())}}}"


def host_of(url: str | None) -> str:
    """The host and port of an endpoint, without what its URL may hold besides."""
    if not url:
        return "OpenAI"
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    except ValueError:  # the variable has changed since it was checked
        return "a URL that cannot be read"


def shown_url(url: str | None) -> str:
    """The URL of an endpoint up to its path, without what may follow."""
    if not url:
        return "https://api.openai.com/v1"
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def lacks_path(url: str | None) -> bool:
    """Whether the URL of an endpoint ends with its host, where most end in /v1."""
    return bool(url) and not urlsplit(str(url)).path.strip("/")


def check_url(name: str, url: Any) -> None:
    """Check the URL of an endpoint.

    Args:
        name: Of the setting or variable that it is from.
        url: What stands there; None is none.

    Raises:
        ConfigError: It is no URL of a server, or holds a name or password.
    """
    if "@" in str(url).split("//", 1)[-1].partition("/")[0]:  # not shown: a password may be in it
        raise ConfigError(
            f"{name}: must have neither a name nor a password before the host; put the key into "
            "an environment variable, and name it with api_key_env"
        )
    if url is not None and not re.match(r"https?://[^/\s]", str(url)):
        raise ConfigError(
            f"{name}: must begin with http:// or https://, got {url!r:.100}; for example "
            "http://localhost:8000/v1"
        )
    try:
        parts = urlsplit(str(url or ""))
        if parts.port == 0 or (url and not parts.hostname):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{name}: must have a host and, if it has a port, a number from 1 to 65535 after the "
            f"colon, got {url!r:.100}; for example http://localhost:8000/v1"
        ) from None
