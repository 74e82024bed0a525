"""Reading the values of a request's JSON: each of the right type, or refused by its name."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gymnast.envs.programs.dialects.requests import Refused

DEEPEST = 200
"""How many levels of lists and objects a request may have."""


def read_json(body: bytes) -> dict[str, Any]:
    """Read the body of a request.

    Raises:
        Refused: It is not one JSON object in UTF-8, or one that not everyone reads alike: keys
            twice, numbers that are not finite, halves of characters, too many levels.
    """
    try:
        value = json.loads(
            body.decode(),
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_float=_finite,
        )
    except UnicodeDecodeError:
        raise Refused("The body of the request is not text in UTF-8.") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise Refused(f"The body of the request is not JSON: {error}.") from None
    if body.count(b"[") + body.count(b"{") > DEEPEST and _depth_exceeds(value, DEEPEST):
        raise _too_deep()
    if b"\\ud" in body or b"\\uD" in body:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Refused(
                "The body of the request has half of a surrogate pair (\\ud800 to \\udfff), which "
                "is no character."
            ) from None
    if not isinstance(value, dict):
        raise Refused(f"The body of the request must be a JSON object, got {shown(value)}.")
    return value


def shown(value: Any) -> str:
    """A value in an error: JSON, cut after some characters."""
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def refuse(param: str, rule: str, value: Any) -> NoReturn:
    """Refuse a value.

    Args:
        param: Where it stands: "messages[2].content".
        rule: Completes "PARAM must be ...".
        value: What stands there.

    Raises:
        Refused: Always.
    """
    raise Refused(f"{param} must be {rule}, got {shown(value)}.", param=param)


def text(value: Any, param: str) -> str:
    """A string."""
    return value if isinstance(value, str) else refuse(param, "a string", value)


def name(value: Any, param: str) -> str:
    """A string that is not empty."""
    return value if isinstance(value, str) and value else refuse(param, "a name", value)


def optional_text(value: Any, param: str) -> str:
    """A string, or "" for null."""
    return "" if value is None else text(value, param)


def flag(value: Any, param: str) -> bool:
    """A boolean; null is false."""
    if value is None or isinstance(value, bool):
        return bool(value)
    return refuse(param, "true or false", value)


def mapping(value: Any, param: str) -> Mapping[str, Any]:
    """An object."""
    return value if isinstance(value, dict) else refuse(param, "an object", value)


def sequence(value: Any, param: str) -> Sequence[Any]:
    """A list."""
    return value if isinstance(value, list) else refuse(param, "a list", value)


def optional_sequence(value: Any, param: str) -> Sequence[Any]:
    """A list; null is an empty one."""
    return () if value is None else sequence(value, param)


def optional_mapping(value: Any, param: str) -> Mapping[str, Any]:
    """An object; null is an empty one."""
    return {} if value is None else mapping(value, param)


def optional_count(value: Any, param: str) -> int | None:
    """A whole number from 1 on, or None for null."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    return refuse(param, "a whole number >= 1", value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Refused(f"The body of the request has the key {shown(twice)} twice in one object.")
    return made


def _no_number(written: str) -> NoReturn:
    raise Refused(f"The body of the request has {written}, which is not JSON.")


def _finite(written: str) -> float:
    number = float(written)
    if not math.isfinite(number):
        raise Refused(f"The body of the request has the number {written:.40}, which is too large.")
    return number


def _too_deep() -> Refused:
    return Refused(
        f"The body of the request has more than {DEEPEST} levels of lists and objects in one "
        "another."
    )


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True
