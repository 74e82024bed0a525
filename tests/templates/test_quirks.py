"""The quirks of model families, each with a test of its own, on the families' own templates."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import template_checks as checks
from gymnast.envs import Environment, Renderer
from gymnast.errors import TemplateError
from template_corpus import Template, tokenizer_for
from template_messages import (
    ANSWER,
    MARKED,
    NEXT,
    QUESTION,
    SAID,
    THINKING,
    THOUGHT,
    call,
    calling,
    result,
    schemas,
)
from template_results import Subject

pytestmark = pytest.mark.network

Find = Callable[[str], Subject]
TOOLS = schemas(*MARKED)
ONE = calling(*MARKED[:1])
RESULT = [result(MARKED[0])]
CHATML = ["trl/qwen2_5", "trl/qwen3", "trl/qwen3_6", "llama.cpp/MiMo-VL", "trl/lfm2_v2"]
GLM = ["trl/glm4moe", "trl/glm4moe_training", "llama.cpp/GLM-4.6", "llama.cpp/GLM-4.7-Flash"]
MISTRAL = [
    "vllm/tool_chat_template_mistral",
    "vllm/tool_chat_template_mistral_parallel",
    "vllm/tool_chat_template_mistral3",
    "llama.cpp/mistralai-Mistral-Nemo-Instruct-2407",
    "llama.cpp/Mistral-Small-3.2-24B-Instruct-2506",
]
LLAMA_3 = ["trl/llama3_1", "trl/llama3_2", "llama.cpp/meta-llama-Llama-3.3-70B-Instruct"]
GPT_OSS = ["trl/gptoss", "trl/gptoss_training", "llama.cpp/openai-gpt-oss-120b"]
DEEPSEEK_V3 = ["trl/deepseekv3", "trl/deepseekv3_training", "vllm/tool_chat_template_deepseekv3"]


def encode(subject: Subject, text: str) -> list[int]:
    return list(subject.reference.tokenizer.encode(text, add_special_tokens=False))


def decode(subject: Subject, ids: list[int]) -> str:
    return str(subject.reference.tokenizer.decode(ids))


def token(subject: Subject, text: str) -> int:
    return int(subject.reference.tokenizer.convert_tokens_to_ids(text))


def written(subject: Subject, turn: Any, **options: Any) -> tuple[list[int], list[int], str]:
    """The ids of a context and of the turn that the template writes in it, and what follows."""
    cut, context, action = checks.split(subject.renderer, subject.reference, turn, **options)
    return context, action, cut.rest


def read(subject: Subject, action: list[int], tools: Any = TOOLS) -> list[Any]:
    return [
        (one.name, one.arguments, one.error)
        for one in subject.renderer.parse(action, tools=tools)["tool_calls"]
    ]


FIRST = (MARKED[0]["function"]["name"], MARKED[0]["function"]["arguments"], None)


# --- Where a turn ends


@pytest.mark.parametrize("name", GLM)
def test_glm_stops_at_the_token_that_opens_the_result_which_is_not_doubled(
    subject: Find, name: str
) -> None:
    glm = subject(name)
    context, action, rest = written(glm, ONE)
    observation = token(glm, "<|observation|>")
    assert action[-1] == observation and observation in glm.renderer.stop_ids
    observed = glm.renderer.observe([*context, *action], RESULT, tools=TOOLS)
    assert observation not in observed
    assert decode(glm, observed) == rest
    cut = glm.renderer.observe([*context, *action[:-1]], RESULT, tools=TOOLS)
    assert cut == [observation, *observed]


@pytest.mark.parametrize("name", LLAMA_3)
def test_llama_3_ends_turns_with_another_token_than_its_eos_and_pads_with_none(
    subject: Find, name: str
) -> None:
    llama = subject(name)
    tokenizer = llama.reference.tokenizer
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|end_of_text|>", None)
    for turn in (ONE, ANSWER):
        context, action, rest = written(llama, turn)
        assert action[-1] == token(llama, "<|eot_id|>")
        after = checks.answered(turn)
        observed = llama.renderer.observe([*context, *action], after, tools=TOOLS)
        assert decode(llama, observed) == rest
        assert token(llama, "<|eot_id|>") not in observed[:1]
    assert {token(llama, "<|eot_id|>"), tokenizer.eos_token_id} <= set(llama.renderer.stop_ids)


@pytest.mark.parametrize("name", GPT_OSS)
def test_gpt_oss_ends_a_call_and_an_answer_with_different_tokens(subject: Find, name: str) -> None:
    oss = subject(name)
    assert written(oss, ONE)[1][-1] == token(oss, "<|call|>")
    assert written(oss, ANSWER)[1][-1] == token(oss, "<|return|>")
    assert {token(oss, "<|call|>"), token(oss, "<|return|>")} <= set(oss.renderer.stop_ids)
    # It ends a thought, and the turn goes on.
    assert token(oss, "<|end|>") not in oss.renderer.stop_ids


@pytest.mark.parametrize("name", GPT_OSS)
def test_gpt_oss_takes_the_header_of_a_result_from_its_call(subject: Find, name: str) -> None:
    oss = subject(name)
    for one in MARKED[:2]:
        context, action, _ = written(oss, calling(one))
        observed = oss.renderer.observe([*context, *action], [result(one)], tools=TOOLS)
        header = f"<|start|>functions.{one['function']['name']} to=assistant"
        assert decode(oss, observed).startswith(header)


@pytest.mark.parametrize("name", ["trl/gemma4", "trl/gemma4_v2", "trl/gemma4_v5"])
def test_gemma_4_ends_an_answer_with_a_token_that_is_not_its_eos(subject: Find, name: str) -> None:
    gemma = subject(name)
    assert gemma.reference.tokenizer.eos_token == "<eos>"
    context, action, rest = written(gemma, ANSWER)
    assert action[-1] == token(gemma, "<turn|>") in gemma.renderer.stop_ids
    observed = gemma.renderer.observe([*context, *action], [NEXT], tools=TOOLS)
    assert decode(gemma, observed) == rest
    assert rest.startswith("\n<|turn>user\n")


@pytest.mark.parametrize("name", CHATML)
def test_chatml_writes_a_newline_that_the_model_never_samples(subject: Find, name: str) -> None:
    chatml = subject(name)
    context, action, _ = written(chatml, ONE)
    assert action[-1] == token(chatml, "<|im_end|>")
    observed = chatml.renderer.observe([*context, *action], RESULT, tools=TOOLS)
    assert decode(chatml, observed).startswith("\n<|im_start|>")
    assert "<|im_end|>\n<|im_start|>" in decode(chatml, [*context, *action, *observed])


@pytest.mark.parametrize("name", [*CHATML, *LLAMA_3, *MISTRAL, *DEEPSEEK_V3])
def test_a_turn_cut_by_its_length_gets_its_end_before_the_result(subject: Find, name: str) -> None:
    family = subject(name)
    context, action, rest = written(family, ONE)
    observed = family.renderer.observe([*context, *action[:-1]], RESULT, tools=TOOLS)
    assert observed[0] == action[-1]
    assert decode(family, observed[1:]) == rest


# --- What was written before stays


@pytest.mark.parametrize("name", ["trl/qwen3", "llama.cpp/Qwen-Qwen3-0.6B", "trl/qwen3_5_think"])
def test_qwen3_drops_thoughts_from_earlier_turns_and_the_context_keeps_them(
    subject: Find, name: str
) -> None:
    qwen = subject(name)
    turn = ANSWER | THINKING
    context, action, rest = written(qwen, turn)
    assert THOUGHT in decode(qwen, action)
    assert THOUGHT not in qwen.reference.render([QUESTION, turn, NEXT], TOOLS)
    before = [*context, *action]
    kept = list(before)
    observed = qwen.renderer.observe(before, [NEXT], tools=TOOLS)
    assert before == kept
    assert decode(qwen, observed) == rest
    assert THOUGHT in decode(qwen, [*before, *observed])


@pytest.mark.parametrize("name", ["trl/qwen3_5_think", "llama.cpp/Qwen3.5-4B", "trl/qwen3_6"])
def test_qwen3_5_merges_its_empty_thought_into_tokens_that_are_never_sampled(
    subject: Find, name: str
) -> None:
    qwen = subject(name)
    context, action, rest = written(qwen, ONE)
    assert decode(qwen, context).endswith("<think>\n")
    assert decode(qwen, action).startswith("\n</think>")
    whole = decode(qwen, [*context, *action])
    assert encode(qwen, whole) != [*context, *action]  # "\n" + "\n" is one token there
    message = qwen.renderer.parse(action, context_ids=context, tools=TOOLS)
    assert [(c.name, c.arguments, c.error) for c in message["tool_calls"]] == [FIRST]
    assert not message["content"]
    observed = qwen.renderer.observe([*context, *action], RESULT, tools=TOOLS)
    assert decode(qwen, observed) == rest


def test_nothing_but_the_real_conversation_reaches_an_observation(
    subjects: dict[str, Subject],
) -> None:
    for name, family in subjects.items():
        for turn in (ANSWER, ONE):
            after = checks.answered(turn)
            try:
                context, action, _ = written(family, turn)
            except Exception as error:  # a template may refuse some conversation
                assert type(error).__name__ == "NotTaken"
                continue
            observed = family.renderer.observe([*context, *action], after, tools=TOOLS)
            words = decode(family, observed).lower()
            assert "zq" not in words, name  # how the renderer's own stand-ins begin


# --- How calls, arguments, ids and results are taken


@pytest.mark.parametrize("name", DEEPSEEK_V3)
def test_deepseek_v3_takes_arguments_as_a_string(subject: Find, name: str) -> None:
    deepseek = subject(name)
    arguments = {"text": 'é "quoted"\n', "n": [1, {"a": None}]}
    one = call("get_weather", arguments)
    history = deepseek.renderer.prompt([QUESTION, calling(one), result(one), NEXT])
    inside = json.dumps(arguments, ensure_ascii=False)
    assert inside in decode(deepseek, history)
    _, action, _ = written(deepseek, calling(one))
    assert read(deepseek, action, schemas(one)) == [("get_weather", arguments, None)]


@pytest.mark.parametrize("name", MISTRAL)
def test_mistral_gets_call_ids_of_nine_letters_and_digits(subject: Find, name: str) -> None:
    mistral = subject(name)
    context, action, _ = written(mistral, ONE)
    text = decode(mistral, action).replace(', "id": "call00001"', "")
    action = encode(mistral, text.replace("[CALL_ID]call00001", ""))
    message = mistral.renderer.parse(action, context_ids=context, tools=TOOLS)
    (one,) = message["tool_calls"]
    assert len(one.id) == 9 and one.id.isalnum()
    answer = {"role": "tool", "content": "Wqresult", "tool_call_id": one.id, "name": one.name}
    observed = mistral.renderer.observe([*context, *action], [answer], tools=TOOLS)
    assert one.id in decode(mistral, observed)
    later = mistral.renderer.parse(action, context_ids=[*context, *action], tools=TOOLS)
    assert later["tool_calls"][0].id != one.id


@pytest.mark.parametrize(
    "name",
    [
        *MISTRAL,
        "llama.cpp/moonshotai-Kimi-K2",
        "llama.cpp/Cohere2MoE",
        "vllm/tool_chat_template_phi4_mini",
        *DEEPSEEK_V3,
    ],
)
def test_families_without_a_hand_written_parser_elsewhere_are_read(
    subject: Find, name: str
) -> None:
    family = subject(name)
    assert checks.round_trip(family.renderer, family.reference, ONE) is None
    several = calling(*MARKED[: family.reference.most])
    assert checks.round_trip(family.renderer, family.reference, several) is None


@pytest.mark.parametrize("name", LLAMA_3)
def test_a_template_for_single_calls_is_not_given_two(subject: Find, name: str) -> None:
    llama = subject(name)
    results = [result(one) for one in MARKED[:2]]
    with pytest.raises(TemplateError, match="one call"):
        llama.renderer.prompt([QUESTION, calling(*MARKED[:2]), *results], TOOLS)


@pytest.mark.parametrize("name", ["trl/gemma", "llama.cpp/google-gemma-2-2b-it"])
def test_roles_that_must_alternate_get_results_and_a_users_word_in_one_turn(
    subject: Find, name: str
) -> None:
    gemma = subject(name)
    context, action, rest = written(gemma, ONE, after=[*RESULT, NEXT])
    observed = gemma.renderer.observe([*context, *action], [*RESULT, NEXT], tools=TOOLS)
    assert decode(gemma, observed) == rest
    assert decode(gemma, observed).count("<start_of_turn>user") == 1


@pytest.mark.parametrize("name", ["trl/idefics3", "trl/smolvlm", "trl/llava_next"])
def test_content_goes_in_parts_where_the_template_takes_nothing_else(
    subject: Find, name: str
) -> None:
    family = subject(name)
    assert QUESTION["content"] in decode(family, family.renderer.prompt([QUESTION]))
    assert checks.round_trip(family.renderer, family.reference, ONE) is None


@pytest.mark.parametrize(
    "name", ["trl/qwen2_5", "trl/glm4moe", "trl/gptoss", "trl/gemma4", "trl/deepseekv3"]
)
def test_a_structured_result_reaches_the_model_as_json(subject: Find, name: str) -> None:
    family = subject(name)

    def wqfirst(wqa: str, wqb: int) -> Any:
        """Wqtool."""
        return [{"name": wqa, "ok": True}, None] if wqb > 0 else {}

    environment = Environment.from_tools([wqfirst], reward=lambda episode: 0.0)(
        renderer=family.renderer
    )

    async def play() -> str:
        await environment.areset(options={"row": {"prompt": QUESTION["content"]}})
        _, action, _ = written(family, ONE)
        observed, *_ = await environment.astep(action)
        return decode(family, list(observed))

    text = asyncio.run(play())
    environment.close()
    assert "Wqone" in text
    assert "True" not in text and "None" not in text


# --- What is wrong is said


BROKEN = {
    "trl/qwen2_5": ('{"name": "wqfirst"', '{"name": wqfirst"'),
    "trl/llama3_1": ('"parameters": {', '"parameters": {{'),
    "trl/gptoss": ('"wqb": 7919}', '"wqb": }'),
    "trl/deepseekv3": ('"wqb": 7919}', '"wqb": 7919'),
    "trl/gemma4": ("wqb:7919}", "wqb:}"),
    "trl/lfm2_v2": ("wqb=7919)", "wqb=)"),
    "trl/qwen3_6": ("</function>", ""),
    "trl/glm4moe": ("</arg_value>", ""),
    "vllm/tool_chat_template_mistral": ('"wqb": 7919}', '"wqb": 79 19}'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_call_is_reported_and_not_taken_for_text(subject: Find, name: str) -> None:
    family = subject(name)
    _, action, _ = written(family, ONE)
    right, wrong = BROKEN[name]
    text = decode(family, action)
    assert right in text
    (one,) = family.renderer.parse(encode(family, text.replace(right, wrong, 1)), tools=TOOLS)[
        "tool_calls"
    ]
    assert one.error is not None and "character" in one.error
    assert one.arguments == {}


@pytest.mark.parametrize("name", ["trl/qwen2_5", "trl/llama3_1", "trl/deepseekv3", "trl/gptoss"])
def test_arguments_in_a_string_are_decoded(subject: Find, name: str) -> None:
    family = subject(name)
    _, action, _ = written(family, ONE)
    arguments = json.dumps(MARKED[0]["function"]["arguments"])
    text = decode(family, action)
    assert arguments in text
    in_string = encode(family, text.replace(arguments, json.dumps(arguments)))
    assert read(family, in_string) == [FIRST]


def test_a_template_with_calls_of_no_known_kind_is_refused_with_its_rendering(
    templates: dict[str, Template],
) -> None:
    qwen = templates["trl/qwen2_5"]
    values = "tool_call.arguments.values() | join(' ')"  # and no keys
    strange = qwen.text.replace("tool_call.arguments | tojson", values)
    assert strange != qwen.text
    with pytest.raises(TemplateError, match="<tool_call>"):
        Renderer(tokenizer_for(Template("strange", strange)))


# --- No table of templates

CHANGES = {
    "a word": ("trl/qwen2_5", "You may call", "You can call"),
    "white space": ("trl/qwen3", "{%- if tools %}", "{#- changed #}{%- if tools %}"),
    "the tag of calls": ("trl/qwen2_5", "tool_call>", "call_tool>"),
    "a key": ("trl/qwen2_5", '"arguments": ', '"inputs": '),
    "the tag of parameters": ("trl/qwen3_6", "parameter=", "argument:"),
    "a word of the header": ("trl/gptoss", "functions.", "tools."),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_template_is_derived_like_any_other(
    templates: dict[str, Template], change: str
) -> None:
    name, old, new = CHANGES[change]
    changed = templates[name].text.replace(old, new)
    assert changed != templates[name].text
    family = Subject.of(Template(f"changed {name}", changed))
    assert family is not None
    assert list(checks.all_failures(family.renderer, family.reference)) == []


# --- No text becomes markup


@pytest.mark.parametrize("name", ["trl/qwen3", "llama.cpp/Qwen3.5-4B"])
def test_added_tokens_that_are_not_special_never_come_from_data(subject: Find, name: str) -> None:
    qwen = subject(name)
    added = qwen.reference.tokenizer.get_added_vocab()
    for text in ("<tool_call>", "</think>", "<|im_end|>"):
        assert text in added
        context, action, _ = written(qwen, ONE)
        hostile = [result(MARKED[0], f"{text} and {text}")]
        observed = qwen.renderer.observe([*context, *action], hostile, tools=TOOLS)
        harmless = [result(MARKED[0], "word and word")]
        plain = qwen.renderer.observe([*context, *action], harmless, tools=TOOLS)
        assert observed.count(added[text]) == plain.count(added[text])
        assert f"{text} and {text}" in decode(qwen, observed)


def test_text_that_merely_looks_like_a_call_is_content(subject: Find) -> None:
    for name in ("trl/qwen2_5", "trl/glm4moe", "trl/gemma4", "trl/gptoss"):
        family = subject(name)
        said = f'{SAID} {{"name": "wqfirst", "arguments": {{}}}} call:wqfirst{{}} <function=f>'
        turn = ANSWER | {"content": said}
        assert checks.round_trip(family.renderer, family.reference, turn) is None, name
