"""Reading a worker's answer with distrust: code that broke into the worker may have written it.

Pure functions.
"""

from dataclasses import dataclass
from typing import TypeVar

from gymnast.sandboxes.contract.spec import ExecResult, Verdict
from gymnast.sandboxes.guest.protocol import Header
from gymnast.visible import visible_line

Value = TypeVar("Value", int, bool, str, list[object], dict[str, object])


class BrokenAnswer(Exception):
    """An answer lacks a field, or has one of the wrong kind."""


@dataclass(frozen=True)
class Failure:
    """A failure that a worker reports.

    Attributes:
        kind: "file" or "worker".
        number: The system's error number of a file's failure; else 0.
        text: In words, on one line.
    """

    kind: str
    number: int
    text: str


def field(answer: Header, name: str, kind: type[Value]) -> Value:
    """A value of an answer.

    Raises:
        BrokenAnswer: It is missing, or of another type (True is no int).
    """
    value = answer.get(name)
    if type(value) is not kind:
        raise BrokenAnswer(f"its answer has {value!r:.100} for {name!r}")
    return value


def failure_in(answer: Header) -> Failure | None:
    """The failure that an answer reports; None if it reports none.

    Raises:
        BrokenAnswer: It is malformed.
    """
    if answer.get("error") is None:
        return None
    error = field(answer, "error", dict)
    number = field(error, "number", int) if error.get("kind") == "file" else 0
    return Failure(field(error, "kind", str), number, visible_line(field(error, "text", str)))


def taken_of(answer: Header, sent_bytes: int) -> tuple[int, bool]:
    """How many bytes of an input were taken, and whether its stream is still open.

    Raises:
        BrokenAnswer: It is malformed.
    """
    taken = field(answer, "taken", int)
    if not 0 <= taken <= sent_bytes:
        raise BrokenAnswer(f"its answer has taken {taken} of {sent_bytes} bytes")
    return taken, field(answer, "open", bool)


def exec_result(answer: Header, payload: bytes) -> ExecResult:
    """Read the answer to `exec` or `python`.

    Raises:
        BrokenAnswer: It is malformed.
    """
    parts = [_lengths(part) for part in field(answer, "outputs", list)]
    if len(parts) != 2 or sum(head + tail for head, tail, _ in parts) != len(payload):
        raise BrokenAnswer(f"its answer's outputs {parts!r:.100} are not those it sent")
    texts, at = [], 0
    for head, tail, missing in parts:
        texts.append(join(payload[at : at + head], payload[at + head : at + head + tail], missing))
        at += head + tail
    stdout, stderr = texts
    cut = any(missing for _, _, missing in parts)
    code, note = field(answer, "exit_code", int), field(answer, "note", str)
    if note and stderr and not stderr.endswith("\n"):
        note = "\n" + note
    verdict = _verdict(field(answer, "reason", str), code, field(answer, "oom", bool), cut)
    return ExecResult(code, stdout, stderr + note, verdict, cut)


def _lengths(part: object) -> tuple[int, int, int]:
    """The bytes of an output's head and tail, and how many between them are missing."""
    if not isinstance(part, list) or len(part) != 3:
        raise BrokenAnswer(f"its answer has {part!r:.100} for an output")
    head, tail, missing = part
    if any(type(number) is not int or not 0 <= number < 2**63 for number in part):
        raise BrokenAnswer(f"its answer has {part!r:.100} for an output")
    return head, tail, missing


def _verdict(reason: str, code: int, oom: bool, cut: bool) -> Verdict:
    if reason == "timeout":
        return "timeout"
    if oom:
        return "oom"
    if cut or reason == "output_limit":
        return "output_limit"
    return "ok" if code == 0 else "nonzero"


def join(head: bytes, tail: bytes, missing: int) -> str:
    """The text of an output that lost `missing` bytes between its head and its tail.

    A character that was cut through counts as missing.
    """
    if not missing:
        return (head + tail).decode("utf-8", "replace")
    kept_head = head[: len(head) - _begun_bytes(head)]
    kept_tail = tail[_continued_bytes(tail) :]
    missing += len(head) - len(kept_head) + len(tail) - len(kept_tail)
    line = f"[... {missing} bytes left out ...]\n"
    before = "" if not kept_head or kept_head.endswith(b"\n") else "\n"
    texts = kept_head.decode("utf-8", "replace"), kept_tail.decode("utf-8", "replace")
    return f"{texts[0]}{before}{line}{texts[1]}"


def _begun_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character that is not complete."""
    for count in range(1, min(3, len(data)) + 1):
        byte = data[-count]
        if byte >= 0xC0:
            whole = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return count if whole > count else 0
        if byte < 0x80:
            return 0
    return 0


def _continued_bytes(data: bytes) -> int:
    """How many bytes at the start, three at most, continue a character that began before them."""
    count = 0
    while count < min(3, len(data)) and 0x80 <= data[count] < 0xC0:
        count += 1
    return count
