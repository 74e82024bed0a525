"""One tensor of a cache of several sequences, with rows and columns to spare.

Sequences of different lengths end at the same column. What is left of a shorter one is hidden from
it by a mask. A row that leaves gives its place to the last one; a token is written into the next
free column. So neither copies the rest.
"""

import torch

SPARE_COLUMNS = 64


class Room:
    """A tensor whose rows are sequences and, where it grows with them, whose columns are tokens.

    Args:
        batch: The dimension of the rows.
        length: The dimension of the columns, if there is one.
        spare: Whether columns are kept free for tokens to come, on both sides.

    Attributes:
        rows: How many rows are in use.
        limit: How many columns it should come to at most.
    """

    def __init__(self, batch: int, length: int | None, *, spare: bool) -> None:
        self.batch, self.length, self.spare = batch, length, spare
        self.rows = 0
        self.limit: int | None = None
        self._begin = self._end = 0  # the columns in use
        self._memory: torch.Tensor | None = None
        self._view: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """What it takes, in bytes."""
        return 0 if self._memory is None else self._memory.numel() * self._memory.element_size()

    @property
    def view(self) -> torch.Tensor:
        """What is in use, as the model has it."""
        assert self._memory is not None
        view = self._memory.narrow(self.batch, 0, self.rows)
        if self.length is not None:
            view = view.narrow(self.length, self._begin, self._end - self._begin)
        self._view = view
        return view

    def adopt(self, tensor: torch.Tensor) -> None:
        """Go on with the tensor that the model left, unless it is the view it was given."""
        if tensor is self._view:
            return
        self._memory = tensor
        self.rows = tensor.shape[self.batch]
        self._begin = 0
        self._end = 1 if self.length is None else tensor.shape[self.length]

    def add(self, tensors: list[torch.Tensor]) -> None:
        """Copy in further rows, each a tensor of one row."""
        grids = [self._grid(tensor) for tensor in tensors]
        columns = max(self._end - self._begin, *(grid.shape[1] for grid in grids))
        rows = self.rows + len(grids)
        if self._memory is None or rows > self._capacity or columns > self._end:
            self._memory = self._move(rows, columns, tensors[0])
        grid = self._grid(self._memory)
        begin, end = self._end - columns, self._end
        grid[: self.rows, begin : self._begin] = 0  # whatever was there before
        for row, new in enumerate(grids, start=self.rows):
            grid[row, begin : end - new.shape[1]] = 0
            grid[row, end - new.shape[1] : end] = new[0]
        self.rows, self._begin = rows, begin

    def remove(self, row: int, columns: int) -> None:
        """Give a row's place to the last one; the longest row has so many columns then."""
        assert self._memory is not None
        self.rows -= 1
        if self.rows == 0:
            self._memory = self._view = None
            self._begin = self._end = 0
            return
        grid = self._grid(self._memory)
        if row < self.rows:
            grid[row] = grid[self.rows]
        if self.length is not None:
            self._begin = max(self._begin, self._end - columns)
        if 2 * self.rows < self._capacity:
            self._memory = self._move(self.rows, self._end - self._begin, self._memory)

    def trim(self) -> None:
        """Give back the places of rows that have left, and columns beyond the limit."""
        if self._memory is not None:
            self._memory = self._move(self.rows, self._end - self._begin, self._memory)

    def row(self, row: int, columns: int) -> torch.Tensor:
        """A copy of one row, of its last columns at most."""
        assert self._memory is not None
        own = self._memory.narrow(self.batch, row, 1)
        if self.length is not None:
            columns = min(columns, self._end - self._begin)
            own = own.narrow(self.length, self._end - columns, columns)
        return own.clone(memory_format=torch.contiguous_format)

    def append(self, new: torch.Tensor) -> torch.Tensor:
        """Write the next columns of every row; returns what is in use now."""
        assert self._memory is not None
        added = self._grid(new)
        columns = added.shape[1]
        if self._end + columns > self._grid(self._memory).shape[1]:
            used = self._end - self._begin
            self._memory = self._move(self._capacity, used, self._memory, columns)
        self._grid(self._memory)[: self.rows, self._end : self._end + columns] = added
        self._end += columns
        return self.view

    @property
    def _capacity(self) -> int:
        return 0 if self._memory is None else self._memory.shape[self.batch]

    def _grid(self, tensor: torch.Tensor) -> torch.Tensor:
        """As [rows, columns, ...], with one column where none is counted."""
        if self.length is None:
            return tensor.movedim(self.batch, 0)[:, None]
        return tensor.movedim((self.batch, self.length), (0, 1))

    def _move(
        self, rows: int, columns: int, like: torch.Tensor, next_columns: int = 0
    ) -> torch.Tensor:
        """Copy what is in use into new memory, for so many rows and for columns to come."""
        before, after = self._spare(columns, next_columns)
        shape = list(like.shape)
        shape[self.batch] = rows
        if self.length is not None:
            shape[self.length] = before + columns + after
        memory = like.new_zeros(shape)
        if self._memory is not None:
            used = self._grid(self._memory)[: self.rows, self._begin : self._end]
            end = before + columns
            self._grid(memory)[: self.rows, end - used.shape[1] : end] = used
        end = before + columns
        self._begin, self._end = end - (self._end - self._begin), end
        return memory

    def _spare(self, columns: int, least: int) -> tuple[int, int]:
        """Free columns on the left, for longer rows to come, and on the right, for tokens."""
        if self.length is None or not self.spare:
            return 0, least
        most = max(SPARE_COLUMNS, columns // 4)
        if self.limit is not None:
            most = min(most, (self.limit - columns) // 2)
        return max(0, most), max(least, most)
