"""Frames between the host and the worker in a box.

A frame is the length of its header (4 bytes, big-endian), the header (a JSON object in UTF-8) and
a payload of `header["size"]` raw bytes. The first frame is the program itself. After it the host
sends requests, and each gets one answer, in any order:

    request   {"nonce", "op": "ping" | "exec" | "start" | ..., "size"} + payload
    answer    {"nonce", ..., "size"} + payload,
              or {"nonce", "error": {"kind": "file" | "worker", "number", "text"}, "size": 0}

`worker.py` and `started.py` list the operations. The host accepts an answer only with the nonce
that it drew for a request, once, and never reads more than the request allows.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Tuple

MAX_HEADER_BYTES = 1 << 24

Header = Dict[str, Any]


class BrokenFrame(Exception):
    """The bytes that arrived are no frame, or it is larger than it may be."""


def pack(header: Header, payload: bytes = b"") -> bytes:
    """One frame, ready to be sent."""
    text = json.dumps({**header, "size": len(payload)}).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise BrokenFrame("a header of %d bytes is larger than %d" % (len(text), MAX_HEADER_BYTES))
    return len(text).to_bytes(4, "big") + text + payload


def read_header(receive: Callable[[int], bytes]) -> Header:
    """Read the header of a frame; a payload of `header["size"]` bytes follows it.

    Args:
        receive: Returns exactly as many bytes as it is asked for, or raises.

    Raises:
        BrokenFrame: It is none, or too large.
    """
    length = int.from_bytes(receive(4), "big")
    if length > MAX_HEADER_BYTES:
        raise BrokenFrame("a header of %d bytes is larger than %d" % (length, MAX_HEADER_BYTES))
    try:
        header = json.loads(receive(length).decode())
    except (ValueError, RecursionError, MemoryError) as error:
        raise BrokenFrame("a header cannot be read: %r" % (error,)) from None
    if not isinstance(header, dict):
        raise BrokenFrame("a header is no object")
    return header


def read_payload(receive: Callable[[int], bytes], header: Header, most_bytes: int) -> bytes:
    """Read the payload that follows a header.

    Args:
        receive: As for `read_header`.
        header: The header.
        most_bytes: A larger payload is refused before it is read.

    Raises:
        BrokenFrame: It is too large, or the header does not say its size.
    """
    size = header.get("size")
    if type(size) is not int or not 0 <= size <= most_bytes:
        raise BrokenFrame("a payload of %r bytes is larger than %d" % (size, most_bytes))
    return receive(size)


def unpack(receive: Callable[[int], bytes], max_payload_bytes: int) -> Tuple[Header, bytes]:
    """Read one frame; see `read_header` and `read_payload`."""
    header = read_header(receive)
    return header, read_payload(receive, header, max_payload_bytes)
