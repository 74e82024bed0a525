"""Ids that have a logit and no token: beyond the last token, or in a hole of the vocabulary."""

from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.agents.loading.vocabulary import unused_ids, unused_ids_of
from padded_vocabulary import HOLES, tokenizer_with_holes


def test_ids_beyond_the_tokens_are_unused_and_added_tokens_are_not() -> None:
    tokenizer = tiny_tokenizer(400)
    assert unused_ids(tokenizer, 410) == list(range(400, 410))
    tokenizer.add_tokens(["<one more>"])
    assert unused_ids(tokenizer, 410) == list(range(401, 410))
    assert unused_ids(tokenizer, 401) == []


def test_holes_are_unused() -> None:
    assert unused_ids(tokenizer_with_holes(), 402) == [*HOLES, 400, 401]


def test_the_ids_are_those_of_the_larger_of_two_models() -> None:
    tokenizer = tiny_tokenizer(400)
    small, large = tiny_model(402), tiny_model(404)
    assert unused_ids_of(tokenizer, small) == [400, 401]
    assert unused_ids_of(tokenizer, small, large) == list(range(400, 404))
