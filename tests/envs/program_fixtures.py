"""Commands that are programs for tests, and what programs may leave behind."""

import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from gymnast.sandboxes.lifetime.owner import folder_prefix

CLIENT = """
import json, os, sys, urllib.request
def ask(messages, **more):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    body = json.dumps({"messages": messages, **more}).encode()
    request = urllib.request.Request(url, body, {**headers, "Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]
task = json.load(open(os.environ["GYMNAST_TASK"]))
said = [{"role": "user", "content": task["prompt"]}]
"""


def script(text: str) -> list[str]:
    """A command that runs some Python after the lines of a small client."""
    return [sys.executable, "-c", CLIENT + textwrap.dedent(text)]


_of_others: set[str] = set()


@pytest.fixture(scope="module")
def only_of_programs() -> None:
    """What is there before a file's tests, such as boxes that others keep, is not left behind."""
    _of_others.update(left_behind())


def left_behind() -> list[str]:
    """Folders of programs of this process, and processes that carry their mark."""
    prefix = folder_prefix()
    found = [str(each) for each in Path(tempfile.gettempdir()).glob(f"{prefix}*")]
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"={prefix}".encode() in process.read_bytes():
                found.append(str(process))
        except OSError:
            continue
    return [each for each in found if each not in _of_others]
