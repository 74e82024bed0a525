"""Pages under any sequence of operations: nobody writes to another's, and none gets lost."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gymnast.agents.engine.paged_attention import PAGE
from gymnast.agents.engine.pages import SCRATCH, Page, PagePool

COUNT = 9
LETTERS = st.integers(0, 2)  # a context is a few runs of these, so that many begin alike
Memory = tuple[int, tuple[int, ...]]  # the number of `forget` calls before, and all tokens so far


def as_ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


@dataclass(eq=False)
class Row:
    """A context that is computed as far as it is known."""

    tokens: list[int]
    pages: list[Page]
    filled: int
    settled: int
    began: int  # the number of `forget` calls before it
    computed: int = field(default=0)


class Pools(RuleBasedStateMachine):
    """Rows that come, grow and go, with what each page in memory holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(COUNT)
        self.rows: list[Row] = []
        self.memory: dict[int, Memory] = {}
        self.contexts: list[list[int]] = []
        self.released: dict[Page, tuple[int, int]] = {}  # when, and how far from the last page
        self.clock = self.forgotten = 0

    # --- What a pool is asked

    @rule(letters=st.lists(LETTERS, max_size=4), rest=st.integers(1, PAGE), last=LETTERS)
    def begin(self, letters: list[int], rest: int, last: int) -> None:
        tokens = [letter for letter in letters for _ in range(PAGE)] + [last] * rest
        found = self.pool.find(as_ids(tokens[:-1]))
        assert found.ready <= len(found.pages) <= (len(tokens) - 1) // PAGE
        assert [page.ready for page in found.pages] == [
            number < found.ready for number in range(len(found.pages))
        ]
        for number, page in enumerate(found.pages[: found.ready], 1):
            assert self.memory[page.index] == (self.forgotten, tuple(tokens[: number * PAGE]))
        pages = self.pool.use(found.pages[: found.ready])
        row = Row(tokens, pages, len(pages), len(pages), self.forgotten, len(pages) * PAGE)
        self.pool.promise(row.pages, as_ids(tokens))
        assert len(row.pages) == -(-len(tokens) // PAGE)
        self.rows.append(row)
        self.contexts.append(tokens)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), count=st.integers(1, 40))
    def compute(self, data: st.DataObject, count: int) -> None:
        """Compute some tokens of a context, or sample some after it."""
        row = data.draw(st.sampled_from(self.rows))
        if row.computed == len(row.tokens):
            row.tokens += [data.draw(LETTERS)] * count
        row.computed = min(row.computed + count, len(row.tokens))
        while row.filled * PAGE < row.computed:
            if row.filled == len(row.pages):
                self.pool.extend(row.pages)
            if not self.fill(row.pages[row.filled]):
                assert self.pool.available == 0
                self.release(row)
                return
            row.filled += 1
        for number, page in enumerate(row.pages[: row.filled]):
            if number >= row.settled:
                held = tuple(row.tokens[: min(row.computed, (number + 1) * PAGE)])
                self.memory[page.index] = (row.began, held)
        while (row.settled + 1) * PAGE <= row.computed:
            page = row.pages[row.settled]
            page.ready = True
            self.pool.enter(page, as_ids(row.tokens[row.settled * PAGE :][:PAGE]))
            row.settled += 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.release(data.draw(st.sampled_from(self.rows)))

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        self.forgotten += 1
        assert not self.findable(), "nothing that was computed before is found"

    def fill(self, page: Page) -> bool:
        """Give a page memory; of those that can be found, the least recently used may go for it."""
        idle = self.findable() - {each for row in self.rows for each in row.pages}
        free = self.pool.available - len(idle)
        filled = self.pool.fill(page)
        assert filled == (free > 0 or bool(idle))
        gone = idle - self.findable()
        if filled and not free:
            assert gone == {min(idle, key=self.released.__getitem__)}
        else:
            assert not gone
        return filled

    def release(self, row: Row) -> None:
        self.rows.remove(row)
        self.pool.release(row.pages)
        self.clock += 1
        for number, page in enumerate(reversed(row.pages)):
            self.released[page] = (self.clock, number)
        self.contexts.append(row.tokens)

    def findable(self) -> set[Page]:
        """All pages that some context finds and that are computed."""
        found = (self.pool.find(as_ids(tokens)) for tokens in self.contexts)
        return {page for each in found for page in each.pages[: each.ready]}

    # --- What holds at any time

    @invariant()
    def a_page_is_shared_only_with_its_tokens(self) -> None:
        pages: dict[int, Page] = {}
        for row in self.rows:
            for number, page in enumerate(row.pages[: row.filled]):
                assert page.index != SCRATCH
                assert pages.setdefault(page.index, page) is page
                held = row.tokens[: row.computed][: (number + 1) * PAGE]
                assert self.memory[page.index][1][: len(held)] == tuple(held)
            assert all(page.index == SCRATCH for page in row.pages[row.filled :])

    @invariant()
    def all_pages_are_accounted_for(self) -> None:
        used = {page.index for row in self.rows for page in row.pages} - {SCRATCH}
        assert self.pool.available + len(used) == COUNT - 1
        by_page: dict[Page, int] = {}
        for row in self.rows:
            for page in row.pages:
                by_page[page] = by_page.get(page, 0) + 1
        assert all(page.users == users for page, users in by_page.items())
        assert all(page.users == 0 for page in self.findable() - by_page.keys())


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=80, stateful_step_count=40)


