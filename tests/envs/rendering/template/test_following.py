"""What follows an assistant's turn reads as the template writes it, whatever the turn was."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.template.chat_template import ChatTemplate
from gymnast.envs.rendering.template.derivation import derive_dialect
from gymnast.envs.rendering.template.following import Following, with_ends_of_calls
from gymnast.envs.rendering.template.turns import TurnMarkup
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError

FILES = Path(__file__).parents[1] / "chat_templates"
TOKENS = ["<|turn|>", "<|end|>", "<|more|>", "<|call|>", "<|calls|>", "<|/calls|>", "<|/call|>"]
TOKENS += ["<|args|>", "<|result|>"]
CHATML = "<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
CALL = "<tool_call>{{ call.function | tojson }}</tool_call>"
EACH_CALL = "{% for call in m.tool_calls or [] %}" + CALL + "{% endfor %}"
END = "<|im_end|>\n"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEXT = st.text() | st.sampled_from(
    ["", " ", "\n7 ", '{"a": 1}', "Zquser", "Zqone", "7919", "Zqtext"]
)
NAME = st.from_regex(r"[\w.\-]{1,9}", fullmatch=True) | st.text(min_size=1, max_size=5)
IDS = st.from_regex(r"[A-Za-z0-9]{9}", fullmatch=True) | st.text(min_size=1, max_size=9)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(TOKENS)
    return tokenizer


def following(tokenizer: Any, source: str) -> Following:
    template = ChatTemplate.of(tokenizer, source, None)
    text = SafeText(tokenizer)
    turns = TurnMarkup.of(template, text, tokenizer.eos_token_id)
    dialect = derive_dialect(template, turns, text)
    return Following(template, turns, text, dialect is not None, dialect)


def each(body: str, before: str = "") -> str:
    tools = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    return tools + before + "{% for m in messages %}" + body + "{% endfor %}" + OPEN


def result(content: str, name: str = "f", call_id: str = "call00001") -> dict[str, Any]:
    return {"role": "tool", "content": content, "name": name, "tool_call_id": call_id}


def calling(results: list[dict[str, Any]], arguments: Any) -> dict[str, Any]:
    calls = [probes.openai_call(m["tool_call_id"], m["name"], arguments) for m in results]
    return {"role": "assistant", "content": "", "tool_calls": calls}


SHAPED = {
    "hermes": each(CHATML + EACH_CALL + END),
    "strips": each(CHATML.replace("or ''", "or '' | trim") + EACH_CALL + END),
    "looks the name up": each(
        "{% if m.role == 'tool' %}<|result|>{% for other in messages %}"
        "{% for call in other.tool_calls or [] if call.id == m.tool_call_id %}"
        "{{ call.function.name }}{% endfor %}{% endfor %}: {{ m.content }}\n"
        "{% else %}" + CHATML + EACH_CALL + END + "{% endif %}"
    ),
    "joins results": each(
        "{% if m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
        "\n<r>{{ m.content }}</r>{% if loop.last or loop.nextitem.role != 'tool' %}"
        + END
        + "{% endif %}"
        "{% else %}" + CHATML + EACH_CALL + END + "{% endif %}"
    ),
}


@pytest.fixture(scope="module")
def made(tokenizer: Any) -> dict[str, Following]:
    return {name: following(tokenizer, source) for name, source in SHAPED.items()}


@pytest.mark.parametrize("name", SHAPED)
@given(
    results=st.lists(
        st.builds(result, TEXT, NAME, IDS),
        min_size=1,
        max_size=3,
        unique_by=lambda m: m["tool_call_id"],
    ),
    prompt=st.booleans(),
)
def test_results_follow_as_in_the_whole_conversation(
    made: dict[str, Following], name: str, results: list[dict[str, Any]], prompt: bool
) -> None:
    follows = made[name]
    talk = [probes.user("Hi"), calling(results, {"x": "y"})]
    whole = follows.template.render([*talk, *results], follows.tools, generation_prompt=prompt)
    text = follows.render(results, follows.tools, generation_prompt=prompt)
    assert text.startswith(END.strip())
    assert whole.endswith("</tool_call>" + text)


@pytest.mark.parametrize("name", SHAPED)
@given(content=TEXT)
def test_a_users_message_follows_an_answer(
    made: dict[str, Following], name: str, content: str
) -> None:
    follows = made[name]
    after = [probes.user(content)]
    talk = [probes.user("Hi"), probes.assistant("Bye")]
    whole = follows.template.render([*talk, *after], follows.tools, generation_prompt=True)
    text = follows.render(after, follows.tools, generation_prompt=True)
    assert whole.endswith("Bye" + text)


def test_calls_of_one_id_have_the_name_that_the_template_finds(made: dict[str, Following]) -> None:
    follows = made["looks the name up"]
    apart = [result("1", "f", "call00001"), result("2", "g", "call00002")]
    text = follows.render(apart, follows.tools, generation_prompt=False)
    assert text == "<|im_end|>\n<|result|>f: 1\n<|result|>g: 2\n"
    same = [result("1", "f"), result("2", "g")]
    text = follows.render(same, follows.tools, generation_prompt=False)
    assert text == "<|im_end|>\n<|result|>fg: 1\n<|result|>fg: 2\n"


def test_hundreds_of_results_are_rendered_once(tokenizer: Any) -> None:
    follows = following(tokenizer, SHAPED["hermes"])
    results = [result(str(n), call_id=f"call{n:05d}") for n in range(300)]
    text = follows.render(results, follows.tools, generation_prompt=False)
    assert text.count("<|im_start|>tool\n") == 300
    assert text.endswith("<|im_start|>tool\n299<|im_end|>\n")


def test_a_template_of_one_call_a_turn_gets_the_last_result(tokenizer: Any) -> None:
    one = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    follows = following(tokenizer, each(CHATML + one + EACH_CALL + END))
    results = [result("1"), result("2", call_id="call00002")]
    text = follows.render(results, follows.tools, generation_prompt=False)
    assert text == "<|im_end|>\n<|im_start|>tool\n1<|im_end|>\n<|im_start|>tool\n2<|im_end|>\n"


def test_a_template_without_tools_continues_an_answer(tokenizer: Any) -> None:
    follows = following(tokenizer, (FILES / "alternating.jinja").read_text())
    assert (follows.writes_calls, follows.tools) == (False, None)
    text = follows.render([probes.user("7")], None, generation_prompt=True)
    assert text == "<|im_end|>\n<|im_start|>user\n7<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(TemplateError, match="Roles must alternate"):
        follows.render([probes.user("7"), probes.user("8")], None, generation_prompt=True)


@pytest.mark.parametrize(
    ("rule", "strict"),
    [
        ("", False),
        ("{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}", True),
        ("{% if ':' in call.id %}{{ raise_exception('letters') }}{% endif %}", True),
        ("{% if not call.id %}{{ raise_exception('an id') }}{% endif %}", False),
    ],
)
def test_whether_ids_must_be_of_nine_letters_and_digits_is_tried(
    tokenizer: Any, rule: str, strict: bool
) -> None:
    calls = "{% for call in m.tool_calls or [] %}" + rule + CALL + "{% endfor %}"
    assert following(tokenizer, each(CHATML + calls + END)).takes_strict_ids_only is strict


def test_whether_tools_are_told_again_is_tried(tokenizer: Any) -> None:
    again = "{% if loop.last and tools and m.role == 'user' %}[{{ tools | tojson }}]{% endif %}"
    assert following(tokenizer, each(again + CHATML + EACH_CALL + END)).repeats_tools
    assert not following(tokenizer, SHAPED["hermes"]).repeats_tools


def test_thoughts_that_a_template_drops_later_do_not_matter(tokenizer: Any) -> None:
    thought = "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>{% endif %}"
    body = "<|im_start|>{{ m.role }}\n" + thought + "{{ m.content or '' }}" + EACH_CALL + END
    follows = following(tokenizer, each(body))
    text = follows.render([result("7")], follows.tools, generation_prompt=True)
    assert text == "<|im_end|>\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_that_is_rewritten_once_more_follows_is_refused(tokenizer: Any) -> None:
    later = "{% if m.tool_calls and not loop.last %}(called){% else %}" + EACH_CALL + "{% endif %}"
    body = "{% if m.role == 'assistant' and not m.tool_calls and not loop.last %}(said)"
    body += END + "{% else %}" + CHATML + later + END + "{% endif %}"
    follows = following(tokenizer, each(body))
    with pytest.raises(TemplateError, match="rewrites an assistant's turn"):
        follows.render([result("7")], follows.tools, generation_prompt=True)


# --- How a turn of calls ends


def ends(tokenizer: Any, body: str) -> set[str]:
    follows = following(tokenizer, each(body))
    turns = with_ends_of_calls(follows)
    return set(tokenizer.convert_ids_to_tokens(sorted(turns.closing | turns.opening)))


def test_a_turn_of_calls_may_end_in_a_token_of_its_own(tokenizer: Any) -> None:
    end = "{% if m.tool_calls %}<|more|>\n{% else %}" + END + "{% endif %}"
    assert ends(tokenizer, CHATML + EACH_CALL + end) == {"<|im_end|>", "<|more|>"}
    assert ends(tokenizer, CHATML + EACH_CALL + END) == {"<|im_end|>"}


def test_results_in_the_same_turn_follow_the_calls_own_last_token(tokenizer: Any) -> None:
    call = EACH_CALL.replace("</tool_call>", "<|/call|>").replace("<tool_call>", "<|call|>")
    body = "{% if m.role == 'tool' %}<|result|>{{ m.content }}{% else %}" + CHATML + call
    body += "{% if not m.tool_calls or loop.last %}" + END + "{% endif %}{% endif %}"
    turns = with_ends_of_calls(following(tokenizer, each(body)))
    own = tokenizer.convert_tokens_to_ids("<|/call|>")
    assert turns.calls_end == own
    assert own in turns.opening


def test_calls_that_end_in_nothing_are_refused(tokenizer: Any) -> None:
    body = (
        "{% if m.role == 'tool' %}(result) {{ m.content }}{% else %}"
        + CHATML
        + EACH_CALL.replace("</tool_call>", ";")
    )
    body += "{% if not m.tool_calls or loop.last %}" + END + "{% endif %}{% endif %}"
    with pytest.raises(TemplateError, match="generation would not stop there"):
        with_ends_of_calls(following(tokenizer, each(body)))
