"""Which context a request extends: as a specification, and in random conversations.

A simulated program remembers what every context should hold. It appends, edits, compacts, asks
again, starts sub-agents, and changes harmlessly what it sends back.
"""

import copy
import json
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.programs.conversations import Conversations, Reasoning
from gymnast.envs.programs.dialects.requests import Request
from gymnast.types import Message

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str, *ids: str, thought: str = "") -> Message:
    message: Message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if ids:
        message["tool_calls"] = [
            {"id": each, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
            for each in ids
        ]
    return message


def result(call_id: str, text: str = "3") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


class Played:
    """Conversations whose requests are answered at once."""

    def __init__(self, reasoning: Reasoning = "keep") -> None:
        self.conversations = Conversations(reasoning)
        self.changed: dict[str, int] = {}

    def ask(self, messages: list[Message], answer: Message | None, **request: Any) -> int | None:
        """Ask; return the context that was extended, None for a new one."""
        asked = Request(copy.deepcopy(messages), **request)
        placement = self.conversations.place(asked)
        self.appended = placement.messages
        self.changed = dict(placement.changed)
        branch = self.conversations.accept(asked, placement)
        if answer is not None:
            self.conversations.say(branch, answer)
        return placement.branch


def test_a_request_that_goes_on_extends_its_context() -> None:
    played = Played()
    first = [user("a")]
    assert played.ask(first, said("b")) is None
    assert played.ask([*first, said("b"), user("c"), user("d")], said("e")) == 0
    assert played.appended == [user("c"), user("d")]
    whole = [*first, said("b"), user("c"), user("d"), said("e"), user("f")]
    assert played.ask(whole, said("g")) == 0
    assert played.conversations.contexts[0].kept == [*whole, said("g")]


@pytest.mark.parametrize(
    "messages",
    [
        [user("a"), said("b")],  # nothing new
        [user("a")],  # once more from the same state
        [user("A"), said("b"), user("c")],
        [user("a"), said("B"), user("c")],
        [user("a"), user("c")],
        [user("a"), said("b"), user("c"), said("d")],  # words put into its mouth
        [user("a"), said("b"), user("c"), said("d"), user("e")],
        [{"role": "system", "content": "s"}, user("a"), said("b"), user("c")],
    ],
)
def test_anything_else_opens_a_context(messages: list[Message]) -> None:
    played = Played()
    played.ask([user("a")], said("b"))
    assert played.ask(messages, said("x")) is None
    assert played.appended == messages
    assert played.ask([user("a"), said("b"), user("c")], said("d")) == 0  # the first one lives on


def test_other_tools_open_a_context() -> None:
    played = Played()
    played.ask([user("a")], said("b"), tools=[TOOL])
    further = [user("a"), said("b"), user("c")]
    assert played.ask(further, said("d")) is None
    reordered = json.loads(json.dumps(TOOL, sort_keys=True))
    assert played.ask(further, said("d"), tools=[reordered]) == 0


def test_a_context_without_an_answer_is_extended_by_nobody() -> None:
    played = Played()
    played.ask([user("a")], None)
    assert played.ask([user("a"), said("b"), user("c")], said("d")) is None


def test_samples_from_one_state_go_on_each_in_its_own_context() -> None:
    played = Played()
    for text in ("x", "y", "x"):
        assert played.ask([user("a")], said(text)) is None
    assert played.ask([user("a"), said("y"), user("b")], said("z")) == 1
    assert played.ask([user("a"), said("x"), user("b")], said("z")) == 0
    assert played.ask([user("a"), said("x"), user("b")], said("z")) == 2
    assert played.ask([user("a"), said("x"), user("b")], said("z")) is None


def test_equal_answers_are_told_apart_by_the_ids_of_their_calls() -> None:
    played = Played()
    played.ask([user("a")], said("", "one"))
    played.ask([user("a")], said("", "two"))
    assert played.ask([user("a"), said("", "two"), result("two")], said("b")) == 1
    assert played.changed == {}


def test_ids_that_a_program_renames_are_named_as_they_were() -> None:
    played = Played()
    played.ask([user("a")], said("", "one", "two"))
    renamed = [user("a"), said("", "x", "y"), result("y", "2"), result("x", "1")]
    assert played.ask(renamed, said("b")) == 0
    assert played.appended == [result("two", "2"), result("one", "1")]
    assert played.changed == {"ids": 1}
    assert played.ask([*renamed, said("b"), user("c")], said("d")) == 0
    assert played.changed == {}  # each change is counted once


def test_reasoning_that_is_left_out() -> None:
    whole = [user("a"), said("b"), user("c")]
    keeps, branches = Played("keep"), Played("branch")
    for played in (keeps, branches):
        played.ask([user("a")], said("b", thought="hm"))
    assert keeps.ask(whole, said("d")) == 0 and keeps.changed == {"reasoning": 1}
    assert branches.ask(whole, said("d")) is None
    assert branches.ask([user("a"), said("b", thought="hm"), user("c")], said("d")) == 0


def test_plain_text_extends_the_longest_text_that_it_begins_with() -> None:
    played = Played()
    assert played.ask([user("Once")], said(" upon"), plain=True) is None
    assert played.ask([user("Once upon a")], said(" time"), plain=True) == 0
    assert played.appended == [user(" a")]
    assert played.ask([user("Once")], said(" more"), plain=True) is None
    assert played.ask([user("Once upon a time,")], said(""), plain=True) == 0
    assert played.ask([user("Once upon a time,")], said(""), plain=True) is None
    assert played.ask([user("Once more.")], said(""), plain=True) == 1
    assert played.ask([user("Once more."), said(""), user("x")], said("")) is None  # no text


def test_what_is_refused_leaves_no_trace() -> None:
    played = Played()
    played.ask([user("a")], said("b"))
    request = Request([user("a"), said("b"), user("c")])
    assert played.conversations.place(request).branch == 0
    assert played.conversations.place(request).branch == 0
    assert len(played.conversations.contexts[0].kept) == 2


def test_a_thousand_turns_cost_what_they_say() -> None:
    played, messages = Played(), [user("begin")]
    begun = time.process_time()
    for number in range(1000):
        answer = said(f"answer {number}", f"id {number}")
        request = Request(list(messages))
        placement = played.conversations.place(request)
        assert placement.branch == (0 if number else None)
        played.conversations.say(played.conversations.accept(request, placement), answer)
        messages += [answer, result(f"id {number}", f"result {number}")]
    assert time.process_time() - begun < 5


class SimulatedProgram:
    """A program that knows what each context should hold.

    Attributes:
        contexts: The messages of each, as they should be.
        sends: Each as the program sends it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.played = Played()
        self.contexts: list[list[Message]] = []
        self.sends: list[list[Message]] = []
        self.count = 0

    def step(self) -> None:
        """Do one thing at random, and check what became of it."""
        doings = [self.begins, self.goes_on, self.goes_on, self.goes_on, self.edits, self.compacts]
        doing = self.random.choice(doings if self.contexts else [self.begins])
        doing()

    def begins(self) -> None:
        """A new conversation: a sub-agent, whose system prompt may be that of others."""
        system: Message = {"role": "system", "content": self.random.choice(["s", "t"])}
        self.opens([system, user(self.text())])

    def goes_on(self) -> None:
        """One goes on where it was, perhaps changed harmlessly."""
        branch = self.random.randrange(len(self.contexts))
        sent = [*self.sends[branch][:-1], *self.harmless(self.sends[branch][-1:])]
        ids = [call["id"] for call in sent[-1].get("tool_calls", ())]
        kept = [call["id"] for call in self.contexts[branch][-1].get("tool_calls", ())]
        text = self.text()
        new = [result(each, text) for each in ids] or [user(text)]
        should = [result(each, text) for each in kept] or [user(text)]
        answer = self.answer()
        assert self.played.ask([*sent, *new], answer) == branch
        self.contexts[branch] += [*should, answer]
        self.sends[branch] = [*sent, *new, answer]
        self.check()

    def edits(self) -> None:
        """One goes on with another past."""
        sent = copy.deepcopy(self.random.choice(self.sends))
        place = self.random.randrange(len(sent))
        sent[place]["content"] = self.text()
        self.opens([*sent, user(self.text())])

    def compacts(self) -> None:
        """One goes on with a summary of its past, or from an earlier state."""
        sent = self.random.choice(self.sends)
        begin = self.random.randrange(len(sent))
        if sent[begin]["role"] != "assistant":
            self.opens([user(self.text()), *sent[begin:], user(self.text())])
        else:
            self.opens(sent[:begin])

    def opens(self, messages: list[Message]) -> None:
        answer = self.answer()
        assert self.played.ask(messages, answer) is None
        self.contexts.append([*messages, answer])
        self.sends.append([*messages, answer])
        self.check()

    def check(self) -> None:
        assert [each.kept for each in self.played.conversations.contexts] == self.contexts

    def answer(self) -> Message:
        ids = [f"c{self.count}.{each}" for each in range(self.random.randrange(3))]
        return said(self.text(), *ids, thought=self.random.choice(["", "hm"]))

    def text(self) -> str:
        self.count += 1
        return f"text {self.count}"

    def harmless(self, messages: list[Message]) -> list[Message]:
        """A copy of some messages with changes that are none."""
        changed = copy.deepcopy(messages)
        for message in changed:
            if self.random.random() < 0.5:
                message.pop("reasoning_content", None)
            if self.random.random() < 0.5:
                message["content"] = f" {message['content']}\n"
            for call in message.get("tool_calls", ()):
                if self.random.random() < 0.5:
                    call["id"] = f"other {call['id']}"
                if self.random.random() < 0.5:
                    call["function"]["arguments"] = {"a": 1}
        return changed


@given(st.integers(0, 2**32))
def test_every_context_of_a_random_conversation_is_exact(seed: int) -> None:
    program = SimulatedProgram(seed)
    for _ in range(30):
        program.step()


@pytest.mark.slow
def test_every_context_of_ten_thousand_random_conversations_is_exact() -> None:
    for seed in range(10_000):
        program = SimulatedProgram(seed)
        for _ in range(program.random.randrange(5, 40)):
            program.step()
