"""Parsers for the calls of a response template that notice arguments which are given twice.

Transformers' content parsers keep the last value of a repeated key, without a word. These read the
same content, and return `RepeatedKeys` for an object that has a key twice. They are entries of
Transformers' own table, under names of their own, so no other user of that table sees a difference.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import regex
from transformers.utils.chat_parsing.content_parsers import CONTENT_PARSERS

from gymnast.envs.records.arguments import json_object

_PREFIX = "gymnast-"


def noticing_repetition(content: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content` and `content_args` of a field whose parser notices repeated keys.

    Args:
        content: The name of a parser in Transformers' table.
        arguments: Its arguments.
    """
    given = dict(arguments)
    if inner := given.get("value_parser"):
        named = noticing_repetition(inner.get("name", "text"), inner.get("args", {}))
        given["value_parser"] = {"name": named["content"], "args": named["content_args"]}
    name = _PREFIX + content if content in _PARSERS else content
    return {"content": name, "content_args": given}


def _json(text: str, args: dict[str, Any]) -> Any:
    try:
        return json.loads(_plain_json(text, args), object_pairs_hook=json_object)
    except ValueError:
        return CONTENT_PARSERS["json"](text, args)  # which raises, or has another reading


def _plain_json(text: str, args: Mapping[str, Any]) -> str:
    """Quote the strings and keys that a template writes without JSON's quotes."""
    delimiters = args.get("string_delims", [])
    if not delimiters and not args.get("unquoted_keys"):
        return text
    forms = [rf"{regex.escape(begin)}(.*?){regex.escape(end)}" for begin, end in delimiters]
    if args.get("unquoted_keys"):
        forms.append(r"(?<=[{,])(?P<key>\w+):")

    def quoted(found: Any) -> str:
        string = json.dumps(found[found.lastindex])
        return f"{string}:" if found.groupdict().get("key") is not None else string

    return str(regex.sub("|".join(forms), quoted, text, flags=regex.DOTALL))


def _xml_inline(text: str, args: dict[str, Any]) -> Any:
    value = CONTENT_PARSERS["xml-inline"](text, args)
    if args.get("merge_duplicates"):
        return value
    tags = regex.finditer(args["tag_pattern"], text, flags=regex.DOTALL)
    return json_object([(tag["key"], value[tag["key"]]) for tag in tags])


def _kv_lines(text: str, args: dict[str, Any]) -> Any:
    value = CONTENT_PARSERS["kv-lines"](text, args)
    separator, strip = args.get("kv_sep", ":"), args.get("strip", True)
    lines = [line for line in text.split(args.get("line_sep", "\n")) if separator in line]
    keys = [
        line.strip().split(separator, 1)[0].strip() if strip else line.split(separator, 1)[0]
        for line in lines
    ]
    return json_object([(key, value[key]) for key in keys if key in value])


_PARSERS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "json": _json,
    "xml-inline": _xml_inline,
    "kv-lines": _kv_lines,
}
CONTENT_PARSERS.update({_PREFIX + name: parser for name, parser in _PARSERS.items()})
