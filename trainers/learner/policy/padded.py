"""Trajectories as rows of one length, for models that cannot be packed.

Each trajectory is a row from an empty state, padded on its right, in the model's own forward
without a cache. No mask is needed: a causal model never looks to the right, which is tried once. So
every row computes what its trajectory computes alone, whatever the layers are made of. A prompt
is computed for each member of its group.

Models whose rotary frequencies change beyond a length (longrope) take them from the longest row of
a pass: rows on both sides of that length do not share one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gymnast.agents.models.adapters import adapted_weight, adapts_parameter
from gymnast.agents.models.context_limits import rope_changes_beyond
from gymnast.agents.models.decoder import decoder_of
from gymnast.agents.models.double_precision import FAILURES, Precision
from gymnast.agents.models.routing import UNKNOWN, Routers, replaying
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, MicroBatch
from gymnast.trainers.learner.policy.packing import Packed

LENGTHS = (13, 9)  # of the rows of the trial
PADDING = 0  # the token; what it computes is not looked at


class PaddedForward:
    """Hidden states of trajectories, by a model's own forward.

    Args:
        model: Of Transformers, or of peft around one, in evaluation mode.
        causal: The same, without adapters around it.

    Raises:
        ModelError: Rows of one pass are not what they are alone, or the model cannot be run.
    """

    def __init__(self, model: Any, causal: Any) -> None:
        self._causal = causal
        self._parted_at = rope_changes_beyond(model)
        self._check(model)

    def hidden(self, batch: MicroBatch, routers: Routers | None = None) -> torch.Tensor:
        """The hidden states that predict the action tokens, [A, width].

        Args:
            batch: Of the trajectories.
            routers: Of the model, where they are to choose the experts that the batch has.
        """
        device = batch.targets.device
        lengths = [len(index) for index in batch.packed.index]
        starts = np.empty(len(lengths), dtype=np.int64)  # of each row in what is computed
        computed, size = [], 0
        for rows in self._passes(lengths):
            ids = _padded(batch.packed, rows)  # [S, L]
            starts[rows] = size + ids.shape[1] * np.arange(len(rows))
            size += ids.size
            experts = _padded_experts(batch, rows, ids.shape[1])
            with replaying(routers, experts):
                states = decoder_of(self._causal)(
                    input_ids=torch.tensor(ids, device=device), use_cache=False
                ).last_hidden_state
            computed.append(states.flatten(0, 1))  # [S * L, width]
        positions = torch.tensor(batch.packed.positions, device=device)[batch.predicted_from]
        of_rows = torch.tensor(starts, device=device)[batch.sequences]
        return torch.cat(computed).index_select(0, of_rows + positions)

    def split(
        self,
        groups: Sequence[Sequence[CreditedTrajectory]],
        tokens: int,
        *,
        also_idle: bool = False,
    ) -> list[list[CreditedTrajectory]]:
        """Divide the contexts that train into micro-batches of about this many padded tokens.

        They are sorted by length, the longest first, so that little is padded. A context longer
        than `tokens` makes a micro-batch of its own.

        Args:
            groups: With their advantages.
            tokens: Rows times the length of the longest.
            also_idle: Whether contexts without any advantage are taken too.
        """
        contexts = [each for group in groups for episode in group for each in episode.contexts]
        chosen = [each for each in contexts if each.is_computed(also_idle=also_idle)]
        chosen.sort(key=lambda episode: -len(episode.trajectory.ids))
        batches: list[list[CreditedTrajectory]] = []
        for episode in chosen:
            first = batches[-1][0] if batches else None
            if (
                first is None
                or (1 + len(batches[-1])) * len(first.trajectory.ids) > tokens
                or self._is_beyond(len(first.trajectory.ids))
                != self._is_beyond(len(episode.trajectory.ids))
            ):
                batches.append([])
            batches[-1].append(episode)
        return batches

    def _is_beyond(self, length: int) -> bool:
        return self._parted_at is not None and length > self._parted_at

    def _passes(self, lengths: Sequence[int]) -> list[list[int]]:
        """Which rows are computed together."""
        beyond = [row for row, length in enumerate(lengths) if self._is_beyond(length)]
        within = [row for row, length in enumerate(lengths) if not self._is_beyond(length)]
        return [rows for rows in (beyond, within) if rows]

    @torch.no_grad()
    def _check(self, model: Any) -> None:
        """Make sure that rows of one pass have the logits that they have alone."""
        vocabulary = model.config.get_text_config().vocab_size
        ids = [1 + 5 * i % (vocabulary - 1) for i in range(sum(LENGTHS))]
        precision = Precision(model, ids)
        rows = torch.tensor(ids, device=model.device).split(list(LENGTHS))
        padded = torch.nn.utils.rnn.pad_sequence(
            list(rows), batch_first=True, padding_value=PADDING
        )
        before = _versions(model)
        try:
            with precision.computing():
                together = model(input_ids=padded, use_cache=False).logits
                alone = [model(input_ids=row[None], use_cache=False).logits[0] for row in rows]
        except FAILURES as error:
            raise ModelError(
                f"{type(model).__name__} cannot be trained: its forward over padded rows failed "
                f"({type(error).__name__}: {error}). Choose another model."
            ) from error
        if before != _versions(model):
            raise ModelError(
                f"{type(model).__name__} cannot be trained: its forward changes its weights in "
                "place, so a learner would find others than it wrote. Choose another model."
            )
        for number, (row, logits) in enumerate(zip(rows, alone, strict=True)):
            difference = precision.differ(together[number, : len(row)], logits)
            if difference is not None:
                raise ModelError(
                    f"{type(model).__name__} cannot be trained: the logits of a sequence depend on "
                    "what is padded on its right or stands in other rows (relative difference "
                    f"{difference:.2g}), so it is no causal language model. Choose another model."
                )


def _versions(model: Any) -> dict[str, int]:
    """How often each weight was written to, by name.

    Left out are those that peft adapts as parameters: in each pass it sets them to themselves.
    """
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    set_anew = {id(adapted_weight(layer)) for layer in layers if adapts_parameter(layer)}
    named = model.named_parameters()
    return {name: weight._version for name, weight in named if id(weight) not in set_anew}


def _padded(packed: Packed, rows: Sequence[int]) -> np.ndarray:
    """The token ids of some trajectories, [S, L]."""
    width = max(len(packed.index[row]) for row in rows)
    ids = np.full((len(rows), width), PADDING, dtype=np.int64)
    for number, row in enumerate(rows):
        index = packed.index[row]
        ids[number, : len(index)] = packed.ids[index]
    return ids


def _padded_experts(batch: MicroBatch, rows: Sequence[int], width: int) -> torch.Tensor | None:
    """The experts of the tokens of some rows, [S * width, layers, chosen], if there are any."""
    if batch.experts is None:
        return None
    shape = (len(rows), width, *batch.experts.shape[1:])
    experts = batch.experts.new_full(shape, UNKNOWN)
    for number, row in enumerate(rows):
        index = torch.tensor(batch.packed.index[row], device=experts.device)
        experts[number, : len(index)] = batch.experts[index]
    return experts.flatten(0, 1)
