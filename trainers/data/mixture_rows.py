"""Training rows of a mixture: each comes from one of its environments, in a seeded order.

A group has one row, so it plays one environment, and members of two are never compared.
"""

from collections.abc import Mapping, Sequence

from gymnast.envs.mixture import MixtureOrder, named_row
from gymnast.errors import DataError
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.data.rows import Row, RowSource, as_row_source


class MixtureRows(RowSource):
    """The rows of several sources by their weights, each source in an order of its own.

        rows = MixtureRows({"sums": 3, "words": 1}, {"sums": sums, "words": words}, seed=0)

    It keeps no state: the row at a position is the same at every call, so a resumed run goes on
    where it was.

    Args:
        weights: By the name of the environment.
        sources: The rows of each, a list or a `RowSource`; the rows that come of it say whose they
            are in their column `environment`.
        seed: Of the order in which environments come, and of the rows of lists.

    Raises:
        DataError: A list is empty, or the names differ.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        sources: Mapping[str, RowSource | Sequence[Row]],
        *,
        seed: int,
    ) -> None:
        if weights.keys() != sources.keys():
            raise DataError(
                f"MixtureRows: weights are of {', '.join(weights)}, and sources of "
                f"{', '.join(sources)}; give each environment both"
            )
        self._weights = dict(weights)
        self._sources = {
            name: as_row_source(rows, seed=derive(seed, "mixture", name))
            for name, rows in sources.items()
        }
        self._order = MixtureOrder(self._weights, seed=derive(seed, "mixture"))

    def row(self, position: int) -> Row:
        """The row at a position.

        Raises:
            DataError: A row has a column `environment` of its own.
        """
        name, number = self._order[position]
        return named_row(name, self._sources[name].row(number))

    def reseeded(self, seed: int) -> "MixtureRows":
        """The same rows in orders of another seed."""
        sources: dict[str, RowSource | Sequence[Row]] = {
            name: source.reseeded(derive(seed, "mixture", name))
            for name, source in self._sources.items()
        }
        return MixtureRows(self._weights, sources, seed=seed)
