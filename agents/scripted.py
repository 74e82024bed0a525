"""An agent that says what it was told to say: for tests, replays and worked episodes."""

from collections.abc import Callable, Sequence

from gymnast.errors import UsageError
from gymnast.types import Completion, Sampling

FunctionOfContext = Callable[[list[int]], Sequence[int]]


class ScriptedAgent:
    """Says turn 0, 1, ... of a script in every episode, however many run at once.

        call = {"role": "assistant", "tool_calls": [ToolCall("", "add", {"a": 2, "b": 3})]}
        answer = {"role": "assistant", "content": "5."}
        agent = ScriptedAgent([renderer.encode(call), renderer.encode(answer)])
        trajectory = await rollout(env, agent, row)

    An agent is not told which episode a context belongs to. It finds the turn from the contexts
    it has answered: a context that begins with one of these and the answer to it is at the next
    turn; any other is at turn 0. So a prompt that continues an episode this agent has played is
    taken for that episode.

    Args:
        turns: The ids of each turn, with its stop id if the turn is to be closed; or a function
            from the context's ids to the ids of its turn.

    Raises:
        UsageError: A turn is empty.
    """

    def __init__(self, turns: Sequence[Sequence[int]] | FunctionOfContext) -> None:
        self._turns = turns if callable(turns) else [list(turn) for turn in turns]
        self._next_turn: dict[tuple[int, ...], int] = {}  # by a context and the answer to it
        self._lengths: set[int] = set()  # of those keys
        if not callable(turns) and not all(turns):
            empty = [bool(turn) for turn in turns].index(False)
            raise UsageError(f"ScriptedAgent: turn {empty} is empty; every turn needs an id")

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """Say the next turn of this context, cut to `sampling.max_new_tokens`.

        Returns:
            The turn with logprobs of 0.0; `stop` is "length" if it was cut, else "stop".

        Raises:
            UsageError: The script has no more turns.
        """
        if callable(self._turns):
            turn = list(self._turns(context_ids))
            ids = turn[: sampling.max_new_tokens]
        else:
            number = self._turn_of(context_ids)
            if number >= len(self._turns):
                raise UsageError(
                    f"ScriptedAgent: the script has {len(self._turns)} turns, and an episode asks "
                    f"for one more (its context has {len(context_ids)} tokens); add a turn, or "
                    "end the episode sooner (max_turns)"
                )
            turn = self._turns[number]
            ids = turn[: sampling.max_new_tokens]
            self._next_turn[(*context_ids, *ids)] = number + 1
            self._lengths.add(len(context_ids) + len(ids))
        return Completion(ids, [0.0] * len(ids), "stop" if ids == turn else "length")

    def _turn_of(self, context_ids: list[int]) -> int:
        """The turn after the longest answered context that this one begins with."""
        for length in sorted(self._lengths, reverse=True):
            if length <= len(context_ids):
                number = self._next_turn.get(tuple(context_ids[:length]))
                if number is not None:
                    return number
        return 0
