"""verifiers' side of `step.py`, run by an interpreter that has verifiers, and no Gymnast.

    python step_verifiers.py WORKLOAD.json

verifiers plays an episode in processes: a program with the chat loop, a server of the tool (MCP
over HTTP), and this one, whose server stands between the program and the engine. Here a server in
one more process stands in for vLLM's, and answers at once with the next turn of the episode. What
happens from its answer until its next request is a step: the ids are read (`renderers`), sent to
the program as a message, its call is sent to the tool, the result comes back the same way, is
written as ids and sent to the engine. Arguments are checked by the tool's server. The processor
time is that of all processes but the engine's.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

EPISODES = 6  # each starts its processes anew, which takes seconds
WORKLOAD = "GYMNAST_STEP_WORKLOAD"
MODEL = "notes"


class NotesToolset(vf.Toolset[vf.ToolsetConfig]):  # type: ignore[misc]
    """The tool, in a process of its own for each episode."""

    TOOL_PREFIX = None

    @vf.tool  # type: ignore[untyped-decorator]
    def note(self, title: str, text: str, importance: int) -> str:
        """Write a note down."""
        if not hasattr(self, "_answers"):
            work = json.loads(Path(os.environ[WORKLOAD]).read_text())
            self._answers = {
                json.dumps(given, sort_keys=True): result
                for episode, results in zip(work["arguments"], work["results"], strict=True)
                for given, result in zip(episode, results, strict=True)
            }
        given = {"title": title, "text": text, "importance": importance}
        return str(self._answers[json.dumps(given, sort_keys=True)])


class Question(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """An episode."""

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        """The tool's server."""
        return [NotesToolset(vf.ToolsetConfig())]


class Engine(ThreadingHTTPServer):
    """Serves turns as vLLM does, and sends back what the steps between them took.

    Args:
        turns: The ids of each turn of each episode; episodes are played one after the other.
        parent: The process whose processor time is counted, with those that it started.
        pipe: Gets the port, and after each episode its steps.
    """

    def __init__(self, turns: list[list[list[int]]], parent: int, pipe: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._turns, self._parent, self._pipe = turns, parent, pipe
        self._episode = self._turn = self._length = self._wall_ns = self._cpu_ns = 0
        self._steps: list[dict[str, float]] = []
        pipe.send(self.server_address[1])

    def asked(self, wall_ns: int, context: list[int]) -> list[int]:
        """The next turn; the time since the last one was a step, unless an episode begins."""
        turns = self._turns[self._episode]
        if self._turn:
            self._steps.append(
                {
                    "wall_ms": (wall_ns - self._wall_ns) / 1e6,
                    "cpu_ms": (processor_ns(self._parent) - self._cpu_ns) / 1e6,
                    "read": len(turns[self._turn - 1]),
                    "written": len(context) - self._length,
                }
            )
        ids = turns[self._turn]
        self._length = len(context) + len(ids)
        self._turn += 1
        if self._turn == len(turns):
            self._episode, self._turn = self._episode + 1, 0
            self._pipe.send(self._steps)
            self._steps = []
        return ids

    def answers(self) -> None:
        """A step begins."""
        self._cpu_ns = processor_ns(self._parent)
        self._wall_ns = time.perf_counter_ns()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet an answer

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": MODEL, "max_model_len": 100_000}]})

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        wall_ns = time.perf_counter_ns()
        assert isinstance(self.server, Engine)
        ids = self.server.asked(wall_ns, json.loads(asked)["token_ids"])
        logprobs = {"content": [{"token": f"token_id:{one}", "logprob": 0.0} for one in ids]}
        choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": logprobs}
        self.server.answers()
        self._answer({"request_id": "r", "choices": [choice]})

    def _answer(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def serve(*arguments: Any) -> None:
    """Serve as an engine until the process is ended."""
    Engine(*arguments).serve_forever()


def processor_ns(parent: int) -> int:
    """Processor time of a process and those below it, without this one, in ns."""
    return sum(_of_process(pid) for pid in _family(parent) if pid != os.getpid())


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in _listed(Path(f"/proc/{pid}/task")):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))


def _of_process(pid: int) -> int:
    spent = 0
    for task in _listed(Path(f"/proc/{pid}/task")):
        try:
            spent += int((task / "schedstat").read_text().split()[0])
        except (OSError, IndexError):
            continue
    return spent


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


async def play(work: Any, port: int, pipe: Any) -> list[dict[str, float]]:
    """Play all episodes, one after the other."""
    from renderers.configs import Qwen3RendererConfig
    from verifiers.v1.agent import Agent
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.configs.client import TrainClientConfig
    from verifiers.v1.harnesses.null.harness import NullHarnessConfig
    from verifiers.v1.runtimes import SubprocessConfig

    client = TrainClientConfig(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key_var="NO_KEY",
        renderer=Qwen3RendererConfig(),
        renderer_model_name=work["tokenizer"],
    )
    config = AgentConfig(
        harness=NullHarnessConfig(id="null"),
        runtime=SubprocessConfig(),
        model=MODEL,
        client=client,
    )
    steps = []
    async with Agent(config) as agent:
        for number in range(min(EPISODES, len(work["turns"]))):
            data = vf.TaskData(idx=number, prompt=work["prompt"])
            trace = await agent.run(Question(data, vf.TaskConfig()))
            if not pipe.poll(5):
                raise RuntimeError(
                    f"the episode did not end: {[e.message[-900:] for e in trace.errors]}"
                )
            steps += pipe.recv()
    return steps


def main() -> None:
    """Play the episodes, and print what their steps took."""
    logging.disable(logging.WARNING)
    os.environ |= {WORKLOAD: sys.argv[1], "PYTHONPATH": str(Path(__file__).parent)}
    work = json.loads(Path(sys.argv[1]).read_text())
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(work["turns"], os.getpid(), there), daemon=True
    )
    server.start()
    steps = asyncio.run(play(work, here.recv(), here))
    server.terminate()
    kinds = {key: [step[key] for step in steps] for key in steps[0]}
    read, written = (sum(kinds.pop(key)) / len(steps) for key in ("read", "written"))
    side = f"verifiers {metadata.version('verifiers')}"
    print(json.dumps([{"side": side, **kinds, "read": read, "written": written}]))


if __name__ == "__main__":
    if "VF_CONFIG" in os.environ:  # verifiers has started this file as the tool's server
        NotesToolset.run()
    else:
        import step_verifiers  # whose name the server is started by

        step_verifiers.main()
