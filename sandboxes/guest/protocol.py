"""Frames between the host and the worker in a box.

A frame is the length of its header (4 bytes, big-endian), the header (a JSON object in UTF-8) and
a payload of `header["size"]` raw bytes. The first frame is the program itself. After it the host
sends one request at a time and reads one answer:

    request   {"nonce", "op": "ping" | "exec" | "python" | "read" | "write", ..., "size"} + payload
    answer    {"nonce", ..., "size"} + payload,
              or {"nonce", "error": {"kind": "file" | "worker", "number", "text"}, "size": 0}

`worker.py` lists the operations. The host accepts an answer only with the nonce that it drew for
the request, and never reads more than the request allows.
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


def unpack(receive: Callable[[int], bytes], max_payload_bytes: int) -> Tuple[Header, bytes]:
    """Read one frame.

    Args:
        receive: Returns exactly as many bytes as it is asked for, or raises.
        max_payload_bytes: A larger payload is refused before it is read.

    Raises:
        BrokenFrame: It is no frame, or too large.
    """
    length = int.from_bytes(receive(4), "big")
    if length > MAX_HEADER_BYTES:
        raise BrokenFrame("a header of %d bytes is larger than %d" % (length, MAX_HEADER_BYTES))
    try:
        header = json.loads(receive(length).decode())
    except (ValueError, RecursionError, MemoryError) as error:
        raise BrokenFrame("a header cannot be read: %r" % (error,)) from None
    size = header.get("size") if isinstance(header, dict) else None
    if type(size) is not int or not 0 <= size <= max_payload_bytes:
        raise BrokenFrame("a payload of %r bytes is larger than %d" % (size, max_payload_bytes))
    return header, receive(size)
