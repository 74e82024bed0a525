"""The ASGI application of the endpoint: who may ask, what for, and how much."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any

from gymnast.envs.programs.dialects.chat import CHAT
from gymnast.envs.programs.dialects.completions import COMPLETIONS
from gymnast.envs.programs.dialects.dialect import Asked, Dialect, dumped
from gymnast.envs.programs.dialects.errors import anthropic_error, openai_error
from gymnast.envs.programs.dialects.messages import MESSAGES
from gymnast.envs.programs.dialects.requests import Refused
from gymnast.envs.programs.dialects.responses.dialect import RESPONSES
from gymnast.envs.programs.dialects.values import read_json
from gymnast.envs.programs.serving.client import Exchange
from gymnast.envs.programs.serving.lines import Line

BODY_LIMIT_BYTES = 32 * 1024 * 1024
BODY_TIMEOUT_S = 60.0

DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}
"""The dialect of each path that is posted to."""

_MODEL = {
    "id": "policy",
    "object": "model",
    "created": 0,
    "owned_by": "gymnast",
    "type": "model",
    "display_name": "policy",
    "created_at": "1970-01-01T00:00:00Z",
}
_MODELS = {"first_id": "policy", "last_id": "policy", "has_more": False, "data": [_MODEL]}
SHOWN: Mapping[str, Any] = {
    "/v1/models": {"object": "list", **_MODELS},
    "/v1/models/policy": _MODEL,
}
"""What each path shows that is read: the one model, as OpenAI and Anthropic show theirs."""

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class Application:
    """Answers requests over HTTP.

    Args:
        lines: The lines of the episodes by their keys.
        port: The endpoint's own, which requests must be meant for.
    """

    def __init__(self, lines: Mapping[str, Line], port: int) -> None:
        self._lines = lines
        self._hosts = frozenset(f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost"))

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        line: Line | None = None
        exchange: Exchange | None = None
        path, kind = scope["path"], b"application/json"
        try:
            headers = dict(scope["headers"])
            self._check_origin(headers)
            line = self._line_of(headers)
            dialect = _route(scope["method"], path)
            if dialect is None:
                status, body = 200, dumped(SHOWN[path])
            else:
                read = await _read_body(headers, receive)
                if read is None:
                    return
                asked = _understood(dialect, read, line)
                exchange = scope["gymnast.connection"].exchange()
                delivery = line.arrive(
                    asked.request,
                    exchange,
                    hashlib.sha256(path.encode() + b"\n" + read).digest(),
                    retried=headers.get(b"x-stainless-retry-count", b"0") not in (b"0", b""),
                )
                await exchange.woken
                if isinstance(outcome := delivery.outcome, Refused):
                    raise outcome
                # A client that has left is written to as well: nobody reads it.
                status, body = 200, dialect.write(asked, outcome) if outcome else b""
                kind = b"text/event-stream" if asked.stream else kind
        except Refused as refused:
            if line is not None and exchange is None:
                line.refusal = refused.message
            error = anthropic_error if path.startswith("/v1/messages") else openai_error
            status, body = refused.status, dumped(error(refused))
            kind = b"application/json"
        with nullcontext() if exchange is None else exchange.sending():
            await _send(send, status, kind, body)

    def _check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what a web page of somebody else's may have sent."""
        host, origin = headers.get(b"host", b"").lower(), headers.get(b"origin")
        if host not in self._hosts:
            raise Refused(
                "The Host of the request is not this endpoint.", status=403, kind="forbidden"
            )
        if origin is not None and origin.lower().removeprefix(b"http://") not in self._hosts:
            raise Refused(
                "The Origin of the request is not this endpoint.", status=403, kind="forbidden"
            )

    def _line_of(self, headers: Mapping[bytes, bytes]) -> Line:
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = [bearer.strip()] if scheme.lower() == b"bearer" else []
        for key in [*given, headers.get(b"x-api-key", b"")]:
            line = self._lines.get(key.decode("latin-1"))
            if line is not None:
                return line
        raise Refused(
            "The API key is missing, wrong, or that of an episode that is over.",
            status=401,
            kind="invalid_api_key",
        )


def _route(method: str, path: str) -> Dialect | None:
    """The dialect of a path that is posted to, None for one that is read.

    Raises:
        Refused: There is no such path, or it is not asked for in this way.
    """
    rule = "POST" if path in DIALECTS else "GET" if path in SHOWN else ""
    if not rule:
        known = ", ".join([*DIALECTS, *SHOWN])
        raise Refused(f"There is no {path:.100}; there are {known}.", status=404, kind="not_found")
    if method != rule:
        raise Refused(
            f"{path} is asked for by {rule}, not {method}.", status=405, kind="method_not_allowed"
        )
    return DIALECTS.get(path)


def _understood(dialect: Dialect, body: bytes, line: Line) -> Asked:
    """Read a request.

    Raises:
        Refused: It cannot be understood, or asks for what cannot be given; this is counted.
    """
    try:
        return dialect.read(read_json(body))
    except Refused:
        line.count("refused")
        raise


async def _read_body(headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
    """Read the body of a request; None where the client leaves meanwhile.

    Raises:
        Refused: It is too large, encoded, or does not come.
    """
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise Refused("The body of the request must not be compressed.", status=415)
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > BODY_LIMIT_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > BODY_LIMIT_BYTES:
                    raise _too_large()
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refused(
            f"The body of the request did not come within {BODY_TIMEOUT_S:g} s.", status=408
        ) from None
    return b"".join(parts)


def _too_large() -> Refused:
    limit = BODY_LIMIT_BYTES // 1024**2
    return Refused(
        f"The body of the request has more than {limit} MiB.", status=413, kind="request_too_large"
    )


async def _send(send: Send, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if status in (408, 413):  # the rest of the request is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
