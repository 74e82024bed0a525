"""New weights for vLLM servers: when they are taken, and what must hold before anybody samples.

    write       the trained model, or its adapters, to a folder that the servers see
    pause       the server freezes what is under way
    reload      its weights from the folder
    reset       its cache: what goes on is computed anew, and nothing old serves anybody
    version     the name of the weights, which every answer then carries
    resume
    probe       it has them: its log-probabilities are the model's

Adapters are loaded beside those before, without a pause. The folder stays until the next weights: a
server that was lost and comes back loads it. With several training processes the first one hands
over, and the others follow: they use a server once it says that it has the weights. Servers that
share the trainer's device sleep while weights are written, and load them as they wake
(`sleeping.py`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gymnast.agents.loading.model_source import no_progress_bars
from gymnast.agents.models.merging import save_merged
from gymnast.agents.vllm.server import Server
from gymnast.agents.vllm.versions import KnownWeights
from gymnast.agents.vllm.weights.adapters import save_adapters
from gymnast.agents.vllm.weights.choice import (
    ADAPTERS,
    AUTO,
    FOLDER,
    check_servers,
    check_way,
    choose_way,
)
from gymnast.agents.vllm.weights.engines import IPC, NCCL, Engines
from gymnast.agents.vllm.weights.facts import Facts, ask_facts
from gymnast.agents.vllm.weights.folder import WeightsFolder
from gymnast.agents.vllm.weights.heads import save_head
from gymnast.agents.vllm.weights.probe import Probe, check_probe, make_probe
from gymnast.agents.vllm.weights.sleeping import KEYS_AND_VALUES, WEIGHTS, sleep, wake
from gymnast.errors import (
    ConfigError,
    GymnastError,
    NoServers,
    ServerLost,
)
from gymnast.visible import visible_logger

RELOAD_TIMEOUT_S = 1800.0
CONTROL_TIMEOUT_S, CLEANUP_TIMEOUT_S = 60.0, 10.0
UNKNOWN = "unknown"  # of weights that were loaded in part
KEPT_ADAPTERS = 4  # versions: a request ends with the adapters that it began with
logger = visible_logger(__name__)


@dataclass(frozen=True)
class _Written:
    name: str
    path: Path | None  # None: there are no files
    probe: Probe


class AdaptersRefused(ConfigError):
    """A server does not load a run's first adapters; it may take merged weights."""


