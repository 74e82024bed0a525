"""The worker: requests in, answers out, until the host closes the connection. One call at a time.

    ping    {}                                              -> {}
    exec    {argv, cwd, env, timeout_s, max_output_bytes,
             stdin: bool} + stdin                           -> run
    python  {timeout_s, max_output_bytes} + code            -> run
    read    {path, offset, most}                            -> {file_bytes} + a piece of the file
    write   {path, offset} + a piece of the file            -> {}

    run     {reason: "ended" | "timeout" | "output_limit", exit_code, oom, killed, note,
             outputs: [[head, tail, missing] for stdout, stderr]} + the heads and tails

`killed` is false if something that had to be killed may still run. Beside the calls come the
requests of `started.py`, also while a call runs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple

from gymnast.sandboxes.guest import confine, files, processes, protocol
from gymnast.sandboxes.guest.capture import HostGone, Output, Pump, run_answer
from gymnast.sandboxes.guest.loop import Loop
from gymnast.sandboxes.guest.processes import Processes
from gymnast.sandboxes.guest.session import Session
from gymnast.sandboxes.guest.spawn import close_all, pipes, restore_signals, spawn, why_not
from gymnast.sandboxes.guest.started import OPERATIONS, Started, listen

MAX_REQUEST_BYTES = 1 << 30
_EXIT_BY_KILL = 128 + signal.SIGKILL

Answer = Tuple[Dict[str, Any], bytes]


class Worker:
    """Answers requests.

    Args:
        boot: The first frame's header; see `program.boot_frame`.
        requests: The descriptor that requests come from.
        answers: The descriptor that answers go to.
    """

    def __init__(self, boot: Dict[str, Any], requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._alone = bool(boot["alone"])
        self._scoped = bool(boot.get("scoped"))
        self._processes = Processes(self._alone or self._scoped, boot.get("proc"))
        self._session = Session(self._processes, self._scoped)
        self._loop = Loop()
        self._call: Optional[Tuple[Dict[str, Any], bytes]] = None  # the next one
        self._calling = False
        self._started = Started(
            self._processes,
            self._loop,
            self._send,
            self._scoped,
            self._tidy,
            listen(boot["port"]) if boot.get("port") else None,
        )
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        restore_signals()
        # Handlers, not SIG_IGN: a handler is not inherited by what the guest starts.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
            # Python repeats few of the calls that a signal interrupts; the kernel repeats all.
            signal.siginterrupt(number, False)

    def serve(self, nonce: str) -> None:
        """Report that the worker is ready; then answer requests until the host is gone."""
        self._loop.watch(self._requests, select.POLLIN, self._take_request)
        self._loop.watch(self._wake, select.POLLIN, self._note_signals)
        self._send({"nonce": nonce, "pid": os.getpid()}, b"")
        try:
            while True:
                self._session.ensure(self._started.answer_all)
                while self._call is None:
                    self._loop.turn()
                (request, payload), self._call = self._call, None
                self._calling = True
                operation = getattr(self, "_op_" + request["op"])
                answer, data = _answered(operation, request, payload)
                self._calling = False
                self._send({"nonce": request["nonce"], **answer}, data)
                del request, payload, answer, data
        except HostGone:
            self._processes.kill_for_good()

    def _take_request(self) -> None:
        request, payload = protocol.unpack(self._receive, MAX_REQUEST_BYTES)
        if request["op"] not in OPERATIONS:
            self._call = request, payload
            return
        answer = _answered(self._started.handle, request, payload)
        if answer is not None:
            self._send({"nonce": request["nonce"], **answer[0]}, answer[1])

    def _note_signals(self) -> None:
        """What drains the pipe must see to all that have ended: nothing else will call it."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass
        self._processes.reap()
        self._started.settle()

    def _tidy(self) -> None:
        """After the end of a program that was started; a call that runs tidies up at its end."""
        if not self._calling and not self._processes.tidy(self._session.pid):
            raise RuntimeError("what a program has left cannot be killed")

    def _op_ping(self, request: Dict[str, Any], payload: bytes) -> Answer:
        return {}, b""

    def _op_read(self, request: Dict[str, Any], payload: bytes) -> Answer:
        data, size = files.read(request["path"], request["offset"], request["most"])
        return {"file_bytes": size}, data

    def _op_write(self, request: Dict[str, Any], payload: bytes) -> Answer:
        files.write(request["path"], request["offset"], payload)
        return {}, b""

    def _op_exec(self, request: Dict[str, Any], payload: bytes) -> Answer:
        oom_before = self._oom_kills()
        theirs, ours = pipes()
        streams = (theirs[0] if request["stdin"] else subprocess.DEVNULL, theirs[1], theirs[2])
        try:
            pid = spawn(request, streams, self._processes, self._scoped)
        except OSError as error:
            close_all(ours)
            return _not_started(request, error)
        finally:
            close_all(theirs)
        open_fds = set(ours)

        def close_stdin() -> None:
            open_fds.discard(ours[0])
            os.close(ours[0])

        limit = request["max_output_bytes"]
        outputs = {fd: Output(limit) for fd in ours[1:]}
        feed = (ours[0], payload, close_stdin) if request["stdin"] else None
        pump = Pump(self._loop, outputs, feed)
        reason = pump.run(lambda: self._has_ended(pid), request["timeout_s"], _most_output(limit))
        if reason == "ended":
            killed = self._processes.tidy(self._session.pid)
        else:
            killed = self._processes.kill(self._session.pid)
        pump.drain()
        close_all(open_fds)
        code = self._processes.ended.pop(pid, _EXIT_BY_KILL)
        oom = code != 0 and self._oom_kills() > oom_before
        return run_answer(reason, code, oom, killed, "", list(outputs.values()))

    def _op_python(self, request: Dict[str, Any], payload: bytes) -> Answer:
        session, oom_before = self._session, self._oom_kills()
        limit = request["max_output_bytes"]
        outputs = {session.stdout: Output(limit), session.stderr: Output(limit)}
        code_frame = len(payload).to_bytes(4, "big") + payload
        feed = (session.commands, code_frame, lambda: None)
        pump = Pump(self._loop, outputs, feed, session.done)
        status: List[int] = []
        pid = session.pid or 0
        reason = pump.run(
            lambda: self._has_answered(pid, status), request["timeout_s"], _most_output(limit)
        )
        note = "new Python session: the last one had ended, its variables are gone"
        notes = [note] if session.lost else []
        session.lost = False
        if reason == "ended" and status:
            code = status[0]
            killed = self._processes.tidy(pid)
            pump.drain()
        else:  # the session has ended, or has to end
            killed = self._processes.kill()
            pump.drain()
            code = session.forget()
            notes.append(_ending(reason, request["timeout_s"], code))
        oom = code != 0 and self._oom_kills() > oom_before
        text = "".join("[%s]\n" % note for note in notes)
        return run_answer(reason, code, oom, killed, text, list(outputs.values()))

    def _has_ended(self, pid: int) -> bool:
        self._note_signals()
        return pid in self._processes.ended

    def _has_answered(self, pid: int, status: List[int]) -> bool:
        """Whether the session has finished its code, or itself."""
        try:
            status.extend(os.read(self._session.done, 1))
            return True  # if nothing was read, the guest has closed the pipe
        except BlockingIOError:
            return self._has_ended(pid)

    def _oom_kills(self) -> int:
        return processes.oom_kills() if self._alone else 0

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = os.read(self._requests, min(size - len(data), 1 << 20))
            if not piece:
                raise HostGone
            data += piece
        return bytes(data)

    def _send(self, header: Dict[str, Any], payload: bytes) -> None:
        data = memoryview(protocol.pack(header, payload))
        try:
            while data:
                data = data[os.write(self._answers, data) :]
        except OSError:
            raise HostGone from None


