"""New weights for vLLM servers: how they get there, and what must hold before anybody samples.

    write       the trained model to a folder that the servers see
    pause       the server freezes what is under way
    reload      its weights from the folder
    version     the name of the weights, which every answer then carries
    resume

The folder stays until the next weights: a server that was lost and comes back loads it.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from gymnast.agents.loading.model_source import no_progress_bars
from gymnast.agents.models.merging import save_merged
from gymnast.agents.vllm.server import Server
from gymnast.agents.vllm.versions import KnownWeights
from gymnast.errors import ServerLost
from gymnast.visible import visible_logger

SHARED_MEMORY = Path("/dev/shm")
RELOAD_TIMEOUT_S = 1800.0
CONTROL_TIMEOUT_S = 60.0
logger = visible_logger(__name__)


class CurrentWeights:
    """The weights that the servers are to have now.

    Args:
        folder: Where they are written; None is shared memory, or a temporary folder where there is
            none.

    Attributes:
        known: What they are called.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.known = KnownWeights()
        self._parent = folder
        self._folder: Path | None = None
        self._current: Path | None = None

    def has(self, server: Server) -> bool:
        """Whether a server has them."""
        return self.known.has(server)

    def write(self, model: Any, version: int) -> None:
        """Write the weights as they are now; those before are removed.

        Args:
            model: That is trained.
            version: Of its weights.
        """
        if self._folder is None:
            parent = self._parent or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
            self._folder = Path(tempfile.mkdtemp(prefix="gymnast-weights-", dir=parent))
            logger.info("new weights go to the vLLM servers by the folder %s", self._folder)
        written = self._folder / str(version)
        shutil.rmtree(written, ignore_errors=True)
        with no_progress_bars():
            save_merged(model, written)
        if self._current is not None and self._current != written:
            shutil.rmtree(self._current, ignore_errors=True)
        self._current = written
        self.known.version, self.known.named = version, True

    async def load(self, server: Server) -> None:
        """Have a server load the weights; before any were written, it keeps its own.

        Raises:
            ServerLost: The server is broken, or does not report the version afterwards.
            ConfigError: It refuses.
        """
        name = self.known.name
        if self._current is None:
            server.weights = name
            return
        await server.ask("POST", "/pause", timeout_s=CONTROL_TIMEOUT_S, mode="keep")
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(self._current)}}
        await server.ask("POST", "/collective_rpc", reload, timeout_s=RELOAD_TIMEOUT_S)
        await server.ask("POST", "/reset_prefix_cache", timeout_s=CONTROL_TIMEOUT_S)
        named = {"new_version": name}
        await server.ask("POST", "/update_weight_version", named, timeout_s=CONTROL_TIMEOUT_S)
        await server.ask("POST", "/resume", timeout_s=CONTROL_TIMEOUT_S)
        found = await server.ask("GET", "/weight_info", timeout_s=CONTROL_TIMEOUT_S)
        if (has := (found or {}).get("weight_version")) != name:
            raise ServerLost(f"{server.url}: has the weights {has!r} instead of {name!r}")
        server.weights = name

    async def close(self) -> None:
        """Remove what was written."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
