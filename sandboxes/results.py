"""From a worker's answer about something that ran to an `ExecResult`. Pure functions."""

from gymnast.sandboxes.guest.protocol import Header
from gymnast.sandboxes.spec import ExecResult, Verdict


def exec_result(answer: Header, payload: bytes) -> ExecResult:
    """Read the answer to `exec` or `python`.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    texts, at = [], 0
    missing_bytes = 0
    for head, tail, missing in answer["outputs"]:
        texts.append(join(payload[at : at + head], payload[at + head : at + head + tail], missing))
        at += head + tail
        missing_bytes += missing
    stdout, stderr = texts
    code = int(answer["exit_code"])
    note = str(answer["note"])
    if note and stderr and not stderr.endswith("\n"):
        note = "\n" + note
    verdict = _verdict(answer["reason"], code, bool(answer["oom"]), missing_bytes > 0)
    return ExecResult(code, stdout, stderr + note, verdict, missing_bytes > 0)


def _verdict(reason: str, code: int, oom: bool, cut: bool) -> Verdict:
    if reason == "timeout":
        return "timeout"
    if oom:
        return "oom"
    if cut or reason == "output_limit":
        return "output_limit"
    return "ok" if code == 0 else "nonzero"


def join(head: bytes, tail: bytes, missing: int) -> str:
    """The text of an output of which `missing` bytes between its head and its tail were dropped.

    A character that the cut went through counts as missing.
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
    """How many bytes at the end begin a character that does not end."""
    for count in range(1, min(3, len(data)) + 1):
        byte = data[-count]
        if byte >= 0xC0:
            whole = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return count if whole > count else 0
        if byte < 0x80:
            return 0
    return 0


def _continued_bytes(data: bytes) -> int:
    """How many bytes at the start, three at most, continue a character."""
    count = 0
    while count < min(3, len(data)) and 0x80 <= data[count] < 0xC0:
        count += 1
    return count