class CurrentWeights:
    """The weights that the servers are to have now.

    Args:
        folder: In which they are written; see `WeightsFolder`.
        way: How they get to the servers: one of `choice.WAYS`.
        served: The name under which the servers serve the model.
        shares_device: Whether the servers sleep until they load weights.

    Attributes:
        known: What they are called.
        shares_device: As given.
        way: How they get there; None until it is chosen.

    Raises:
        ConfigError: There is no such way, or it needs another device.
    """

    def __init__(
        self,
        folder: Path | None = None,
        way: str = AUTO,
        served: str = "policy",
        *,
        shares_device: bool = False,
    ) -> None:
        check_way(way, shares_device=shares_device)
        self.shares_device = shares_device
        self.known = KnownWeights()
        self.way: str | None = None
        self._wanted, self._parent, self._served = way, folder, served
        self._count = 0
        self._facts: dict[str, Facts] = {}
        self._folder: WeightsFolder | None = None
        self._engines: Engines | None = None
        self._written: _Written | None = None
        self._lost: set[str] = set()
        self._sending = False
        self._follows = False
        self._model: Any = None
        self._loaded: dict[str, int] = {}  # by URL: which of the weights, by their count

    def has(self, server: Server) -> bool:
        """Whether a server has them."""
        return self.known.has(server)

    async def choose(self, model: Any, servers: Sequence[Server]) -> None:
        """Choose the way of new weights, the first time; checks the servers for it.

        Raises:
            ConfigError: The way that was asked for is not open, or a server cannot be used.
        """
        if self.way is not None:
            return
        for server in servers:
            with contextlib.suppress(ServerLost):  # those that answer are enough
                self._facts[server.url] = await ask_facts(server)
        if not self._facts:
            raise NoServers(
                f"none of the vLLM servers answers ({', '.join(each.url for each in servers)}); "
                "start them and resume the run"
            )
        way, why = choose_way(self._wanted, model, self._facts)
        check_servers(way, model, self._facts)
        check_way(way, shares_device=self.shares_device)
        self._folder = WeightsFolder(self._parent)
        self._engines = Engines(way, model) if way in (NCCL, IPC) else None
        self.way = way
        logger.info("new weights go to the vLLM servers by %s: %s", way, why)

    def merge_adapters(self, refused: AdaptersRefused) -> None:
        """Write the weights anew, merged, and go on so, unless adapters alone were asked for.

        Raises:
            AdaptersRefused: They were.
            DiskFull: There is no room for them.
        """
        if self._wanted == ADAPTERS:
            raise refused
        self.way = FOLDER
        logger.warning("new weights go to the vLLM servers merged: %s", refused)
        self.write(self._model, self.known.version)

    def write(self, model: Any, version: int, lost: Collection[Server] = ()) -> None:
        """Write the weights as they are now; those before are removed first, if they are whole.

        Args:
            model: That is trained.
            version: Of its weights.
            lost: Servers that do not answer now. They find the weights in the folder when they come
                back, also where the others get them by an engine.

        Raises:
            DiskFull: There is no room for them.
        """
        assert self._folder is not None and self.way is not None, "`choose` comes first"
        self._count += 1
        self._model = model
        adapters = self.way == ADAPTERS
        kept = range(self._count - KEPT_ADAPTERS + 1, self._count) if adapters else ()
        self._written = None  # a server that comes back now has to wait
        self._folder.keep([str(count) for count in kept])
        files = None
        if self._engines is None or lost:
            with self._folder.writing(str(self._count)) as files, no_progress_bars():
                if adapters:
                    files = save_adapters(model, files)
                else:
                    save_merged(model, files)
                    if any(facts.untied for facts in self._facts.values()):
                        save_head(model, files)
        probe = make_probe(model)
        self.known.version, self.known.named, self.known.adapters = version, True, adapters
        self._written = _Written(self.known.name, files, probe)
        self._lost = {each.url for each in lost}
        self._sending = self._engines is not None

    def sent(self) -> None:
        """All servers that answer have the weights: the model may change again."""
        self._sending, self._model = False, None

    def follow(self, known: KnownWeights) -> None:
        """From now on the weights are those that another process hands over."""
        self._follows = True
        for each in fields(known):
            setattr(self.known, each.name, getattr(known, each.name))

    async def load(self, server: Server) -> None:
        """Have a server load the weights; before any were written, it keeps its own.

        Raises:
            ServerLost: The server is broken, or does not report the version afterwards.
            ConfigError: It refuses, or samples with other weights afterwards.
        """
        name, written = self.known.name, self._written
        if self._follows:
            await _check_name(server, name)
        elif written is not None:
            await self._load(server, written)
            name = written.name
        elif self.known.named:
            raise ServerLost(f"{server.url}: the weights for it are being written")
        elif self.shares_device:
            await wake(server)
        server.weights = name

    async def sleep(self, server: Server) -> None:
        """Have a server sleep until it loads weights; it keeps its own if no file has them.

        Raises:
            ServerLost: The server is broken.
            ConfigError: It refuses.
        """
        in_folder = self.way == FOLDER and self._written is not None
        if in_folder:
            await _call(server, "/update_weight_version", {"new_version": UNKNOWN})
        await sleep(server, keeps_weights=not in_folder)

    async def _load(self, server: Server, written: _Written) -> None:
        count = self._count
        slept = self.shares_device and self._loaded.get(server.url) == count
        if slept and await _name(server) == written.name:  # with these weights
            await wake(server)
            return
        if self.known.adapters:
            await self._load_adapters(server, written)
        else:
            await self._load_whole(server, written)
        await _check_name(server, written.name)
        await check_probe(server, written.probe, self.known.model(self._served, written.name))
        self._loaded[server.url] = count

    async def _load_whole(self, server: Server, written: _Written) -> None:
        """Whole weights; a server that fails amid it samples nothing from them."""
        by_engine = self._sending and server.url not in self._lost
        if not by_engine and written.path is None:
            raise ServerLost(f"{server.url}: gets its weights at the next hand-over")
        # Computing a request with a seed anew ends vLLM's engine on a CPU: there they end first.
        mode = "wait" if (await self._facts_of(server)).device == "cpu" else "keep"
        try:
            if self.shares_device:
                await wake(server, WEIGHTS)
            await server.ask("POST", "/pause", timeout_s=RELOAD_TIMEOUT_S, mode=mode)
            if self._engines is not None and by_engine:
                await self._send(self._engines, server)
            else:
                await self._reload(server, written.path)
            await _call(server, "/reset_prefix_cache", reset_running_requests="true")
            await _call(server, "/update_weight_version", {"new_version": written.name})
            if self.shares_device:
                await wake(server, KEYS_AND_VALUES)
            await _call(server, "/resume")
        except BaseException:
            await _forsake(server, wakes=self.shares_device)
            raise

    async def _reload(self, server: Server, path: Path | None) -> None:
        if self._engines is not None:
            self._engines.forget(server.url)
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        what = f"cannot load {path}; set agent.weights_folder to a folder that it sees"
        async with _refusing(server, self._count == 1, ConfigError, what):
            await server.ask("POST", "/collective_rpc", body, timeout_s=RELOAD_TIMEOUT_S)

    async def _facts_of(self, server: Server) -> Facts:
        if server.url not in self._facts:
            self._facts[server.url] = await ask_facts(server)
        return self._facts[server.url]

    async def _send(self, engines: Engines, server: Server) -> None:
        facts = await self._facts_of(server)
        try:
            await asyncio.to_thread(engines.send, server.url, facts)
        except Exception as error:  # vLLM's, of any kind
            raise ServerLost(
                f"{server.url}: did not take the weights by {self.way}: {error}"
            ) from error

    async def _load_adapters(self, server: Server, written: _Written) -> None:
        if self.shares_device:
            await wake(server)
        models = await server.ask("GET", "/v1/models", timeout_s=CONTROL_TIMEOUT_S)
        prefix = f"{self.known.run}:"
        versions = sorted(
            int(each["id"].removeprefix(prefix))
            for each in models["data"]
            if each["id"].startswith(prefix)
        )
        for version in versions[: -KEPT_ADAPTERS + 1]:
            await _call(server, "/v1/unload_lora_adapter", {"lora_name": f"{prefix}{version}"})
        if self.known.version in versions:  # the same once more, or others of this number
            await _call(server, "/v1/unload_lora_adapter", {"lora_name": written.name})
        adapters = {"lora_name": written.name, "lora_path": str(written.path)}
        async with _refusing(server, self._count == 1, AdaptersRefused, "refuses the adapters"):
            await server.ask("POST", "/v1/load_lora_adapter", adapters, timeout_s=RELOAD_TIMEOUT_S)
        await _call(server, "/update_weight_version", {"new_version": written.name})

    async def close(self) -> None:
        """Remove what was written, and let go of the servers."""
        if self._engines is not None:
            self._engines.close()
        if self._folder is not None:
            self._folder.close()


