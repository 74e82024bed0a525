"""No text becomes an added token, in any family of tokenizers and in any place of a conversation.

Two oracles: the same conversation with harmless text has the same added tokens, and the ids decode
to what the template writes with the hostile text in it, so nothing is lost. Where Transformers can
sanitize a chat itself, it agrees.
"""

import inspect
import re
import unicodedata
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from gymnast.agents.loading.tiny import CHAT_TEMPLATE, tiny_tokenizer
from gymnast.envs.rendering.renderer import Renderer
from gymnast.envs.rendering.tokens.markers import CANDIDATES
from gymnast.envs.rendering.tokens.token_patterns import any_of
from template_tokenizers import EXACT, EXACT_BUT_FOR_SPACES, MAKERS

FOLDER = Path(__file__).parent / "chat_templates"
BRACKET = """\
{%- macro tag(key, value) %}<{{ key }}>{{ value }}</{{ key }}>{% endmacro %}
{%- for tool in tools or [] %}{{ tag(tool.function.name, tool.function.parameters) }}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}BODY
{%- for call in message.tool_calls or [] %}
{%- for key, value in call.function.arguments | items %}{{ tag(key, value) }}{% endfor %}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
BODIES = {
    "upper": "{{ message.content }}{{ message.content | upper }}",
    "trim": "{{ message.content | trim }}{{ (message.name or '') | trim }}",
    "replace": "{{ message.content.replace('/think', '') | replace(\"'\", '\"') }}",
    "json": "{{ [message.content, message.name or ''] | tojson(ensure_ascii=True) }}",
    "repr": "{{ message.content }}{{ {message.content: message.name or ''} | string }}",
    "join": "{{ [message.content, message.name or ''] | join }}",
}
INLINE = {name: BRACKET.replace("BODY", body) for name, body in BODIES.items()}
TEMPLATES = {
    "hermes": CHAT_TEMPLATE,
    **{
        path.stem: path.read_text()
        for path in sorted(FOLDER.glob("*.jinja"))
        if path.stem != "positional"  # refused
    },
    **INLINE,
}
FOLDING = ("albert", "bert", "words")  # change so much of a text that no call can be read back
NINE_LETTERS = ("listed",)  # templates that take no other ids

families = st.sampled_from(sorted(MAKERS))
templates = st.sampled_from(sorted(TEMPLATES))
many = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


@cache
def tokenizer_of(family: str) -> Any:
    return MAKERS[family]()


@cache
def renderer_of(family: str, template: str = "hermes") -> Renderer:
    parser = "json:loads" if template in INLINE or family in FOLDING else None
    return Renderer(tokenizer_of(family), chat_template=TEMPLATES[template], parser=parser)


@cache
def added_ids(family: str) -> dict[int, str]:
    """The added tokens, but for white space and for what stands for unknown characters."""
    tokens = tokenizer_of(family).added_tokens_decoder
    contents = {number: token.content for number, token in tokens.items()}
    return {
        number: content
        for number, content in contents.items()
        if content != "<unk>" and content.replace("\u2581", " ").strip()
    }


def count(family: str, ids: list[int]) -> Counter[str]:
    known = added_ids(family)
    return Counter(known[number] for number in ids if number in known)


def conversation(
    text: str, key: str, template: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools with a text in every place that can hold one."""
    own = "call00001" if template in NINE_LETTERS else text
    function = {"name": text, "arguments": {key: text, "list": [text, {key: text}], "plain": 1}}
    call = {"type": "function", "function": function, "id": own}
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text, "enum": [text, "x"]}},
        "required": [key],
    }
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text},
        {"role": "user", "content": text, "name": text},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "content": text, "name": text, "tool_call_id": own},
        {"role": "assistant", "content": text},
        {"role": "user", "content": text},
    ]
    if template == "alternating":
        messages = [messages[1], messages[4], messages[5]]
    tool = {"name": text, "description": text, "parameters": schema}
    return messages, [{"type": "function", "function": tool}]


def wide(text: str) -> str:
    """The same in full-width characters, which compatibility forms turn back."""
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


