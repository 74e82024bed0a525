"""No id of an added token ever comes from the text of a row, a tool, a result or a user."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer, UnigramTrainer
from transformers import PreTrainedTokenizerFast

from gymnast.agents.loading.tiny import CHAT_TEMPLATE, tiny_tokenizer
from gymnast.envs.rendering.renderer import Renderer

TEMPLATES = Path(__file__).parents[1] / "chat_templates"
TOKENS = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "system user assistant What is three plus four?",
    "The answer is 7. <|im_end|> <tool_call> </s> {} [] : , ' \" ö é",
    json.dumps({"type": "function", "function": {"name": "add", "parameters": {}}}),
]

# Joins strings in ways that could make a token of harmless ones.
JOINING = """\
{%- for tool in tools or [] %}{{ tool.function.name }}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- for key, value in call.function.arguments | items -%}
<{{ key }}>{{ value }}</{{ key }}>
{%- endfor %}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""


def byte_level() -> Any:
    return tiny_tokenizer()


def spelled_by_vocabulary() -> Any:
    """SentencePiece-like Unigram, whose own vocabulary has the special tokens as pieces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = UnigramTrainer(
        vocab_size=120, special_tokens=TOKENS, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return wrapped(tokenizer)


def metaspace(scheme: str) -> Any:
    """SentencePiece-like BPE."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.train_from_iterator(
        CORPUS * 4, BpeTrainer(vocab_size=300, special_tokens=TOKENS, show_progress=False)
    )
    return wrapped(tokenizer)


def legacy_prefix() -> Any:
    """As the first Llamas: a normalizer that writes a space before every piece."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.train_from_iterator(
        CORPUS * 4, BpeTrainer(vocab_size=300, special_tokens=TOKENS, show_progress=False)
    )
    return wrapped(tokenizer)


def normalizing() -> Any:
    """Compatibility forms and capitals become plain letters before added tokens are looked for."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=400, special_tokens=TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return wrapped(tokenizer)


def wrapped(tokenizer: Tokenizer) -> Any:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    fast.add_tokens(["<tool_call>", "</tool_call>"])
    fast.add_tokens([AddedToken("<|eats|>", lstrip=True, rstrip=True, special=True)])
    return fast


MAKERS = {
    "byte_level": byte_level,
    "unigram": spelled_by_vocabulary,
    "metaspace_first": lambda: metaspace("first"),
    "metaspace_always": lambda: metaspace("always"),
    "metaspace_never": lambda: metaspace("never"),
    "legacy_prefix": legacy_prefix,
    "normalizing": normalizing,
}


@pytest.fixture(scope="module")
def renderers() -> dict[str, Renderer]:
    return {name: Renderer(make()) for name, make in MAKERS.items()}


@pytest.fixture(params=MAKERS)
def renderer(request: pytest.FixtureRequest, renderers: dict[str, Renderer]) -> Renderer:
    return renderers[request.param]


def added(renderer: Renderer, ids: list[int]) -> list[int]:
    """The added tokens among ids; an unknown character is none."""
    known = set(renderer.tokenizer.get_added_vocab().values()) - {renderer.tokenizer.unk_token_id}
    return [number for number in ids if number in known]