def _answered(operation: Callable[[Dict[str, Any], bytes], Any], *request: Any) -> Any:
    """What an operation answers, or why it failed."""
    try:
        return operation(*request)
    except HostGone:
        raise
    except OSError as error:
        text = error.strerror or str(error)
        return {"error": {"kind": "file", "number": error.errno or 0, "text": text}}, b""
    except (Exception, MemoryError):
        text = traceback.format_exc()[-4000:]
        return {"error": {"kind": "worker", "number": 0, "text": text}}, b""


def _not_started(request: Dict[str, Any], error: OSError) -> Answer:
    """The answer for a command that cannot be started, in the words of a shell."""
    code, text = why_not(request, error)
    stderr = Output(request["max_output_bytes"])
    stderr.add((text + "\n").encode("utf-8", "replace"))
    return run_answer("ended", code, False, True, "", [Output(1), stderr])


def _most_output(limit: int) -> int:
    """How much a call may write before it is stopped: enough for a long log, not without end."""
    return max(4 * limit, 1 << 24)


def _ending(reason: str, timeout_s: float, code: int) -> str:
    if reason == "timeout":
        why = "the time limit of %g s was reached" % timeout_s
    elif reason == "output_limit":
        why = "it wrote without end"
    elif code == _EXIT_BY_KILL:
        why = "it was killed"
    else:
        why = "exit code %d" % code
    return "the Python session has ended, its variables are gone: %s" % why


def main(boot: Dict[str, Any], confine_more: Callable[[], object] = lambda: None) -> None:
    """Move the connection from stdin and stdout out of reach of what is started, and serve.

    Args:
        boot: The first frame's header.
        confine_more: Called once the worker has opened what it needs, before it starts anything.
    """
    requests, answers = os.dup(0), os.dup(1)  # not inherited by what is executed
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    for name, limit in boot["rlimits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (lower, lower))
    if boot.get("seccomp"):
        confine.refuse_calls(bytes.fromhex(boot["seccomp"]))
    worker = Worker(boot, requests, answers)
    confine_more()
    if boot.get("seal_proc"):
        with contextlib.suppress(OSError):  # not every kernel can do this
            confine.write_outside_proc_only()
    if boot.get("scoped"):  # each call gets a Landlock domain below this one
        confine.signal_own_processes_only()
    else:
        processes.set_dumpable(False)
    processes.become_subreaper()
    os.dup2(null, 2)  # errors up to here are printed for the host
    os.close(null)
    worker.serve(boot["nonce"])
    sys.exit(0)
