"""The Python session from the inside: a process that runs one piece of code after another.

Code runs in one `__main__` as in a notebook: names stay, and the value of a last expression is
printed. It writes to the process's real stdout and stderr, so the output of C code and of child
processes is kept too. `input()` meets the end of the file at once. Threads go on between calls.

The process belongs to the guest. It is trusted with nothing but how its own call ended.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import linecache
import os
import signal
import site
import sys
import traceback
import types
from typing import Any, Dict, Optional

_LIBC = ctypes.CDLL(None)
_KEPT_SOURCES = 1000  # for the lines in tracebacks


def serve(commands: int, done: int, path: str) -> None:
    """Run code until `commands` is closed. Does not return.

    Args:
        commands: A pipe of pieces of code, each preceded by its length (4 bytes).
        done: Gets one byte after each piece: its exit code.
        path: `$PYTHONPATH`, which the worker itself ignores.
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = types.ModuleType("__main__")
    for name in [name for name in sys.modules if name.startswith("gymnast")]:
        del sys.modules[name]
    sys.modules["__main__"] = main
    if sys.flags.no_site:  # what Python has without -S, but for folders of packages
        for add in (site.setquit, site.setcopyright, site.sethelper):
            add()
    sys.argv = [""]
    sys.path[:0] = ["", *filter(None, path.split(os.pathsep))]
    owner, output = os.getpid(), (os.dup(1), os.dup(2))
    calls = 0
    while True:
        code = _read(commands, int.from_bytes(_read(commands, 4), "big"))
        calls += 1
        _restore(output)
        status = _run(code, "<python %d>" % calls, main.__dict__)
        _flush()
        if os.getpid() != owner:  # the code has forked, and this is the child
            os._exit(status)
        os.write(done, bytes([status]))


def _read(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def _restore(output: Any) -> None:
    """Give the next call a working stdout and stderr, whatever the last one did to them."""
    for fd, kept, name in ((1, output[0], "stdout"), (2, output[1], "stderr")):
        os.dup2(kept, fd)
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="replace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        _LIBC.fflush(None)  # what C code has printed


def _run(code: bytes, filename: str, namespace: Dict[str, Any]) -> int:
    try:
        source = code.decode()
        lines = source.splitlines(True)
        linecache.cache[filename] = (len(source), None, lines, filename)
        linecache.cache.pop("<python %d>" % (int(filename[8:-1]) - _KEPT_SOURCES), None)
        _execute(source, filename, namespace)
        return 0
    except SystemExit as error:
        _exit(error)
    except BaseException as error:
        _print(error)
    return 1


def _execute(source: str, filename: str, namespace: Dict[str, Any]) -> None:
    module: Any = compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    last: Optional[ast.Expression] = None
    if module.body and isinstance(module.body[-1], ast.Expr):
        last = ast.Expression(module.body.pop().value)
    # `from __future__` holds for its own call only.
    exec(compile(module, filename, "exec", dont_inherit=True), namespace)
    if last is not None:
        sys.displayhook(eval(compile(last, filename, "eval", dont_inherit=True), namespace))


def _exit(error: SystemExit) -> None:
    """End the session as the interpreter would."""
    code = error.code
    if code is not None and not isinstance(code, int):
        with contextlib.suppress(Exception):
            print(code, file=sys.stderr)
        code = 1
    _flush()
    os._exit((code or 0) & 0xFF)


def _print(error: BaseException) -> None:
    """Print the traceback, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        traceback.print_exception(type(error), error, trace)
