"""One episode's line to the endpoint: its key, what arrives with it, and what is answered."""

import asyncio
import secrets
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future

from gymnast.envs.programs.dialects.requests import Answer, Refused, Request
from gymnast.envs.programs.serving.client import Exchange, State

STORED_ANSWERS = 256
"""How many answers of an episode are kept for clients that ask again."""

PARALLEL = (
    "Another request of this program has not been answered yet, and this run takes one at a time. "
    "Ask one after another, or let the run have requests at once (trainer.deterministic: false)."
)


class Delivery:
    """What is answered to a request and its repeats, and who takes it.

    Attributes:
        outcome: The answer or the refusal; None while there is neither.
        exchanges: The connections that the request came by.
    """

    def __init__(self) -> None:
        self.outcome: Answer | Refused | None = None
        self.exchanges: list[Exchange] = []

    @property
    def received(self) -> bool:
        """Whether a client has read all of the outcome."""
        return any(exchange.received for exchange in self.exchanges)

    @property
    def awaited(self) -> bool:
        """Whether a client still waits for the outcome, or for the rest of it."""
        return any(each.state in (State.waiting, State.sending) for each in self.exchanges)

    def settle(self, outcome: Answer | Refused) -> None:
        """Give the outcome to whoever waits. A second one is ignored."""
        if self.outcome is None:
            self.outcome = outcome
            for exchange in self.exchanges:
                exchange.wake()


class Pending:
    """A request that has arrived. Any thread may use it.

    Attributes:
        request: What is asked.
        delivery: What becomes of it.
    """

    def __init__(self, request: Request, delivery: Delivery, done: Callable[[], None]) -> None:
        self.request = request
        self.delivery, self._done = delivery, done

    def answer(self, answer: Answer) -> None:
        """Answer it. Once it is answered or refused, nothing more happens."""
        self._done()
        self.delivery.settle(answer)

    def refuse(self, refused: Refused) -> None:
        """Refuse it, with an error in its dialect."""
        self._done()
        self.delivery.settle(refused)

    @property
    def received(self) -> bool:
        """Whether a client has read the whole answer, as far as can be known by now.

        A client that goes before it has read all of it makes this False again.
        """
        return isinstance(self.delivery.outcome, Answer) and self.delivery.received

    @property
    def gone(self) -> bool:
        """Whether every client that asked has left before there was an answer."""
        return self.delivery.outcome is None and not self.delivery.awaited


class Line:
    """What one episode's program says to the endpoint. Any thread and event loop may use it.

    Args:
        parallel: Whether requests may arrive while others are unanswered.
        closed: Called once, with the key, when it is closed.

    Attributes:
        key: What its program proves itself by; a secret.
        counts: What happened, under the names of metrics ("program/repeated").
        refusal: What was said to the last request that could not be taken; None: all could.
    """

    def __init__(self, *, parallel: bool, closed: Callable[[str], None]) -> None:
        self.key = f"sk-gymnast-{secrets.token_urlsafe(32)}"
        self.counts: Counter[str] = Counter()
        self.refusal: str | None = None
        self._parallel, self._on_close = parallel, closed
        self._lock = threading.Lock()
        self._closed = False
        self._queue: deque[Pending] = deque()
        self._open: set[Delivery] = set()
        self._known: OrderedDict[bytes, Delivery] = OrderedDict()
        self._waiting: list[Future[None]] = []

    async def next(self, timeout_s: float | None = None) -> Pending | None:
        """Wait for the next request, in the order of arrival; None once the line is closed.

        Requests whose clients have left by then are passed over. Cancelling this loses none.

        Args:
            timeout_s: How long to wait, in seconds; None: as long as it takes.

        Raises:
            TimeoutError: Nothing arrived in time.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                with self._lock:
                    pending = self._first()
                    if pending is not None or self._closed:
                        return pending
                    arrived: Future[None] = Future()
                    self._waiting.append(arrived)
                try:
                    await asyncio.wrap_future(arrived)
                finally:
                    with self._lock:
                        if arrived in self._waiting:
                            self._waiting.remove(arrived)

    def arrive(
        self, request: Request, exchange: Exchange, fingerprint: bytes, *, retried: bool
    ) -> Delivery:
        """Take a request, or find the one that it repeats.

        Args:
            request: What is asked.
            exchange: Where the answer goes.
            fingerprint: Equal for requests that are equal in path and body.
            retried: Whether the client says that it has asked before.

        Raises:
            Refused: The line is closed, or takes no requests at once.
        """
        with self._lock:
            if self._closed:
                raise _over()
            known = self._known.get(fingerprint)
            if known is not None and (retried or not (known.awaited or known.received)):
                self.counts["program/repeated"] += 1
                known.exchanges.append(exchange)
                if known.outcome is not None:
                    exchange.wake()
                return known
            if self._open and not self._parallel:
                self.counts["program/parallel_refused"] += 1
                raise Refused(PARALLEL)
            delivery = Delivery()
            delivery.exchanges.append(exchange)
            self._remember(fingerprint, delivery)
            self._open.add(delivery)
            self._queue.append(Pending(request, delivery, lambda: self._settled(delivery)))
            self.counts["program/requests"] += 1
            waiting, self._waiting = self._waiting, []
        for each in waiting:
            _notify(each)
        return delivery

    def count(self, *names: str) -> None:
        """Count what happened."""
        with self._lock:
            self.counts.update(f"program/{name}" for name in names)

    def close(self) -> None:
        """End it: whoever waits or asks later with its key gets an error in its dialect."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            unanswered, waiting = list(self._open), self._waiting
            self._open, self._waiting = set(), []
            self._queue.clear()
        self._on_close(self.key)
        for delivery in unanswered:
            delivery.settle(_over())
        for each in waiting:
            _notify(each)

    def _first(self) -> Pending | None:
        while self._queue:
            pending = self._queue.popleft()
            if not pending.gone:
                return pending
            self.counts["program/left"] += 1
            self._forget(pending)
            pending.refuse(_over())
        return None

    def _forget(self, pending: Pending) -> None:
        """Let a request that is passed over arrive anew, if its client asks once more."""
        for fingerprint, delivery in list(self._known.items()):
            if delivery is pending.delivery:
                del self._known[fingerprint]

    def _settled(self, delivery: Delivery) -> None:
        self._open.discard(delivery)

    def _remember(self, fingerprint: bytes, delivery: Delivery) -> None:
        self._known[fingerprint] = delivery
        self._known.move_to_end(fingerprint)
        if len(self._known) > STORED_ANSWERS:
            self._known.popitem(last=False)


def _over() -> Refused:
    return Refused("The episode of this key is over.", status=401, kind="invalid_api_key")


def _notify(future: "Future[None]") -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(None)
