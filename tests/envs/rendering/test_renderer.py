"""The renderer on chat templates of every kind: what goes in comes out, and only at the end."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering import plain_protocol
from gymnast.envs.rendering.renderer import Renderer
from gymnast.errors import DataError, ModelError, TemplateError
from gymnast.types import ToolCall

TEMPLATES = Path(__file__).parent / "chat_templates"
MARKUP = [f"<|{name}|>" for name in ("eot_id", "start_header_id", "end_header_id", "turn", "end")]
MARKUP += [
    f"<|{mark}{name}|>" for name in ("thought", "action", "calls", "call") for mark in ("", "/")
]
MARKUP += [
    f"[{mark}{name}]" for name in ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS") for mark in ("", "/")
]
MARKUP += ["[TOOL_CALLS]", "<|args|>"]
WITH_CALLS = [
    "hermes",
    "listed",
    "bare",
    "action",
    "invented",
    "sectioned",
    "named",
    "xml",
    "without_tools",
    "alternating",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Can {name}.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
    for name in ("add", "multiply")
]
QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
END_TOKENS = {"listed": "<|endoftext|>", "bare": "<|eot_id|>", "action": "<|end|>"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(MARKUP)
    return tokenizer


@pytest.fixture(scope="module")
def renderers(tokenizer: Any) -> dict[str, Renderer]:
    made = {}
    for name in WITH_CALLS:
        own = copy.deepcopy(tokenizer)
        if name in ("listed", "bare", "text_end"):
            own.eos_token = "<|endoftext|>"
        template = None if name == "hermes" else (TEMPLATES / f"{name}.jinja").read_text()
        made[name] = Renderer(own, chat_template=template)
    return made


@pytest.fixture(params=WITH_CALLS)
def renderer(request: pytest.FixtureRequest, renderers: dict[str, Renderer]) -> Renderer:
    return renderers[request.param]


def call(name: str, arguments: Any, call_id: str = "callid001") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def calling(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(content: str, call_id: str = "callid001", name: str = "add") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": name}


def template_turn(
    renderer: Renderer, turn: dict[str, Any], after: list[dict[str, Any]]
) -> tuple[list[int], list[int], list[int]]:
    """The context, the action as the template itself writes it, and what then follows."""
    context = renderer.prompt([QUESTION], TOOLS)
    whole = renderer.prompt([QUESTION, turn, *after], TOOLS)
    assert whole[: len(context)] == context, "the template rewrites history"
    rest = whole[len(context) :]
    end = next(i for i, number in enumerate(rest) if number in renderer.stop_ids) + 1
    return context, rest[:end], rest[end:]


# --- What the policy wrote is read


def test_a_call_is_read_back_from_the_templates_own_rendering(renderer: Renderer) -> None:
    arguments = {"a": 3, "text": 'A "quoted" word, a\nnew line, {braces} [[brackets]] \\ é'}
    turn = calling(call("add", arguments))
    context, action, _ = template_turn(renderer, turn, [result("7")])
    message = renderer.parse(action, context_ids=context, tools=TOOLS)
    assert message["role"] == "assistant"
    read = [(c.name, c.arguments, c.error) for c in message["tool_calls"]]
    assert read == [("add", arguments, None)]


def test_several_calls_in_one_completion_are_read_in_order(renderers: dict[str, Renderer]) -> None:
    for name in set(WITH_CALLS) - {"bare"}:
        calls = [call("add", {"a": 1}, "callid001"), call("multiply", {"a": 2}, "callid002")]
        results = [result("1"), result("2", "callid002", "multiply")]
        context, action, _ = template_turn(renderers[name], calling(*calls), results)
        message = renderers[name].parse(action, context_ids=context, tools=TOOLS)
        read = [(c.name, c.arguments) for c in message["tool_calls"]]
        assert read == [("add", {"a": 1}), ("multiply", {"a": 2})], name
        assert len({c.id for c in message["tool_calls"]}) == 2


def test_text_beside_a_call_is_the_content(renderers: dict[str, Renderer]) -> None:
    for name in ("hermes", "invented", "named", "sectioned", "without_tools", "alternating"):
        turn = calling(call("add", {"a": 1}), content="Let me see.")
        context, action, _ = template_turn(renderers[name], turn, [result("1")])
        message = renderers[name].parse(action, context_ids=context)
        assert message["content"] == "Let me see.", name
        assert len(message["tool_calls"]) == 1


def test_an_answer_has_no_calls_and_keeps_its_text(renderer: Renderer) -> None:
    answer = {"role": "assistant", "content": 'It is 7: {"name": "add"} and <call> are text.'}
    after = {"role": "user", "content": "Thanks."}
    context, action, _ = template_turn(renderer, answer, [after])
    message = renderer.parse(action, context_ids=context, tools=TOOLS)
    assert message["tool_calls"] == []
    assert message["content"].strip() == answer["content"]


EXAMPLES = {
    "hermes": '<tool_call>\n{"name": "TOOL", "arguments": {"KEY": "VALUE"}}\n</tool_call>',
    "invented": '[[CALL]]{"fn": "TOOL", "kw": {"KEY": "VALUE"}}[[/CALL]]',
    "xml": '<invoke name="TOOL"><KEY>VALUE</KEY></invoke>',
}


def test_the_call_that_a_model_is_shown_is_the_templates_own_and_right(renderer: Renderer) -> None:
    dialect = renderer.dialect or plain_protocol.DIALECT
    message = renderer.parse(renderer.tokenizer.encode(dialect.example))
    calls = [(call.name, call.arguments, call.error) for call in message["tool_calls"]]
    assert calls == [("TOOL", {"KEY": "VALUE"}, None)]
    assert not message["content"]


def test_a_shown_call_has_the_templates_own_line_breaks(renderers: dict[str, Renderer]) -> None:
    for name, example in EXAMPLES.items():
        torn = example.replace("VALUE", "").replace("}", "").replace("</KEY>", "")
        (call,) = renderers[name].parse(renderers[name].tokenizer.encode(torn))["tool_calls"]
        assert call.error is not None and call.error.endswith(f"; write {example}")


DEGENERATE = """<tool_call>
{
      "name"        :   "multiply"   ,


      "arguments"   :
   {  "a"  :  3  ,   "b":4 }
 }
