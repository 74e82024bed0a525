"""Pages of keys and values: which are free, which hold a prefix, which row uses which.

A page holds `PAGE` consecutive tokens of a context. Full pages lie in a tree, by the tokens they
hold after those of their parents, so contexts that begin alike find each other's pages and use them
by reference; nothing is copied. A page that no row uses stays in the tree until its memory is
needed; those not used for the longest time go first, a page before its parent.

This is the bookkeeping alone; `static_step.py` has the memory.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gymnast.agents.engine.paged_attention import PAGE

SCRATCH = 0  # the page that padding tokens write to; it is nobody's


@dataclass(eq=False)
class Page:
    """Some consecutive tokens of one or more contexts.

    Attributes:
        parent: The page of the tokens before.
        key: The tokens, as bytes; empty for a page that is not full yet.
        index: In memory; `SCRATCH` before it is computed.
        ready: True once its keys and values are computed, or that was launched.
        in_tree: True while other contexts can find it.
        users: The number of rows that use it.
    """

    parent: "Page | None"
    key: bytes = b""
    index: int = SCRATCH
    ready: bool = False
    in_tree: bool = False
    users: int = 0
    children: "dict[bytes, Page]" = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The pages of the longest known prefix of a context.

    Attributes:
        pages: From the first on; those that are not ready come last.
        ready: The number of those that are ready.
    """

    pages: Sequence[Page]
    ready: int


class PagePool:
    """A fixed number of pages.

    Args:
        count: Pages in memory, the scratch page included.
    """

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, SCRATCH, -1))
        self._idle: OrderedDict[Page, None] = OrderedDict()  # in the tree, used by no row
        self._root = Page(None, ready=True, in_tree=True)

    @property
    def available(self) -> int:
        """Pages that can be had: free ones, and those that no row uses."""
        return len(self._free) + len(self._idle)

    def find(self, ids: np.ndarray) -> Found:
        """Find the longest prefix of a context, [T] int64, in full pages."""
        pages: list[Page] = []
        ready = 0
        page = self._root
        for start in range(0, len(ids) - PAGE + 1, PAGE):
            child = page.children.get(ids[start : start + PAGE].tobytes())
            if child is None:
                break
            pages.append(child)
            ready += child.ready
            page = child
        return Found(pages, ready)

    def use(self, pages: Sequence[Page]) -> list[Page]:
        """Take pages that were found for one more row."""
        for page in pages:
            self._idle.pop(page, None)
            page.users += 1
        return list(pages)

    def promise(self, pages: list[Page], ids: np.ndarray) -> None:
        """Add pages for all tokens of a context, [T], that are about to be computed.

        Full ones can be found from now on. They get their memory by `fill`.
        """
        parent = pages[-1] if pages else self._root
        for start in range(len(pages) * PAGE, len(ids), PAGE):
            page = Page(parent, users=1)
            if start + PAGE <= len(ids):
                self._enter(page, ids[start : start + PAGE])
            pages.append(page)
            parent = page

    def extend(self, pages: list[Page]) -> None:
        """Add a page for tokens that are not known yet."""
        pages.append(Page(pages[-1] if pages else self._root, users=1))

    def fill(self, page: Page) -> bool:
        """Give a page memory; return False if there is none."""
        if not self._free:
            if not self._idle:
                return False
            oldest, _ = self._idle.popitem(last=False)
            self._leave(oldest)
            self._free.append(oldest.index)
        page.index = self._free.pop()
        return True

    def enter(self, page: Page, ids: np.ndarray) -> None:
        """Let a page be found whose tokens are all known now, [PAGE]."""
        if not page.in_tree:
            self._enter(page, ids)

    def release(self, pages: Sequence[Page]) -> None:
        """End one row's use of its pages; those in the tree stay while there is memory."""
        # The last page first: it is dropped before its parent.
        for page in reversed(pages):
            page.users -= 1
            if page.users:
                continue
            if page.in_tree and page.ready:
                self._idle[page] = None
                continue
            self._leave(page)
            if page.index != SCRATCH:
                self._free.append(page.index)

    def forget(self) -> None:
        """Empty the tree; rows go on with the pages that they use."""
        for page in self._idle:
            page.in_tree = False
            self._free.append(page.index)
        self._idle.clear()
        stack = [*self._root.children.values()]
        while stack:
            page = stack.pop()
            stack += page.children.values()
            page.children.clear()
            page.in_tree = False
        self._root.in_tree = False  # rows that go on with its pages add none to it
        self._root = Page(None, ready=True, in_tree=True)

    def _enter(self, page: Page, ids: np.ndarray) -> None:
        """Put a page into the tree, unless an equal one is there or its parent is not."""
        key = ids.tobytes()
        if page.parent is not None and page.parent.in_tree and key not in page.parent.children:
            page.key = key
            page.parent.children[key] = page
            page.in_tree = True

    def _leave(self, page: Page) -> None:
        if page.in_tree and page.parent is not None:
            del page.parent.children[page.key]
        page.in_tree = False
