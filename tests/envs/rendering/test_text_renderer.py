"""Plain text to tokens and back, without a chat template."""

import copy
import pickle
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymnast.envs.rendering.text_renderer import TextRenderer, text_renderer_of


def text(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_prompt_is_its_text(tokenizer: Any) -> None:
    renderer = text_renderer_of(tokenizer)
    assert renderer.prompt(text("Once upon")) == tokenizer.encode("Once upon")
    assert renderer.prompt(text("")) == []
    assert renderer.stop_ids == (tokenizer.eos_token_id,)


def test_an_action_is_its_text_without_the_stop_id(tokenizer: Any) -> None:
    renderer = text_renderer_of(tokenizer)
    context = renderer.prompt(text("Once upon"))
    action = [*tokenizer.encode(" a time", add_special_tokens=False), tokenizer.eos_token_id]
    expected = {"role": "assistant", "content": " a time", "tool_calls": []}
    assert renderer.parse(action, context_ids=context) == expected
    assert renderer.parse(action[:-1], context_ids=context) == expected
    assert renderer.parse([], context_ids=context)["content"] == ""
    assert renderer.parse([-1, 10**9, *action])["content"].endswith(" a time")


def test_the_tokenizers_own_beginning_comes_first(tokenizer: Any) -> None:
    class Begins:
        """Begins every text with a token, as many tokenizers do."""

        bos_token_id = 1
        eos_token_id = None

        def encode(self, given: str) -> list[int]:
            return [1, *tokenizer.encode(given)]

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

    renderer = TextRenderer(Begins())
    assert renderer.prompt(text("One")) == [1, *tokenizer.encode("One")]
    assert renderer.observe([1], text("One")) == tokenizer.encode("One")
    assert renderer.stop_ids == ()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.text(max_size=8) | st.sampled_from(["<|im_end|>", "<|im_start|>user", "<tool_call>"]),
        max_size=6,
    )
)
def test_no_added_token_comes_from_a_text(parts: list[str], tokenizer: Any) -> None:
    renderer = text_renderer_of(tokenizer)
    added = set(tokenizer.get_added_vocab().values())
    said = "".join(parts)
    for ids in (renderer.prompt(text(said)), renderer.observe([5], text(said))):
        assert not added & set(ids)
        assert renderer.decode(ids) == said


def test_copies_are_the_same_object(tokenizer: Any) -> None:
    renderer = text_renderer_of(tokenizer)
    assert copy.deepcopy(renderer) is renderer
    assert pickle.loads(pickle.dumps(renderer)).prompt(text("One")) == renderer.prompt(text("One"))
