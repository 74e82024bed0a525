"""Shared prefixes: packed once, with the logits and gradients of separate sequences."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch, split
from gymnast.trainers.learner.policy.packing import WORTH_SHARING, pack
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Span, StopReason, Trajectory

PREFIX = list(range(10, 10 + WORTH_SHARING))


def trajectory(prompt: list[int], *runs: list[int]) -> Trajectory:
    """A trajectory from a prompt, an action, an observation, an action, ..."""
    ids, mask, turns = list(prompt), [0] * len(prompt), []
    for number, run in enumerate(runs):
        if number % 2 == 0:
            turns.append(Span(len(ids), len(ids) + len(run)))
        ids += run
        mask += [1 - number % 2] * len(run)
    return Trajectory(
        ids=ids,
        action_mask=mask,
        logprobs=[-1.0 * bit for bit in mask],
        prompt_length=len(prompt),
        turns=turns,
        turn_rewards=[0.0] * len(turns),
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )


token = st.integers(0, 3)
# Few distinct tokens and long common starts make deep trees.
sequences = st.lists(
    st.builds(
        lambda copies, tail: PREFIX * copies + tail,
        st.integers(0, 3),
        st.lists(token, min_size=1, max_size=40),
    ),
    min_size=1,
    max_size=8,
)


@given(sequences)
def test_every_sequence_is_found_again_in_the_pack(sequences: list[list[int]]) -> None:
    packed = pack(sequences)
    for sequence, index in zip(sequences, packed.index, strict=True):
        assert packed.ids[index].tolist() == sequence
        assert packed.positions[index].tolist() == list(range(len(sequence)))
    assert len(packed.ids) <= sum(map(len, sequences))


@given(sequences)
def test_the_ancestors_of_a_token_are_its_own_sequence(sequences: list[list[int]]) -> None:
    packed = pack(sequences)
    segment_of = {t: s for s in packed.segments for t in range(s.start, s.end)}
    for index in packed.index:
        path: list[int] = []
        segment = segment_of[int(index[-1])]
        while True:
            path = [*range(segment.start, segment.end), *path]
            if segment.parent is None:
                break
            segment = packed.segments[segment.parent]
        assert path[: len(index)] == index.tolist()


def test_a_prompt_shared_by_a_group_is_packed_once() -> None:
    group = [[*PREFIX, *PREFIX, 1, 2], [*PREFIX, *PREFIX, 3], [*PREFIX, 4]]
    packed = pack(group)
    assert len(packed.ids) == 2 * len(PREFIX) + 2 + 1 + 1
    alone = sum(len(pack([member]).ids) for member in group)
    assert len(packed.ids) < alone == sum(map(len, group))


def random_samples(seed: int) -> list[CreditedTrajectory]:
    """Three groups below one system prompt, with members of very different lengths."""
    random = np.random.default_rng(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [int(t) for t in random.integers(0, 1000, random.integers(low, high))]

    system, samples = tokens(30, 40), []
    for _ in range(3):
        prompt = system + tokens(17, 30)
        for _ in range(4):
            runs = [tokens(1, 30) for _ in range(int(random.choice([1, 3, 5])))]
            made = trajectory(prompt, *runs)
            samples.append(
                CreditedTrajectory(made, torch.tensor(random.normal(size=len(made.turns))))
            )
    return samples


def separate_logprobs(model: Any, sample: CreditedTrajectory) -> torch.Tensor:
    ids = torch.tensor(sample.trajectory.ids, device=model.device)
    logprobs = torch.log_softmax(model(ids[None]).logits[0], dim=-1)
    actions = torch.tensor(sample.trajectory.action_mask, device=model.device).nonzero()[:, 0]
    return logprobs[actions - 1, ids[actions]]


WINDOWED = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2}


@pytest.mark.parametrize("overrides", [{}, WINDOWED], ids=["full", "sliding window"])
def test_a_packed_forward_and_backward_equals_separate_ones(
    device: torch.device, overrides: dict[str, Any]
) -> None:
    model = tiny_model(**overrides).double().to(device)
    samples = random_samples(0)
    batch = micro_batch(samples, model.device)
    assert len(batch.packed.ids) < sum(len(s.trajectory.ids) for s in samples)
    packed = Policy(model)(batch)
    weights = torch.randn(len(packed), dtype=packed.dtype).to(device)
    (packed * weights).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    separate = torch.cat([separate_logprobs(model, sample) for sample in samples])
    (separate * weights).sum().backward()
    # The head computes in float32.
    torch.testing.assert_close(packed.double(), separate, rtol=1e-5, atol=1e-5)
    for ours, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-4, atol=1e-5)


def test_only_action_tokens_are_targets_and_each_has_its_turns_advantage() -> None:
    sample = CreditedTrajectory(
        trajectory([1, 2, 3], [4, 5], [6, 7, 8], [9]), torch.tensor([0.5, -2.0])
    )
    batch = micro_batch([sample], torch.device("cpu"))
    assert batch.targets.tolist() == [4, 5, 9]
    assert batch.advantages.tolist() == [0.5, 0.5, -2.0]
    assert batch.packed.ids[batch.predicted_from.numpy()].tolist() == [3, 4, 8]


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(20, 400))
def test_micro_batches_hold_every_sample_that_trains_once(seed: int, tokens: int) -> None:
    samples = random_samples(seed)
    samples[0] = CreditedTrajectory(
        samples[0].trajectory, torch.zeros(len(samples[0].trajectory.turns))
    )
    batches = split([samples[:4], samples[4:8], samples[8:]], tokens)
    assert [id(s) for batch in batches for s in batch] == [id(s) for s in samples[1:]]
    for batch in batches:
        size = len(pack([sample.trajectory.ids for sample in batch]).ids)
        assert size <= tokens or len(batch) == 1
