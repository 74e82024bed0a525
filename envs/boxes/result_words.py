"""What a policy is told of something that ran in a box, in few tokens."""

from gymnast.sandboxes.contract.spec import ExecResult

_SAID = {
    "timeout": "[out of time, killed]",
    "oom": "[out of memory, killed]",
    "output_limit": "[too much output]",
}


def in_words(result: ExecResult, *, command: bool = False) -> str:
    """The text of a result: what was printed, errors, then how it ended where that is no success.

    Args:
        result: The result.
        command: Of a command, whose exit code says something; of Python code the traceback does.
    """
    parts = [result.stdout, result.stderr]
    said = _SAID.get(result.verdict, "")
    if result.verdict == "timeout" and "time limit" in result.stderr:
        said = ""  # the session has said so
    if command and result.verdict == "nonzero":
        said = f"[exit code {result.exit_code}]"
    text = "\n".join(part.rstrip("\n") for part in (*parts, said) if part.strip("\n"))
    return text or "[no output]"
