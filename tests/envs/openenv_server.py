"""Serves environments with OpenEnv, below paths of one port: as they should be, and odd ones.

    python openenv_server.py PORT FOLDER

runs in an environment of its own, which has OpenEnv and not Gymnast. FOLDER/echo_env is what
`openenv init echo_env` makes.
"""

import importlib
import json
import sys
import time
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, WebSocket
from fastmcp import FastMCP
from openenv.core.env_server import Environment, MCPEnvironment, create_fastapi_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Guess(Action):
    """Guess the number."""

    number: int = Field(ge=1, le=9, description="Of 1 to 9.")
    tone: Literal["shy", "bold"] = "shy"


class Said(Observation):
    """What is said to a guess."""

    text: str


class Numbers(Environment):
    """Find a number of 1 to 9, which the seed decides."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    open = 0

    def __init__(self) -> None:
        super().__init__()
        Numbers.open += 1

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Said:
        self.number = (seed or 0) % 9 + 1
        if more.get("huge"):
            return Said(text="on " * 10**6)
        return Said(text=f"Which one is it? {more}" if more else "Which one is it?")

    def step(self, action: Guess, timeout_s: float | None = None, **more: Any) -> Said:
        if action.tone == "bold":
            raise RuntimeError("too bold")
        if action.number == self.number:
            return Said(text="yes", reward=1.0, done=True)
        return Said(text="more" if action.number < self.number else "less", reward=-0.1)

    @property
    def state(self) -> State:
        return State()

    def get_metadata(self) -> Any:
        made = super().get_metadata()
        made.description = "Find a number."
        return made

    def close(self) -> None:
        Numbers.open -= 1


class Desk(MCPEnvironment):
    """Tools, one of which ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("desk")
        self.notes: list[str] = []

        @tools.tool
        def note(text: str) -> list[str]:
            """Write a note down."""
            self.notes.append(text)
            return self.notes

        @tools.tool
        def fail() -> str:
            """Fail."""
            raise ValueError("not today")

        super().__init__(tools)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Any:
        self.notes.clear()
        return Observation(reward=0.0)

    def _step_impl(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        raise NotImplementedError

    async def step_async(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        seen = await super().step_async(action, timeout_s, **more)
        seen.reward, seen.done = float(len(self.notes)), "done" in self.notes
        return seen

    @property
    def state(self) -> State:
        return State()


class Do(Action):
    how: str


class Odd(Environment):
    """Every accident that a step can have."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, how: str = "") -> Said:
        return self._done(how)

    def step(self, action: Do, timeout_s: float | None = None, **more: Any) -> Said:
        return self._done(action.how)

    def _done(self, how: str) -> Said:
        if how == "raise":
            raise RuntimeError("broken")
        if how == "hang":
            time.sleep(3)
        if how == "over":
            return Said(text="", done=True)
        if how == "nan":
            return Said(text="", reward=float("nan"))
        return Said(text={"huge": "on " * 10**6, "flood": "on " * 10**7}.get(how, how))

    @property
    def state(self) -> State:
        return State()


def only_one() -> Any:
    return Numbers()


def said(**lies: Any) -> str:
    """An answer of the protocol, but for the lies in it."""
    answer = {"observation": {}, "reward": None, "done": False, **lies}
    return json.dumps({"type": "observation", "data": answer})


def liar() -> FastAPI:
    """What speaks the protocol wrongly, as the reset says."""
    app = FastAPI()
    lies = {
        "words": "not JSON",
        "list": "[1]",
        "no data": '{"type": "observation"}',
        "no observation": '{"type": "observation", "data": {"reward": 1, "done": false}}',
        "reward": said(reward="1"),
        "large": said(reward=10**400),
        "done": said(done="no"),
    }

    @app.get("/{schema}/schema")
    def schemas(schema: str) -> Any:
        own = Do.model_json_schema()
        either = {"anyOf": [{"$ref": "#/$defs/Do"}, {"type": "object"}], "$defs": {"Do": own}}
        found = {"bad": {"type": 3}, "none": None, "text": {"type": "string"}, "either": either}
        return {"action": found.get(schema, own)}

    @app.get("/{schema}/metadata")
    def metadata(schema: str) -> Any:
        return ["no object"] if schema == "metadata" else {"description": "A liar."}

    @app.websocket("/{schema}/ws")
    async def lie(socket: WebSocket, schema: str) -> None:
        await socket.accept()
        while True:
            asked = json.loads(await socket.receive_text())
            how = asked["data"].get("how")
            if how == "gone":
                await socket.close()
                return
            fine = said(observation={"asked": asked["data"]})
            await socket.send_text(lies.get(how, fine))

    return app


def main() -> None:
    port, folder = int(sys.argv[1]), sys.argv[2]
    sys.path.insert(0, folder)
    echo = importlib.import_module("echo_env.server.app").app
    app = FastAPI()

    @app.get("/open")
    def open() -> int:
        return Numbers.open

    for path, served in {
        "/echo": echo,
        "/numbers": create_fastapi_app(Numbers, Guess, Said, max_concurrent_envs=64),
        "/one": create_fastapi_app(only_one, Guess, Said, max_concurrent_envs=1),
        "/desk": create_fastapi_app(Desk, CallToolAction, CallToolObservation, 64),
        "/desk_of_actions": create_fastapi_app(Desk, Action, Observation, 64),
        "/odd": create_fastapi_app(Odd, Do, Said, 64),
        "/lies": liar(),
    }.items():
        app.mount(path, served)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
