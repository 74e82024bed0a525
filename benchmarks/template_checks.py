"""What must hold for a renderer on a chat template, one function a rule.

A check gets a renderer and the template's own renderings (`template_reference.py`); it returns
None, or a few words that say what is wrong. The tests and the report share the checks.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from gymnast.envs import Renderer
from gymnast.envs.rendering import plain_protocol
from gymnast.envs.rendering.tokens.markers import is_markup
from gymnast.errors import TemplateError
from gymnast.types import Message
from template_cases import answers, conversations, turns_with_calls
from template_hostile import hostile
from template_messages import (
    ANSWER,
    MARKED,
    NEXT,
    QUESTION,
    SAID,
    MessageDict,
    Messages,
    call,
    calling,
    result,
    schemas,
)
from template_reference import NotTaken, Reference, Split

_TAIL = 12  # characters of an action that show where it ended


def stop_texts(renderer: Renderer) -> list[str]:
    """The stop tokens as text."""
    return [renderer.tokenizer.decode([number]) for number in renderer.stop_ids]


def canonical(value: Any) -> str:
    """JSON that distinguishes 1, 1.0 and True, and ignores the order of keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def answered(turn: MessageDict) -> list[MessageDict]:
    """What may follow a turn: a result for each call, or a user's message."""
    return [result(one) for one in turn.get("tool_calls", ())] or [NEXT]


def split(
    renderer: Renderer, reference: Reference, turn: MessageDict, **options: Any
) -> tuple[Split, list[int], list[int]]:
    """A turn after the first question as the template writes it; ids of its context and action."""
    turn = reference.natural(turn)
    tools = options.pop("tools", None) or tools_for(turn)
    after = options.pop("after", None) or answered(turn)
    cut = reference.split(reference.start, turn, after, stop_texts(renderer), tools, **options)
    context = renderer.prompt(reference.start, tools if reference.form.tells else None)
    return cut, context, reference.tokenizer.encode(cut.action, add_special_tokens=False)


def tools_for(turn: MessageDict) -> list[MessageDict]:
    """The schemas that a conversation with this turn offers."""
    return schemas(*MARKED, *turn.get("tool_calls", ()))


# --- What the template writes is read


def round_trip(renderer: Renderer, reference: Reference, turn: MessageDict) -> str | None:
    """Whether a turn that the template wrote is read back."""
    turn = reference.natural(turn)
    cut, context, action = split(renderer, reference, turn)
    expected = [one["function"] for one in turn.get("tool_calls", ())]
    shown = reference.thought_end + cut.action
    if reference.write_calls and expected:
        shown = reference.write_calls(expected) + cut.stop
    if shown != cut.action:
        action = reference.tokenizer.encode(shown, add_special_tokens=False)
    if not cut.stop:
        action.append(reference.tokenizer.eos_token_id)
    message = renderer.parse(action, context_ids=context, tools=tools_for(turn))
    return _misread(message, turn, shown)


def _misread(message: Message, turn: MessageDict, shown: str) -> str | None:
    """The difference between a message that was read and the turn, or None."""
    expected = [one["function"] for one in turn.get("tool_calls", ())]
    calls = message["tool_calls"]
    for one in calls:
        if one.error is not None:
            return f"error {one.error!r} for {shown!r}"
    read = [{"name": one.name, "arguments": one.arguments} for one in calls]
    if canonical(read) != canonical(expected):
        return f"read {canonical(read)} from {shown!r}"
    for key in ("content", "reasoning_content"):
        value = message.get(key) or ""
        if str(value).strip() != str(turn.get(key, "")).strip():
            return f"{key} {value!r} from {shown!r}"
    return None


def encoded(renderer: Renderer, reference: Reference, turn: MessageDict) -> str | None:
    """Whether an encoded turn reads back, and is what the template writes for it."""
    turn = reference.natural(turn)
    cut, context, _ = split(renderer, reference, turn)
    tools, after = tools_for(turn), answered(turn)
    try:
        action = renderer.encode(turn, tools=tools)
    except TemplateError as error:
        return None if reference.lossy else f"refused: {error}"
    text = reference.tokenizer.decode(action)
    read = renderer.parse(action, context_ids=context, tools=tools)
    if wrong := _misread(read, turn, text):
        return wrong
    if reference.lossy:
        return None
    expected = reference.thought_end + cut.action
    if text == expected or (not cut.stop and text.startswith(expected)):
        told = tools if reference.form.tells or reference.writes_calls else None
        rest = renderer.observe([*context, *action], after, tools=told)
        wrote = reference.tokenizer.decode(rest)
        right = wrote == cut.rest or not cut.stop
        return None if right else f"wrote {wrote!r} after it, the template {cut.rest!r}"
    loose = not cut.preserved and _loosely(text, cut.stop) == _loosely(expected, cut.stop)
    return None if loose else f"wrote {text!r}, the template {expected!r}"


