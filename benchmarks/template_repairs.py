"""Templates that render calls lossily, and what a model rightly writes there.

`ARGUMENTS` changes the arguments that such a template is given, so that it writes them rightly.
`CALLS` writes the calls where no change of arguments would help.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

Arguments = dict[str, Any]


def _nested_as_json(arguments: Arguments) -> Arguments:
    """Lists and objects as JSON, where the template writes Python's repr of them."""
    return {
        key: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
        for key, value in arguments.items()
    }


def _nulls_in_words(value: Any) -> Any:
    """Null as a word, where the template writes nothing for it."""
    if isinstance(value, dict):
        return {key: _nulls_in_words(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nulls_in_words(item) for item in value]
    return "null" if value is None else value


def _as_python(arguments: Arguments) -> Arguments:
    """Every value as Python source, where the template writes strings without quotes."""
    return {key: repr(value) for key, value in arguments.items()}


def _quoted(value: str) -> str:
    """The inside of a Python string in single quotes."""
    return repr(value + '"')[1:-2]  # a double quote makes repr use single ones


def _in_single_quotes(arguments: Arguments) -> Arguments:
    """Strings with escapes, where the template puts bare single quotes around them."""
    return {
        key: _quoted(value) if isinstance(value, str) else value for key, value in arguments.items()
    }


def _all_as_json(arguments: Arguments) -> str:
    """The arguments as JSON text, where the template writes Python's repr of them."""
    return json.dumps(arguments, ensure_ascii=False)


def _python_calls(calls: Sequence[dict[str, Any]]) -> str:
    """A Python list of calls."""
    return f"[{', '.join(map(_python_call, calls))}]"


def _python_call(call: dict[str, Any]) -> str:
    arguments = (f"{key}={value!r}" for key, value in call["arguments"].items())
    return f"{call['name']}({', '.join(arguments)})"


ARGUMENTS: dict[str, Callable[[Arguments], Any]] = {
    "trl/lfm2_2_5": _in_single_quotes,
    "trl/lfm2_2_5_v2": _in_single_quotes,
    "llama.cpp/LFM2.5-8B-A1B": _in_single_quotes,
    "llama.cpp/ByteDance-Seed-OSS": _nested_as_json,
    "llama.cpp/openbmb-MiniCPM5-1B": _nested_as_json,
    "vllm/tool_chat_template_functiongemma": _nested_as_json,
    "llama.cpp/MiniMax-M3": _nulls_in_words,
    "vllm/tool_chat_template_llama3.2_pythonic": _as_python,
    "vllm/tool_chat_template_toolace": _as_python,
    "vllm/tool_chat_template_phi4_mini": _all_as_json,
}
CALLS: dict[str, Callable[[Sequence[dict[str, Any]]], str]] = {
    "vllm/tool_chat_template_gemma3_pythonic": _python_calls,
    "vllm/tool_chat_template_llama4_pythonic": _python_calls,
}
_LOST: dict[Callable[[Arguments], Any], str] = {
    _in_single_quotes: "quotes in strings are not escaped",
    _nested_as_json: "lists and objects are written as Python's repr",
    _nulls_in_words: "null is not written",
    _as_python: "strings are written without quotes",
    _all_as_json: "arguments are written as Python's repr where JSON was meant",
}
REASONS = {
    **{name: _LOST[repair] for name, repair in ARGUMENTS.items()},
    "vllm/tool_chat_template_gemma3_pythonic": "no comma between arguments",
    "vllm/tool_chat_template_llama4_pythonic": "every value is written as a string",
}
