"""What is left of a turn's end, after every way in which an action can stop."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering.template.turns import TurnMarkup, after_cut, after_stop, end_of_turn
from gymnast.envs.rendering.tokens.safe_text import SafeText

AFTER = "\n</s>\n<|im_start|>user\nSure?<|im_end|>\n"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["</s>", "<|more|>", "<|turn|>", "</t>"])
    return tokenizer


@pytest.fixture(scope="module")
def text(tokenizer: Any) -> SafeText:
    return SafeText(tokenizer)


def turns(tokenizer: Any, **known: Any) -> TurnMarkup:
    """How a template brackets a turn, its tokens given by their contents."""
    for key in ("closing", "opening", "historic"):
        tokens = known.get(key, [])
        known[key] = frozenset(tokenizer.convert_tokens_to_ids(token) for token in tokens)
    return TurnMarkup(**{"header": "", "after_last": "", **known})


def after_a_cut(text: SafeText, end: TurnMarkup, written: str, after: str) -> str:
    context = text.encode(written)
    return text.decode(after_cut(text.encode(after, inside=True), context, end, text))


def test_a_turn_cut_inside_of_its_end_gets_the_rest(tokenizer: Any, text: SafeText) -> None:
    closed = turns(tokenizer, closing=["</s>"], after_text="</t>")
    for after in (AFTER, "</t>\n</s>\n", "(over)\n\n</s>"):
        for length in range(after.index("</s>") + 1):
            if not after.startswith("</t>") or length not in range(1, 4):  # a token is not cut
                written = "So it is" + after[:length]
                assert written + after_a_cut(text, closed, written, after) == "So it is" + after


def test_a_turn_cut_elsewhere_gets_the_whole_end(tokenizer: Any, text: SafeText) -> None:
    closed = turns(tokenizer, closing=["</s>"])
    for written in ("", "So", "So\n\nit", "<tool_call>\n{", "\n</s", "</t>", "</s>\nAnd"):
        assert after_a_cut(text, closed, written, AFTER) == AFTER


def test_what_a_models_tokens_merge_is_seen_as_text(tokenizer: Any, text: SafeText) -> None:
    closed = turns(tokenizer, closing=["</s>"])
    ids = text.encode(AFTER, inside=True)
    for letters in ("it is.\n", "}\n", "\n\n", " \n"):
        one_by_one = [number for letter in letters for number in text.encode(letter, inside=True)]
        for context in (one_by_one, text.encode(letters, inside=True)):
            assert text.decode(after_cut(ids, context, closed, text)) == AFTER[1:]


def test_markup_before_the_end_is_not_written_twice(tokenizer: Any, text: SafeText) -> None:
    closed = turns(tokenizer, closing=["</s>"], after_text="</t>")
    after = "</t></s>\n<|im_start|>user\n"
    assert after_a_cut(text, closed, "So</t>", after) == "</s>\n<|im_start|>user\n"
    assert after_a_cut(text, closed, "So", after) == after


def test_where_nothing_ends_a_turn_nothing_is_left_out(tokenizer: Any, text: SafeText) -> None:
    assert after_a_cut(text, turns(tokenizer), "So\n", "\nuser: ") == "\nuser: "
    assert after_cut([], text.encode("So"), turns(tokenizer), text) == []
    closed = turns(tokenizer, closing=["</s>"])
    assert text.decode(after_cut(text.encode(AFTER, inside=True), [], closed, text)) == AFTER


def test_an_end_that_comes_only_later_is_another_turns(tokenizer: Any, text: SafeText) -> None:
    closed = turns(tokenizer, closing=["</s>"])
    after = "\n<|turn|>user\n7</s>"
    assert after_a_cut(text, closed, "So" + after[:-4], after) == after


def test_the_space_that_a_decoder_drops_is_still_written() -> None:
    vocabulary = {letter: number for number, letter in enumerate(["<unk>", "\u2581", "a", "b"])}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_tokens([AddedToken("</s>", normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    space, end = 1, tokenizer.convert_tokens_to_ids("</s>")
    text = SafeText(tokenizer)
    assert text.decode([space]) == ""
    left = after_cut([space, end], [2, 3], turns(tokenizer, closing=["</s>"]), text)
    assert left == [space, end]


# --- After a stop token


def after_a_stop(tokenizer: Any, text: SafeText, end: TurnMarkup, sampled: str, after: str) -> str:
    number = tokenizer.convert_tokens_to_ids(sampled)
    return text.decode(after_stop(text.encode(after, inside=True), number, end, text))


def test_what_follows_the_sampled_end_is_left(tokenizer: Any, text: SafeText) -> None:
    closed = turns(tokenizer, closing=["</s>", "<|more|>"])
    for sampled in ("</s>", "<|more|>", "<|im_end|>"):  # another one stands in its place
        left = after_a_stop(tokenizer, text, closed, sampled, AFTER)
        assert left == "\n<|im_start|>user\nSure?<|im_end|>\n"


def test_markup_before_a_sampled_end_is_not_written_after_it(
    tokenizer: Any, text: SafeText
) -> None:
    closed = turns(tokenizer, closing=["</s>"], after_text="</t>")
    left = after_a_stop(tokenizer, text, closed, "</s>", "</t></s>\n<|turn|>user\n")
    assert left == "\n<|turn|>user\n"


def test_the_next_turns_token_is_written_unless_it_was_sampled(
    tokenizer: Any, text: SafeText
) -> None:
    opened = turns(tokenizer, opening=["<|turn|>", "<|more|>"])
    assert after_a_stop(tokenizer, text, opened, "<|turn|>", "<|turn|>user\n") == "user\n"
    assert after_a_stop(tokenizer, text, opened, "<|more|>", "<|turn|>user\n") == "<|turn|>user\n"
    assert after_a_stop(tokenizer, text, opened, "</s>", "\nuser: ") == "\nuser: "


def test_an_end_that_history_writes_otherwise_is_an_end(tokenizer: Any, text: SafeText) -> None:
    historic = turns(tokenizer, closing=["</s>"], historic=["<|im_end|>"])
    left = after_a_stop(tokenizer, text, historic, "</s>", "<|im_end|>\n<|turn|>user\n")
    assert left == "\n<|turn|>user\n"


# --- An end, and nothing after it


def test_the_end_of_a_turn_is_written_up_to_its_token(tokenizer: Any, text: SafeText) -> None:
    closed = turns(tokenizer, after_last="</t>\n</s>\n[end]", closing=["</s>"])
    assert text.decode(end_of_turn(closed, text)) == "</t>\n</s>"
    opener = tokenizer.convert_tokens_to_ids("<|turn|>")
    opened = turns(tokenizer, after_last="\n", opening=["<|turn|>"], next_opening=opener)
    assert text.decode(end_of_turn(opened, text)) == "\n<|turn|>"
    assert text.decode(end_of_turn(turns(tokenizer, after_last="\n---\n"), text)) == "\n---\n"
