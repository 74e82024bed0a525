"""Read a completion by the tokenizer's own `response_template`, with Transformers' parser.

A response template says where the regions of a turn begin and end, and how each is read:

    Let me add.<tool_call>{"name": "add", ...}</tool_call><|im_end|>
    content    tool_calls                                 ends the content

A broken call becomes a `ToolCall` with an `error`, and what stands before and after it is read as
well (`response_regions.py`). Tokenizers without a response template have their calls read by a
dialect (`rendering/dialects/dialect.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jmespath
from transformers.utils.chat_parsing.content_parsers import CONTENT_PARSERS, parse_content
from transformers.utils.chat_parsing.response_templates import load_response_template

from gymnast.envs.records.arguments import repeated_key
from gymnast.envs.rendering.calls.payloads import Malformed, Tools, read_arguments
from gymnast.envs.rendering.response_content import noticing_repetition
from gymnast.envs.rendering.response_regions import CALLS, Region, RegionReader
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError
from gymnast.types import ToolCall

_REASONING = frozenset({"reasoning_content", "reasoning", "thinking"})
_NAME = jmespath.compile("not_null(function.name, name, tool_name)")
_ARGUMENTS = jmespath.compile(
    "not_null(function.arguments, function.parameters, arguments, parameters)"
)
_ID = jmespath.compile("not_null(id, function.id, tool_call_id)")
_TAIL = 64  # tokens of the context that are decoded at first


@dataclass(frozen=True)
class Parsed:
    """What an assistant's turn says.

    Attributes:
        content: The text outside of reasoning and calls, without the stop token.
        reasoning: What the template marks as reasoning.
        calls: The calls in order. One that could not be read has an `error`. Ids are as the model
            wrote them, "" where it wrote none.
    """

    content: str
    reasoning: str
    calls: list[ToolCall]


@dataclass(frozen=True)
class ResponseTemplate:
    """The response template of one tokenizer.

    Attributes:
        spec: The template, as Transformers loads it.
        text: The tokenizer.
        prompt: A rendering that ends where the assistant's turn begins; stands for the context
            where none is given.
    """

    spec: Any
    text: SafeText
    prompt: str

    @classmethod
    def of(cls, tokenizer: Any, text: SafeText, prompt: str) -> "ResponseTemplate | None":
        """Take the response template from a tokenizer; None where it has none.

        Args:
            tokenizer: A tokenizer of Transformers.
            text: The same tokenizer.
            prompt: A conversation rendered with the generation prompt.

        Raises:
            TemplateError: If the template is not a valid one, or its start is not in the prompt.
        """
        source = getattr(tokenizer, "response_template", None)
        if source is None:
            return None
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        try:
            spec = load_response_template(source)
            for field in spec.fields.values():
                _check_content(field.name, field.content, field.content_args)
        except Exception as error:  # Whatever an ill-formed template makes the loader raise.
            raise TemplateError(
                f"the response_template of tokenizer {name!r} is not valid: {error}. Fix it, or "
                "set tokenizer.response_template = None to derive the calls from the chat template"
            ) from error
        if spec.start_anchor_re.search(prompt) is None:
            raise TemplateError(
                f"the response_template of tokenizer {name!r} begins a turn at "
                f"{spec.start_anchor_re.pattern!r}, but its chat template writes {prompt!r}. Fix "
                "one of the two, or set tokenizer.response_template = None"
            )
        # A model may leave any field out: that is no reason to raise.
        fields = {key: replace(field, optional=True) for key, field in spec.fields.items()}
        if (calls := fields.get(CALLS)) is not None:
            noticing = noticing_repetition(calls.content, calls.content_args)
            fields[CALLS] = replace(calls, **noticing)
        return cls(replace(spec, fields=fields), text, prompt)

    @property
    def has_calls(self) -> bool:
        """Whether the template reads calls at all."""
        return CALLS in self.spec.fields

    def read(
        self,
        completion_ids: Sequence[int],
        context_ids: Sequence[int] = (),
        tools: Tools = None,
        stop_ids: Sequence[int] = (),
    ) -> Parsed:
        """Read what the policy sampled. Nothing that it can write raises.

        Args:
            completion_ids: The sampled ids, the stop id included: many templates need it to know
                where a region ends.
            context_ids: What the policy saw. Its end may have opened a region (`<think>`).
            tools: The schemas that were offered; arguments written as text take their types.
            stop_ids: The ids that end a turn; one at the end is not content.
        """
        text = self.text.decode(completion_ids)
        ended = len(completion_ids) > 0 and completion_ids[-1] in stop_ids
        stop = self.text.decode(completion_ids[-1:]) if ended else ""
        # A turn in which the template recognises nothing is all content.
        reader = RegionReader(self.spec)
        regions = reader.read(text, self._turn_so_far(context_ids), tools)
        regions = regions or [Region("content", text, text)]
        last = regions[-1].value
        if stop and isinstance(last, str) and last.endswith(stop):
            regions[-1] = replace(regions[-1], value=last.removesuffix(stop).rstrip())
        calls = [one for region in regions if region.field == CALLS for one in _single(region)]
        return Parsed(
            content=self._joined(regions, frozenset({"content"})),
            reasoning=self._joined(regions, _REASONING),
            calls=[_as_call(region, number) for number, region in enumerate(calls, start=1)],
        )

    def _joined(self, regions: Sequence[Region], names: frozenset[str]) -> str:
        """The text of some fields, all their regions together."""
        parts: list[str] = []
        joint = "\n"
        for region in regions:
            if region.field in names:
                value = region.value
                parts.append(value if isinstance(value, str) else json.dumps(value))
                field = self.spec.fields.get(region.field)
                joint = joint if field is None or field.join is None else field.join
        return joint.join(part for part in parts if part)

    def _turn_so_far(self, context_ids: Sequence[int]) -> str:
        """The context's text from the last start of a turn; only that much of it is decoded."""
        size = _TAIL
        while True:
            tail = self.text.decode(context_ids[-size:]) if len(context_ids) else self.prompt
            starts = list(self.spec.start_anchor_re.finditer(tail))
            if starts:
                return tail[starts[-1].start() :]
            if size >= len(context_ids):
                return ""
            size *= 8


