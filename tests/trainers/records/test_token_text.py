"""The text of each token, on tokenizers of every kind, against the definition itself."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer, WordPieceTrainer
from transformers import PreTrainedTokenizerFast

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.trainers.records.token_text import fingerprint, token_text
from template_tokenizers import MAKERS as FAMILIES

CORPUS = [
    "What is 3 plus 4?",
    "the price of tea is 4",
    "naïve café",
    "a  b\n\tc",
    "<x>日本</x>",
] * 4
SPECIAL = ["<unk>", "<|end|>", "<|ü end|>"]


def byte_fallback() -> Any:
    """As Llama 2 and Gemma: bytes are tokens, and the first space is left out."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdt", "▁a", "é"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[("▁", "a")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return wrapped(tokenizer)


def word_pieces() -> Any:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer = WordPieceTrainer(vocab_size=90, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return wrapped(tokenizer)


def byte_level() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return wrapped(tokenizer)


def wrapped(tokenizer: Tokenizer) -> Any:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.add_tokens(SPECIAL, special_tokens=True)
    fast.add_tokens(["日本", "�"])
    return fast


MAKERS = {
    "tiny": tiny_tokenizer,
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "word_pieces": word_pieces,
    **{name: FAMILIES[name] for name in ("gpt2", "gaps", "gemma", "metaspace_first", "t5")},
}


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {name: make() for name, make in MAKERS.items()}


@pytest.fixture(scope="module", params=MAKERS)
def each_tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Any]) -> Any:
    return tokenizers[request.param]


def defined(tokenizer: Any, ids: list[int]) -> list[int]:
    """The ends by their definition, word for word."""

    def decode(some: list[int]) -> str:
        text: str = tokenizer.decode(
            some, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    whole, ends = decode(ids), list[int]()
    for count in range(1, len(ids) + 1):
        beginning, shared = decode(ids[:count]), 0
        while whole[:shared] == beginning[:shared] and shared <= min(len(whole), len(beginning)):
            shared += 1
        end = len(whole[: shared - 1].encode())
        ends.append(max([end, *ends]))
    return ends


@given(data=st.data())
def test_ends_are_as_defined_for_any_ids(data: st.DataObject, each_tokenizer: Any) -> None:
    size = len(each_tokenizer)
    numbers = st.integers(0, size - 1) | st.integers(0, min(size - 1, 300))
    ids = data.draw(st.lists(numbers, max_size=24))
    found = token_text(each_tokenizer, ids)
    assert found.ends == defined(each_tokenizer, ids)


@given(text=st.text(st.sampled_from("ab é日本🍵\n�€ c"), max_size=16))
def test_ends_are_as_defined_for_text(text: str, each_tokenizer: Any) -> None:
    ids = each_tokenizer.encode(text, add_special_tokens=False)
    found = token_text(each_tokenizer, ids)
    assert found.ends == defined(each_tokenizer, ids)


@given(data=st.data())
def test_the_pieces_are_the_text_and_each_is_text(data: st.DataObject, each_tokenizer: Any) -> None:
    numbers = st.integers(0, len(each_tokenizer) - 1)
    ids = data.draw(st.lists(numbers, min_size=1, max_size=24))
    text, ends = token_text(each_tokenizer, ids)
    starts = [0, *ends[:-1]]
    pieces = [text.encode()[a:b].decode() for a, b in zip(starts, ends, strict=True)]
    assert "".join(pieces) == text


def test_a_character_of_several_tokens_is_of_the_last_and_a_broken_one_of_the_first(
    tokenizers: dict[str, Any],
) -> None:
    tokenizer = tokenizers["byte_level"]
    cup = tokenizer.encode("🍵", add_special_tokens=False)
    assert len(cup) == 4
    letter = tokenizer.encode("a", add_special_tokens=False)
    assert token_text(tokenizer, cup + letter) == ("🍵a", [0, 0, 0, 4, 5])
    assert token_text(tokenizer, cup[:3] + letter) == ("�a", [3, 3, 3, 4])


def test_no_tokens_have_no_text(each_tokenizer: Any) -> None:
    assert token_text(each_tokenizer, []) == ("", [])


def test_a_token_that_is_added_later_is_read() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("new", add_special_tokens=False)
    assert token_text(tokenizer, ids).text == "new"
    tokenizer.add_tokens(["brand new"])
    ids = tokenizer.encode("brand new", add_special_tokens=False)
    assert token_text(tokenizer, ids) == ("brand new", [9])


def test_equal_vocabularies_have_one_fingerprint_and_others_another() -> None:
    one, same, other = tiny_tokenizer(), tiny_tokenizer(), tiny_tokenizer()
    assert fingerprint(one) == fingerprint(same)
    assert len(fingerprint(one)) == 16
    other.add_tokens(["brand new"])
    assert fingerprint(other) != fingerprint(one)
    one.chat_template = "another"
    assert fingerprint(one) == fingerprint(same)
