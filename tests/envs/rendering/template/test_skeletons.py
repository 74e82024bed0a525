"""A template's rendering, filled in: the same text as rendering anew, or none at all."""

import json
from collections.abc import Callable
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.rendering.template.skeletons import Skeleton, shape_of
from gymnast.errors import TemplateError

Messages = list[dict[str, Any]]
Render = Callable[[Messages], str]


def template(content: str, literals: tuple[str, ...] = ()) -> tuple[Render, frozenset[str]]:
    """A template that writes `content` for each message, and its literals."""
    source = (
        "{% for m in messages %}<|{{ m.role }} {{ m.name }}|>" + content + "<|end|>{% endfor %}"
    )

    def refuse(reason: str) -> None:
        raise TemplateError(reason)

    environment = jinja2.Environment()
    environment.globals["refuse"] = refuse
    compiled = environment.from_string(source)
    found = {t[2].strip("'") for t in environment.lex(source) if t[1] == "string"}
    return lambda messages: compiled.render(messages=messages), frozenset(found | {*literals})


COPYING = {
    "as it is": "{{ m.content }}",
    "stripped": "{{ m.content | trim }}",
    "twice": "{{ m.content }}|{{ m.content }}",
    "after its id": "{{ m.tool_call_id }}: {{ m.content }}",
}
BRANCHING = {
    "on a literal": "{% if m.content == 'zero' %}0{% else %}{{ m.content }}{% endif %}",
    "on a part": "{% if 'zero' in m.content %}0{% else %}{{ m.content }}{% endif %}",
    "on its first character": "{% if m.content[:1] == '{' %}obj{% endif %}{{ m.content }}",
    "on truth": "{% if m.content %}{{ m.content }}{% else %}(nothing){% endif %}",
    "on its length": "{{ m.content[:100] }}",
    "on what is left of it": "{% if m.content | trim %}{{ m.content }}{% endif %}",
    "on digits": "{% if m.content.isdigit() %}#{% endif %}{{ m.content }}",
    "on capitals": "{% if m.content.isupper() %}!{% endif %}{{ m.content }}",
    "by splitting it": "{{ m.content.split('</think>')[-1] }}",
    "by replacing": "{{ m.content | replace('a', 'b') }}",
    "by lines": "{{ m.content | indent(2) }}",
    "by escaping it": "{{ m.content | e }}",
    "by capitals": "{{ m.content | upper }}",
    "on the name": "{% if m.name == 'python' %}>>>{% endif %}{{ m.content }}",
    "on the name's beginning": "{{ m.name.split('.')[0] }} {{ m.content }}",
    "by cutting the id": "{{ m.tool_call_id | replace('call', '') }} {{ m.content }}",
}
TEXT = st.text() | st.sampled_from(
    ["", " ", "\n", "zero", " zero\n", "{", '{"a": 1}', "</think>", "a\nb\n\nc", "ABC", "12", "é\\"]
)
TEXT = TEXT | st.lists(TEXT, max_size=4).map(" ".join) | TEXT.map(lambda text: text * 300)
NAMES = st.from_regex(r"[\w.\-]{1,12}", fullmatch=True) | st.sampled_from(["python", "a.b"])
IDS = st.integers(0, 99999).map("call{:05d}".format) | st.from_regex(
    r"[A-Za-z0-9]{9}", fullmatch=True
)


def result(content: str, name: str = "f", call_id: str = "call00001") -> dict[str, Any]:
    return {"role": "tool", "content": content, "name": name, "tool_call_id": call_id}


RESULTS = st.lists(st.builds(result, TEXT, NAMES, IDS), min_size=1, max_size=3)
Made = Callable[[str, int], tuple[Skeleton | None, Render]]


@pytest.fixture(scope="module")
def skeleton_of() -> Made:
    made: dict[tuple[str, int], tuple[Skeleton | None, Render]] = {}

    def make(content: str, count: int) -> tuple[Skeleton | None, Render]:
        if (content, count) not in made:
            render, literals = template(content)
            shape = shape_of([result("", call_id=f"call0000{n}") for n in range(count)])
            assert shape is not None
            made[content, count] = Skeleton.of(shape, render, literals), render
        return made[content, count]

    return make


@pytest.mark.parametrize("content", COPYING.values(), ids=list(COPYING))
@given(messages=RESULTS)
def test_what_only_copies_is_filled_in_as_it_is_rendered(
    skeleton_of: Made, content: str, messages: Messages
) -> None:
    skeleton, render = skeleton_of(content, len(messages))
    assert skeleton is not None
    assert skeleton.fill(messages) == render(messages)


@pytest.mark.parametrize("content", BRANCHING.values(), ids=list(BRANCHING))
def test_what_does_more_has_no_skeleton(skeleton_of: Made, content: str) -> None:
    assert skeleton_of(content, 1)[0] is None


@pytest.mark.parametrize("ascii_only", [True, False])
def test_content_may_be_written_as_json(ascii_only: bool) -> None:
    def render(messages: Messages) -> str:
        return f'{{"output": {json.dumps(messages[0]["content"], ensure_ascii=ascii_only)}}}'

    shape = shape_of([result("x")])
    assert shape is not None
    skeleton = Skeleton.of(shape, render, ())
    assert skeleton is not None
    messages = [result('a "b"\né')]
    assert skeleton.fill(messages) == render(messages)


def test_a_template_that_refuses_a_content_has_no_skeleton() -> None:
    render, literals = template(
        "{% if not m.content %}{{ refuse('empty') }}{% endif %}{{ m.content }}"
    )
    shape = shape_of([result("x")])
    assert shape is not None
    assert Skeleton.of(shape, render, literals) is None


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "assistant", "content": "", "tool_calls": []}],
        [result("x", name="two words")],
        [result("x", name='a"b')],
        [result("x", name="")],
        [result("x", call_id="call_1")],
        [result("x", call_id="")],
        [result("x"), result("y")],
        [{"role": "user", "content": "x"}] * 9,
    ],
)
def test_only_few_messages_of_text_name_and_id_have_a_shape(messages: Messages) -> None:
    assert shape_of(messages) is None


def test_a_shape_is_roles_and_keys() -> None:
    messages = [result("x"), {"role": "user", "content": "y"}]
    expected = (("tool", "content", "name", "tool_call_id"), ("user", "content"))
    assert shape_of(messages) == expected
    assert shape_of([]) == ()
