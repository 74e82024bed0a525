"""The check before an engine's first use finds attention that is wrong anywhere."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gymnast.agents import load_model
from gymnast.agents.engine import static_step
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.paged_attention import attend_pages_plain, write_pages_plain
from gymnast.agents.engine.paged_executor import PagedExecutor
from gymnast.agents.engine.self_check import LIMITS, check_engine
from gymnast.agents.engine.static_step import StaticStep, layer_shapes
from gymnast.agents.loading.tiny import tiny_model
from gymnast.agents.models.adapters import folded

LONGEST = 1200


@pytest.fixture(scope="module")
def model() -> Any:
    """One whose tokens depend on what they attend to."""
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16}
    return tiny_model(100, initializer_range=0.3, **shape)


def check(model: Any, context_length: int = LONGEST) -> float:
    executor = PagedExecutor(
        model,
        max_rows=4,
        kv_budget_bytes=2**21,
        context_length=context_length,
        prefill_tokens=64,
        attention="plain",
    )
    return check_engine(Engine(executor, prefill_tokens=64), model, context_length)


@pytest.mark.parametrize("context_length", [2, 3, 9, 60, LONGEST])
def test_an_engine_that_is_right_passes(model: Any, context_length: int) -> None:
    assert check(model, context_length) < LIMITS[torch.float32] / 5


def own_key_missing(*given: Any) -> torch.Tensor:
    query, keys, values, tables, width, rows, positions, *rest = given
    before = (positions - 1).clamp(min=0)
    return attend_pages_plain(query, keys, values, tables, width, rows, before, *rest)


def one_key_lost(*given: Any) -> torch.Tensor:
    query, keys, values, *rest = given
    values = values.clone()
    values[rest[0][0], :, 5] = 0
    return attend_pages_plain(query, keys, values, *rest)


def page_of_another_row(*given: Any) -> torch.Tensor:
    query, keys, values, tables, width, *rest = given
    moved = tables.clone()
    moved[0] = tables[width[0]]  # the first page of the first row is that of the second
    return attend_pages_plain(query, keys, values, moved, width, *rest)


def first_part_lost(*given: Any) -> torch.Tensor:
    *before, settings, pages = given
    changed: Any = (*before, replace(settings, window=512), pages)
    return attend_pages_plain(*changed)


def scale_forgotten(*given: Any) -> torch.Tensor:
    *before, settings, pages = given
    changed: Any = (*before, replace(settings, scale=1.0), pages)
    return attend_pages_plain(*changed)


def written_a_place_off(*given: Any) -> None:
    *before, positions = given
    changed: Any = (*before, torch.where(positions == 20, 21, positions))
    write_pages_plain(*changed)


ATTENTION = [own_key_missing, one_key_lost, page_of_another_row, first_part_lost, scale_forgotten]


@pytest.mark.parametrize("wrong", ATTENTION, ids=lambda wrong: wrong.__name__)
def test_wrong_attention_is_found(
    model: Any, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., torch.Tensor]
) -> None:
    monkeypatch.setattr(static_step, "attend_pages_plain", wrong)
    assert check(model) > 2 * LIMITS[torch.float32]


def test_wrong_writing_is_found(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_step, "write_pages_plain", written_a_place_off)
    assert check(model) > 2 * LIMITS[torch.float32]


# --- Where weights lie, which graphs depend on


def places(model: Any) -> Any:
    step = StaticStep(
        model,
        layer_shapes(model),
        pages=2,
        slots=1,
        most_tokens=1,
        most_samples=1,
        most_numbers=64,
        most_steps=1,
        unread=1,
        attention="plain",
    )
    return step._where_weights_are()


def test_updates_in_place_leave_weights_where_they_are() -> None:
    model = tiny_model(50, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    before = places(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    model.load_state_dict({name: 2 * each for name, each in model.state_dict().items()})
    assert places(model) == before


def test_weights_that_move_are_noticed() -> None:
    model = tiny_model(50, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    before = places(model)
    layer = model.model.layers[0].mlp.up_proj
    kept = layer.weight.data
    layer.weight.data = kept.clone()
    assert places(model) != before
    layer.weight.data = kept
    assert places(model) == before
    layer.register_buffer("more", torch.zeros(1))
    assert places(model) != before


def test_adapters_are_in_the_same_place_each_time_they_are_folded() -> None:
    model, _ = load_model("tiny:", lora={"rank": 4})
    model.eval()
    unfolded = places(model)
    found = []
    for _ in range(2):
        with folded(model):
            found.append(places(model))
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    weight.add_(0.1)
    assert found[0] == found[1] != unfolded, "adapters that are off are not in a graph"
    assert places(model) == unfolded
