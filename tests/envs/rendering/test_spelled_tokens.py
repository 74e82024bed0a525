"""Text that spells an added token is told from the token, where a completion has both."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from gymnast.envs.rendering.completion import decode_with_marker, without_marker
from gymnast.envs.rendering.tokens.safe_text import SafeText


@pytest.fixture(scope="module")
def text(tokenizer: Any) -> SafeText:
    return SafeText(tokenizer)


def spelled(tokenizer: Any, words: str) -> list[int]:
    """Ids that write the words letter by letter."""
    return [number for letter in words for number in tokenizer.encode(letter)]


def test_a_token_in_letters_is_marked_where_the_token_itself_is_there(
    tokenizer: Any, text: SafeText
) -> None:
    token = tokenizer.convert_tokens_to_ids("<tool_call>")
    ids = [token, *spelled(tokenizer, "say <tool_call>"), token]
    decoded, marker = decode_with_marker(ids, text)
    assert decoded == f"<tool_call>say <{marker}tool_call><tool_call>"
    assert marker and without_marker(decoded, marker) == tokenizer.decode(ids)


def test_letters_alone_are_taken_for_the_token(tokenizer: Any, text: SafeText) -> None:
    ids = spelled(tokenizer, "<tool_call>{}</tool_call>")
    assert decode_with_marker(ids, text) == ("<tool_call>{}</tool_call>", "")


def test_an_argument_may_spell_what_closes_the_call(tokenizer: Any, renderer: Any) -> None:
    opening, closing = tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    call = '{"name": "f", "arguments": {"</tool_call>": ["a </tool_call> b"]}}'
    ids = [opening, *spelled(tokenizer, call), closing, tokenizer.eos_token_id]
    (read,) = renderer.parse(ids)["tool_calls"]
    assert (read.arguments, read.error) == ({"</tool_call>": ["a </tool_call> b"]}, None)
    ids = [*spelled(tokenizer, "No <tool_call>."), opening, *spelled(tokenizer, "{}"), closing]
    message = renderer.parse(ids)
    assert message["content"] == "No <tool_call>."
    assert [bool(call.error) for call in message["tool_calls"]] == [True]


@given(
    ids=st.lists(st.integers(0, 1030) | st.sampled_from([None, -1, 2**70, "x", [1]]), max_size=30)
)
def test_nothing_is_lost_whatever_the_ids_are(text: SafeText, ids: list[Any]) -> None:
    decoded, marker = decode_with_marker(ids, text)
    assert without_marker(decoded, marker).count("<tool_call>") == text.decode(
        [number for number in ids if number is not None]
    ).count("<tool_call>")


def test_no_space_is_lost_where_decoders_strip_the_first() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁a": 0, "▁<end": 1, ">": 2}, unk_token="▁a"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<end>"])
    text = SafeText(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    decoded, marker = decode_with_marker([0, 3, 0, 1, 2, 3, 0], text)
    assert decoded == f"a<end> a <{marker}end><end> a"
