"""Aggregations: from a loss at every action token to one number for the whole batch.

    loss = sum over tokens of weight * token loss / normaliser

An aggregation says the weight of each sequence's tokens and what its sequences add to the
normaliser. Normalisers of micro-batches and of processes add up, so how a batch is divided
changes nothing. A sequence is the action tokens of one episode, in all of its
contexts.

A new aggregation is one function decorated by `@aggregation`.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from pydantic import Field

from gymnast.trainers.algorithms.registry import Registry

Aggregation = Callable[..., "Weights"]
F = TypeVar("F", bound=Callable[..., Any])


class Weights(NamedTuple):
    """How the tokens of S sequences count.

    Attributes:
        tokens: [S], the weight of each token of a sequence.
        normaliser: What these sequences add to the number that the sum is divided by.
    """

    tokens: torch.Tensor
    normaliser: float


AGGREGATIONS: Registry[Weights] = Registry("aggregation", "gymnast.aggregations")


def aggregation(function: F) -> F:
    """Let a config name a function from the lengths of sequences, [S], to `Weights`."""
    AGGREGATIONS.add(function, function)
    return function


@aggregation
def token_mean(lengths: torch.Tensor) -> Weights:
    """Every action token counts alike: sum over all tokens / number of all tokens.

    DAPO (Yu et al. 2025, arXiv:2503.14476), eq. 8, over the whole batch.

    Args:
        lengths: [S], int, the action tokens of each sequence.
    """
    return Weights(torch.ones_like(lengths, dtype=torch.float32), float(lengths.sum()))


@aggregation
def sequence_mean(lengths: torch.Tensor) -> Weights:
    """Every sequence counts alike: mean over sequences of the mean over their tokens.

    GRPO (Shao et al. 2024, arXiv:2402.03300), eq. 3.

    Args:
        lengths: [S], int, the action tokens of each sequence.
    """
    return Weights(1.0 / lengths.clamp(min=1).float(), float(len(lengths)))


@aggregation
def constant(
    lengths: torch.Tensor, *, tokens_per_sequence: Annotated[int, Field(ge=1)] = 512
) -> Weights:
    """The sum over tokens / (number of sequences * a constant), whatever the sequences' lengths.

    Dr. GRPO (Liu et al. 2025, arXiv:2503.20783), section 3.2 and its listing: dividing by a
    sequence's own length favours long wrong answers.

    Args:
        lengths: [S], int, the action tokens of each sequence.
        tokens_per_sequence: The constant, usually the most tokens that a sequence may have.
    """
    weights = torch.ones_like(lengths, dtype=torch.float32)
    return Weights(weights, float(len(lengths) * tokens_per_sequence))
