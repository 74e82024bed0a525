"""A sandbox with a worker inside: starting it, sending it requests, the end of the box."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping

from gymnast.errors import (
    SandboxDead,
    SandboxTemporarilyUnavailable,
    SandboxTextError,
    SandboxUnavailable,
)
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.sandboxes.guest.protocol import BrokenFrame, Header
from gymnast.sandboxes.lifetime.living import when_gone
from gymnast.sandboxes.worker.endpoint import forward_connections
from gymnast.sandboxes.worker.link import Link, LinkClosed, LinkTimeout, Stream, new_nonce
from gymnast.sandboxes.worker.program import boot_frame
from gymnast.visible import visible_line, visible_logger

log = visible_logger("gymnast.sandboxes")


class ConnectedSandbox(Sandbox):
    """A box with a worker inside; `sandbox.py` has its calls.

    Attributes:
        spec: The image and the limits.
    """

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self._link: Link | None = None
        self._lock = threading.Lock()  # one call at a time
        self._why_dead: str | None = None
        self._discard: Callable[[], object] = lambda: None

    def _connect(
        self,
        stream: Stream,
        discard: Callable[[], object],
        *,
        alone: bool,
        rlimits: Mapping[str, int] | None = None,
        seccomp: bytes = b"",
        scoped: bool = False,
        proc: int | None = None,
        seal_proc: bool = False,
        forward: bool = False,
    ) -> None:
        """Start the worker over an open connection.

        Args:
            stream: The connection to the process that runs `program.command`.
            discard: Ends the box and the connection, a waiting `recv` included. Called once: by
                `close`, when the box breaks, when the sandbox is garbage, or at exit. It must not
                refer to the sandbox, which would never become garbage.
            alone: Whether the worker has a PID namespace to itself.
            rlimits: See `boot_frame`.
            seccomp: See `boot_frame`.
            scoped: See `boot_frame`.
            proc: See `boot_frame`.
            seal_proc: See `boot_frame`.
            forward: Whether the box has a loopback of its own, on which its worker listens if the
                spec names an endpoint. If not, the box can reach it by itself, or is refused.

        Raises:
            SandboxUnavailable: No worker answers; the box is discarded.
        """
        self._discard = when_gone(self, discard)
        nonce = new_nonce()
        link = Link(stream)
        port = self.spec.endpoint_port if forward else None
        try:
            frame = boot_frame(
                nonce,
                alone=alone,
                rlimits=rlimits or {},
                seccomp=seccomp,
                scoped=scoped,
                proc=proc,
                seal_proc=seal_proc,
                port=port,
            )
            link.boot(frame, nonce, timeout_s=self.spec.start_timeout_s)
        except (LinkTimeout, LinkClosed) as error:
            reason = visible_line(self._start_failure() or str(error))
            self._break(f"the worker did not start: {reason}")
            late = isinstance(error, LinkTimeout)  # the machine may be busy
            raise (SandboxTemporarilyUnavailable if late else SandboxUnavailable)(
                f"{self._name()}: the worker did not start: {reason}{self._start_hint()}"
            ) from None
        self._link = link
        if port is not None:
            forward_connections(link, ("127.0.0.1", port))

    @abstractmethod
    def _name(self) -> str:
        """The name of the box in messages."""

    def _start_failure(self) -> str:
        """Why the box does not start, in its own words; "" if it has not said."""
        return ""

    def _start_hint(self) -> str:
        """What may help if the worker does not start: the end of the message, from ". " on."""
        return f". The box must have Python 3.8 or newer as {self.spec.python!r}"

    @property
    def alive(self) -> bool:
        """Whether the box is open and did not break during the last call."""
        return self._link is not None and self._why_dead is None

    def close(self) -> None:
        """See `Sandbox.close`."""
        self._break("it was closed")

    def _request(
        self, header: Header, payload: bytes, timeout_s: float, max_answer_bytes: int
    ) -> tuple[Header, bytes]:
        """Send the request of a call, and wait for its answer."""
        with self._lock:
            return self._send(header, payload, timeout_s, max_answer_bytes)

    def _send(
        self, header: Header, payload: bytes, timeout_s: float, max_answer_bytes: int
    ) -> tuple[Header, bytes]:
        if self._link is None or self._why_dead is not None:
            raise SandboxDead(
                f"{self._name()} cannot be used: {self._why_dead}; open another sandbox"
            )
        try:
            return self._link.request(
                header, payload, timeout_s=timeout_s, max_answer_bytes=max_answer_bytes
            )
        except BrokenFrame as error:  # nothing has been sent
            raise SandboxTextError(f"command, env or path are too long: {error}") from None
        except (LinkTimeout, LinkClosed) as error:
            self._break(str(error))
            raise

    def _break(self, why: str) -> None:
        """Throw the box away, and remember the first reason."""
        if self._why_dead is None:
            self._why_dead = why = visible_line(why)
            if why != "it was closed":
                log.warning("%s was thrown away: %s", self._name(), why)
        self._discard()
