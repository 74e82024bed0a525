"""Who may see the page: a browser with an address that was printed, from the page itself."""

import http.client
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gymnast.viewer.runs import named_runs
from gymnast.viewer.server import Viewer
from viewer_fixtures import plain_run


class Asked:
    """An answer to a request."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.text = answer.status, answer.headers, answer.read().decode()


class Served:
    """A viewer on a thread, and the addresses that it told."""

    def __init__(self, folder: Path) -> None:
        self.told: list[str] = []
        self.viewer = Viewer(named_runs([folder]), told=self.told.append)

    def ask(self, path: str, method: str = "GET", **headers: str) -> Asked:
        connection = http.client.HTTPConnection("127.0.0.1", self.viewer.port, timeout=20)
        given: Mapping[str, str] = {name.replace("_", "-"): each for name, each in headers.items()}
        connection.request(method, path, headers=dict(given))
        asked = Asked(connection.getresponse())
        connection.close()
        return asked

    def enter(self) -> str:
        """The cookie that the printed address gives."""
        entered = self.ask(f"/?{self.viewer.url.partition('?')[2]}")
        assert entered.status == 303 and entered.headers["location"] == "/"
        return str(entered.headers["set-cookie"])


@pytest.fixture
def served(tmp_path: Path, tokenizer: Any) -> Iterator[Served]:
    served = Served(plain_run(tmp_path / "shop", tokenizer))
    thread = threading.Thread(target=served.viewer.serve)
    thread.start()
    yield served
    served.viewer.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_the_printed_address_opens_the_page_once(served: Served) -> None:
    first = served.viewer.url
    assert served.ask("/").status == 401 and served.ask("/page.js").status == 401
    cookie = served.enter()
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert '<div id="page">' in served.ask("/", cookie=cookie).text
    assert served.ask("/api/overview", cookie=cookie).status == 200
    assert served.ask(f"/?{first.partition('?')[2]}").status == 401
    assert served.told == [served.viewer.url] and served.viewer.url != first


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "gymnast.example"},
        {"host": "127.0.0.1:1"},
        {"origin": "https://gymnast.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_what_another_site_asks_is_refused_even_with_the_cookie(
    served: Served, headers: dict[str, str]
) -> None:
    cookie = served.enter()
    own = {"origin": f"http://127.0.0.1:{served.viewer.port}", "sec_fetch_site": "same-origin"}
    assert served.ask("/api/overview", cookie=cookie, **own).status == 200
    assert served.ask("/api/overview", cookie=cookie, **{**own, **headers}).status == 403
    token = served.viewer.url.partition("?")[2]
    assert served.ask(f"/?{token}", **headers).status == 403
    assert served.viewer.url.endswith(token)  # it was not used up


@pytest.mark.parametrize("path", ["/", "/page.js", "/api/overview", "/none", "/?token=wrong"])
def test_every_answer_binds_the_browser(served: Served, path: str) -> None:
    policy = served.ask(path).headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert served.ask(path).headers["cache-control"] == "no-store"


def test_nothing_but_its_own_files_and_runs_is_served(served: Served) -> None:
    cookie = served.enter()
    for path in ("/../guard.py", "/%2e%2e/guard.py", "/static/page.js", "/config.yaml", "/LICENSE"):
        assert served.ask(path, cookie=cookie).status == 404, path
    elsewhere = served.ask("/api/metrics?run=..%2F..%2Fetc", cookie=cookie)
    assert elsewhere.status == 400 and elsewhere.text == "run: must be one of shop"
    unknown = served.ask("/api/episodes?run=shop&id=..%2F0%2F0", cookie=cookie)
    assert unknown.status == 400 and "has no file '..'" in unknown.text
    assert served.ask("/api/overview", "POST", cookie=cookie).status == 405