def _loosely(text: str, stop: str) -> str:
    """An action without white space before its end, in which last turns and others differ."""
    return text.removesuffix(stop).rstrip()


def spelled(renderer: Renderer, reference: Reference) -> str | None:
    """Whether control tokens that a model spells letter by letter in an argument stay text."""
    for token in sorted(reference.tokenizer.get_added_vocab()):
        one = call("get_weather", {"a": f"x {token} y", "b": 1})
        turn, tools = calling(one), schemas(one)
        context = renderer.prompt(reference.start, tools)
        whole = renderer.prompt([*reference.start, turn, result(one)], tools)
        rest = whole[len(context) :]
        ends = [index for index, number in enumerate(rest) if number in renderer.stop_ids]
        if whole[: len(context)] != context or not ends:
            return None  # the renderer's prompt does not show how a model would write it
        action = rest[: ends[0] + 1]
        read = renderer.parse(action, context_ids=context, tools=tools)["tool_calls"]
        if [(c.arguments, c.error) for c in read] != [(one["function"]["arguments"], None)]:
            return f"read {read} from {reference.tokenizer.decode(action)!r}"
    return None


# --- What is appended is what the template writes


def appended(
    renderer: Renderer,
    reference: Reference,
    turn: MessageDict,
    *,
    after: Messages | None = None,
    generation_prompt: bool = True,
    missing: int = 0,
) -> str | None:
    """Whether context, action and observation read as the template writes them.

    Args:
        renderer: The renderer.
        reference: The template.
        turn: The assistant's turn.
        after: What the environment answers.
        generation_prompt: Whether to open the next turn.
        missing: How many ids of the action were cut off by the length limit.
    """
    after = after or answered(turn)
    cut, context, action = split(
        renderer, reference, turn, after=after, generation_prompt=generation_prompt
    )
    sampled = action[: len(action) - missing]
    if not cut.stop:
        missing = missing or 1  # a turn that ends in text: nothing tells that it ended
    observed = renderer.observe(
        [*context, *sampled],
        after,
        tools=tools_for(turn) if reference.form.tells or reference.writes_calls else None,
        generation_prompt=generation_prompt,
    )
    wrote = reference.tokenizer.decode(observed)
    if missing > 1:
        right = wrote.endswith(cut.stop + cut.rest)
        return None if right else f"after a cut {wrote!r}, uncut {cut.stop + cut.rest!r}"
    if missing:  # a turn that is not the last can have more before its end
        tail = reference.tokenizer.decode(sampled)[-_TAIL:] + wrote
        talk = [*reference.start, reference.natural(turn), *after]
        tools = tools_for(turn)
        if reference.render(talk, tools, generation_prompt=generation_prompt).endswith(tail):
            return None
    expected = (cut.stop if missing else "") + cut.rest
    if wrote != expected and not (missing and wrote == cut.close + cut.rest):
        return f"wrote {wrote!r}, the template {expected!r}"
    prompt = reference.tokenizer.decode(context)
    if _from_user(prompt) != _from_user(cut.context) and cut.preserved:
        return f"prompt {_from_user(prompt)!r}, the template {_from_user(cut.context)!r}"
    whole = reference.tokenizer.encode(_from_user(cut.whole), add_special_tokens=False)
    opening = reference.tokenizer.encode(_from_user(cut.context), add_special_tokens=False)
    comparable = cut.preserved and cut.stop == cut.close != "" and whole[: len(opening)] == opening
    if comparable and not _spells_added_token(reference, after):
        ids = [*opening, *sampled, *observed]
        return None if ids == whole else "the text is right, the ids differ"
    return None


def _spells_added_token(reference: Reference, messages: Messages) -> bool:
    """Whether encoding the template's rendering would turn a message's text into an added token."""
    texts = [str(message["content"]) for message in messages]
    tokens = filter(is_markup, reference.tokenizer.get_added_vocab())
    return any(token in text for token in tokens for text in texts)


def _from_user(text: str) -> str:
    """From the user's text on: some templates write the time before it."""
    return text[text.rfind(QUESTION["content"]) :]


# --- Stop tokens


