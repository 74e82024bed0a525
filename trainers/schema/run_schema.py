"""The JSON Schema of a run's YAML, made of the classes of its sections.

It says what a key may hold as far as a schema can, and the names that are known where it is made.
What depends on several keys, on files or on an environment's constructor, `load_config` checks.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from gymnast.agents.backends import AGENTS
from gymnast.envs.registry import registered
from gymnast.sandboxes.backends.open import BACKENDS
from gymnast.trainers.algorithms.advantages import ESTIMATORS
from gymnast.trainers.algorithms.aggregations import AGGREGATIONS
from gymnast.trainers.algorithms.algorithm import names
from gymnast.trainers.algorithms.losses import LOSSES
from gymnast.trainers.algorithms.registry import Registry
from gymnast.trainers.base.formats import CONFIG, KEY
from gymnast.trainers.config.sections import RunConfig
from gymnast.trainers.learner.optimizers.by_name import OPTIMIZERS
from gymnast.trainers.learner.optimizers.schedules import SCHEDULES
from gymnast.trainers.reporting.trackers import ALWAYS, TRACKERS
from gymnast.trainers.rollouts.rewards import REWARDS

Schema = dict[str, Any]

# What pydantic leaves as it is where a value is corrected before it is checked.
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
_CODE = {"type": "string", "pattern": ":", "description": "module:name or path/to/file.py:name"}
_ANY_NAME = {"type": "string", "minLength": 1}
_NULL = {"type": "null"}
_ALGORITHM_PARTS = ("name", "estimator", "loss", "aggregation")


def run_schema() -> Schema:
    """The schema of a run's YAML, in JSON Schema 2020-12."""
    made = _cleaned(RunConfig.model_json_schema())
    sections: dict[str, Schema] = made["$defs"]
    _name_algorithms(sections["AlgorithmSection"])
    _name_environments(sections)
    _name_others(made, sections)
    properties: dict[str, Schema] = made["properties"]
    for name in properties.keys() - {"model", "environment"}:  # an empty one counts as left out
        properties[name] = _or(properties[name], _NULL)
    properties[KEY] = {
        "type": "integer",
        "minimum": 1,
        "maximum": CONFIG,
        "description": "The format of the file; Gymnast writes it into config.yaml.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": "A run of Gymnast",
        "description": "What `gymnast train` reads; docs/reference/keys.md has every key.",
    }


def _name_algorithms(section: Schema) -> None:
    """Name the parts of algorithms, and their options; those of one's own code are not known."""
    properties = section["properties"]
    registries: dict[str, Registry[Any]] = {
        "estimator": ESTIMATORS,
        "loss": LOSSES,
        "aggregation": AGGREGATIONS,
    }
    _known(properties, "name", names())
    for key, registry in registries.items():
        _known(properties, key, registry.known())
    options = {
        option
        for registry in registries.values()
        for part in registry.values()
        for option in part.options
    }
    own_code = [
        {"properties": {part: {"type": "string", "pattern": ":"}}, "required": [part]}
        for part in _ALGORITHM_PARTS
    ]
    known = dict.fromkeys(sorted({*properties, *options}), True)
    section["if"] = {"not": {"anyOf": own_code}}
    section["then"] = {"properties": known, "additionalProperties": False}
    for option in sorted(options - properties.keys()):
        properties[option] = {"description": "An option of the algorithm's parts."}


def _name_environments(sections: dict[str, Schema]) -> None:
    ids = registered()
    ways = {"EnvironmentSection": ["id", "compose", "mixture"]}
    for name in ("EnvironmentSection", "MixtureEntry", "EvaluationEnvironmentSection"):
        properties = sections[name]["properties"]
        _known(properties, "id", ids, others=_ANY_NAME)
        _known(properties, "sandbox", BACKENDS.known())
        keys = ways.get(name, ["id", "compose"])
        sections[name]["anyOf"] = [{"required": [key]} for key in keys]
    properties = sections["EnvironmentSection"]["properties"]
    for key in ("mixture", "wrappers"):  # an entry may be its id alone
        properties[key]["items"] = {"anyOf": [properties[key]["items"], _ANY_NAME]}


def _name_others(made: Schema, sections: dict[str, Schema]) -> None:
    _known(sections["AgentSection"]["properties"], "backend", [*AGENTS.known(), "chat"])
    _known(sections["RewardSection"]["properties"], "function", REWARDS.known())
    trainer = sections["TrainerSection"]["properties"]
    _known(trainer, "optimizer", OPTIMIZERS.known())
    _known(trainer, "schedule", SCHEDULES.known())
    trackers = {"anyOf": [{"enum": [ALWAYS, *TRACKERS.known()]}, _CODE]}
    listed = {"type": "array", "items": trackers}
    named = {"type": "object", "propertyNames": trackers}
    described = {"description": made["properties"]["trackers"]["description"]}
    made["properties"]["trackers"] = {"anyOf": [listed, named], **described}
    by: Schema = sections["EvaluationSection"]["properties"]["by"]
    texts = {"type": "string", "minLength": 1}
    by["anyOf"] = [
        {"type": "array", "items": texts},
        {"type": "object", "additionalProperties": texts},
    ]
    target: Schema = sections["LoraSection"]["properties"]["target"]
    target["anyOf"] = [texts, {"type": "array", "items": {"type": "string"}, "minItems": 1}]


def _known(
    properties: dict[str, Schema], key: str, known: Iterable[str], others: Schema = _CODE
) -> None:
    """Let a key's text be one of the known names, or something else of a form of its own."""
    schema = properties[key]
    named: list[Schema] = [{"enum": list(known)}, others]
    options: Sequence[Schema] = schema.pop("anyOf", [{"type": schema.pop("type", "string")}])
    schema.pop("minLength", None)
    rest = [option for option in options if option.get("type") != "string"]
    schema["anyOf"] = [*named, *rest]


def _or(schema: Schema, other: Schema) -> Schema:
    if "anyOf" in schema:
        options = schema["anyOf"]
        return {**schema, "anyOf": [*options, *([] if other in options else [other])]}
    about = {k: v for k, v in schema.items() if k in ("description", "default", "title")}
    return {"anyOf": [{k: v for k, v in schema.items() if k not in about}, other], **about}


def _cleaned(value: Any) -> Any:
    """The same with bounds as JSON Schema calls them, and without what says nothing to a reader.

    That is the defaults of whole sections, which their keys have, and titles made of names.
    """
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    if not isinstance(value, dict):
        return value
    result: Schema = {}
    for key, inner in value.items():
        if key == "properties":
            result[key] = {name: _cleaned(each) for name, each in inner.items()}
        elif key == "description":
            result[key] = " ".join(str(inner).split())
        elif not (key == "title" or (key == "default" and isinstance(inner, dict))):
            result[_BOUNDS.get(str(key), str(key))] = _cleaned(inner)
    return result