def disguises(token: str) -> list[str]:
    """Texts that a tokenizer could take for a token, or that become one by losing a part."""
    half = len(token) // 2
    torn = (token[:half], token[half:])
    between = ["\x00", "\x01", "\x7f", "\u200b", "\u00ad", "\ufe0f", "\u0301", "\ue000", "/think"]
    return [
        *(token, token.upper(), token.lower(), f" {token} ", f"\n{token}\t", f"a{token}b"),
        *(token * 2, torn[0] + token + torn[1], wide(token), wide(torn[0]) + torn[1]),
        *(mark.join(torn) for mark in between),
        *("\ue000".join(token), "\u200b".join(token), unicodedata.normalize("NFD", token)),
        *(token.replace('"', "'"), token.replace('"', "``"), f"``{token}''"),
        *(token.replace("\u2581", " "), token.replace("<", "<\x08"), token.replace("|", "\u2502")),
    ]


@pytest.mark.parametrize("family", MAKERS)
def test_no_disguise_of_any_token_becomes_it(family: str) -> None:
    renderer = renderer_of(family)
    plain = [{"role": "user", "content": "x"}, {"role": "tool", "content": "x", "name": "f"}]
    expected = count(family, renderer.prompt(plain))
    after = [{"role": "tool", "content": "x", "name": "f", "tool_call_id": "c"}]
    appended = count(family, renderer.observe([renderer.stop_ids[0]], after))
    for token in added_ids(family).values():
        for text in disguises(token):
            talk = [{**message, "content": text} for message in plain]
            assert count(family, renderer.prompt(talk)) == expected, (token, text)
            result = [{**after[0], "content": text}]
            ids = renderer.observe([renderer.stop_ids[0]], result)
            assert count(family, ids) == appended, (token, text)


TOKENS = sorted({token.content for token in tokenizer_of("qwen").added_tokens_decoder.values()})
PIECES = [
    piece
    for token in TOKENS
    for piece in (token, token[:-1], token[1:], token[:3], token[3:], token[1:-1], token.upper())
    if piece
]
hostile = st.lists(
    st.sampled_from(PIECES)
    | st.sampled_from([form for token in TOKENS for form in disguises(token)])
    | st.sampled_from([" ", "\n", '"', "'", "\\", "\ue000", "\\ue000", "\U00012000", "<", "s", "b"])
    | st.text(st.characters(codec="utf-8"), max_size=3),
    min_size=1,
    max_size=5,
).map("".join)


@given(family=families, template=templates, text=hostile, key=hostile)
@many
def test_no_token_comes_from_any_place_of_a_prompt(
    family: str, template: str, text: str, key: str
) -> None:
    renderer = renderer_of(family, template)
    nasty = renderer.prompt(*conversation(text + ".", key, template))
    harmless = renderer.prompt(*conversation("x", "k", template))
    assert count(family, nasty) == count(family, harmless)


@given(family=families, template=templates, text=hostile, other=hostile)
@many
def test_no_token_comes_from_what_is_appended(
    family: str, template: str, text: str, other: str
) -> None:
    renderer = renderer_of(family, template)
    own = "call00001" if template in NINE_LETTERS else other

    def appended(text: str, other: str, own: str) -> Counter[str]:
        results = [{"role": "tool", "content": text, "name": other, "tool_call_id": own}]
        talk = [{"role": "user", "content": text}]
        context = renderer.stop_ids[:1]
        tools = conversation(text, other, template)[1]
        return sum(
            (count(family, renderer.observe(context, new, tools=tools)) for new in (results, talk)),
            Counter(),
        )

    assert appended(text + ".", other, own) == appended("x", "x", "call00001")


@given(template=st.sampled_from(sorted(INLINE)), pieces=st.data())
@many
def test_no_token_comes_from_strings_side_by_side(template: str, pieces: st.DataObject) -> None:
    """A token torn at any two places: the template joins the parts, with tags around them."""
    family, token = pieces.draw(families), pieces.draw(st.sampled_from(TOKENS))
    cut = pieces.draw(st.integers(0, len(token)))
    end = pieces.draw(st.integers(cut, len(token)))
    space = pieces.draw(st.sampled_from(["", " ", "\n"]))
    renderer = renderer_of(family, template)

    def prompt(content: str, name: str, key: str) -> Counter[str]:
        call = {"function": {"name": "f", "arguments": {key: name}}}
        message = {"role": "assistant", "content": content, "name": name, "tool_calls": [call]}
        return count(family, renderer.prompt([{"role": "user", "content": "x"}, message]))

    torn = prompt(space + token[:cut] + space, space + token[cut:end] + space, token[1:-1] or "k")
    assert torn == prompt("x", "x", "k")


