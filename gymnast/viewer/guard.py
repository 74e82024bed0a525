"""Who may see the page: this machine's own browser, with the address that was printed.

An ASGI middleware. A request must be meant for this server (`Host`), come from its own page if from
any (`Origin`, `Sec-Fetch-Site`), and have a key: the one-time token in the address, which becomes a
cookie, or that cookie.
"""

import hmac
import secrets
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Lets requests through to an application, and adds headers that bind the browser.

    Args:
        app: The application.
        port: That the server listens on.
        used: Told of each new token when the one before it was used.

    Attributes:
        token: For the next browser; good for one use.
    """

    def __init__(self, app: ASGIApp, port: int, used: Callable[[str], None]) -> None:
        self._app = app
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"gymnast_view_{port}"  # cookies do not tell ports apart
        self._session = secrets.token_urlsafe(32)
        self._used = used
        self.token = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application do so."""
        if scope["type"] != "http":
            return  # no WebSockets, no lifespan

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._refusal(Request(scope)) or self._app)(scope, receive, sending)

    def _refusal(self, request: Request) -> Response | None:
        """What a request is answered that may not pass; None where it may."""
        if not self._is_meant(request.headers):
            return PlainTextResponse(
                "This server answers requests for its own address from its own page.", 403
            )
        token = request.query_params.get("token")
        if token is not None and _same(token, self.token):
            self.token = secrets.token_urlsafe(32)
            self._used(self.token)
            entered = RedirectResponse("/", 303)
            entered.set_cookie(
                self._cookie, self._session, path="/", httponly=True, samesite="strict"
            )
            return entered
        if not _same(request.cookies.get(self._cookie, ""), self._session):
            return PlainTextResponse(
                "Open the address that `gymnast view` printed last: each address opens the page in "
                "one browser, and the next one is printed when it was used.",
                401,
            )
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("There is nothing to write here.", 405)
        return None

    def _is_meant(self, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        own = {f"http://{host}" for host in self._hosts}
        return (
            headers.get("host") in self._hosts
            and (origin is None or origin in own)
            and site in ("none", "same-origin")
        )


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
