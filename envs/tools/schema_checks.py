"""JSON schemas on what a policy wrote: nothing is fetched, and no pattern takes forever."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from gymnast.envs.tools.searching import search


def schema_problem(schema: Any) -> str:
    """What is wrong with a schema; "" if nothing is."""
    if not isinstance(schema, Mapping | bool):
        return f"must be a JSON schema, got {schema!r:.200}"
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"is no valid JSON schema: {error.message:.200}"
    text = json.dumps(schema, default=str)
    if '"unevaluatedProperties"' in text and '"patternProperties"' in text:
        return (
            "has unevaluatedProperties and patternProperties, which together search without a "
            "limit of time; write additionalProperties"
        )
    return ""


def lost_reference(schema: Any) -> str | None:
    """A reference in a schema that leads out of it, or nowhere; None if there is none."""
    resolver = Registry[Any]().resolver_with_root(DRAFT202012.create_resource(schema))
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            return reference
    return None


def _references(schema: Any) -> Iterator[str]:
    """All references but those below an `$id` of its own, which mean something else there."""
    for key, value in schema.items() if isinstance(schema, Mapping) else ():
        if key in ("$ref", "$dynamicRef") and isinstance(value, str):
            yield value
        for below in value if isinstance(value, list) else [value]:
            if not (isinstance(below, Mapping) and "$id" in below):
                yield from _references(below)


def bounded_validator(schema: Any, timeout_s: float) -> Any:
    """A validator of `jsonschema` that only follows references within the schema.

    Args:
        schema: One of draft 2020-12, without a `schema_problem`.
        timeout_s: Processor time of each search for a pattern, in seconds; after it, whatever
            asks the validator raises TimeoutError.
    """
    return _kind(timeout_s)(schema, registry=Registry())


@cache
def _kind(timeout_s: float) -> Any:
    """The validator of draft 2020-12, whose patterns cannot take forever."""

    def pattern(validator: Any, wanted: str, value: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and search(wanted, value, timeout_s=timeout_s) is None:
            yield ValidationError(f"{value!r:.100} does not match {wanted!r}")

    def pattern_properties(
        validator: Any, patterns: Mapping[str, Any], value: Any, schema: Any
    ) -> Iterator[ValidationError]:
        for wanted, inner in patterns.items() if isinstance(value, Mapping) else ():
            for key, below in value.items():
                if search(wanted, key, timeout_s=timeout_s) is not None:
                    yield from validator.descend(below, inner, path=key, schema_path=wanted)

    def additional_properties(
        validator: Any, inner: Any, value: Any, schema: Mapping[str, Any]
    ) -> Iterator[ValidationError]:
        named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for key, below in value.items() if isinstance(value, Mapping) else ():
            known = key in named or any(search(p, key, timeout_s=timeout_s) for p in patterns)
            if not known:
                yield from validator.descend(below, inner, path=key)

    own = {
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
    }
    return extend(Draft202012Validator, own)  # type: ignore[no-untyped-call]
