"""The tokens of a saved episode: what each stands for, and who wrote it.

prompt      what an episode or a further context begins with
sampled     what the policy sampled
observed    what the environment answered: results of tools, a user's words
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from gymnast.trainers.saving.rollout_files import SavedTrajectory
from gymnast.visible import visible_line

Kind = Literal["prompt", "sampled", "observed"]


@dataclass(frozen=True)
class SavedToken:
    """A token of a saved episode.

    Attributes:
        id: Of the tokenizer.
        kind: Who wrote it.
        text: What it stands for, "" where it completes no character; None where no text is saved.
        logprob: The agent's log-probability; None where it was not sampled.
        advantage: What was learned from; None where nothing was.
        version: Of the weights that sampled it; None where it is not known.
    """

    id: int
    kind: Kind
    text: str | None
    logprob: float | None
    advantage: float | None
    version: int | None


def saved_tokens(saved: SavedTrajectory, context: int = 0) -> list[SavedToken]:
    """The tokens of one context of an episode; none where it was played in messages.

    Args:
        saved: The episode.
        context: Its number; 0 is the first one.
    """
    played = saved.trajectory.contexts[context]
    known = saved if context == 0 else saved.branches[context - 1]
    texts = _pieces(known.text, known.token_ends, len(played.ids))
    versions: dict[int, int] = {}
    for start, end, version in played.versions:
        versions |= dict.fromkeys(range(start, end), version)
    tokens = []
    for place, number in enumerate(played.ids):
        sampled = bool(played.action_mask[place])
        kind: Kind = "sampled" if sampled else "observed"
        tokens.append(
            SavedToken(
                number,
                "prompt" if place < played.prompt_length else kind,
                texts[place],
                played.logprobs[place] if sampled else None,
                known.advantages[place] if sampled and known.advantages is not None else None,
                versions.get(place),
            )
        )
    return tokens


def _pieces(text: str | None, ends: Sequence[int] | None, count: int) -> Sequence[str | None]:
    if text is None or ends is None:
        return [None] * count
    written, starts = text.encode(), [0, *ends]
    return [written[start:end].decode() for start, end in zip(starts, ends, strict=False)]


def token_lines(saved: SavedTrajectory, context: int = 0) -> list[str]:
    """The tokens of one context as lines: one for each stretch of one kind, tokens parted by |.

    Characters that steer a terminal, line breaks among them, are written as escapes. A token
    without text of its own is written as its id.
    """
    tokens = saved_tokens(saved, context)
    if not tokens:
        return ["(no tokens: it was played in messages)"]
    lines = []
    for kind, stretch in groupby(tokens, key=lambda token: token.kind):
        shown = [visible_line(token.text) if token.text else f"#{token.id}" for token in stretch]
        lines.append(f"{kind:8} {len(shown):5}  {'|'.join(shown)}")
    return lines


def token_records(saved: SavedTrajectory, context: int = 0) -> list[dict[str, Any]]:
    """The tokens of one context as records for JSON."""
    return [vars(token) for token in saved_tokens(saved, context)]
