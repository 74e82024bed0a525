"""From the last hidden states of a model to log-probabilities of given tokens.

Logits of a few hundred positions exist at a time, and are computed again in the backward pass, so
the full [tokens, vocabulary] tensor never does. The fused computation, for heads that are one
matrix, is in `trainers/learner/policy/token_logprobs.py`; what is more than a matrix, a factor and
a bound is computed by the model's own code (`agents/models/decoder.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gymnast.agents.models.decoder import OwnHead, decoder_of
from gymnast.agents.models.double_precision import FAILURES, Precision
from gymnast.agents.models.float32_head import Float32Head, logits_type
from gymnast.errors import ModelError
from gymnast.trainers.learner.policy.logit_tiles import NEVER, kernels_serve
from gymnast.trainers.learner.policy.token_logprobs import token_logprobs

# Bytes of logits at once: enough rows for a fast matrix product, and little next to the rest. Plain
# torch counts them in float32; kernels need no copy of logits in half precision.
CPU_LOGITS_BYTES = 2**25
GPU_LOGITS_BYTES = 2**28

# Of these, how many are copied at once for their entropies.
ROWS_AT_ONCE = 16

# Of hidden states: a bound that small logits do not come near shows at large ones.
MAGNITUDES = (1.0, 64.0)


@dataclass(frozen=True)
class TeacherStates:
    """States of a teacher for the A action tokens of a micro-batch, before its head.

    Attributes:
        hidden: [A, width] of the teacher.
        logits: The teacher's head: from hidden states [a, width] to logits [a, V].
        divergences: From log-probabilities [a, V] of the policy and of the teacher to [a].
        taught: [A], 1 where the teacher has a say, else 0.
    """

    hidden: torch.Tensor
    logits: Callable[[torch.Tensor], torch.Tensor]
    divergences: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    taught: torch.Tensor


class Head:
    """The head of a causal language model.

    Args:
        causal: Of Transformers, without adapters around it.
        temperature: At which the actions were sampled; divides the logits.
        unused_ids: Ids that are no tokens; they have no share in any distribution.

    Attributes:
        plain: Compute heads that are one matrix in plain torch on every device, and never in the
            fewer matrix products that a frozen weight needs.

    Raises:
        ModelError: The model's logits cannot be made from the last hidden states of its decoder.
    """

    plain: bool = False

    def __init__(self, causal: Any, *, temperature: float, unused_ids: Sequence[int] = ()) -> None:
        self._causal = causal
        self._temperature = temperature
        unused = [each for each in unused_ids if each < self._config.vocab_size]
        self._unused = torch.tensor(unused) if unused else None
        self._own: OwnHead | None = None  # where the logits are more than what is known here
        self._choose()

    def logprobs(
        self, hidden: torch.Tensor, targets: torch.Tensor, *, entropies: bool = False
    ) -> torch.Tensor:
        """Log-probabilities of `targets` [A] from hidden states [A, width]: [A], float32.

        With `entropies` [2, A]: these, and the entropies of their distributions, which have no
        gradient and leave that of the log-probabilities as it is.
        """
        if self._is_matrix(hidden):
            return self._matrix_logprobs(hidden, targets, entropies=entropies)
        at_once = self._logits_at_once(hidden.device)
        measured: list[torch.Tensor] | None = [] if entropies else None
        logprobs = [
            checkpoint(partial(self._logprobs, measured, number), *part, use_reentrant=False)
            for number, part in enumerate(
                zip(hidden.split(at_once), targets.split(at_once), strict=True)
            )
        ]
        if measured is None:
            return torch.cat(logprobs)
        return torch.stack([torch.cat(logprobs), torch.cat(measured)])

    def logprobs_and_entropies(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Log-probabilities, and the entropies of their distributions: [2, A], float32.

        Both have gradients.
        """
        if self._is_matrix(hidden):
            found = self._matrix_logprobs(hidden, targets, entropies=True, entropy_gradients=True)
            return found.float()
        at_once = self._logits_at_once(hidden.device)
        parts = zip(hidden.split(at_once), targets.split(at_once), strict=True)
        return torch.cat(
            [checkpoint(self._with_entropies, *part, use_reentrant=False) for part in parts],
            dim=-1,
        )

    def logprobs_and_divergences(
        self, hidden: torch.Tensor, targets: torch.Tensor, teacher: TeacherStates
    ) -> torch.Tensor:
        """[4, A], float32: log-probabilities, entropies, divergences, the teacher's logprobs.

        The last two are 0 where the teacher has no say.
        """
        # There are as many logits of the teacher, and more tensors of their size.
        at_once = max(1, self._logits_at_once(hidden.device) // 2)

        def part(
            hidden: torch.Tensor, targets: torch.Tensor, states: torch.Tensor, taught: torch.Tensor
        ) -> torch.Tensor:
            logits, theirs = self.logits(hidden), teacher.logits(states).float()
            shared = min(logits.shape[-1], theirs.shape[-1])  # rows beyond are no tokens
            theirs = torch.log_softmax(theirs[:, :shared], dim=-1)
            logprobs = torch.log_softmax(logits, dim=-1)  # [a, V]
            entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
            chosen = logprobs.gather(-1, targets[:, None])[:, 0]
            if shared < logits.shape[-1]:
                logprobs = torch.log_softmax(logits[:, :shared], dim=-1)
            divergences = teacher.divergences(logprobs, theirs) * taught
            of_teacher = theirs.gather(-1, targets[:, None])[:, 0] * taught
            return torch.stack([chosen, entropies, divergences, of_teacher])

        given = (hidden, targets, teacher.hidden, teacher.taught)
        parts = zip(*(tensor.split(at_once) for tensor in given), strict=True)
        return torch.cat([checkpoint(part, *each, use_reentrant=False) for each in parts], dim=-1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits that actions are drawn from: [a, V], float32."""
        logits = self._logits(hidden)
        if self._temperature != 1.0:
            logits = logits / self._temperature
        unused = self._unused_on(hidden.device)
        return logits if unused is None else logits.index_fill(-1, unused, NEVER)

    @property
    def is_matrix(self) -> bool:
        """Return True if the head is one matrix, which is not sharded, and a factor."""
        head = self._causal.get_output_embeddings()
        return (
            type(head) in (nn.Linear, Float32Head)
            and type(head.weight) is nn.Parameter
            and head.weight.shape == (head.out_features, head.in_features)
            and self._softcap is None
            and self._own is None
        )

    def _matrix_logprobs(
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        *,
        entropies: bool,
        entropy_gradients: bool = False,
    ) -> torch.Tensor:
        head = self._causal.get_output_embeddings()
        dtype = logits_type(hidden) if type(head) is Float32Head else hidden.dtype
        at_once = self._logits_at_once(hidden.device)
        if kernels_serve(hidden) and not self.plain:
            at_once = max(1, GPU_LOGITS_BYTES // (dtype.itemsize * self._config.vocab_size))
        return token_logprobs(
            hidden,
            head.weight,
            head.bias,
            targets,
            scale=self._scale / self._temperature,
            at_once=at_once,
            dtype=dtype,
            entropies=entropies,
            entropy_gradients=entropy_gradients,
            unused=self._unused_on(hidden.device),
            plain=self.plain,
        )

    def _unused_on(self, device: torch.device) -> torch.Tensor | None:
        """Return the ids that are no tokens, which stay where they were used last."""
        if self._unused is not None:
            self._unused = self._unused.to(device)
        return self._unused

    def _logits_at_once(self, device: torch.device) -> int:
        """Return the number of positions that have their logits, in float32, at the same time."""
        most = CPU_LOGITS_BYTES if device.type == "cpu" else GPU_LOGITS_BYTES
        return max(1, most // (4 * self._config.vocab_size))

    @property
    def _config(self) -> Any:
        return self._causal.config.get_text_config()

    @property
    def _scale(self) -> float:
        """The factor by which the model's own forward multiplies its logits."""
        scale = getattr(self._config, "logit_scale", None) or 1.0  # Cohere
        return float(scale / (getattr(self._config, "logits_scaling", None) or 1.0))  # Granite

    @property
    def _softcap(self) -> float | None:
        """The bound of the model's logits (Gemma)."""
        return getattr(self._config, "final_logit_softcapping", None) or None

    def _is_matrix(self, hidden: torch.Tensor) -> bool:
        """Return True if logits are products of such hidden states and the head's weight."""
        return (
            self.is_matrix
            and self._causal.get_output_embeddings().weight.dtype == hidden.dtype
            and not torch.is_autocast_enabled(hidden.device.type)
        )

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the logits of the model's own forward from hidden states: [n, V], float32."""
        return self._known_logits(hidden) if self._own is None else self._own(hidden).float()

    def _known_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """A linear head, scaled or soft-capped as the configuration says: [n, V], float32."""
        logits: torch.Tensor = self._causal.get_output_embeddings()(hidden).float()
        logits = logits * self._scale
        if cap := self._softcap:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def _logprobs(
        self,
        measured: list[torch.Tensor] | None,
        number: int,
        hidden: torch.Tensor,
        targets: torch.Tensor,
    ) -> torch.Tensor:
        """[a], of a positions; the first time, their entropies are added to what is measured."""
        logits = self.logits(hidden)  # [a, V]
        if measured is not None and number == len(measured):  # not again in the backward pass
            measured.append(_entropies(logits.detach()))
        return -F.cross_entropy(logits, targets, reduction="none")

    def _with_entropies(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[2, a], of a positions."""
        logprobs = torch.log_softmax(self.logits(hidden), dim=-1)  # [a, V]
        entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
        return torch.stack([logprobs.gather(-1, targets[:, None])[:, 0], entropies])

    @torch.no_grad()
    def _choose(self) -> None:
        """Find out how the model makes its logits."""
        causal = self._causal
        ids = list(range(1, 5))
        precision = Precision(causal, ids)
        with precision.computing():
            given = torch.tensor([ids], device=causal.device)
            theirs = causal(input_ids=given, use_cache=False).logits[0]
            decoder = decoder_of(causal)
            hidden = decoder(input_ids=given, use_cache=False).last_hidden_state[0]
            own = self._make_own(hidden, theirs, precision)
            try:
                known = precision.differ(self._known_logits(hidden), theirs) is None
                if known and own is not None:
                    larger = [hidden * magnitude for magnitude in MAGNITUDES]
                    known = all(
                        precision.differ(self._known_logits(each), own(each)) is None
                        for each in larger
                    )
            except FAILURES:
                known = False
        if known:
            return
        if own is None:
            raise ModelError(
                f"{type(causal).__name__} makes its logits neither by a linear head on the last "
                f"hidden states of its {type(decoder).__name__} nor from these alone: its policy "
                "cannot be computed at action tokens only. Choose another model."
            )
        self._own = own

    def _make_own(
        self, hidden: torch.Tensor, theirs: torch.Tensor, precision: Precision
    ) -> OwnHead | None:
        """The model's own head, where it makes the model's logits from hidden states alone."""
        try:
            own = OwnHead(self._causal)
            return own if precision.differ(own(hidden), theirs) is None else None
        except FAILURES:
            return None


def _entropies(logits: torch.Tensor) -> torch.Tensor:
    """Compute the entropies of the distributions of logits [a, V], which stay as they are: [a]."""
    logprobs = (torch.log_softmax(rows, dim=-1) for rows in logits.split(ROWS_AT_ONCE))
    return torch.cat([-torch.linalg.vecdot(each.exp(), each) for each in logprobs])
