"""Which ids are tokens, and whether they are the same tokens of two models.

A model may have logits for more ids than its tokenizer has tokens: its vocabulary is padded, or has
holes. Those are never sampled, and count in no distribution.
"""

from typing import Any

from gymnast.errors import ModelError
from gymnast.visible import visible

SHOWN = 3  # how many tokens an error names


def check_same_vocabulary(tokenizer: Any, other: Any, name: str) -> None:
    """Check that two models mean the same tokens by the same ids, added ones included.

    Args:
        tokenizer: The policy's.
        other: That of a model which is to read the policy's ids.
        name: Of that model, for the error.

    Raises:
        ModelError: They differ; it names some of the tokens.
    """
    ours, theirs = tokenizer.get_vocab(), other.get_vocab()
    differing = sorted(
        (token for token in {*ours, *theirs} if ours.get(token) != theirs.get(token)),
        key=lambda token: (ours.get(token, theirs.get(token)), token),
    )
    if not differing:
        return
    shown = ", ".join(
        f"{visible(token)!r:.60} ({_id(ours, token)}, the teacher's {_id(theirs, token)})"
        for token in differing[:SHOWN]
    )
    more = f", and {len(differing) - SHOWN:,} more" if len(differing) > SHOWN else ""
    raise ModelError(
        f"algorithm.teacher.model: {name} must have the vocabulary of the policy, whose token ids "
        f"it reads; these tokens have other ids: {shown}{more}. Choose a teacher of the same family"
    )


def check_has_logits(model: Any, tokenizer: Any, name: str) -> None:
    """Check that a model has a logit for every token.

    Args:
        model: Of Transformers.
        tokenizer: Of the policy, whose tokens it reads.
        name: Of the model, for the error.

    Raises:
        ModelError: It has fewer.
    """
    logits, tokens = model.config.get_text_config().vocab_size, max(tokenizer.get_vocab().values())
    if logits <= tokens:
        raise ModelError(
            f"algorithm.teacher.model: {name} has logits for {logits:,} tokens, and the policy's "
            f"tokenizer has ids up to {tokens:,}; choose a teacher of the same family"
        )


def _id(vocabulary: dict[str, int], token: str) -> str:
    return str(vocabulary[token]) if token in vocabulary else "none"


def token_ids(tokenizer: Any) -> list[int]:
    """The ids of all tokens, in order; a model may have logits for more."""
    return sorted(set(tokenizer.get_vocab().values()))


def unused_ids(tokenizer: Any, logits: int) -> list[int]:
    """The ids that have a logit and no token, in order.

    Args:
        tokenizer: The model's.
        logits: How many the model has.
    """
    return sorted(set(range(logits)) - set(token_ids(tokenizer)))


def unused_ids_of(tokenizer: Any, model: Any, other: Any = None) -> list[int]:
    """The ids for which a model has a logit and there is no token.

    Args:
        tokenizer: The model's.
        model: Of Transformers.
        other: One more, which reads the same tokens: ids for which it has a logit count as well,
            unless it is on servers.
    """
    configs = [m.config for m in (model, other) if hasattr(m, "config")]
    sizes = [config.get_text_config().vocab_size for config in configs]
    return unused_ids(tokenizer, max(sizes))
