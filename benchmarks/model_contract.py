"""What the engine owes every decoder, whatever it is made of, and whichever path it takes.

Six episodes of three turns run at once, three at a time: contexts of different lengths with a
common beginning, much longer than a window, that join and leave. Each token is then compared with
the model alone.
"""

import asyncio
from typing import Any

import torch

from gymnast.agents import TransformersAgent
from gymnast.agents.models.context_limits import rope_changes_beyond
from gymnast.types import Completion, Sampling
from model_families import VOCABULARY

EPISODES = 6
TURNS = 3
NEAR_TIE = 1e-4
TOLERANCE = 1e-4
Turn = tuple[list[int], Completion, bool]  # context, completion, greedy


def tokens(seed: int, length: int) -> list[int]:
    """Random ids that are no control tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
    return ids


async def _episode(agent: TransformersAgent, number: int, turns: list[Turn]) -> None:
    # Two and two have the same prompt, and all begin alike.
    context = tokens(0, 20) + tokens(1 + number // 2, 3 + 11 * (number // 2))
    greedy = number % 2 == 0
    for turn in range(TURNS):
        sampling = Sampling(
            temperature=0.0 if greedy else 1.0,
            max_new_tokens=2 + (3 * number + turn) % 5,
            seed=number,
        )
        completion = await agent.generate(context, sampling)
        turns.append((context, completion, greedy))
        context = context + completion.ids + tokens(turn, 1 + 4 * (number % 3))
        await asyncio.sleep(0)


def play(agent: TransformersAgent) -> list[Turn]:
    """All turns of all episodes."""
    turns: list[Turn] = []

    async def together() -> None:
        await asyncio.gather(*(_episode(agent, number, turns) for number in range(EPISODES)))

    asyncio.run(together())
    return turns


@torch.no_grad()
def predictions(model: Any, context: list[int], ids: list[int]) -> torch.Tensor:
    """Logits [n, V] that the model alone gives for each of `ids`, without any cache."""
    everything = torch.tensor([context + ids], device=model.device)
    if rope_changes_beyond(model) is None:
        logits: torch.Tensor = model(input_ids=everything, use_cache=False).logits
        return logits[0, len(context) - 1 : -1].float().cpu()
    # What a token's logits are depends on how many come after it: leave those out.
    ends = range(len(context), everything.shape[1])
    parts = [model(input_ids=everything[:, :end], use_cache=False).logits[:, -1] for end in ends]
    return torch.cat(parts).float().cpu()


def check_turn(model: Any, context: list[int], completion: Completion, greedy: bool) -> None:
    """Compare one completion with the model alone.

    Raises:
        AssertionError: A log-probability is another, or a greedy token is not the likeliest.
    """
    logits = predictions(model, context, completion.ids)
    chosen = torch.tensor(completion.ids)[:, None]
    expected = torch.log_softmax(logits, dim=-1).gather(1, chosen)[:, 0]
    difference = (torch.tensor(completion.logprobs) - expected).abs().max().item()
    assert difference < TOLERANCE, f"a log-probability is off by {difference:.2g}"
    if greedy:
        behind = (logits.max(dim=-1).values - logits.gather(1, chosen)[:, 0]).max().item()
        assert behind < NEAR_TIE, f"a greedy token is {behind:.2g} less likely than the likeliest"


@torch.no_grad()
def check_generate(model: Any, context: list[int], completion: Completion) -> None:
    """Compare a greedy completion with `model.generate`, up to the first near-tie.

    Raises:
        AssertionError: The tokens differ.
    """
    ids = model.generate(
        torch.tensor([context]),
        attention_mask=torch.ones(1, len(context), dtype=torch.long),
        max_new_tokens=len(completion.ids),
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(context) :].tolist()
    if ids != completion.ids:
        logits = predictions(model, context, completion.ids)
        at = next(i for i, (a, b) in enumerate(zip(ids, completion.ids, strict=True)) if a != b)
        best, second = logits[at].topk(2).values.tolist()
        assert best - second < NEAR_TIE, f"generate samples {ids}, the engine {completion.ids}"


def examine(model: Any, *, generate: bool = True) -> str:
    """Drive a model through everything above.

    Args:
        model: Random, in float32.
        generate: Whether to compare with `model.generate` too (it is wrong for some models).

    Returns:
        The path that the agent took.

    Raises:
        AssertionError: Something is not as the model alone has it.
        ModelError: The model is refused.
    """
    agent = TransformersAgent(model, max_batch=3, prefill_tokens=16)
    turns = play(agent)
    assert len(turns) == EPISODES * TURNS
    for context, completion, greedy in turns:
        check_turn(model, context, completion, greedy)
    if generate:
        greedy_turns = [turn for turn in turns if turn[2]]
        for context, completion, _ in greedy_turns[::3]:
            check_generate(model, context, completion)
    return agent.path
