"""What shells complete settings from is what the config's classes say.

`python tests/gymnast/test_run_keys.py` writes the file anew.
"""

import json
from pathlib import Path
from typing import Any

from gymnast.trainers.base.config_errors import section_in
from gymnast.trainers.config.sections import RunConfig, run_keys
from gymnast.trainers.schema.run_schema import run_schema

FILE = Path(__file__).parents[2] / "gymnast/commands/completion/run_keys.json"
LONGEST = 100


def keys() -> dict[str, dict[str, Any]]:
    """Every key with its meaning, and with its default and the values that a schema lists."""
    schema = run_schema()
    return {key: entry(key, schema) for key in run_keys()}


def entry(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    *sections, name = key.split(".")
    model: Any = RunConfig
    for section in sections:
        model = section_in(model.model_fields[section].annotation)
    found = (schema if model is RunConfig else schema["$defs"][model.__name__])["properties"][name]
    meaning = found.get("description", "").split(". ")[0].rstrip(".")
    values = [*listed(found)]
    options = [found, *found.get("anyOf", [])]
    if not values and any(option.get("type") == "boolean" for option in options):
        values = ["true", "false"]
    default = found.get("default")
    shown = json.dumps(default) if isinstance(default, int | float) else default
    if isinstance(shown, str) and shown not in values:
        values.append(shown)
    return {"help": meaning[:LONGEST], **({"values": values} if values else {})}


def listed(schema: dict[str, Any]) -> list[str]:
    """The texts that a schema names, environments' ids left out: they are those of a machine."""
    options = [schema, *schema.get("anyOf", [])]
    texts = [text for option in options for text in option.get("enum", [])]
    return [text for text in texts if "/" not in text]


def written() -> str:
    return json.dumps(keys(), indent=1, ensure_ascii=False) + "\n"


def test_the_keys_that_shells_complete_are_those_of_a_run() -> None:
    again = "write it anew: python tests/gymnast/test_run_keys.py"
    assert FILE.read_text(encoding="utf-8") == written(), again


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
