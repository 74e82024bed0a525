"""A teacher on vLLM servers: it reads what the policy wrote, in other processes.

agents/vllm/reading.py    what is asked, and what must hold of the servers
agents/vllm/servers.py    several of them: which one is asked, what happens when one is lost
"""

import asyncio
import os
import weakref
from collections.abc import Sequence
from typing import Any

from gymnast.agents.vllm.checks import check_urls
from gymnast.agents.vllm.connection import Connection
from gymnast.agents.vllm.reading import check_readers, read_logprobs, reading_body
from gymnast.agents.vllm.server import Request, Server, open_session
from gymnast.agents.vllm.servers import Servers
from gymnast.agents.vllm.versions import KnownWeights, probe
from gymnast.errors import ConfigError, InfrastructureError, NoServers

KEY = "algorithm.teacher"


class VLLMTeacher:
    """Log-probabilities of given tokens, of a model that vLLM servers have, at temperature 1.

    The servers are vLLM 0.32 or later, started with `--enable-scale-out` (docs/vllm.md).

    Args:
        urls: Of the servers' roots.
        tokenizer: Of the policy; the servers' must have the same vocabulary.
        served_model: The name that they serve the model under.
        api_key_env: The environment variable with the servers' key; none is sent where it is unset.
        request_timeout_s: How long one text may take before its server counts as lost.
        lost_after_s: How long to wait for a server to come back while none answers.

    Attributes:
        longest: How many tokens it reads at most.

    Raises:
        ConfigError: A server cannot be reached, or cannot be used as it was started.
    """

    def __init__(
        self,
        urls: Sequence[str],
        tokenizer: Any,
        *,
        served_model: str = "teacher",
        api_key_env: str = "VLLM_API_KEY",
        request_timeout_s: float = 1800.0,
        lost_after_s: float = 120.0,
    ) -> None:
        try:
            self._urls = check_urls(urls)
        except ConfigError as error:
            raise ConfigError(f"{KEY}.{error}") from error
        self._model, self._api_key_env = served_model, api_key_env
        self._request_timeout_s, self._lost_after_s = request_timeout_s, lost_after_s
        self._known = KnownWeights()
        self._connection = Connection(self._open)
        self._close = weakref.finalize(self, Connection.close, self._connection)
        servers = self._connection.servers.all
        checking = check_readers(servers, served_model, tokenizer, key=f"{KEY}.urls")
        try:
            self.longest = self._connection.run(checking)
        except BaseException:
            self.close()
            raise

    async def _open(self) -> Servers:
        session = open_session(os.environ.get(self._api_key_env))
        return Servers(
            [Server(url, session, self._api_key_env, self._known.name) for url in self._urls],
            self._known,
            probe(self._model, self._known),
            request_timeout_s=self._request_timeout_s,
            lost_after_s=self._lost_after_s,
        )

    def logprobs(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each token but the first, of each text.

        Args:
            texts: Token ids, 2 to `longest` of each.

        Raises:
            NoServers: No server is left.
            InfrastructureError: What the servers answer cannot be read.
            ConfigError: A server refuses a text.
        """
        try:
            return self._connection.run(self._read(texts))
        except (ConfigError, InfrastructureError, NoServers) as error:
            raise type(error)(f"{KEY}: {error}") from error

    async def _read(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        tasks = [asyncio.create_task(self._read_one(ids)) for ids in texts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # where one failed
                task.cancel()

    async def _read_one(self, ids: Sequence[int]) -> list[float]:
        body = reading_body(ids, model=self._model)
        # No context is named: nothing cached is read, so the server with the least to do is asked.
        request = Request((), lambda sent: body, lambda answer, sent: read_logprobs(answer, ids))
        return await self._connection.servers.generate(request)

    def close(self) -> None:
        """Let go of the servers."""
        self._close()
