"""The space of token ids: the actions and observations of every environment."""

from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from gymnast.envs.rendering.renderer import Renderer

TokenIds = NDArray[np.int64]

_MAX_SAMPLED = 16


class TokenSpace(Space[TokenIds]):
    """Sequences of token ids of any length, the empty one included.

    Args:
        vocab_size: Ids are below this.
        stop_id: The last id of each sample, as of a policy's turn; None adds none.
        seed: Seeds `sample`.
    """

    def __init__(
        self,
        vocab_size: int,
        stop_id: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.stop_id = stop_id
        super().__init__(shape=None, dtype=np.int64, seed=seed)

    @classmethod
    def of(cls, renderer: Renderer | None) -> "TokenSpace":
        """The space of a renderer's tokens; without a renderer, id 0 is the only one."""
        if renderer is None:
            return cls(1)
        return cls(len(renderer.tokenizer), next(iter(renderer.stop_ids), None))

    @property
    def is_np_flattenable(self) -> bool:
        """False: sequences differ in length."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> TokenIds:
        """Up to 16 uniformly random ids, then the stop id. Masks are not supported.

        Returns:
            An array of shape [T].
        """
        if mask is not None or probability is not None:
            raise ValueError("TokenSpace.sample takes neither mask nor probability")
        length = int(self.np_random.integers(_MAX_SAMPLED))
        ids = self.np_random.integers(self.vocab_size, size=length)
        end = [] if self.stop_id is None else [self.stop_id]
        return np.concatenate([ids, end]).astype(np.int64)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a flat array or list of ids of this vocabulary."""
        try:
            ids = np.asarray(x)
        except (TypeError, ValueError):
            return False
        if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            return False
        return bool(np.all((ids >= 0) & (ids < self.vocab_size)))

    def to_jsonable(self, sample_n: Any) -> list[list[int]]:
        """Each sample as a list of ints."""
        return [np.asarray(sample).tolist() for sample in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[TokenIds]:
        """The inverse of `to_jsonable`."""
        return [np.asarray(sample, dtype=np.int64) for sample in sample_n]

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, TokenSpace) and self.vocab_size == other.vocab_size
        return same and self.stop_id == other.stop_id  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TokenSpace({self.vocab_size})"
