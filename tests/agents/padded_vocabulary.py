"""A model with logits for ids that no token has, and would rather sample these than any other.

Its tokenizer has 398 tokens with ids up to 399: two of them are holes. The model has 416 logits.
"""

import json
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from gymnast.agents.loading.tiny import CHAT_TEMPLATE, MARKUP_TOKENS, tiny_model, tiny_tokenizer

HOLES = [394, 395]
LOGITS = 416
UNUSED = [*HOLES, *range(400, LOGITS)]


@cache
def tokenizer_with_holes() -> Any:
    """The last two tokens that were merged are taken out; those that were added come behind."""
    made = json.loads(tiny_tokenizer(400).backend_tokenizer.to_str())
    vocabulary = made["model"]["vocab"]
    gone = {token for token, number in vocabulary.items() if number in HOLES}
    merges = [pair for pair in made["model"]["merges"] if "".join(pair) not in gone]
    kept = {token: number for token, number in vocabulary.items() if token not in gone}
    added = {token: 396 + place for place, token in enumerate(MARKUP_TOKENS)}
    made["model"] |= {"vocab": kept | added, "merges": merges}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(made)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


def prefer_unused(model: Any) -> Any:
    """Have a model's head give the ids that are no tokens the largest logits; returns the model."""
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())  # untied
    model.config.get_text_config().tie_word_embeddings = False
    with torch.no_grad():
        head.weight[UNUSED] *= 10.0
    return model


def padded_model(**overrides: Any) -> Any:
    """Of Qwen3, packed."""
    return prefer_unused(tiny_model(LOGITS, **overrides))
