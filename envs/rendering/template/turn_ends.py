"""How much of a turn's end is still to be written, and how much is there already.

An action can have ended by itself, by a stop token that the template writes too, or that stands in
its place; or it was cut by its length, perhaps in the middle of the end.
"""

from collections.abc import Sequence

from gymnast.envs.rendering.template.turns import Turns
from gymnast.envs.rendering.tokens.safe_text import SafeText

_MARGIN = 8  # tokens: as many as a model may have written in place of one of ours


def after_stop(ids: list[int], sampled: int, turns: Turns, text: SafeText) -> list[int]:
    """What is left of `ids`, which begin with a turn's end, after a sampled stop token."""
    added = turns.end_tokens(text, ids)
    for index, number in added.items():
        if number in turns.closing | turns.historic:
            return ids[index + 1 :]
    first = next(iter(added), None)
    return ids[first + 1 :] if first is not None and ids[first] == sampled else ids


def after_cut(
    ids: list[int], context_ids: Sequence[int], turns: Turns, text: SafeText
) -> list[int]:
    """What is left of `ids`, which begin with a turn's end, after a turn that was cut."""
    ends = turns.closing | turns.opening
    added = turns.end_tokens(text, ids)
    reach = next((index for index, number in added.items() if number in ends), 0)
    # As text, for a model's own tokens can have merged it with what comes before.
    written = text.decode(context_ids[-reach - _MARGIN :]) if reach else ""
    for count in range(reach, 0, -1):
        before, begun = text.decode(ids[: count - 1]), text.decode(ids[:count])
        if begun and written.endswith(begun):  # "": a lone space, in SentencePiece's manner
            return ids[count:]
        cuts = range(len(begun) - 1, len(before), -1) if not text.is_added(ids[count - 1]) else ()
        for cut in cuts:  # inside of a token of ours
            if written.endswith(begun[:cut]):
                return [*text.encode(begun[cut:], inside=True), *ids[count:]]
    return ids


def end_of_turn(turns: Turns, text: SafeText) -> list[int]:
    """The end of a turn, and nothing after the token that ends it."""
    ids = text.encode(turns.after_last, inside=True)
    ends = [index for index, number in enumerate(ids) if number in turns.closing]
    if ends:
        return ids[: ends[0] + 1]
    opening = turns.next_opening
    return ids if opening is None or opening in ids else [*ids, opening]
