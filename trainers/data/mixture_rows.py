"""Training rows of a mixture: each comes from one of its environments, in a seeded order.

A group has one row, so it plays one environment, and members of two are never compared.
"""

from collections.abc import Mapping

from gymnast.envs.mixture import MixtureOrder, named_row
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.data.rows import Row, RowSource


class MixtureRows(RowSource):
    """The rows of several sources by their weights, each source in an order of its own.

        rows = MixtureRows({"sums": 3, "words": 1}, {"sums": sums, "words": words}, seed=0)

    It keeps no state: the row at a position is the same at every call, so a resumed run goes on
    where it was.

    Args:
        weights: By the name of the environment.
        sources: The rows of each; a row says whose it is in its column `environment`.
        seed: Of the order in which environments come.
    """

    def __init__(
        self, weights: Mapping[str, float], sources: Mapping[str, RowSource], *, seed: int
    ) -> None:
        self._weights, self._sources = dict(weights), dict(sources)
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
        sources = {
            name: source.reseeded(derive(seed, "mixture", name))
            for name, source in self._sources.items()
        }
        return MixtureRows(self._weights, sources, seed=seed)
