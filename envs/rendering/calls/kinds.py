r"""The kinds of payload, in the order in which a template's rendering is compared with them.

    JsonCalls       {"name": "f", "arguments": {"x": 1}}     any keys, nested or in a list
    NameThenJson    f<sep>{"x": 1}                           a name, a separator, JSON
    KeywordCalls    [f(x=1)]   f{x:1}                        keywords in one pair of brackets
    Parameters      <function=f><parameter=x>1</parameter>   each argument in its own markup

A new kind is a file with a class (`payloads.py` says what it must have) and a line in `KINDS`.
"""

from gymnast.envs.rendering.calls.json_payloads import JsonCalls, NameThenJson
from gymnast.envs.rendering.calls.keyword_calls import KeywordCalls
from gymnast.envs.rendering.calls.parameters import Parameters
from gymnast.envs.rendering.calls.payloads import MarkedCall, Payload, PayloadMatch

KINDS: tuple[type[Payload], ...] = (
    JsonCalls,
    NameThenJson,
    KeywordCalls,
    Parameters,
)


def recognise(call: MarkedCall) -> PayloadMatch | None:
    """The payload in a rendering of the first marked call, of the first kind that fits."""
    return next(filter(None, (kind.recognise(call) for kind in KINDS)), None)


def labels() -> str:
    """What the kinds look like, for an error message."""
    return ", ".join(kind.label for kind in KINDS)
