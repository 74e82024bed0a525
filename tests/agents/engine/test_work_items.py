"""Work items: each token attends to each of its keys exactly once, however the work is divided."""

import random
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents.engine import paged_executor, work_items
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.paged_attention import PAGE
from gymnast.agents.engine.paged_executor import PagedExecutor, mixed_size, padded_size
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.static_step import NO_FILTERS, StepInputs, StepShape
from gymnast.agents.engine.work_items import OPEN, Items, Segment, Shared, divide, find_shared
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Completion, Sampling


def tree(seed: int, rows: int, levels: int, pages: int) -> tuple[np.ndarray, np.ndarray]:
    """Tables of rows that share beginnings at several levels, [B, W], and their lengths, [B]."""
    rng = random.Random(seed)
    unused = iter(rng.sample(range(1, 10_000), 9_000))
    tables: list[list[int]] = [[] for _ in range(rows)]

    def grow(members: Sequence[int], level: int) -> None:
        shared = [next(unused) for _ in range(rng.randint(0, pages))]
        for row in members:
            tables[row] += shared
        if level and len(members) > 1:
            cut = rng.randint(1, len(members) - 1)
            grow(members[:cut], level - 1)
            grow(members[cut:], level - 1)
        else:
            for row in members:
                tables[row] += [next(unused) for _ in range(rng.randint(1, pages + 1))]

    members = list(range(rows))
    rng.shuffle(members)
    grow(members, levels)
    width = max(map(len, tables)) + rng.randint(0, 2)
    lengths = [PAGE * len(table) - rng.randint(0, PAGE - 1) for table in tables]
    filled = [table + [0] * (width - len(table)) for table in tables]
    return np.array(filled, dtype=np.int32), np.array(lengths)


@pytest.fixture(params=[PAGE, work_items.WORTH_SHARING], scope="module")
def worth_sharing(request: pytest.FixtureRequest) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_items, "WORTH_SHARING", request.param)
        yield


TREES = st.builds(
    tree,
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 12),
    levels=st.integers(0, 5),
    pages=st.integers(0, 8),
)


