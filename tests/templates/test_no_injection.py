"""No text becomes an added token: all real templates, byte-level and SentencePiece-like tokenizers.

Every control token of a template's family, whole and torn, in every place of a conversation that
the template takes: the added tokens are those of the same conversation with harmless text.
"""

import itertools
from collections import Counter
from typing import Any

import pytest

from gymnast.envs import Renderer
from gymnast.errors import TemplateError
from template_corpus import Template, tokenizer_for
from template_tokenizers import of_family

pytestmark = pytest.mark.network

FAMILIES = ("metaspace_first", "gemma", "llama2", "metaspace_never", "metaspace_always")
OWN = "call00001"  # a call's id that the strictest templates take
CALLING = 3  # the conversation with a call
Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]] | None]


def count(renderer: Renderer, ids: list[int]) -> Counter[str]:
    tokens = renderer.tokenizer.added_tokens_decoder
    return Counter(
        tokens[number].content
        for number in ids
        if number in tokens and len(tokens[number].content.strip("\u2581 \n")) > 1
    ) - Counter({"<unk>": 10**9})


def hostile_text(renderer: Renderer) -> str:
    """The family's tokens: in a row, in capitals, torn by one another and by a joint."""
    tokens = list(count(renderer, sorted(renderer.tokenizer.added_tokens_decoder)))
    torn = [token[:3] + other + token[3:] for token, other in itertools.pairwise(tokens)]
    spaced = " ".join(map(str.upper, tokens))
    return "".join(tokens) + "\ue000" + spaced + "\n\ue000".join(torn) + "."


def conversations(text: str, own_id: str) -> list[Conversation]:
    """A text everywhere, in conversations that grow; templates refuse some of them."""
    function = {"name": text, "arguments": {text: text, "b": [text, {text: text}]}}
    call = {"type": "function", "function": function, "id": own_id}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    answered = {"role": "tool", "content": text, "name": text, "tool_call_id": own_id}
    schema = {
        "type": "object",
        "properties": {text: {"type": "string", "description": text, "enum": [text]}},
        "required": [text],
    }
    described = {"name": text, "description": text, "parameters": schema}
    tools = [{"type": "function", "function": described}]
    user, said = {"role": "user", "content": text}, {"role": "assistant", "content": text}
    system = {"role": "system", "content": text}
    return [
        ([user, said, user], None),
        ([system, user], None),
        ([user], tools),
        ([user, calling, answered, said, user], tools),
        ([user, said | {"reasoning_content": text}, user], None),
    ]


def prompted(renderer: Renderer, talk: Conversation) -> Counter[str] | None:
    try:
        return count(renderer, renderer.prompt(*talk))
    except TemplateError:
        return None


def observed(renderer: Renderer, text: str, own_id: str) -> Counter[str] | None:
    result = {"role": "tool", "content": text, "name": text, "tool_call_id": own_id}
    context = renderer.stop_ids[:1]
    try:
        return count(renderer, renderer.observe(context, [result])) + count(
            renderer, renderer.observe(context, [{"role": "user", "content": text}])
        )
    except TemplateError:
        return None


def findings(renderer: Renderer) -> list[str]:
    """Where a text makes a difference; the last conversation has it for a call's id, too."""
    found, text = [], hostile_text(renderer)
    tried = zip(conversations("x", OWN), conversations(text, OWN), strict=True)
    free = list(zip(conversations("x", "x"), conversations(text, text), strict=True))
    for index, (plain, nasty) in enumerate([*tried, free[CALLING]]):
        expected = prompted(renderer, plain)
        if expected is not None and prompted(renderer, nasty) != expected:
            found.append(f"conversation {index} with {text!r}")
    for own, other in ((OWN, OWN), ("x", text)):
        after = observed(renderer, "x", own)
        if after is not None and observed(renderer, text, other) != after:
            found.append(f"after a turn, {text!r}, id {other!r}")
    return found


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
def test_no_text_becomes_a_token_in_any_real_template(
    kind: str, templates: dict[str, Template]
) -> None:
    failing, checked = {}, 0
    for template, family in zip(templates.values(), itertools.cycle(FAMILIES), strict=False):
        tokenizer = tokenizer_for(template)
        if kind == "sentencepiece":
            tokenizer = of_family(tokenizer, family)
        try:
            renderer = Renderer(tokenizer)
        except TemplateError:
            continue
        checked += 1
        if found := findings(renderer):
            failing[template.name] = found[0][:600]
    assert checked >= 165 and not failing
