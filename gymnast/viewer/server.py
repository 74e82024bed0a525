"""The server behind the page, on loopback alone: the page itself, and the data that it asks for."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from gymnast.errors import DataError, GymnastError
from gymnast.trainers.inspecting.filters import Filter
from gymnast.trainers.inspecting.index import load_all
from gymnast.trainers.records.json_text import json_line
from gymnast.viewer.guard import Guard
from gymnast.viewer.runs import Run
from gymnast.viewer.wire import episode_of, index_of, overview_of, why_of

STATIC = Path(__file__).parent / "static"


class Viewer:
    """Serves some runs, and nothing else, on 127.0.0.1.

        viewer = Viewer(named_runs(["runs/arithmetic"]), told=print)
        print(viewer.url)
        viewer.serve()  # until it is interrupted

    Args:
        runs: That the page shows.
        port: To listen on; 0: the system chooses.
        told: Told of each new address, when the one before it was used.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, runs: Sequence[Run], port: int = 0, *, told: Callable[[str], None]) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        app = GZipMiddleware(Starlette(routes=_routes(runs)), minimum_size=1000)
        self._guard = Guard(app, self.port, lambda token: told(self.url))
        config = uvicorn.Config(
            self._guard,
            lifespan="off",
            ws="none",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """The address for the next browser, with a token that is good for one use."""
        return f"http://127.0.0.1:{self.port}/?token={self._guard.token}"

    def serve(self) -> None:
        """Answer requests until the process is interrupted, or `stop` is called."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `serve`, from another thread."""
        self._server.should_exit = True


def _routes(runs: Sequence[Run]) -> list[Route]:
    named = {run.name: run for run in runs}

    def asked(make: Callable[[Request], Any]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            try:
                return Response(json_line(make(request)), media_type="application/json")
            except GymnastError as error:
                return PlainTextResponse(str(error), 400)

        return answer  # not a coroutine: it runs on a thread

    def run(request: Request) -> Run:
        try:
            return named[request.query_params.get("run", "")]
        except KeyError:
            raise DataError(f"run: must be one of {', '.join(named)}") from None

    answers: dict[str, Callable[[Request], Any]] = {
        "overview": lambda request: overview_of(runs),
        "metrics": lambda request: run(request).metrics(),
        "index": lambda request: index_of(run(request).index()),
        "episodes": lambda request: _episodes(run(request), request.query_params.getlist("id")),
        "why": lambda request: why_of(run(request).index(), request.query_params.get("file")),
        "search": lambda request: _found(run(request), request.query_params.get("words", "")),
    }
    return [
        Route("/", lambda request: FileResponse(STATIC / "page.html")),
        *(Route(f"/{each.name}", _file(each)) for each in STATIC.iterdir()),
        *(Route(f"/api/{name}", asked(make)) for name, make in answers.items()),
    ]


def _file(path: Path) -> Callable[[Request], Response]:
    return lambda request: FileResponse(path)


def _episodes(run: Run, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Some episodes whole, in the order of their ids; a group takes one look at the disk."""
    index = run.index()
    loaded = {
        entry.id: episode_of(saved) for entry, saved in load_all([index.entry(id) for id in ids])
    }
    return [loaded[id] for id in ids]


def _found(run: Run, words: str) -> list[str]:
    """The ids of the episodes that say it."""
    return [entry.id for entry in run.index().find(Filter(search=words))]
