# ruff: noqa: RUF001 (families have tokens with full-width bars)
r"""How families of models write calls, each in a small chat template.

A family is what stands around and inside a call; `chat_template` puts it into a frame that all
share. The renderer derives the same dialect from it as from the family's real template
(`tests/templates/test_call_dialects.py`), so what concerns calls alone can be tried in all dialects
without a download.
"""

from dataclasses import dataclass
from functools import cache
from string import Template as _Jinja
from typing import Any

from gymnast.envs import Renderer
from template_corpus import Template, tokenizer_for

_FRAME = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- if message.tool_calls %}$limit$before
{%- for call in message.tool_calls %}$call{{ $between if not loop.last }}{% endfor -%}
$after{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_ARGUMENTS = (
    "{% for key, value in call.function.arguments | items %}$argument"
    "{{ $join if not loop.last }}{% endfor %}"
)
_ONE = "{% if message.tool_calls | length > 1 %}{{ raise_exception('one call a turn') }}{% endif %}"
_TEXT = "value if value is string else value | tojson"
_WORDS = {
    "name": "{{ call.function.name }}",
    "json": "{{ call.function.arguments | tojson }}",
    "id": "{{ call.id }}",
    "number": "{{ loop.index0 }}",
    "key": "{{ key }}",
    "value": "{{ " + _TEXT + " }}",
    "repr": "{{ value | pprint if value is string else value | tojson }}",
    "kind": "{{ 'true' if value is string else 'false' }}",
}


@dataclass(frozen=True)
class Family:
    """How one family writes calls.

    Attributes:
        template: A real template of the family, by its name in `template_corpus`.
        call: One call, in Jinja. $name, $json, $id, $number and $arguments stand for what differs.
        argument: One of $arguments: $key, and $value, or $repr where strings have quotes.
        join: What stands between two arguments.
        before: What comes once before all calls.
        after: What comes once after them.
        between: What stands between two calls.
        several: Whether a turn may have several calls.
    """

    template: str
    call: str
    argument: str = ""
    join: str = ""
    before: str = ""
    after: str = ""
    between: str = ""
    several: bool = True

    @property
    def chat_template(self) -> str:
        """A chat template that writes calls this way."""
        argument = _Jinja(self.argument).substitute(_WORDS)
        arguments = _Jinja(_ARGUMENTS).substitute(argument=argument, join=repr(self.join))
        return _Jinja(_FRAME).substitute(
            limit="" if self.several else _ONE,
            before=_literal(self.before),
            after=_literal(self.after),
            between=repr(self.between),
            call=_Jinja(self.call).substitute(_WORDS, arguments=arguments),
        )


def _literal(text: str) -> str:
    return "{{ " + repr(text) + " }}" if text else ""


_GLM = "<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>\n"
_OBJECT = '{"name": "$name", "arguments": $json}'
_LLAMA = '{"name": "$name", "parameters": $json}'
_PARAMETER = "<parameter=$key>\n$value\n</parameter>\n"
_DSML = '<｜DSML｜parameter name="$key" string="$kind">$value</｜DSML｜parameter>\n'

FAMILIES = {
    "hermes": Family("trl/qwen2_5", f"<tool_call>\n{_OBJECT}\n</tool_call>", between="\n"),
    "qwen3 coder": Family(
        "llama.cpp/Qwen3-Coder",
        "<tool_call>\n<function=$name>\n$arguments</function>\n</tool_call>",
        _PARAMETER,
        between="\n",
    ),
    "seed-oss": Family(
        "llama.cpp/ByteDance-Seed-OSS",
        "<seed:tool_call>\n<function=$name>\n$arguments</function>\n</seed:tool_call>",
        "<parameter=$key>$value</parameter>\n",
        between="\n",
    ),
    "glm-4.6": Family(
        "llama.cpp/GLM-4.6", "<tool_call>$name\n$arguments</tool_call>", _GLM, between="\n"
    ),
    "glm-4.7": Family(
        "llama.cpp/GLM-4.7-Flash",
        "<tool_call>$name$arguments</tool_call>",
        _GLM.replace("\n", ""),
    ),
    "hy3": Family(
        "llama.cpp/tencent-Hy3",
        "<tool_call:opensource>$name<tool_sep:opensource>\n$arguments</tool_call:opensource>",
        "<arg_key:opensource>$key</arg_key:opensource>\n"
        "<arg_value:opensource>$value</arg_value:opensource>\n",
        before="<tool_calls:opensource>\n",
        after="\n</tool_calls:opensource>",
        between="\n",
    ),
    "minimax-m1": Family(
        "llama.cpp/MiniMax-M1",
        f"{_OBJECT}\n",
        before="<tool_calls>\n",
        after="</tool_calls>",
    ),
    "minimax-m2": Family(
        "llama.cpp/MiniMax-M2",
        '<invoke name="$name">\n$arguments</invoke>\n',
        '<parameter name="$key">$value</parameter>\n',
        before="<minimax:tool_call>\n",
        after="</minimax:tool_call>",
    ),
    "minicpm5": Family(
        "llama.cpp/openbmb-MiniCPM5-1B",
        '<function name="$name">$arguments</function>',
        "<param name=\"$key\">{% if '<' in value ~ '' %}<![CDATA[{% endif %}$value"
        "{% if '<' in value ~ '' %}]]>{% endif %}</param>",
        between="\n",
    ),
    "deepseek-v3": Family(
        "vllm/tool_chat_template_deepseekv3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$json\n```<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        after="<｜tool▁calls▁end｜>",
        between="\n",
    ),
    "deepseek-v3.1": Family(
        "llama.cpp/deepseek-ai-DeepSeek-V3.1",
        "<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$json<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        after="<｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.2": Family(
        "llama.cpp/deepseek-ai-DeepSeek-V3.2",
        '<｜DSML｜invoke name="$name">\n$arguments</｜DSML｜invoke>\n',
        _DSML,
        before="<｜DSML｜function_calls>\n",
        after="</｜DSML｜function_calls>",
    ),
    "kimi-k2": Family(
        "llama.cpp/moonshotai-Kimi-K2",
        "<|tool_call_begin|>functions.$name:$number<|tool_call_argument_begin|>$json<|tool_call_end|>",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
    ),
    "solar": Family(
        "llama.cpp/upstage-Solar-Open-100B",
        "<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$json<|tool_call:end|>",
    ),
    "gpt-oss": Family(
        "trl/gptoss",
        " to=functions.$name<|channel|>commentary json<|message|>$json",
        several=False,
    ),
    "mistral": Family(
        "vllm/tool_chat_template_mistral",
        '{"name": "$name", "arguments": $json, "id": "$id"}',
        before="[TOOL_CALLS] [",
        after="]",
        between=", ",
    ),
    "ministral": Family(
        "llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512", "[TOOL_CALLS]$name[ARGS]$json"
    ),
    "mistral small": Family(
        "llama.cpp/Mistral-Small-3.2-24B-Instruct-2506", "[TOOL_CALLS]$name[CALL_ID]$id[ARGS]$json"
    ),
    "llama 3": Family("trl/llama3_1", _LLAMA, several=False),
    "llama 4": Family("vllm/tool_chat_template_llama4_json", _LLAMA),
    "xlam": Family(
        "vllm/tool_chat_template_xlam_qwen", _OBJECT, before="[", after="]", between=", "
    ),
    "granite": Family(
        "vllm/tool_chat_template_granite",
        _OBJECT,
        before="<|tool_call|>[",
        after="]",
        between=", ",
    ),
    "granite 20b": Family("vllm/tool_chat_template_granite_20b_fc", f"<function_call> {_OBJECT}\n"),
    "internlm2": Family(
        "vllm/tool_chat_template_internlm2_tool",
        f"<|action_start|><|plugin|>\n{_OBJECT}<|action_end|>",
    ),
    "nemotron nano": Family(
        "llama.cpp/NVIDIA-Nemotron-Nano-v2",
        _OBJECT,
        before="<TOOLCALL>[",
        after="]</TOOLCALL>",
        between=", ",
    ),
    "command r7b": Family(
        "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        '\n    {"tool_name": "$name", "parameters": $json}',
        before="<|START_ACTION|>[",
        after="\n]<|END_ACTION|>",
        between=",",
    ),
    "apertus": Family(
        "llama.cpp/Apertus-8B-Instruct",
        '{"$name": $json}',
        before="<|tools_prefix|>[",
        after="]",
        between=", ",
    ),
    "functionary": Family(
        "llama.cpp/meetkai-functionary-medium-v3.1", "<function=$name>$json</function>"
    ),
    "gemma 4": Family(
        "trl/gemma4",
        "<|tool_call>call:$name{{ '{' }}$arguments}<tool_call|>",
        """$key:{% if value is string %}<|"|>$value<|"|>{% else %}$value{% endif %}""",
        join=",",
    ),
    "lfm2": Family(
        "trl/lfm2_v2",
        "$name($arguments)",
        "$key=$repr",
        join=", ",
        before="<|tool_call_start|>[",
        after="]<|tool_call_end|>",
        between=", ",
    ),
    "pythonic": Family(
        "vllm/tool_chat_template_llama3.2_pythonic",
        "$name($arguments)",
        "$key=$value",
        join=", ",
        before="[",
        after="]",
        between=", ",
    ),
}


@cache
def renderer_of(family: str) -> Renderer:
    """A family's renderer, with its control tokens."""
    name = f"{family} in short"
    return Renderer(tokenizer_for(Template(name, FAMILIES[family].chat_template)))


def written(family: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """What a family writes for a turn of calls, given as pairs of a name and its arguments.

    Raises:
        TemplateError: If the family writes one call a turn, and there are more.
    """
    renderer = renderer_of(family)
    listed = [
        {
            "id": f"call{number:05d}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    question = {"role": "user", "content": "Go."}
    turn = {"role": "assistant", "content": "", "tool_calls": listed}
    before, whole = renderer.prompt([question]), renderer.prompt([question, turn])
    text = str(renderer.tokenizer.decode(whole[len(before) :]))
    return text.partition("<|im_end|>")[0]