</tool_call><|im_end|>"""


def test_a_degenerate_call_with_white_space_keeps_its_ids(renderers: dict[str, Renderer]) -> None:
    for name in ("hermes", "without_tools"):
        renderer = renderers[name]
        context = renderer.prompt([QUESTION], TOOLS)
        # One id per character is longer than any tokenizer would write it.
        action = [i for c in DEGENERATE[:-10] for i in renderer.tokenizer.encode(c)]
        action.append(renderer.tokenizer.eos_token_id)
        assert len(action) > len(renderer.tokenizer.encode(DEGENERATE))
        message = renderer.parse(action, context_ids=context, tools=TOOLS)
        read = [(c.name, c.arguments, c.error) for c in message["tool_calls"]]
        assert read == [("multiply", {"a": 3, "b": 4}, None)]
        before = context + action
        kept = list(before)
        observed = renderer.observe(before, [result("12", name="multiply")], tools=TOOLS)
        assert before == kept
        text = renderer.tokenizer.decode([*before, *observed])
        assert DEGENERATE in text and text.endswith("<|im_start|>assistant\n")


@given(ids=st.lists(st.integers(-(2**70), 2**70) | st.integers(0, 1100), max_size=40))
@settings(max_examples=80, deadline=None)
def test_parse_never_raises_on_random_ids(renderers: dict[str, Renderer], ids: list[int]) -> None:
    for renderer in renderers.values():
        message = renderer.parse(ids, tools=TOOLS)
        assert isinstance(message["content"], str)
        assert all(isinstance(read, ToolCall) for read in message["tool_calls"])


MARKS = [
    "<tool_call>",
    "</tool_call>",
    "[[CALL]]",
    "[[/CALL]]",
    "<|call|>",
    "<|args|>",
    "<|action|>",
]
PIECES = st.sampled_from([*MARKS, *'{}[]":,1\\ ', "name", '"name"', '"arguments"', '"fn"', '"kw"'])


@given(pieces=st.lists(PIECES, max_size=25))
@settings(max_examples=150, deadline=None)
def test_parse_never_raises_on_torn_calls(
    renderers: dict[str, Renderer], pieces: list[str]
) -> None:
    for renderer in renderers.values():
        ids = renderer.tokenizer.encode("".join(pieces))
        for read in renderer.parse(ids, tools=TOOLS)["tool_calls"]:
            assert read.error is not None or isinstance(read.arguments, dict)


# --- What follows is appended, and only that


def test_observations_continue_as_the_template_writes(renderer: Renderer) -> None:
    after = [result("7 (seven)")]
    context, action, rest = template_turn(renderer, calling(call("add", {"a": 3})), after)
    assert renderer.observe(context + action, after, tools=TOOLS) == rest


def test_several_results_continue_as_the_template_writes(renderers: dict[str, Renderer]) -> None:
    for name in set(WITH_CALLS) - {"bare"}:
        turn = calling(call("add", {"a": 1}), call("multiply", {"a": 2}, "callid002"))
        after = [result("1"), result("2", "callid002", "multiply")]
        context, action, rest = template_turn(renderers[name], turn, after)
        assert renderers[name].observe(context + action, after, tools=TOOLS) == rest, name


def test_a_users_message_continues_as_the_template_writes(renderer: Renderer) -> None:
    answer = {"role": "assistant", "content": "7"}
    after = [{"role": "user", "content": "Sure?"}]
    context, action, rest = template_turn(renderer, answer, after)
    assert renderer.observe(context + action, after, tools=TOOLS) == rest


def test_nothing_follows_an_end_unless_asked_for(renderer: Renderer) -> None:
    context, action, _ = template_turn(renderer, calling(call("add", {"a": 3})), [result("7")])
    ids = context + action
    assert renderer.observe(ids, [], tools=TOOLS, generation_prompt=False) == []
    with_prompt = renderer.observe(ids, [result("7")], tools=TOOLS)
    without = renderer.observe(ids, [result("7")], tools=TOOLS, generation_prompt=False)
    assert with_prompt[: len(without)] == without


def test_a_cut_turn_is_closed(renderer: Renderer) -> None:
    context, action, rest = template_turn(renderer, calling(call("add", {"a": 3})), [result("7")])
    for length in (0, 1, len(action) // 2, len(action) - 1):
        cut = context + action[:length]
        observed = renderer.observe(cut, [result("7")], tools=TOOLS)
        assert observed == [action[-1], *rest]
        closed = renderer.observe(cut, [], tools=TOOLS, generation_prompt=False)
        assert closed == [action[-1]]


def test_the_stop_id_is_read_from_the_template_not_from_eos(
    renderers: dict[str, Renderer],
) -> None:
    for name, token in END_TOKENS.items():
        tokenizer = renderers[name].tokenizer
        assert renderers[name].stop_ids[0] == tokenizer.convert_tokens_to_ids(token)
        assert tokenizer.eos_token_id in renderers[name].stop_ids


def test_a_template_without_eos_at_the_end_of_a_turn_works(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer, chat_template=(TEMPLATES / "text_end.jinja").read_text())
    assert renderer.stop_ids == (tokenizer.eos_token_id,)
    context = renderer.prompt([QUESTION], TOOLS)
    written = '```call\n{"name": "add", "input": {"a": 3}}\n```'
    action = [*tokenizer.encode(written), tokenizer.eos_token_id]
    message = renderer.parse(action, context_ids=context, tools=TOOLS)
    assert [(c.name, c.arguments) for c in message["tool_calls"]] == [("add", {"a": 3})]
    stopped = renderer.observe(context + action, [result("7")], tools=TOOLS)
    cut = renderer.observe(context + action[:-1], [result("7")], tools=TOOLS)
    assert stopped == cut
    ids = [*context, *action[:-1], *stopped]
    whole = renderer.prompt([QUESTION, {**message}, result("7")], TOOLS)
    assert tokenizer.decode(ids) == tokenizer.decode(whole)
    assert tokenizer.decode(stopped) == "\n---\n# tool\n7\n---\n# assistant\n"


# --- The prompt


def test_harmless_text_is_encoded_as_the_tokenizer_does(renderers: dict[str, Renderer]) -> None:
    talk = [{"role": "system", "content": "Be short."}, QUESTION]
    for name in ("hermes", "listed", "bare", "action", "invented", "without_tools"):
        renderer = renderers[name]
        template = None if name == "hermes" else (TEMPLATES / f"{name}.jinja").read_text()
        expected = renderer.tokenizer.apply_chat_template(
            talk, chat_template=template, add_generation_prompt=True, return_dict=False
        )
        assert renderer.prompt(talk) == expected, name


def test_template_arguments_reach_every_rendering(tokenizer: Any) -> None:
    template = "{% if shout %}LOUD {% endif %}" + tokenizer.chat_template
    template = template.replace("'<|im_start|>assistant\\n' }}", "lead }}")
    quiet = {"shout": False, "lead": "<|im_start|>assistant\n"}
    loud = quiet | {"shout": True, "lead": "<|im_start|>assistant\nHm, "}
    plain = Renderer(tokenizer, chat_template=template, chat_template_kwargs=quiet)
    renderer = Renderer(tokenizer, chat_template=template, chat_template_kwargs=loud)
    assert plain.prompt([QUESTION], TOOLS) == Renderer(tokenizer).prompt([QUESTION], TOOLS)
    prompt = renderer.prompt([QUESTION], TOOLS)
    assert tokenizer.decode(prompt).startswith("LOUD ")
    action = tokenizer.encode("well.<|im_end|>")
    observed = renderer.observe([*prompt, *action], [result("7")], tools=TOOLS)
    assert tokenizer.decode(observed).endswith("assistant\nHm, ")


def test_messages_may_hold_parsed_calls_and_empty_fields(renderers: dict[str, Renderer]) -> None:
    renderer = renderers["hermes"]
    openai = renderer.prompt([QUESTION, calling(call("add", {"a": 3}))], TOOLS)
    parsed = {"role": "assistant", "content": None, "tool_calls": [ToolCall("x", "add", {"a": 3})]}
    assert renderer.prompt([QUESTION, parsed], TOOLS) == openai
    text = {"role": "assistant", "content": "", "tool_calls": [call("add", '{"a": 3}')]}
    assert renderer.prompt([QUESTION, text], TOOLS) == openai


def test_text_in_parts_is_one_text(renderers: dict[str, Renderer]) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 + 3?"}]
    for renderer in renderers.values():
        whole = renderer.prompt([{"role": "user", "content": "What is 2 + 3?"}])
        assert renderer.prompt([{"role": "user", "content": parts}]) == whole


# --- Templates that are refused, parsers, copies


def test_a_template_that_is_not_understood_is_refused_with_its_rendering(tokenizer: Any) -> None:
    template = (TEMPLATES / "positional.jinja").read_text()
    with pytest.raises(TemplateError, match=r"zqfirst \| Zqone \| 7919.*parser='module:function'"):
        Renderer(tokenizer, chat_template=template)


def test_a_parser_reads_what_the_renderer_does_not_understand(tokenizer: Any) -> None:
    def parser(text: str) -> list[dict[str, Any]]:
        name, a, b = text.split(" | ")
        return [{"name": name, "arguments": {"a": int(a), "b": int(b)}}]

    template = (TEMPLATES / "positional.jinja").read_text()
    renderer = Renderer(tokenizer, chat_template=template, parser=parser)
    context, action, rest = template_turn(
        renderer, calling(call("add", {"a": 1, "b": 2})), [result("3")]
    )
    (read,) = renderer.parse(action)["tool_calls"]
    assert (read.name, read.arguments) == ("add", {"a": 1, "b": 2})
    assert renderer.observe(context + action, [result("3")], tools=TOOLS) == rest


def test_a_tokenizer_without_a_chat_template_is_refused(tokenizer: Any) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    bare.name_or_path = "some/base-model"
    with pytest.raises(TemplateError, match=r"some/base-model.*chat_template="):
        Renderer(bare)
    Renderer(bare, chat_template=tokenizer.chat_template)


def test_a_tokenizer_without_a_backend_is_refused(tokenizer: Any) -> None:
    class Slow:
        chat_template = tokenizer.chat_template
        special_tokens_map = tokenizer.special_tokens_map
        eos_token_id = 2

        def get_chat_template(self, chat_template: Any, tools: Any) -> Any:
            return self.chat_template

    with pytest.raises(ModelError, match="fast tokenizer"):
        Renderer(Slow())


@pytest.mark.parametrize("bad", [{"content": "x"}, "x", {"role": 3}])
def test_a_message_without_a_role_is_refused(renderers: dict[str, Renderer], bad: Any) -> None:
    with pytest.raises(DataError, match="role"):
        renderers["hermes"].prompt([bad])


def test_a_template_that_takes_one_call_a_turn_says_so(renderers: dict[str, Renderer]) -> None:
    turn = calling(call("add", {}), call("add", {}, "callid002"))
    with pytest.raises(TemplateError, match="one call a turn"):
        renderers["bare"].prompt([QUESTION, turn], TOOLS)


def test_copies_are_the_same_object_and_pickles_behave_alike(renderer: Renderer) -> None:
    assert copy.copy(renderer) is renderer
    assert copy.deepcopy({"renderer": renderer})["renderer"] is renderer
    other = pickle.loads(pickle.dumps(renderer))
    context, action, rest = template_turn(renderer, calling(call("add", {"a": 3})), [result("7")])
    assert other.stop_ids == renderer.stop_ids
    assert other.prompt([QUESTION], TOOLS) == context
    assert other.parse(action) == renderer.parse(action)
    assert other.observe(context + action, [result("7")], tools=TOOLS) == rest


def test_padding_and_truncation_set_by_others_do_not_reach_in(tokenizer: Any) -> None:
    own = copy.deepcopy(tokenizer)
    renderer = Renderer(own)
    expected = renderer.prompt([QUESTION], TOOLS)
    own(["a b c d e"], truncation=True, max_length=2, padding="max_length")
    assert renderer.prompt([QUESTION], TOOLS) == expected


def test_a_call_is_answered_where_no_tools_are_offered(tokenizer: Any) -> None:
    counting = (TEMPLATES / "invented.jinja").read_text() + "{% set count = tools | length %}"
    renderer = Renderer(tokenizer, chat_template=counting)
    after = renderer.observe([5], [result("No tools.")], tools=TOOLS)
    assert renderer.observe([5], [result("No tools.")]) == after


def test_a_template_that_is_no_jinja_is_refused_with_its_line(tokenizer: Any) -> None:
    with pytest.raises(TemplateError, match=r"not valid Jinja: unexpected '}' \(line 2\)\. Fix it"):
        Renderer(tokenizer, chat_template="{{ messages }}\n{{ messages }")


def test_a_prompt_that_was_asked_for_before_is_a_new_list() -> None:
    renderer = Renderer(tiny_tokenizer())
    messages = [{"role": "user", "content": "What is 2 plus 3? Say <|im_end|> as well."}]
    first = renderer.prompt(messages)
    expected = list(first)
    first += [1, 2, 3]
    assert renderer.prompt(messages) == expected
    assert renderer.prompt(messages) == Renderer(tiny_tokenizer()).prompt(messages)
