"""Which context of an episode a request extends, and what it appends to it.

A request extends a context when its messages begin as the context does, said and given, as far as
`sameness.py` tells them apart; it offers the same tools; at least one message is new; and the
assistant says none of the new ones. So the context must end with the last message of the assistant
in the request, which leaves one place to look at. Everything else opens a context.

The messages that a context begins with are looked up by a digest of them all. What a program has
sent before is not read again, so that a conversation of a thousand turns costs what it says.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from gymnast.envs.programs.dialects.requests import Request
from gymnast.envs.programs.sameness import changes, fingerprint, ids_of, with_ids
from gymnast.types import Message

Reasoning = Literal["keep", "branch"]
_RECENT = 16  # contexts whose requests are looked at for a beginning that is known


@dataclass(frozen=True)
class Read:
    """How far the messages of a request have been read.

    Attributes:
        digest: Of all of them, and of the tools.
        call_ids: The ids of the calls that the assistant made last, as they were sent.
    """

    digest: bytes
    call_ids: tuple[str, ...] = ()

    def on(self, message: Mapping[str, Any]) -> "Read":
        """The same with one message more."""
        own = fingerprint(message, self.call_ids)
        digest = blake2b(self.digest + own, digest_size=16).digest()
        if message.get("role") == "assistant":
            return Read(digest, ids_of(message))
        return Read(digest, self.call_ids)


@dataclass
class Context:
    """One context, as its program knows it.

    Attributes:
        kept: What was given and said, in order.
        sent: How the program sent it last; without the answer to that, if that is not back yet.
        read: `sent`, read.
        seed: The digest of its tools, and of whether it is plain text.
        plain: Whether it is plain text.
        awaits: Whether its last request has no answer yet, so that nothing can extend it.
    """

    kept: list[Message]
    sent: list[Message]
    read: Read
    seed: bytes
    plain: bool = False
    awaits: bool = True

    @property
    def end(self) -> bytes:
        """The digest of all that it holds, its last answer included."""
        return self.read.on(self.kept[-1]).digest

    @property
    def text(self) -> str:
        """All that it holds, where it is plain text."""
        return "".join(message["content"] for message in self.kept)


@dataclass(frozen=True)
class Placement:
    """Where a request belongs.

    Attributes:
        branch: The context that it extends; None: it opens one.
        messages: Those that it appends; all, where it opens a context.
        changed: How often each rule of `sameness.py` was needed for what is new in it.
    """

    branch: int | None
    messages: list[Message]
    changed: Counter[str] = field(default_factory=Counter)


class Conversations:
    """The contexts of one episode.

    Args:
        reasoning: What becomes of a request that leaves out earlier reasoning: "keep": it extends
            the context, in which the reasoning stays; "branch": it opens a context.

    Attributes:
        contexts: In the order of their first requests.
    """

    def __init__(self, reasoning: Reasoning = "keep") -> None:
        self.contexts: list[Context] = []
        self._reasoning = reasoning
        self._recent: list[int] = []
        self._ends: dict[bytes, list[int]] = {}  # contexts that may be extended, by their ends

    def place(self, request: Request) -> Placement:
        """Say which context a request extends, or that it opens one. Nothing changes."""
        if request.plain:
            return self._place_text(request)
        messages = request.messages
        last = _after_assistant(messages)
        if not 0 < last < len(messages):
            return Placement(None, list(messages))
        known, read = self._read(request, last)
        found = []
        for branch in self._ends.get(read.digest, ()):
            changed = self._changed(branch, messages[:last], known)
            if changed is not None:
                found.append((changed.total(), branch, changed))
        if not found:
            return Placement(None, list(messages))
        _, branch, changed = min(found, key=lambda each: each[:2])
        said = self.contexts[branch].kept[-1]
        ids = dict(zip(read.call_ids, ids_of(said), strict=True))
        return Placement(branch, [with_ids(each, ids) for each in messages[last:]], changed)

    def accept(self, request: Request, placement: Placement) -> int:
        """Append a request that was placed to its context, which then awaits an answer.

        Returns:
            The number of the context.
        """
        sent = list(request.messages)
        read = self._read(request, len(sent))[1]
        branch = placement.branch
        if branch is None:
            branch = len(self.contexts)
            self.contexts.append(Context(list(sent), sent, read, _seed(request), request.plain))
        else:
            context = self.contexts[branch]
            self._ends[context.end].remove(branch)
            context.kept += placement.messages
            context.sent, context.read, context.awaits = sent, read, True
        self._recent = [branch, *(each for each in self._recent if each != branch)][:_RECENT]
        return branch

    def say(self, branch: int, said: Message) -> None:
        """Append what the program is told to a context, which may be extended then."""
        context = self.contexts[branch]
        context.kept.append(said)
        context.awaits = False
        self._ends.setdefault(context.end, []).append(branch)

    def _read(self, request: Request, count: int) -> tuple[Mapping[int, int], Read]:
        """Read so many messages of a request, from where one of the last contexts knows them.

        Returns:
            How many of them a context has been sent as they are, by its number; and what was read.
        """
        messages, seed = request.messages, _seed(request)
        for branch in self._recent:
            context = self.contexts[branch]
            known = len(context.sent)
            same_tools = context.seed == seed
            if same_tools and 0 < known <= count and messages[:known] == context.sent:
                found, read = {branch: known}, context.read
                break
        else:
            found, known, read = {}, 0, Read(seed)
        for message in messages[known:count]:
            read = read.on(message)
        return found, read

    def _changed(
        self, branch: int, messages: Sequence[Message], known: Mapping[int, int]
    ) -> Counter[str] | None:
        """How messages differ from all that a context holds; None if they are not the same."""
        begin = known.get(branch, 0)
        changed: Counter[str] = Counter()
        for kept, sent in zip(self.contexts[branch].kept[begin:], messages[begin:], strict=True):
            rules = changes(kept, sent)
            if rules is None or ("reasoning" in rules and self._reasoning == "branch"):
                return None
            changed.update(rules)
        return changed

    def _place_text(self, request: Request) -> Placement:
        """Place a request to go on with a text: it extends the longest that it begins with."""
        text = request.messages[0]["content"]
        begun = [
            (len(whole), branch)
            for branch, context in enumerate(self.contexts)
            if context.plain and not context.awaits
            if text.startswith(whole := context.text) and len(text) > len(whole)
        ]
        if not begun:
            return Placement(None, list(request.messages))
        length, branch = max(begun, key=lambda each: (each[0], -each[1]))
        return Placement(branch, [{"role": "user", "content": text[length:]}])


def _after_assistant(messages: Sequence[Message]) -> int:
    """The number of messages up to the last one of the assistant, that included; 0 without one."""
    for count in range(len(messages), 0, -1):
        if messages[count - 1].get("role") == "assistant":
            return count
    return 0


def _seed(request: Request) -> bytes:
    """A digest of the tools that a request offers, and of whether it is plain text."""
    text = json.dumps([request.plain, request.tools], sort_keys=True, default=repr)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
