"""What a model's cache may be continued with, tried on a few tokens."""

import copy
from enum import Enum
from typing import Any

import torch

from gymnast.agents.caches.own_pass import OwnPass
from gymnast.agents.caches.parts import tensors
from gymnast.agents.models.double_precision import Precision


class Continuation(Enum):
    """What a kept cache may be continued with."""

    CHUNK = "any number of tokens"
    TOKEN = "one token at a time"
    NOTHING = "nothing: every pass computes the whole context"


def find_continuation(
    run: OwnPass, ids: list[int], first: int, whole: torch.Tensor, precision: Precision
) -> Continuation:
    """Compare continued passes with one over the whole.

    Args:
        run: The model's pass.
        ids: Some tokens.
        first: How many of them the first pass takes.
        whole: The logits of all tokens, [n, V].
        precision: In what to compare.
    """

    def differ(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        return precision.differ(ours, theirs) is not None

    begun, cache = run.one(ids[:first], None, 0)
    if cache is None or differ(begun, whole[:first]):
        return Continuation.NOTHING
    untouched, noisy = copy.deepcopy(cache), copy.deepcopy(cache)
    at_once, _ = run.one(ids[first:], copy.deepcopy(cache), first)
    one_by_one = []
    for at in range(first, len(ids)):
        token, cache = run.one(ids[at : at + 1], cache, at)
        one_by_one.append(token)
    if differ(torch.cat(one_by_one), whole[first:]):
        return Continuation.NOTHING
    # The copies must not have changed with the original.
    again, _ = run.one(ids[first:], untouched, first)
    if differ(again, at_once):
        return Continuation.NOTHING
    if differ(at_once, whole[first:]):
        return Continuation.TOKEN
    noise = (again - at_once).norm().item()
    whole_state = _chunks_see_all_of(run, noisy, ids[first:], first, at_once, noise)
    return Continuation.CHUNK if whole_state else Continuation.TOKEN


def _chunks_see_all_of(
    run: OwnPass, cache: Any, ids: list[int], length: int, logits: torch.Tensor, noise: float
) -> bool:
    """Whether a pass over several tokens uses every part of the cache.

    Some models drop their recurrent state there. With random weights, or in half precision,
    that changes the logits by little; that a part has no effect at all cannot be missed.

    Args:
        run: The model's pass.
        cache: Of the first tokens.
        ids: The tokens that follow.
        length: How many tokens come before.
        logits: What follows from the cache as it is, [n, V].
        noise: How much two computations of them differ (some GPU kernels are not exact).
    """
    kinds = {kind for kind, tensor in tensors(cache) if _holds_numbers(tensor)}
    for kind in sorted(kinds):
        changed = copy.deepcopy(cache)
        for other, tensor in tensors(changed):
            if other == kind and _holds_numbers(tensor):
                tensor.add_(torch.ones_like(tensor).cumsum(-1))
        effect = (run.one(ids, changed, length)[0] - logits).norm().item()
        if effect <= 10 * noise:  # a NaN is an effect
            return False
    return True


def _holds_numbers(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0  # and is no count of tokens