async def _forsake(server: Server, *, wakes: bool) -> None:
    """Of a server that has new weights in part: nobody samples from them, and it is not paused."""
    named = {"new_version": UNKNOWN}
    for path, body in (("/update_weight_version", named), ("/abort_requests", {})):
        with contextlib.suppress(GymnastError):
            await server.ask("POST", path, body, timeout_s=CLEANUP_TIMEOUT_S)
    with contextlib.suppress(GymnastError):
        if wakes:
            await wake(server)  # what sleeps in part must not be resumed
        await server.ask("POST", "/resume", {}, timeout_s=CLEANUP_TIMEOUT_S)


@contextlib.asynccontextmanager
async def _refusing(
    server: Server, first: bool, kind: type[ConfigError], what: str
) -> AsyncIterator[None]:
    """Of a server that is well, and fails at the first weights of a run, say what it is that fails.

    Later it counts as lost.
    """
    try:
        yield
    except (ServerLost, ConfigError) as error:
        if not first:
            raise ServerLost(str(error)) from error
        await server.ask("GET", "/health", timeout_s=CONTROL_TIMEOUT_S)
        raise kind(f"{server.url}: {what}: {error}") from error


async def _name(server: Server) -> Any:
    """What a server calls its weights."""
    found = await server.ask("GET", "/weight_info", timeout_s=CONTROL_TIMEOUT_S)
    return (found or {}).get("weight_version")


async def _check_name(server: Server, name: str | None) -> None:
    if (has := await _name(server)) != name:
        raise ServerLost(f"{server.url}: has the weights {has!r} instead of {name!r}")


async def _call(
    server: Server, path: str, body: Mapping[str, Any] | None = None, **query: str
) -> None:
    await server.ask("POST", path, body, timeout_s=CONTROL_TIMEOUT_S, **query)
