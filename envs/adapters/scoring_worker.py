"""The process of `scoring.py`: reads questions with answers from stdin, writes their scores.

Started as a file, and imports nothing of Gymnast. A score that takes too long, or too much memory,
ends the process, whatever the scorer does about it.
"""

import json
import os
import pickle
import resource
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO

_MEMORY_BYTES = 4 * 2**30
_WAITING = 20  # times as long as it may compute, where others compute too


def main() -> None:
    """Answer one request after the other, until there are no more."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # scorers may print
        os.dup2(nowhere, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is for whoever asks
    for ending in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(ending, signal.SIG_DFL)
    with suppress(ValueError, OSError):  # a lower limit holds already, or the system has none
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with suppress(EOFError):
        while True:
            replies.write(json.dumps(_reply(requests)) + "\n")
            replies.flush()


def _reply(requests: BinaryIO) -> dict[str, Any]:
    timeout_s, sys.path[:], request = pickle.load(requests)
    try:
        name, module, config, entry, answer = pickle.loads(request)
        import_module(module)  # which registers a generator of the user's own
        generator = import_module("reasoning_gym").create_dataset(name, size=1, **config)
    except Exception as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    signal.setitimer(signal.ITIMER_REAL, _WAITING * timeout_s)
    try:
        return {"score": float(generator.score_answer(answer=answer, entry=entry))}
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {error}"[:300]}
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)


if __name__ == "__main__":
    main()
