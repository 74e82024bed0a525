"""One vLLM server: its routes, and what its failures mean.

Which server a request goes to, and what happens when one is lost, is in `servers.py`.
"""

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gymnast.errors import ConfigError, ServerLost

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
GENERATE = "/inference/v1/generate"
PUBLIC = ("/v1/models", "/detokenize")  # routes of every vLLM server


def open_session(api_key: str | None) -> "aiohttp.ClientSession":
    """A session over which servers are asked; made and closed on one event loop.

    Raises:
        ConfigError: aiohttp is not installed.
    """
    try:
        import aiohttp
    except ImportError as error:
        raise ConfigError(
            "vLLM servers need the package aiohttp, which is not installed; run: "
            "pip install 'gymnast-rl[vllm]'"
        ) from error
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        trust_env=False,
    )


@dataclass(frozen=True)
class Request(Generic[T]):
    """A completion that is asked for.

    Attributes:
        context_ids: What is continued.
        make_body: Makes the body of the request to a server that has the weights of a name.
        read: Reads the answer to a request that was sent under a name of weights. It raises
            ServerLost where the server is not to be asked again, InfrastructureError where the
            answer alone is of no use, and `SentTooEarly`.
    """

    context_ids: Sequence[int]
    make_body: Callable[[str], Mapping[str, Any]]
    read: Callable[[Any, str], T]


@dataclass(eq=False)
class Server:
    """One server, as this process sees it.

    Attributes:
        url: Of its root, without a slash at the end.
        session: Over which it is asked.
        api_key_env: The environment variable that holds its key; named in errors.
        weights: The name of the weights that it has; empty while that is not known.
        in_flight: The requests under way, each by its limit, which ends it when it is moved.
        answered: How many completions that counted.
        answered_at: When the last answer to a request came, by the monotonic clock, in seconds.
        handover: Held while it gets weights.
    """

    url: str
    session: "aiohttp.ClientSession"
    api_key_env: str
    weights: str = ""
    in_flight: set[asyncio.Timeout] = field(default_factory=set)
    answered: int = 0
    answered_at: float = -math.inf
    handover: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None,
        **query: str,
    ) -> Any:
        """Send one request; returns the JSON of the answer, None where it has none.

        Routes under /v1 that answer with a sentence of success have none either.

        Raises:
            ServerLost: The server cannot be reached, is too slow, or is broken.
            ConfigError: It refuses the request.
        """
        import aiohttp

        try:
            async with (
                asyncio.timeout(timeout_s),
                self.session.request(method, self.url + path, json=body, params=query) as answer,
            ):
                text = await answer.text()
        except TimeoutError as error:
            raise ServerLost(f"{self.url}{path}: no answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerLost(f"{self.url}{path}: {error or type(error).__name__}") from error
        if answer.status >= 500:
            raise ServerLost(f"{self.url}{path}: status {answer.status}: {_reason(text)}")
        if answer.status >= 400:
            raise ConfigError(self._refusal(path, answer.status, text))
        if text.startswith("Success"):
            return None
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise ServerLost(f"{self.url}{path}: the answer is no JSON: {text:.100}") from error

    def _refusal(self, path: str, status: int, text: str) -> str:
        """Why the server refuses a request, and what to change."""
        sentence = f"{self.url}{path}: status {status}: {_reason(text)}"
        if status == 401:
            return f"{sentence}; put the server's key into {self.api_key_env}"
        if path == GENERATE and status in (403, 404) and "model" not in sentence:
            return f"{sentence}; start the server with --enable-scale-out (vLLM 0.32 or later)"
        if status == 404 and path in PUBLIC:
            return f"{sentence}; is this the URL of a vLLM server?"
        if status == 404 and path != GENERATE:
            return f"{sentence}; start the server with VLLM_SERVER_DEV_MODE=1 in its environment"
        return sentence


def _reason(text: str) -> str:
    """What a server says of a failure."""
    try:
        error = json.loads(text).get("error", text)
        return str(error.get("message", error) if isinstance(error, dict) else error)[:500]
    except (ValueError, AttributeError):
        return text.strip()[:500]
