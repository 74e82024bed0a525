"""Activations are kept where they fit, computed again where not, and else the step is refused."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import NotEnoughMemory
from gymnast.trainers.learner.memory.available import Available, available
from gymnast.trainers.learner.memory.choice import (
    StepMemory,
    kv_warning,
    largest_that,
    memory_line,
    room_for,
    two_digits,
)
from gymnast.trainers.learner.memory.estimate import Division, fixed_memory, shown_bytes
from gymnast.trainers.learner.policy.policy import Policy

MIB = 2**20


@pytest.fixture(scope="module")
def memory() -> StepMemory:
    """Of a model of 3.5 MiB, without a limit."""
    model = tiny_model()
    fixed = fixed_memory(model, model.parameters(), Division(), copies=0)
    return StepMemory(Policy(model), fixed)


def within(memory: StepMemory, mebibytes: float) -> StepMemory:
    return replace(memory, room=Available(int(mebibytes * MIB), "the machine"))


def test_without_a_limit_activations_are_kept(memory: StepMemory) -> None:
    assert memory.choose(10**6, 0).activations == "keep"


def test_with_less_memory_freed_memory_goes_back_then_layers_are_computed_again(
    memory: StepMemory,
) -> None:
    ways = []
    for room in (200, 150, 100):
        choice = within(memory, room).choose(2048, 0)
        assert choice.estimate.total <= 0.9 * room * MIB
        ways.append((choice.activations, choice.exact))
    assert ways == [("keep", False), ("keep", True), ("recompute", True)]


def test_an_episode_longer_than_a_micro_batch_counts(memory: StepMemory) -> None:
    assert within(memory, 200).choose(2048, 4096).tokens == 4096
    assert within(memory, 200).choose(2048, 4096).activations == "recompute"


@pytest.mark.parametrize(
    ("tokens", "longest", "room", "remedy"),
    [
        (2048, 300, 40, r"Lower trainer.tokens_per_microbatch from 2048 to (\d+)"),
        (2048, 2048, 40, r"Lower environment.context_length to (\d+), and trainer.tokens_"),
        (300, 2048, 40, r"Lower environment.context_length to (\d+)\."),
    ],
)
def test_a_step_that_would_not_fit_is_refused_with_what_makes_it_fit(
    memory: StepMemory, tokens: int, longest: int, room: int, remedy: str
) -> None:
    small = within(memory, room)
    with pytest.raises(NotEnoughMemory, match="a micro-batch of 2,048 tokens") as raised:
        small.choose(tokens, longest)
    found = re.search(remedy, str(raised.value))
    assert found is not None, raised.value
    fits = int(found[1])
    small.choose(min(tokens, fits), min(longest, fits))
    with pytest.raises(NotEnoughMemory):
        small.choose(int(1.2 * fits), 0)


def test_where_the_weights_leave_no_room_adapters_are_advised(memory: StepMemory) -> None:
    with pytest.raises(NotEnoughMemory, match="train adapters"):
        within(memory, 12).choose(2048, 0)


def test_a_setting_is_obeyed_or_refused(memory: StepMemory) -> None:
    again = replace(memory, asked="recompute", room=Available(10**12, "the machine"))
    assert again.choose(2048, 0).activations == "recompute"
    kept = replace(within(memory, 100), asked="keep")
    with pytest.raises(NotEnoughMemory, match=r"Set trainer.activations to auto \(it is keep\)"):
        kept.choose(2048, 0)


def test_one_line_tells_the_parts(memory: StepMemory) -> None:
    room = room_for(memory.fixed, Available(2**30, "the machine"))
    choice = replace(memory, room=room).choose(2048, 0)
    line = memory_line(choice, room)
    assert "\n" not in line
    sizes = "micro-batches of up to 2,048 tokens, activations kept"
    for part in ("of 1.00 GiB (the machine)", "weights 4 MiB", sizes):
        assert part in line


def filling(memory: StepMemory, mebibytes: float, **settings: Any) -> StepMemory:
    """As on an accelerator with this much memory."""
    return replace(within(memory, mebibytes), fills=True, **settings)


def test_on_a_cpu_micro_batches_have_2048_tokens(memory: StepMemory) -> None:
    choice = within(memory, 10**6).choose(None, 300, batch_tokens=28_000)
    assert (choice.tokens, choice.limit) == (2048, 2048)
    assert within(memory, 10**6).choose(None, 3000, batch_tokens=28_000).limit == 2048
    assert within(memory, 10**6).choose(None, 300, batch_tokens=900).tokens == 900


def test_where_memory_is_free_a_batch_is_one_micro_batch(memory: StepMemory) -> None:
    gpu = filling(memory, 10**6)
    choice = gpu.choose(None, 300, batch_tokens=28_000)
    assert (choice.tokens, choice.limit, choice.activations) == (28_000, 28_000, "keep")
    assert gpu.choose(None, 300, batch_tokens=10**7).tokens == 65_536
    assert gpu.choose(None, 70_000, batch_tokens=10**7).tokens == 70_000
    assert gpu.choose(2048, 300, batch_tokens=28_000).limit == 2048, "a number is obeyed"


def test_memory_is_filled_up_to_the_share(memory: StepMemory) -> None:
    found = []
    for share in (0.9, 0.5):
        gpu = filling(memory, 2000, share=share)
        choice = gpu.choose(None, 300, batch_tokens=10**6)
        assert choice.activations == "keep"
        assert 0.8 * share * 2000 * MIB < choice.estimate.total <= share * 2000 * MIB
        found.append(choice.tokens)
    assert 8192 < found[1] < found[0] < 65_536
    assert found[0] == two_digits(found[0])


def test_keys_and_values_leave_less_to_fill(memory: StepMemory) -> None:
    alone = filling(memory, 2000).choose(None, 300, batch_tokens=10**6)
    beside = filling(memory, 2000, kv_bytes=500 * MIB).choose(None, 300, batch_tokens=10**6)
    assert beside.estimate.total <= 1800 * MIB and beside.tokens < alone.tokens


def test_layers_are_computed_again_for_long_enough_passes(memory: StepMemory) -> None:
    """Rather than to keep the activations of fewer than 8,192 tokens, or of a shorter batch."""
    gpu = filling(memory, 300)
    kept = replace(gpu, asked="keep").choose(None, 300, batch_tokens=10**6).tokens
    assert kept < 8192
    choice = gpu.choose(None, 300, batch_tokens=10**6)
    assert choice.activations == "recompute" and choice.tokens > 2 * kept
    assert gpu.choose(None, 300, batch_tokens=kept).activations == "keep", "all of the batch"


def test_an_episode_is_never_longer_than_what_is_chosen(memory: StepMemory) -> None:
    gpu = filling(memory, 1000)
    assert gpu.choose(None, 300, batch_tokens=10**6).tokens < 20_000
    choice = gpu.choose(None, 20_000, batch_tokens=10**6)
    assert (choice.activations, choice.tokens >= 20_000) == ("recompute", True)


@pytest.mark.parametrize(("longest", "tokens"), [(300, 8192), (9000, 9000)])
def test_recomputation_that_is_set_saves_memory(
    memory: StepMemory, longest: int, tokens: int
) -> None:
    gpu = filling(memory, 10**6, asked="recompute")
    assert gpu.choose(None, longest, batch_tokens=10**6).tokens == tokens


def test_less_memory_than_for_8192_tokens_is_filled(memory: StepMemory) -> None:
    choice = filling(memory, 60, asked="recompute").choose(None, 300, batch_tokens=10**6)
    assert 300 < choice.tokens < 8192
    assert choice.estimate.total <= 0.9 * 60 * MIB


def test_an_episode_that_fits_in_no_way_is_refused(memory: StepMemory) -> None:
    with pytest.raises(NotEnoughMemory) as raised:
        filling(memory, 60).choose(None, 10**5, batch_tokens=10**6)
    found = re.search(r"environment.context_length to (\d+)", str(raised.value))
    assert found is not None and "tokens_per_microbatch" not in str(raised.value)
    filling(memory, 60).choose(None, int(found[1]), batch_tokens=10**6)


def test_where_not_even_short_episodes_fit_adapters_are_advised(memory: StepMemory) -> None:
    with pytest.raises(NotEnoughMemory, match="train adapters"):
        filling(memory, 12).choose(None, 0, batch_tokens=10**6)


def test_after_running_out_of_memory_half_is_tried(memory: StepMemory) -> None:
    for each in (filling(memory, 10**6), within(memory, 10**6)):
        before = each.choose(None, 300, batch_tokens=2000)
        assert each.halve(before.tokens, 300)
        assert each.choose(None, 300, batch_tokens=2000).limit == 1000
        assert not each.halve(1000, 600), "the longest episode has more than half"
        assert each.choose(2000, 300, batch_tokens=2000).limit == 2000


def test_keys_and_values_that_stay_take_the_room_of_activations(memory: StepMemory) -> None:
    alone = within(memory, 150)
    beside = replace(alone, kv_bytes=50 * MIB)
    assert (alone.choose(2048, 0).activations, alone.choose(2048, 0).estimate.kv) == ("keep", 0)
    choice = beside.choose(2048, 0)
    assert (choice.activations, choice.estimate.kv) == ("recompute", 50 * MIB)
    assert choice.estimate.total <= 150 * MIB
    line = memory_line(choice, beside.room, 50 * MIB)
    assert "keys and values up to 50 MiB" in line and "max_staleness" in line
    assert "instead" not in line and not kv_warning(choice, beside.room, 50 * MIB)


def test_where_they_leave_no_room_a_smaller_budget_is_advised(memory: StepMemory) -> None:
    beside = replace(within(memory, 150), kv_bytes=120 * MIB)
    with pytest.raises(NotEnoughMemory) as raised:
        beside.choose(2048, 0)
    found = re.search(rf"trainer.kv_budget_bytes from {120 * MIB} to (\d+)", str(raised.value))
    assert found is not None and "trainer.max_staleness" in str(raised.value)
    assert 0 < int(found[1]) < 120 * MIB
    replace(beside, kv_bytes=int(found[1])).choose(2048, 0)
    with pytest.raises(NotEnoughMemory):
        replace(beside, kv_bytes=int(1.1 * int(found[1]))).choose(2048, 0)


def test_a_smaller_budget_is_not_advised_where_it_would_not_help(memory: StepMemory) -> None:
    with pytest.raises(NotEnoughMemory, match=r"Lower trainer.tokens_per_microbatch"):
        replace(within(memory, 40), kv_bytes=MIB).choose(2048, 0)


def test_weights_in_half_precision_have_masters() -> None:
    model = tiny_model().to(torch.bfloat16)
    count = sum(weight.numel() for weight in model.parameters())
    fixed = fixed_memory(model, model.parameters(), Division(), copies=1)
    assert fixed.optimizer == 12 * count
    assert fixed.gradients == 4 * count
    assert fixed.held == fixed.weights + 4 * count
    shared = fixed_memory(model, model.parameters(), Division(2, 2, 2), copies=0)
    assert shared.optimizer == 6 * count
    assert shared.weights == pytest.approx(1.5 * 2 * count, rel=0.01)


def test_a_teacher_and_copies_of_the_model_are_weights() -> None:
    model, teacher = tiny_model(), tiny_model().to(torch.bfloat16)
    alone = fixed_memory(model, model.parameters(), Division())
    both = fixed_memory(model, model.parameters(), Division(), copies=2, others=[teacher])
    count = sum(weight.numel() for weight in model.parameters())
    assert both.weights == pytest.approx(alone.weights * 3 + 2 * count, rel=0.01)
    assert both.held - alone.held == both.weights - alone.weights
    assert (both.optimizer, both.gradients) == (alone.optimizer, alone.gradients)


def test_processes_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = available(torch.device("cpu"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    together = available(torch.device("cpu"))
    assert alone is not None and together is not None
    assert together.nbytes == pytest.approx(alone.nbytes / 4, rel=0.2)
    assert together.of.endswith("(a share of 4)")


def test_numbers_are_rounded_down() -> None:
    assert two_digits(largest_that(lambda tokens: tokens <= 1234)) == 1200
    assert two_digits(largest_that(lambda tokens: False)) == 0
    assert largest_that(lambda tokens: True, most=1234) == 1234
    assert shown_bytes(3 * 2**29) == "1.50 GiB"