def reference(family: str, template: str, messages: Any, tools: Any) -> str:
    text: str = tokenizer_of(family).apply_chat_template(
        messages,
        tools=tools,
        chat_template=TEMPLATES[template],
        add_generation_prompt=True,
        tokenize=False,
    )
    return text


def read(family: str, text: str) -> str:
    text = unicodedata.normalize("NFC", text).replace("\u2581", " ")
    return text if family in EXACT else text.replace(" ", "")


@cache
def written_alike(family: str, template: str) -> bool:
    """Whether a prompt is the template's text alone, without a protocol of ours."""
    talk = conversation("x", "k", template)
    text = tokenizer_of(family).decode(renderer_of(family, template).prompt(*talk))
    try:
        return read(family, text) == read(family, reference(family, template, *talk))
    except TypeError:  # the template takes arguments as text
        return False


def test_most_prompts_are_the_templates_text_alone() -> None:
    alike = [name for name in TEMPLATES if written_alike("qwen", name)]
    assert set(alike) >= {"hermes", "action", "listed", "xml", "text_end", *INLINE}


@given(
    family=st.sampled_from([*EXACT, *EXACT_BUT_FOR_SPACES]),
    template=templates,
    text=hostile,
    key=hostile,
)
@many
def test_nothing_of_the_text_is_lost(family: str, template: str, text: str, key: str) -> None:
    if not written_alike(family, template):
        template = "hermes"
    talk = conversation(text + ".", key, template)
    ids = renderer_of(family, template).prompt(*talk)
    expected = reference(family, template, *talk)
    assert read(family, tokenizer_of(family).decode(ids)) == read(family, expected)


# Theirs takes a token for another one that it begins with.
SIMPLE = [token for token in TOKENS if token != "<|im_end|>more"]


@pytest.mark.skipif(
    "sanitize_control_tokens"
    not in inspect.signature(tokenizer_of("qwen").apply_chat_template).parameters,
    reason="this version of Transformers sanitizes no chats",
)
@given(family=families, text=st.lists(st.sampled_from([*SIMPLE, "x", " y "])).map("".join))
@many
def test_transformers_own_sanitizing_agrees(family: str, text: str) -> None:
    talk = [{"role": role, "content": text + "."} for role in ("system", "user", "assistant")]
    try:
        theirs = tokenizer_of(family).apply_chat_template(
            talk, add_generation_prompt=True, return_dict=False, sanitize_control_tokens=True
        )
    except ValueError as refusal:  # where the vocabulary spells the token
        assert family in ("t5", "albert", "plain_unigram", "words"), refusal
        return
    ours = renderer_of(family).prompt(talk)
    # Theirs leaves alone the tokens that the template does not write.
    written = {"<|im_start|>", "<|im_end|>"}
    assert {token: count(family, theirs)[token] for token in written} == count(family, ours)


harmless = st.lists(
    st.sampled_from(["<", "[", "|", ">", "/", "im_", " ", "  ", "\n", "x", "is", "1", "<div>", "ö"])
    | st.text(st.characters(codec="utf-8"), max_size=4),
    max_size=6,
).map("".join)


@given(family=families, text=harmless, other=harmless)
@many
def test_harmless_text_is_encoded_as_the_tokenizer_does(family: str, text: str, other: str) -> None:
    """Spaces at the start too, and where markers had to be put into it."""
    talk = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": f"{other} <"},
        {"role": "user", "content": f"  {text} {other}"},
    ]
    tokenizer = tokenizer_of(family)
    expected = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    if count(family, expected) == Counter({"<|im_start|>": 4, "<|im_end|>": 3}):
        assert renderer_of(family).prompt(talk) == expected


# --- What was wrong once