def _check_content(name: str, kind: str, arguments: Mapping[str, Any]) -> None:
    """Try what the loader does not check.

    Raises:
        ValueError: If the field's content could never be read.
    """
    if kind not in CONTENT_PARSERS:
        raise ValueError(f"field {name!r}: {kind!r} is not a content parser")
    if kind == "xml-inline":
        pattern = arguments.get("tag_pattern") or ""
        if "(?P<key>" not in pattern or "(?P<value>" not in pattern:
            raise ValueError(f"field {name!r}: tag_pattern needs the groups 'key' and 'value'")
    if kind in ("json", "xml-inline", "kv-lines"):
        parse_content("{}", kind, dict(arguments))
    if inner := arguments.get("value_parser"):
        _check_content(name, inner.get("name", "text"), inner.get("args", {}))


def _single(region: Region) -> list[Region]:
    """One region for each call; some templates put all calls of a turn into one."""
    if region.fault or not isinstance(region.value, list):
        return [region]
    return [replace(region, value=value) for value in region.value]


def _as_call(region: Region, number: int) -> ToolCall:
    name, call_id = _NAME.search(region.value), _ID.search(region.value)
    name = name.strip() if isinstance(name, str) else ""
    try:
        arguments = _arguments(region, name)
    except Malformed as error:
        where = f"call {number} could not be read at character {error.position}"
        return ToolCall("", name, {}, f"{where}: {error}")
    return ToolCall(str(call_id) if isinstance(call_id, str | int) else "", name, arguments)


def _arguments(region: Region, name: str) -> dict[str, Any]:
    """The arguments of a call that breaks no rule.

    Raises:
        Malformed: If it breaks one.
    """
    rule = region.fault
    if not rule and not isinstance(region.value, dict):
        rule = f"a call must be an object, not {type(region.value).__name__}"
    if not rule and not name:
        rule = "a call must have its tool's name, a string"
    if rule:
        raise Malformed(region.position, rule, name)
    arguments = read_arguments(_ARGUMENTS.search(region.value), region.position, name)
    if (key := repeated_key(region.value)) is not None:
        raise Malformed(region.position, f"the key {key!r} is given twice", name)
    try:
        json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError) as error:
        rule = "the arguments hold NaN or Infinity, or are nested too deeply"
        raise Malformed(region.position, rule, name) from error
    return arguments