@given(TREES)
@settings(max_examples=100)
def test_shared_prefixes_cover_what_rows_have_in_common(
    worth_sharing: None, rows: tuple[np.ndarray, np.ndarray]
) -> None:
    tables, lengths = rows
    shared = find_shared(tables, lengths)
    assert sorted(shared.order) == list(range(len(tables)))
    ordered = tables[shared.order]
    covered: list[list[int]] = [[] for _ in tables]
    for segment in shared.segments:
        assert segment.count >= 2 and segment.keys == segment.end - segment.begin > 0
        assert segment.begin % PAGE == segment.end % PAGE == 0
        read = ordered[segment.row, segment.begin // PAGE : segment.end // PAGE]
        for place in range(segment.first, segment.first + segment.count):
            own = ordered[place, segment.begin // PAGE : segment.end // PAGE]
            assert (own == read).all(), "all its rows have these pages"
            covered[place] += range(segment.begin, segment.end)
    for place, keys in enumerate(covered):
        assert sorted(keys) == list(range(shared.own_from[place])), "each key once"
        assert shared.own_from[place] <= lengths[shared.order[place]]
    spared = sum(segment.keys * (segment.count - 1) for segment in shared.segments)
    assert shared.saved == spared


def test_a_system_prompt_and_a_groups_prompt_are_two_levels() -> None:
    system, group = list(range(1, 21)), list(range(21, 41))
    tables = np.array(
        [
            [*system, *group, 100],
            [*system, *range(50, 70), 101],
            [*system, *group, 102],
            [*range(200, 240), 103],
        ],
        dtype=np.int32,
    )
    shared = find_shared(tables, np.full(4, 41 * PAGE))
    assert [(each.count, each.begin, each.end) for each in shared.segments] == [
        (3, 0, 20 * PAGE),
        (2, 20 * PAGE, 40 * PAGE),
    ]
    assert sorted(shared.own_from) == [0, 20 * PAGE, 40 * PAGE, 40 * PAGE]


def attended(
    items: Items | StepInputs, lengths: Sequence[int], tables: np.ndarray
) -> list[list[tuple[int, int]]]:
    """The (page, place in it) that each packed token attends to, one for each time.

    Args:
        items: With the arrays of `paged_attention.Work`.
        lengths: The number of keys that each token sees: the kernel hides those after it, [N].
        tables: Pages by table row, [R, W].
    """
    written: dict[int, int] = {}  # the token of each slot
    direct: list[int] = []
    found: list[list[tuple[int, int]]] = [[] for _ in lengths]
    for first, count, row, begin, end, slot in [*items.items.tolist(), *items.wide_items.tolist()]:
        for token in range(first, first + count):
            found[token] += [
                (int(tables[row, key // PAGE]), key % PAGE)
                for key in range(begin, min(end, lengths[token]))
            ]
            if slot < 0:
                direct.append(token)
            else:
                assert slot + token - first not in written, "two results in one slot"
                written[slot + token - first] = token
    assert len(set(direct)) == len(direct), "two results written for a token"
    joined: list[int] = []
    for token, (at, count) in enumerate(items.parts[: len(lengths)].tolist()):
        assert (count > 0) != (token in direct)
        slots = items.part_slots[at : at + count].tolist()
        assert all(written[slot] == token for slot in slots)
        joined += slots
    assert sorted(joined) == sorted(written), "every partial result is joined once"
    return found


def check_items(
    items: Items | StepInputs, rows: Sequence[int], lengths: Sequence[int], tables: np.ndarray
) -> None:
    """Every token attends to the keys that it sees, each once."""
    for row, length, found in zip(rows, lengths, attended(items, lengths, tables), strict=True):
        expected = [(int(tables[row, key // PAGE]), key % PAGE) for key in range(length)]
        assert sorted(found) == sorted(expected)


def segments(shared: Shared, lengths: np.ndarray) -> list[Segment]:
    """What each row does not share."""
    return [
        Segment(place, 1, place, int(begin), OPEN, int(lengths[row] + 1 - begin))
        for place, (row, begin) in enumerate(zip(shared.order, shared.own_from, strict=True))
    ]


@given(
    TREES,
    st.sampled_from([32, 512]),
    st.integers(1, 20),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 60),
)
@settings(max_examples=60)
def test_each_key_is_attended_to_once(
    worth_sharing: None,
    rows: tuple[np.ndarray, np.ndarray],
    shortest: int,
    queries: int,
    spare: int,
    spare_wide: int,
    slots: int,
) -> None:
    tables, lengths = rows
    shared = find_shared(tables, lengths)
    tiles = sum(-(-segment.count // queries) for segment in shared.segments)
    room = {
        "most_items": len(tables) + spare,
        "most_wide_items": tiles + spare_wide,
        "most_slots": 4 * slots,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_items, "SHORTEST_PIECE", shortest)
        try:
            items = divide(
                segments(shared, lengths),
                shared.segments,
                tokens=len(tables) + 2,
                queries_per_tile=queries,
                **room,
            )
        except ValueError:
            levels = [sum(begin > 0 for begin in shared.own_from), len(shared.segments)]
            assert all(levels), "rows that share nothing always fit"
            return
    assert items.items.shape == (room["most_items"], 6)
    assert items.wide_items.shape == (room["most_wide_items"], 6)
    assert items.part_slots.shape == (room["most_slots"],)
    assert (items.wide_items[:, 1] <= queries).all() and (items.items[:, 1] <= 1).all()
    assert not items.parts[len(tables) :, 1].any(), "padding has no parts"
    assert items.joined == bool(items.parts.any())
    check_items(items, range(len(tables)), lengths[shared.order].tolist(), tables[shared.order])


def test_a_long_row_is_divided_among_the_processors() -> None:
    long, short = Segment(0, 1, 0, 0, OPEN, 8000), Segment(1, 1, 1, 0, OPEN, 40)
    room = {"tokens": 2, "queries_per_tile": 4, "most_wide_items": 0}
    items = divide([long, short], [], most_items=18, most_slots=100, **room)
    used = items.items[items.items[:, 1] > 0]
    assert (used[:, 0] == 0).sum() == 16 and (used[:, 0] == 1).sum() == 1
    sizes = [end - begin for _, _, _, begin, end, _ in used[:15].tolist()]
    assert min(sizes) == max(sizes) == 512
    few = divide([long, short], [], most_items=18, most_slots=3, **room)
    assert (few.items[:, 1] > 0).sum() <= 4, "no more partial results than there is room for"


@pytest.mark.parametrize("lacking", ["most_items", "most_wide_items", "most_slots"])
def test_segments_that_do_not_fit_are_refused(lacking: str) -> None:
    narrow = [Segment(place, 1, place, 64, OPEN, 10) for place in range(4)]
    wide = [Segment(0, 4, 0, 0, 64, 64)]
    room = {"most_items": 4, "most_wide_items": 2, "most_slots": 8}
    divide(narrow, wide, tokens=4, queries_per_tile=2, **room)
    with pytest.raises(ValueError, match=r"room|partial results"):
        divide(narrow, wide, tokens=4, queries_per_tile=2, **room | {lacking: room[lacking] - 1})


# --- Through the executor


def with_items(model: Any, **others: Any) -> PagedExecutor:
    """An executor that divides its work for kernels, and attends in plain torch."""
    settings = {"max_rows": 24, "kv_budget_bytes": 2**22, "context_length": 512}
    executor = PagedExecutor(
        model, attention="kernels", prefill_tokens=64, **{**settings, **others}
    )
    executor.static._attention = "plain"
    return executor


def checked(executor: PagedExecutor, monkeypatch: pytest.MonkeyPatch) -> list[StepShape]:
    """Check the items of every launch; returns the list of their shapes."""
    launch, shapes = executor.static.launch, list[StepShape]()

    def checking(shape: StepShape, numbers: np.ndarray, pages: int) -> Any:
        inputs = StepInputs.of(numbers, shape)
        width = int(inputs.table_width[0])
        tables = inputs.tables[: len(inputs.tables) // width * width].reshape(-1, width)
        padding = len(tables) - 1
        used = [token for token in range(shape.tokens) if inputs.rows[token] != padding]
        assert used == list(range(len(used)))
        slots = inputs.source[used]
        positions = np.where(
            slots >= 0, executor.static.position[slots].numpy(), inputs.positions[used]
        )
        for step in {0, shape.steps - 1}:
            lengths = positions + 1 + step
            check_items(inputs, inputs.rows[used].tolist(), lengths.tolist(), tables)
        shapes.append(shape)
        return launch(shape, numbers, pages)

    monkeypatch.setattr(executor.static, "launch", checking)
    return shapes


def play(executor: PagedExecutor, *requests: tuple[list[int], Sampling]) -> list[Completion]:
    engine = Engine(executor, prefill_tokens=64)
    made = [
        Request(context, sampling, Future(), limit=executor.context_length - len(context))
        for context, sampling in requests
    ]
    engine.waiting += made
    while not engine.idle:
        engine.step()
    return [request.future.result() for request in made]


def shared_lightly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short prefixes are shared, and short rows divided."""
    monkeypatch.setattr(paged_executor, "WORTH_JOINING", 0)
    monkeypatch.setattr(work_items, "WORTH_SHARING", 16)
    for module in (paged_executor, work_items):
        monkeypatch.setattr(module, "SHORTEST_PIECE", 32)


def test_the_items_of_every_step_cover_what_is_attended(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_lightly(monkeypatch)
    model = tiny_model(200, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    executor = with_items(model)
    shapes = checked(executor, monkeypatch)
    requests = [
        (
            [*range(3, 43), *([5 + number // 4] * 50), *([60 + number] * (number % 3))],
            Sampling(max_new_tokens=2 + 3 * number, seed=number),
        )
        for number in range(12)
    ]
    play(executor, *requests)
    play(executor, ([5, 6, 7], Sampling(max_new_tokens=20)))  # without parts
    assert {shape.steps for shape in shapes} >= {1, 16}
    assert any(shape.joined for shape in shapes) and not all(shape.joined for shape in shapes)
    assert any(shape.tokens > 24 for shape in shapes), "contexts and decoding rows in one step"


def chain(rows: int) -> list[tuple[list[int], Sampling]]:
    """Contexts of which each begins like the one before, and goes on one page longer."""
    return [
        ([7] * (PAGE * (number + 1)) + [9, number + 10], Sampling(max_new_tokens=60, seed=number))
        for number in range(rows)
    ]


def test_prefixes_of_very_many_levels_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """More parts than a step has room for: rows attend alone, and no request fails."""
    monkeypatch.setattr(paged_executor, "WORTH_JOINING", 0)
    model = tiny_model(
        200,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=64,
        num_key_value_heads=1,
        head_dim=8,
    )
    requests = chain(24)
    executor = with_items(model)
    checked(executor, monkeypatch)
    refused: list[ValueError] = []

    def dividing(*given: Any, **room: Any) -> Items:
        try:
            return divide(*given, **room)
        except ValueError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(paged_executor, "divide", dividing)
    found = play(executor, *requests)
    assert refused, "or this tests nothing"
    plain = PagedExecutor(
        model,
        max_rows=24,
        kv_budget_bytes=2**22,
        context_length=512,
        prefill_tokens=64,
        attention="plain",
    )
    expected = play(plain, *requests)
    assert [each.ids for each in found] == [each.ids for each in expected]


@given(
    group=st.sampled_from([1, 3, 8, 40, 64]),
    key_heads=st.sampled_from([1, 8]),
    max_rows=st.integers(1, 40),
    prefill=st.lists(st.integers(2, 64), max_size=40),
    keys=st.integers(1, 40_000),
    data=st.data(),
)
@settings(max_examples=100)
def test_rows_that_share_nothing_always_have_room(
    group: int, key_heads: int, max_rows: int, prefill: list[int], keys: int, data: st.DataObject
) -> None:
    executor = EXECUTORS.setdefault((group, key_heads, max_rows), None)
    if executor is None:
        executor = EXECUTORS[group, key_heads, max_rows] = with_items(
            tiny_model(
                50,
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=group * key_heads,
                num_key_value_heads=key_heads,
                head_dim=8,
            ),
            max_rows=max_rows,
            kv_budget_bytes=2**18,
        )
    prefill = [count for number, count in enumerate(prefill) if sum(prefill[: number + 1]) <= 64]
    decoding = data.draw(st.integers(0 if prefill else 1, max_rows))
    prefill = prefill[: max_rows - decoding]
    tokens = decoding + sum(prefill)
    if prefill:
        size, samples = mixed_size(tokens), padded_size(max_rows)
    else:
        size = samples = padded_size(decoding)
    shape = executor._shape(size, samples, NO_FILTERS, wide=True, prefilling=bool(prefill))
    narrow = [Segment(place, 1, place, 0, OPEN, keys) for place in range(decoding)]
    starts = np.cumsum([decoding, *prefill]).tolist()
    wide = [
        Segment(start, count, decoding + number, 0, keys + count, keys + count)
        for number, (start, count) in enumerate(zip(starts, prefill, strict=False))
    ]
    items = divide(
        narrow,
        wide,
        tokens=shape.tokens,
        queries_per_tile=max(1, shape.wide_rows // group),
        most_items=shape.items,
        most_wide_items=shape.wide_items,
        most_slots=shape.slots,
    )
    assert items.items[:, 1].sum() >= decoding


EXECUTORS: dict[tuple[int, int, int], Any] = {}


@pytest.mark.parametrize("width", [32, 80, 128, 256, 512])
def test_tiles_are_those_that_kernels_have(width: int) -> None:
    """In float32 and with wide heads the kernels have smaller tiles."""
    model = tiny_model(50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, head_dim=width)
    executor = with_items(model, kv_budget_bytes=2**22)
    from gymnast.agents.engine.paged_attention import tiles

    for prefilling in (False, True):
        shape = executor._shape(64, 32, NO_FILTERS, wide=True, prefilling=prefilling)
        assert shape.wide_rows in tiles(width, width, model.dtype)
