"""The distribution that Transformers' `generate` draws a token from: what samplers are held to."""

import warnings
from typing import Any

import torch

from gymnast.types import Sampling


def drawn_from(model: Any, context: list[int], sampling: Sampling) -> torch.Tensor:
    """Log-probabilities [V] of the token after a context, filters included, on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate(
            torch.tensor([context], device=model.device),
            attention_mask=torch.ones(1, len(context), dtype=torch.long, device=model.device),
            do_sample=True,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p or None,
            repetition_penalty=sampling.repetition_penalty,
            max_new_tokens=1,
            output_scores=True,
            return_dict_in_generate=True,
        )
    return torch.log_softmax(found.scores[0][0].float().cpu(), dim=-1)