def computed(pool: PagePool, tokens: list[int]) -> list[Page]:
    """The pages of a context that was computed."""
    found = pool.find(as_ids(tokens))
    pages = pool.use(found.pages[: found.ready])
    pool.promise(pages, as_ids(tokens))
    for page in pages[found.ready :]:
        assert pool.fill(page)
        page.ready = True
    return pages


def kept(pool: PagePool, tokens: list[int]) -> int:
    return pool.find(as_ids(tokens)).ready


def test_pages_that_are_promised_are_found_before_they_are_ready() -> None:
    pool = PagePool(9)
    pages: list[Page] = []
    pool.promise(pages, as_ids([1] * 40))
    found = pool.find(as_ids([1] * 32))
    assert (list(found.pages), found.ready) == (pages[:2], 0)
    pool.release(pages)  # preempted before it was computed
    assert len(pool.find(as_ids([1] * 32)).pages) == 0
    assert pool.available == 8


def test_the_last_pages_of_the_oldest_context_go_first() -> None:
    pool = PagePool(6)
    first, second = [1] * 48, [2] * 32
    pool.release(computed(pool, first))
    pool.release(computed(pool, second))
    for taken, (of_first, of_second) in enumerate([(2, 2), (1, 2), (0, 2), (0, 1), (0, 0)], 1):
        (page,) = pages = [Page(None, users=1)]
        assert pool.fill(page)
        assert (kept(pool, first), kept(pool, second)) == (of_first, of_second)
        assert pool.available == 5 - taken
        assert pages[0].index != SCRATCH
    assert not pool.fill(Page(None, users=1))


def test_a_prefix_stays_as_long_as_a_row_uses_it() -> None:
    pool = PagePool(5)
    system = [7] * 32
    used = computed(pool, system)
    pool.release(computed(pool, [*system, *[1] * 32]))
    for _ in range(2):
        assert pool.fill(Page(None, users=1))
    assert not pool.fill(Page(None, users=1))
    assert kept(pool, system) == 2
    pool.release(used)
    assert pool.fill(Page(None, users=1))
    assert kept(pool, system) == 1


def test_rows_that_outlive_new_weights_leave_nothing() -> None:
    pool = PagePool(4)
    pages: list[Page] = []
    pool.promise(pages, as_ids([1] * 10))
    assert pool.fill(pages[0])
    pool.forget()
    pages[0].ready = True
    pool.enter(pages[0], as_ids([1] * 16))
    assert kept(pool, [1] * 16) == 0
    pool.release(computed(pool, [2] * 32))
    pool.release(pages)
    assert pool.fill(Page(None, users=1))
    assert kept(pool, [2] * 32) == 2, "the page of the old weights is free, so it is taken first"