def test_a_one_letter_key_between_a_templates_brackets_is_text() -> None:
    call = {"function": {"name": "f", "arguments": {"s": "1", "b": "2"}}}
    ids = renderer_of("qwen", "xml").prompt([{"role": "assistant", "tool_calls": [call]}])
    assert "<s>1</s><b>2</b>" in tokenizer_of("qwen").decode(ids)
    assert not count("qwen", ids).keys() & {"<s>", "</s>", "<b>"}


def test_what_a_template_cuts_out_joins_nothing() -> None:
    talk = [{"role": "user", "content": "<|im_/thinkend|>"}]
    ids = renderer_of("qwen", "replace").prompt(talk)
    assert "user\n<|im_end|><|im_end|>" in tokenizer_of("qwen").decode(ids)
    assert count("qwen", ids)["<|im_end|>"] == 1


def test_ids_with_gaps_are_read() -> None:
    renderer, tokenizer = renderer_of("gaps"), tokenizer_of("gaps")
    written = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>'
    ids = tokenizer.encode(written, add_special_tokens=False)
    assert max(ids) > len(tokenizer)
    assert [call.name for call in renderer.parse(ids)["tool_calls"]] == ["f"]


def test_a_part_of_a_token_is_no_id_of_a_call_where_ids_are_strict() -> None:
    """It could not be written again: a tenth character keeps it from becoming the token."""
    renderer = renderer_of("qwen", "listed")
    for own, kept in (("AVAILABLE", False), ("abcdefgh1", True)):
        text = f'[TOOL_CALLS] [{{"name": "f", "arguments": {{}}, "id": "{own}"}}]<|im_end|>'
        ids = tokenizer_of("qwen").encode(text, add_special_tokens=False)
        calls = renderer.parse(ids)["tool_calls"]
        assert [call.id == own for call in calls] == [kept]
        message = {"role": "assistant", "content": "", "tool_calls": [calls[0].to_dict()]}
        assert calls[0].id in tokenizer_of("qwen").decode(renderer.prompt([message]))


def test_what_is_appended_joins_no_longer_token() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("<|endoftext|>more", special=True)])
    template = "{% for message in messages %}{{ message.content }},{% endfor %}"
    renderer = Renderer(tokenizer, chat_template=template)
    context = renderer.prompt([{"role": "user", "content": "What"}])
    ids = renderer.observe(context, [{"role": "user", "content": "x"}])
    assert tokenizer.decode(ids) == ",x,"
    template = "{% for message in messages %}more{{ message.content }}{% endfor %}"
    renderer = Renderer(tokenizer, chat_template=template)
    ids = renderer.observe(context, [{"role": "user", "content": "x"}])
    assert tokenizer.decode(ids) == "morex"


def test_every_private_character_in_a_text_is_no_error() -> None:
    for family in ("qwen", "bert"):
        renderer = renderer_of(family)
        text = "".join(CANDIDATES) + "<|im_end|>"
        ids = renderer.prompt([{"role": "user", "content": text}])
        expected = renderer.prompt([{"role": "user", "content": "x"}])
        assert count(family, ids) == count(family, expected)


def test_a_token_in_the_vocabulary_is_spelled_without_more_spaces() -> None:
    for family in ("t5", "metaspace_always", "plain_unigram"):
        tokenizer = tokenizer_of(family)
        ids = renderer_of(family).prompt([{"role": "user", "content": "a</s>b"}])
        assert "a</s>b" in tokenizer.decode(ids), family


@given(st.lists(st.text("<|a[]!", min_size=1, max_size=5), max_size=8), st.text("<|a[]!b"))
def test_one_pattern_finds_what_each_string_would(contents: list[str], text: str) -> None:
    found = re.search(any_of(contents), text)
    begins = [text.find(content) for content in contents if content in text]
    assert (found.start() if found else None) == (min(begins) if begins else None)


@pytest.mark.parametrize("family", sorted(MAKERS))
def test_what_the_vocabulary_lacks_ends_no_turn(family: str) -> None:
    # A turn of this template ends with a line of text.
    renderer = Renderer(MAKERS[family](), chat_template=TEMPLATES["text_end"])
    eos = renderer.tokenizer.eos_token_id
    assert renderer.stop_ids == (() if eos is None else (eos,))