def stops(renderer: Renderer, reference: Reference, turn: MessageDict) -> str | None:
    """Whether the first added token after a turn's last word, markup aside, is a stop token."""
    texts = stop_texts(renderer)
    cut, _, _ = split(renderer, reference, turn)
    if turn.get("tool_calls"):
        last = max(cut.whole.rfind(str(value)) for value in ("Wqone", "Wqtwo", "7919", "7907"))
    else:
        last = cut.whole.rfind(SAID)
    between = cut.whole[last : cut.whole.find(str(answered(turn)[0]["content"]), last)]
    added = [token for token in reference.tokenizer.get_added_vocab() if token in between]
    if not added or (turn.get("tool_calls") and reference.ends_in_text(stop_texts(renderer))):
        return None
    if not cut.stop:
        return f"none of {texts} ends the turn in {between!r}"
    if between.find(cut.stop) < 0:
        return f"{cut.stop!r} stops the turn before its end: {cut.action!r}"
    return None


def cut_is_empty(renderer: Renderer, reference: Reference) -> str | None:
    """Whether a turn that ended gets nothing, where nothing is asked for."""
    cut, context, action = split(renderer, reference, ANSWER)
    if not cut.stop:
        return None
    extra = renderer.observe([*context, *action], [], generation_prompt=False)
    if extra:
        return f"appended {reference.tokenizer.decode(extra)!r} to a turn that ended"
    closing = renderer.observe([*context, *action[:-1]], [], generation_prompt=False)
    wrote = reference.tokenizer.decode(closing)
    # A token that opens the next message ends a turn only where there is one.
    right = {cut.stop} if cut.stop in reference.turn_alone(ANSWER) else {"", cut.stop}
    return None if wrote in right else f"closed a cut turn with {wrote!r}, not {cut.stop!r}"


def offered(renderer: Renderer, reference: Reference) -> str | None:
    """Whether a prompt tells of the tools."""
    prompt = reference.tokenizer.decode(renderer.prompt(reference.start, schemas(*MARKED)))
    words = [one["function"]["name"] for one in MARKED] + ["Wqtool.", "wqa", "wqb"]
    missing = [word for word in words if word not in prompt]
    return f"{missing} not in the prompt" if missing else None


def shown(renderer: Renderer, reference: Reference) -> str | None:
    """Whether the example that an error shows to a model is itself a well-formed call."""
    dialect = renderer.dialect or plain_protocol.DIALECT
    action = reference.tokenizer.encode(dialect.example, add_special_tokens=False)
    one = call("TOOL", {"KEY": "VALUE"})
    return _misread(renderer.parse(action, tools=schemas(one)), calling(one), dialect.example)


# --- Ids of calls


def call_ids(renderer: Renderer, reference: Reference) -> str | None:
    """Whether the ids of calls differ from turn to turn, and fit the strictest template."""
    turn = calling(*MARKED[: reference.most])
    _, context, action = split(renderer, reference, turn)
    tools = tools_for(turn)
    first = renderer.parse(action, context_ids=context, tools=tools)["tool_calls"]
    second = renderer.parse(action, context_ids=[*context, *action, *action], tools=tools)
    ids = [one.id for one in [*first, *second["tool_calls"]]]
    written = "call00001" in reference.turn_alone(turn)
    if not written and len(set(ids)) != len(ids):
        return f"ids repeat: {ids}"
    if not all(ids):
        return f"a call has no id: {ids}"
    return None


# --- All of them


def run(name: str, check: Callable[..., str | None], *arguments: Any, **options: Any) -> str | None:
    """Run a check; an exception is a failure too."""
    try:
        return check(*arguments, **options)
    except NotTaken:
        return None
    except TemplateError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def all_failures(renderer: Renderer, reference: Reference) -> Iterator[tuple[str, str]]:
    """Every check with its fixed cases: the names of those that fail, and why."""

    def named(name: str, check: Callable[..., str | None], *rest: Any, **options: Any) -> Any:
        reason = run(name, check, renderer, reference, *rest, **options)
        return [(name, reason)] if reason else []

    for name, turn in turns_with_calls(reference):
        yield from named(f"round trip: {name}", round_trip, turn)
        yield from named(f"encoded: {name}", encoded, turn)
    for name, turn in answers(reference):
        yield from named(f"round trip: {name}", round_trip, turn)
        yield from named(f"encoded: {name}", encoded, turn)
    for name, turn, options in conversations(reference):
        yield from named(f"appended: {name}", appended, turn, **options)
    yield from named("stops: calls", stops, calling(*MARKED[:1]))
    yield from named("stops: answer", stops, ANSWER)
    yield from named("stops: closes", cut_is_empty)
    yield from named("spelled", spelled)
    yield from named("offered", offered)
    yield from named("shown", shown)
    yield from named("ids", call_ids)
    added = sorted(reference.tokenizer.get_added_vocab())
    yield from named("injection: all at once", hostile, " ".join(added))
    for token in added:
        yield from named(f"injection: {token}", hostile, token)
