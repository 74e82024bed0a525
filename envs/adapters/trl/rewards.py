"""Calling TRL's reward functions with one episode, as TRL calls them with a batch of one."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnast.envs.records.episode import Episode
from gymnast.envs.rendering.renderer import Renderer
from gymnast.errors import shown
from gymnast.numbers import as_float, mean

_OWN_ARGUMENTS = ("prompt", "completion", "completion_ids")  # no columns for TRL


def arguments_of(episode: Episode, renderer: Renderer | None) -> dict[str, Any]:
    """What a reward function is given of an episode; each value is a list of one.

    A prompt that is a string in the row is one here too, and the completion is then the text of the
    last turn. `completion_ids` are the tokens that the policy wrote; they need a renderer.
    """
    row = episode.row
    prompt: Any
    completion: Any
    if isinstance(row.get("prompt"), str):
        prompt, completion = row["prompt"], episode.answer
    else:
        prompt = list(episode.prompt)
        completion = episode.messages[len(prompt) :]
    given = {
        **{name: [value] for name, value in row.items() if name not in _OWN_ARGUMENTS},
        "prompts": [prompt],
        "completions": [completion],
        "trainer_state": None,
    }
    if renderer is not None:
        written = "".join(turn.raw for turn in episode.turns)
        given["completion_ids"] = [renderer.tokenizer.encode(written, add_special_tokens=False)]
    return given


def number(returned: Any) -> float | None:
    """What a reward function says of the one episode; None: nothing.

    Raises:
        ValueError: It is no list of one number or None.
    """
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    if not isinstance(returned, Sequence) or isinstance(returned, str) or len(returned) != 1:
        raise ValueError(f"it returned {shown(returned)}, not a list of one reward")
    return finite(returned[0])


def finite(value: Any) -> float | None:
    """A reward as a number; None where it is None or NaN, which TRL takes for it.

    Raises:
        ValueError: It is no number, or infinite.
    """
    try:
        number = math.nan if value is None else as_float(value)
    except ValueError:
        number = math.inf
    if math.isinf(number):
        raise ValueError(f"the reward is {shown(value)}, which is no finite number")
    return None if math.isnan(number) else number


def names(functions: Sequence[Callable[..., Any]], taken: Sequence[str]) -> list[str]:
    """A name for each function, by which its part of the reward is reported."""
    found: list[str] = list(taken)
    for function in functions:
        name = getattr(function, "__name__", type(function).__name__)
        same = sum(other.partition("_#")[0] == name for other in found)
        found.append(f"{name}_#{same + 1}" if same else name)
    return found[len(taken) :]


class Log:
    """What reward functions log: means of numbers by name; further columns are dropped."""

    def __init__(self) -> None:
        self._logged: dict[str, list[float]] = {}

    def metric(self, name: str, value: Any) -> None:
        """Note a number."""
        self._logged.setdefault(name, []).append(as_float(value))

    def extra(self, column: str, values: Any) -> None:
        """Take a column of a table that is not kept."""

    def means(self) -> Mapping[str, float]:
        """The mean of each number that is finite."""
        means = {name: mean(each) for name, each in self._logged.items()}
        return {name: mean for name, mean in means.items() if math.isfinite(mean)}