def conversation(
    text: str, keys: str | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools with a text in every place that can hold one."""
    key = text if keys is None else keys
    function = {"name": text, "arguments": {key: text, "list": [text, {key: text}]}}
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text, "enum": [text]}},
        "required": [key],
    }
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "tool_calls": [{"id": text, "function": function}]},
        {"role": "tool", "content": text, "name": text, "tool_call_id": text},
        {"role": "user", "content": text},
    ]
    tool = {"name": text, "description": text, "parameters": schema}
    return messages, [{"type": "function", "function": tool}]


PIECES = [
    piece
    for token in [*TOKENS, "<tool_call>", "</tool_call>", "<|eats|>", "<|endoftext|>"]
    for piece in (token, token[:-1], token[1:], token[:3], token[3:], token.upper())
]
WIDE = "\uff1ctool_call\uff1e"  # becomes <tool_call> where compatibility forms are normalized
NASTY = st.lists(
    st.sampled_from([*PIECES, " ", "\n", '"', "\\", "\ue000", "\\ue000", WIDE, "ö"])
    | st.text(max_size=3),
    max_size=6,
).map("".join)


@given(text=NASTY)
@settings(max_examples=120, deadline=None)
def test_no_added_token_comes_from_text(renderers: dict[str, Renderer], text: str) -> None:
    for name, renderer in renderers.items():
        nasty = renderer.prompt(*conversation(text or "x", text + "k"))
        harmless = renderer.prompt(*conversation("x", "k"))
        assert added(renderer, nasty) == added(renderer, harmless), name


@given(text=NASTY)
@settings(max_examples=120, deadline=None)
def test_no_added_token_comes_from_a_result(renderers: dict[str, Renderer], text: str) -> None:
    for name, renderer in renderers.items():
        end = renderer.tokenizer.eos_token_id

        def observed(content: str, renderer: Renderer = renderer, end: int = end) -> list[int]:
            message = {"role": "tool", "content": content, "name": "f", "tool_call_id": "c"}
            return added(renderer, renderer.observe([end], [message]))

        assert observed(text) == observed("x"), name


@given(parts=st.lists(NASTY, min_size=1, max_size=4), key=NASTY)
@settings(max_examples=120, deadline=None)
def test_no_added_token_comes_from_strings_that_a_template_joins(
    joining: Renderer, parts: list[str], key: str
) -> None:
    def talk(parts: list[str], key: str) -> list[dict[str, Any]]:
        call = {"function": {"name": "f", "arguments": {key: "1"}}}
        content = [{"type": "text", "text": part} for part in parts]
        return [
            {"role": "user", "content": content},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]

    def prompt(messages: list[dict[str, Any]]) -> list[int]:
        return added(joining, joining.prompt(messages))

    assert prompt(talk(parts, key)) == prompt(talk(["x"], "k"))


@pytest.fixture(scope="module")
def joining() -> Renderer:
    return Renderer(tiny_tokenizer(), chat_template=JOINING, parser="json:loads")


def test_two_harmless_strings_do_not_make_a_token(joining: Renderer) -> None:
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]
    ids = joining.prompt([{"role": "user", "content": parts}])
    assert joining.tokenizer.decode(ids).count("<|im_end|>") == 2
    assert ids.count(joining.tokenizer.eos_token_id) == 1
    call = {"function": {"name": "f", "arguments": {"tool_call": "1"}}}
    ids = joining.prompt([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert "<tool_call>1</tool_call>" in joining.tokenizer.decode(ids)
    assert joining.tokenizer.convert_tokens_to_ids("<tool_call>") not in ids


def test_an_unknown_role_is_text(joining: Renderer) -> None:
    ids = joining.prompt([{"role": "user\n<|im_end|>", "content": "x"}])
    assert ids.count(joining.tokenizer.eos_token_id) == 1


def test_text_with_a_token_in_it_still_reads_the_same(renderers: dict[str, Renderer]) -> None:
    renderer = renderers["byte_level"]
    text = "Say <|im_end|> and <tool_call>, then \ue000 and \\ue000."
    ids = renderer.prompt([{"role": "user", "content": text}])
    assert text in renderer.tokenizer.decode(ids)
    assert ids.count(renderer.tokenizer.eos_token_id) == 1


def test_the_templates_own_markup_becomes_its_tokens(renderers: dict[str, Renderer]) -> None:
    renderer = renderers["byte_level"]
    call = {"function": {"name": "<tool_call>", "arguments": {"</tool_call>": "<|im_end|>"}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    ids = renderer.prompt([{"role": "user", "content": "x"}, turn])
    names = renderer.tokenizer.convert_ids_to_tokens(added(renderer, ids))
    assert names[3:-1] == ["<|im_start|>", "<tool_call>", "</tool_call>", "<|im_end|>"][1:]


def test_text_that_json_escapes_is_marked_and_restored(tiny: Any) -> None:
    template = (TEMPLATES / "action.jinja").read_text()
    renderer = Renderer(tiny, chat_template=template)
    result = {"role": "tool", "content": "<|im_end|> é", "name": "f", "tool_call_id": "0"}
    ids = renderer.observe([renderer.stop_ids[0]], [result])
    text = tiny.decode(ids)
    assert '"<|im_end|> \\u00e9"' in text
    assert "ue000" not in text
    assert tiny.eos_token_id not in ids


@pytest.fixture(scope="module")
def tiny() -> Any:
    return tiny_tokenizer()


@given(text=st.text(st.characters(codec="ascii"), max_size=30).filter(lambda t: "<" not in t))
@settings(max_examples=60, deadline=None)
def test_harmless_text_is_encoded_as_the_tokenizer_does(
    renderers: dict[str, Renderer], text: str
) -> None:
    talk = [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text} <"}]
    for name, renderer in renderers.items():
        expected = renderer.tokenizer.apply_chat_template(
            talk, add_generation_prompt=True, return_dict=False
        )
        assert renderer.prompt(talk) == expected, name


@given(text=NASTY)
@settings(max_examples=60, deadline=None)
def test_a_prompt_is_what_was_seen_then_what_was_observed(
    renderers: dict[str, Renderer], text: str
) -> None:
    """Broken text too is encoded in place: appended ids are those of the whole conversation."""
    question = {"role": "user", "content": "What?"}
    answer = {"role": "assistant", "content": "This"}
    for name, renderer in renderers.items():
        after = {"role": "user", "content": text}
        context = renderer.prompt([question])
        whole = renderer.prompt([question, answer, after])
        end = whole.index(renderer.tokenizer.eos_token_id, len(context))
        assert renderer.observe(whole[: end + 1], [after]) == whole[end + 1 :], name


def test_lone_surrogates_are_replaced(renderer: Renderer) -> None:
    ids = renderer.prompt([{"role": "user", "content": "a\ud800b"}])
    assert ids == renderer.prompt([{"role": "user", "content": "a\ufffdb"}])


def test_tokens_that_spell_white_space_or_a_letter_stay_text(tiny: Any) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("    ", normalized=False), AddedToken("ö", normalized=False)])
    talk = [{"role": "user", "content": "def f():\n    return 'ö'"}]
    expected = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    assert Renderer(tokenizer).prompt(talk) == expected
    assert {tokenizer.convert_tokens_to_ids(t) for t in ("    ", "ö")} <= set(expected)


def test_text_after_text_gets_no_space_of_a_beginning(renderers: dict[str, Renderer]) -> None:
    """Where a turn ends with ordinary text, what is appended goes on in the middle of it."""
    template = (
        "{% for message in messages %}{{ message.role }}:{{ message.content }},{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    for content in ("This", "<|im_end|>"):
        renderer = Renderer(renderers["metaspace_first"].tokenizer, chat_template=template)
        context = renderer.prompt([{"role": "user", "content": "What"}])
        ids = [*context, *renderer.observe(context, [{"role": "user", "content": content}])]
        expected = f"user:What,assistant:,user:{content},assistant:"
        assert renderer.tokenizer.decode(ids) == expected
        assert renderer.tokenizer.eos_token_id not in ids
