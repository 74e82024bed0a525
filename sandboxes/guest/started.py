"""What goes on beside the calls: programs, and connections to the one address of the host.

    start    {argv, cwd, env}                       -> {process}
    receive  {process, stream: 1 | 2, most, wait_s} -> {end} + what its stdout or stderr has
    send     {process, wait_s} + bytes for stdin    -> {taken, open}
    close    {process, stream}                      -> {}
    wait     {process, wait_s}                      -> {exit_code: a number | None}
    kill     {process}                              -> {killed}
    forget   {process}, which has ended             -> {}
    accept   {wait_s}                               -> {process: a number | None}

A connection that `accept` takes has the number, the stdin and the stdout of a program.
`receive`, `send` and `wait` are answered when there is something to say, or after `wait_s` with
nothing. The worker keeps no output: what the host has not asked for stays in the program's pipe,
and a program that writes without end waits there. Of what goes to a program's stdin the worker
holds what one request brings.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from gymnast.sandboxes.guest.loop import Loop
from gymnast.sandboxes.guest.processes import Processes
from gymnast.sandboxes.guest.spawn import close_all, pipes, spawn, why_not

MOST_PROGRAMS = 64  # that run, or have a stream that is open
OPERATIONS = frozenset({"start", "receive", "send", "close", "wait", "kill", "forget", "accept"})

_FORGOTTEN = -1

Answer = Tuple[Dict[str, Any], bytes]
Attempt = Callable[[bool], Optional[Answer]]  # told whether it is the last one


class _Program:
    def __init__(self, pid: int, fds: List[int], exit_code: Optional[int] = None) -> None:
        self.pid = pid
        self.fds = fds  # for its stdin, stdout and stderr; -1: closed
        self.exit_code = exit_code
        self.connection: Optional[socket.socket] = None

    @property
    def is_over(self) -> bool:
        return self.exit_code is not None and self.fds == [-1, -1, -1]


class _Waiting(NamedTuple):
    fd: int  # -1: for the end of a program
    attempt: Attempt


class Started:
    """The programs that were started.

    Args:
        processes: The processes below the worker.
        loop: Where the worker waits.
        send: Sends an answer to the host.
        scoped: Whether Landlock keeps programs from signalling others.
        tidy: Kills what an ended program has left behind; see `Worker`.
        listener: Where code in the box finds the one address of the host, if there is one.
    """

    def __init__(
        self,
        processes: Processes,
        loop: Loop,
        send: Callable[[Dict[str, Any], bytes], None],
        scoped: bool,
        tidy: Callable[[], None],
        listener: Optional[socket.socket],
    ) -> None:
        self._processes, self._loop, self._send = processes, loop, send
        self._scoped, self._tidy, self._listener = scoped, tidy, listener
        self._programs: Dict[int, _Program] = {}
        self._count = 0
        self._waiting: Dict[str, _Waiting] = {}  # requests without an answer yet, by their nonces

    def handle(self, request: Dict[str, Any], payload: bytes) -> Optional[Answer]:
        """Answer a request of `OPERATIONS`; None: it is answered later.

        Raises:
            OSError: A program cannot be started.
        """
        operation = getattr(self, "_op_" + request["op"])
        return operation(request, payload)  # type: ignore[no-any-return]

    def settle(self) -> None:
        """Take note of programs that have ended."""
        ended = self._processes.ended
        # Its id may be another's by now.
        running = (one for one in self._programs.values() if one.exit_code is None)
        found = [one for one in running if one.pid in ended]
        for program in found:
            program.exit_code = ended.pop(program.pid)
            self._close(program, 0)
        if found:
            self._tidy()
            self._retry(-1, last=False)

    def answer_all(self) -> None:
        """Answer what waits: no nonce that the host still takes may be here when code is forked."""
        for nonce in list(self._waiting):
            self._try(nonce, last=True)

    def _op_start(self, request: Dict[str, Any], payload: bytes) -> Answer:
        if self._is_full():
            text = "%d programs run or have streams that are open; close some" % MOST_PROGRAMS
            raise OSError(errno.EAGAIN, text)
        theirs, ours = pipes()
        try:
            pid = spawn(request, theirs, self._processes, self._scoped)
        except OSError as error:
            close_all(ours)
            raise OSError(error.errno, why_not(request, error)[1]) from None
        finally:
            close_all(theirs)
        self._processes.started.add(pid)
        return {"process": self._add(_Program(pid, list(ours)))}, b""

    def _op_accept(self, request: Dict[str, Any], payload: bytes) -> Optional[Answer]:
        listener = self._listener
        assert listener is not None

        def attempt(last: bool) -> Optional[Answer]:
            try:
                connection = listener.accept()[0]
            except OSError:  # there is none, or it is gone again
                return ({"process": None}, b"") if last else None
            if self._is_full():
                connection.close()
                return {"process": None}, b""
            connection.setblocking(False)
            receiving = os.dup(connection.fileno())
            program = _Program(0, [connection.fileno(), receiving, -1], exit_code=0)
            program.connection = connection
            return {"process": self._add(program)}, b""

        return self._answer_or_wait(request, listener.fileno(), select.POLLIN, attempt)

    def _op_receive(self, request: Dict[str, Any], payload: bytes) -> Optional[Answer]:
        program, stream = self._find(request), int(request["stream"])
        most = request["most"]

        def attempt(last: bool) -> Optional[Answer]:
            fd = program.fds[stream]
            if fd < 0:
                return {"end": True}, b""
            try:
                data = os.read(fd, most)
            except BlockingIOError:
                return ({"end": False}, b"") if last else None
            except OSError:  # a connection was reset
                data = b""
            if not data:
                self._close(program, stream)
            return {"end": not data}, data

        return self._answer_or_wait(request, program.fds[stream], select.POLLIN, attempt)

    def _op_send(self, request: Dict[str, Any], payload: bytes) -> Optional[Answer]:
        program = self._find(request)
        taken = 0

        def attempt(last: bool) -> Optional[Answer]:
            nonlocal taken
            fd = program.fds[0]
            if fd < 0:
                return {"taken": taken, "open": False}, b""
            try:
                taken += os.write(fd, payload[taken:])
            except BlockingIOError:
                pass
            except OSError:  # nobody reads it
                self._close(program, 0)
                return {"taken": taken, "open": False}, b""
            if taken == len(payload) or last:
                return {"taken": taken, "open": True}, b""
            return None

        return self._answer_or_wait(request, program.fds[0], select.POLLOUT, attempt)

    def _op_close(self, request: Dict[str, Any], payload: bytes) -> Answer:
        self._close(self._find(request), int(request["stream"]))
        return {}, b""

    def _op_wait(self, request: Dict[str, Any], payload: bytes) -> Optional[Answer]:
        program = self._find(request)

        def attempt(last: bool) -> Optional[Answer]:
            ended = program.exit_code is not None
            return ({"exit_code": program.exit_code}, b"") if ended or last else None

        return self._answer_or_wait(request, -1, 0, attempt)

    def _op_kill(self, request: Dict[str, Any], payload: bytes) -> Answer:
        program = self._find(request)
        if program.exit_code is not None:
            return {"killed": True}, b""
        killed = self._processes.kill_started(program.pid)
        self.settle()
        return {"killed": killed}, b""

    def _op_forget(self, request: Dict[str, Any], payload: bytes) -> Answer:
        program = self._programs.pop(request["process"], None)
        for stream in (0, 1, 2):
            if program is not None:
                self._close(program, stream)
        return {}, b""

    def _answer_or_wait(
        self, request: Dict[str, Any], fd: int, events: int, attempt: Attempt
    ) -> Optional[Answer]:
        answer = attempt(request["wait_s"] <= 0)
        if answer is None:
            nonce = request["nonce"]
            self._waiting[nonce] = _Waiting(fd, attempt)
            until = time.monotonic() + request["wait_s"]
            self._loop.set_alarm(nonce, until, lambda: self._try(nonce, last=True))
            if fd >= 0:
                self._loop.watch(fd, events, lambda: self._try(nonce, last=False))
        return answer

    def _try(self, nonce: str, last: bool) -> None:
        """Try again to answer a request that waits."""
        waiting = self._waiting.pop(nonce, None)
        if waiting is None:
            return
        answer = waiting.attempt(last)
        if answer is None:
            self._waiting[nonce] = waiting
            return
        self._loop.call_off(nonce)
        if waiting.fd >= 0:
            self._loop.forget(waiting.fd)
        self._send({"nonce": nonce, **answer[0]}, answer[1])

    def _retry(self, fd: int, last: bool) -> None:
        for nonce in [nonce for nonce, waiting in self._waiting.items() if waiting.fd == fd]:
            self._try(nonce, last)

    def _is_full(self) -> bool:
        return sum(not one.is_over for one in self._programs.values()) >= MOST_PROGRAMS

    def _add(self, program: _Program) -> int:
        self._count += 1
        self._programs[self._count] = program
        return self._count

    def _find(self, request: Dict[str, Any]) -> _Program:
        """The program of a request; one that has ended if it was forgotten."""
        program = self._programs.get(request["process"])
        if program is None:
            program = _Program(0, [-1, -1, -1], _FORGOTTEN)
        return program

    def _close(self, program: _Program, stream: int) -> None:
        fd, program.fds[stream] = program.fds[stream], -1
        if fd < 0:
            return
        self._loop.forget(fd)
        if program.connection is not None and stream == 0:
            with contextlib.suppress(OSError):
                program.connection.shutdown(socket.SHUT_WR)
            program.connection.close()
        else:
            os.close(fd)
        self._retry(fd, last=False)


def listen(port: int) -> socket.socket:
    """Listen on the box's own loopback.

    Raises:
        OSError: It has none, or the port is not to be had.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(MOST_PROGRAMS)
    listener.setblocking(False)
    return listener
