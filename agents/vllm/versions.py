"""Names of weights, which servers put on every token: what an answer may say it was sampled from.

The name is that of the run, which is its own, and the version. A server that was started again by
somebody else, or to which another run handed its weights, is found out by its first answer.
"""

import secrets
from dataclasses import dataclass, field, replace
from typing import Any

from gymnast.agents.vllm.server import Request, Server
from gymnast.agents.vllm.wire import Sampled, generate_body, read_answer
from gymnast.errors import ServerLost
from gymnast.types import Sampling, VersionSpan


class SentTooEarly(Exception):
    """A server had newer weights than the request was sent under; it is to be sent again.

    Attributes:
        name: Of these weights.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass
class KnownWeights:
    """What a process knows of the weights that the servers have.

    Attributes:
        run: The run's name.
        version: The weights' version; in a copy, the least that it accepts.
        named: Whether the run has handed weights over; before, servers have weights of their own
            under any name.
        is_copy: Whether another process hands weights over, unseen by this one.
        adapters: Whether they are adapters, which the servers have beside the model, under the name
            of the weights. A request ends with those that it began with.
    """

    run: str = field(default_factory=lambda: f"gymnast-{secrets.token_hex(4)}")
    version: int = 0
    named: bool = False
    is_copy: bool = False
    adapters: bool = False

    @property
    def name(self) -> str:
        """What the servers call these weights."""
        return f"{self.run}:{self.version}"

    def model(self, served: str, sent: str) -> str:
        """The model that a request names.

        Args:
            served: The name under which the servers serve the model.
            sent: The name of the weights that the request is sent under.
        """
        return sent if self.adapters and self.named else served

    def copied(self) -> "KnownWeights":
        """For another process, which only samples."""
        return replace(self, is_copy=True)

    def has(self, server: Server) -> bool:
        """Whether a server has the weights of now; in a copy, of its least version or later."""
        return bool(server.weights) if self.is_copy else server.weights == self.name

    async def load(self, server: Server) -> None:
        """Nothing but taking note: a server that answers has them, or its answers are refused."""
        server.weights = self.name

    def spans(self, sampled: Sampled, sent: str) -> list[VersionSpan]:
        """Which versions sampled which tokens, by what the server says of them.

        Args:
            sampled: An answer.
            sent: The name of the weights that its request was sent under.

        Raises:
            ServerLost: Other weights than those of this run, or older ones than the request was
                sent under, sampled a token.
            SentTooEarly: The server had newer weights than this copy knew of, and may have reused
                what older ones computed.
        """
        if not self.named:
            return [VersionSpan(0, len(sampled.ids), self.version)]
        oldest, at = int(sent.rpartition(":")[2]), 0
        spans = []
        for start, end, name in sampled.versions:
            run, _, version = name.rpartition(":")
            ours = run == self.run and version.isdecimal() and int(version) >= oldest
            if not ours or start != at:
                break
            spans.append(VersionSpan(start, end, int(version)))
            at = end
        if at != len(sampled.ids):
            names = ", ".join(dict.fromkeys(name for *_, name in sampled.versions)) or "no name"
            raise ServerLost(
                f"it samples with the weights {names} instead of {sent}: it was started again, or "
                "another run uses it"
            )
        if self.is_copy and spans[0].version > oldest:
            raise SentTooEarly(f"{self.run}:{spans[-1].version}")
        return [VersionSpan(0, at, oldest)] if self.adapters else spans


def probe(model: str, known: KnownWeights) -> Request[object]:
    """One token, by which a server that was lost shows that it samples, and from which weights.

    Args:
        model: The name under which it is served.
        known: The weights that are expected.
    """
    sampling = Sampling(max_new_tokens=1)

    def make_body(sent: str) -> dict[str, Any]:
        named = known.model(model, sent)
        return generate_body([0], sampling, model=named, max_tokens=1, version=sent)

    def read(answer: Any, sent: str) -> object:
        return known.spans(read_answer(answer, sampling, 1), sent)

    return Request([0], make_body, read)
