"""What only a teacher sees: where a hint stands in its prompt, and that nobody else pays for it."""

from collections.abc import Callable
from typing import Any

import pytest

from gymnast.agents.loading.tiny import CHAT_TEMPLATE
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import UserCodeError

SHOWN: dict[str, Any] = {"role": "user", "content": "Call price before you answer."}
ROW = {"prompt": "What does a pen cost?", "secret": "Call price before you answer."}


class Shop(Environment):
    """A shop."""

    asked = 0

    @tool
    def price(self, item: str) -> int:
        """Look up a price.

        Args:
            item: What.
        """
        return 3

    def hint(self, row: Any) -> Any:
        type(self).asked += 1
        return [{"role": "user", "content": row["secret"]}]


class Waits(Shop):
    """A hint that takes a while."""

    async def hint(self, row: Any) -> Any:
        return super().hint(row)


class Silent(Shop):
    """No hint for this row."""

    def hint(self, row: Any) -> Any:
        return None


def read(env: Environment, renderer: Renderer, options: dict[str, Any] | None = None) -> Any:
    """The texts of the policy's prompt and of the teacher's, None where the info has none."""
    ids, info = env.reset(options={"row": ROW, "hint": True} | (options or {}))
    of_teacher = info.get("teacher_prompt_ids")
    decode = renderer.tokenizer.decode
    return decode(ids), None if of_teacher is None else decode(of_teacher)


@pytest.mark.parametrize("kind", [Shop, Waits])
def test_the_hint_stands_between_the_system_message_and_the_prompts_own(
    kind: type[Shop], renderer: Renderer
) -> None:
    env = kind(renderer, system_prompt="You are a clerk.")
    of_policy, of_teacher = read(env, renderer)
    assert SHOWN["content"] not in of_policy and of_teacher.count(SHOWN["content"]) == 1
    before, hint, after = of_teacher.partition(f"<|im_start|>user\n{SHOWN['content']}<|im_end|>\n")
    assert hint and before + after == of_policy
    assert "You are a clerk." in before and '"price"' in before  # the same tools
    assert after.startswith("<|im_start|>user\nWhat does a pen cost?")


def test_after_the_episodes_own_messages_the_rest_of_the_episode_does_not_see_the_hint(
    renderer: Renderer, encode: Callable[[str], list[int]]
) -> None:
    with_hint, without = Shop(renderer), Shop(renderer)
    with_hint.reset(options={"row": ROW, "hint": True})
    without.reset(options={"row": ROW})
    assert with_hint.messages == without.messages
    action = encode("Three.<|im_end|>")
    first, second = with_hint.step(action), without.step(action)
    assert first[0].tolist() == second[0].tolist() and first[1:4] == second[1:4]


def test_nobody_is_asked_for_a_hint_unless_a_teacher_wants_one(renderer: Renderer) -> None:
    before = Shop.asked
    _, info = Shop(renderer).reset(options={"row": ROW})
    assert "teacher_prompt_ids" not in info and Shop.asked == before


def test_a_row_without_a_hint_has_no_prompt_of_its_own_for_the_teacher(renderer: Renderer) -> None:
    _, info = Silent(renderer).reset(options={"row": ROW, "hint": True})
    assert info["teacher_prompt_ids"] == []


def test_an_environment_without_the_hook_says_nothing_of_a_teacher(renderer: Renderer) -> None:
    class Plain(Environment):
        """No hints."""

    _, info = Plain(renderer).reset(options={"row": ROW, "hint": True})
    assert "teacher_prompt_ids" not in info


def test_a_hint_in_several_messages_may_be_a_worked_call(
    renderer: Renderer, write_call: Callable[..., str]
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "price", "arguments": "{}"}}
    worked: list[dict[str, Any]] = [
        {"role": "user", "content": "What does a cup cost?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "1"},
        {"role": "assistant", "content": "Five."},
    ]

    class Works(Shop):
        """Shows how it is done."""

        def hint(self, row: Any) -> Any:
            return worked

    of_policy, of_teacher = read(Works(renderer), renderer)
    assert "Five." in of_teacher and "<tool_response>\n5" in of_teacher
    assert of_teacher.endswith(of_policy[of_policy.index("<|im_start|>user\nWhat does a pen") :])


def test_the_hint_stands_after_worked_turns(renderer: Renderer) -> None:
    class Solved(Shop):
        """Says how it is solved."""

        def solve(self, row: Any) -> Any:
            return [{"role": "assistant", "content": "Three."}]

        def reward(self, episode: Any) -> float:
            return float(episode.answer == "Three.")

    other = {"prompt": "What does a cup cost?", "secret": ""}
    env = Solved(renderer, rows=[other], worked_turns=1, system_prompt="You are a clerk.")
    of_policy, of_teacher = read(env, renderer)
    before, hint, after = of_teacher.partition(f"<|im_start|>user\n{SHOWN['content']}<|im_end|>\n")
    assert hint and before + after == of_policy
    assert "Three." in before and "a cup" in before
    assert after.startswith("<|im_start|>user\nWhat does a pen cost?")


TURNS = (
    "{%- for m in messages %}{%- if not loop.first and m.role == 'user' == loop.previtem.role %}"
    "{{ raise_exception('a user speaks once') }}{%- endif %}{%- endfor %}"
)


def test_where_roles_must_take_turns_a_hint_and_the_question_are_one_message(
    tokenizer: Any,
) -> None:
    renderer = Renderer(tokenizer, chat_template=TURNS + CHAT_TEMPLATE)
    of_policy, of_teacher = read(Shop(renderer), renderer)
    joined = f"<|im_start|>user\n{SHOWN['content']}\n\n{ROW['prompt']}<|im_end|>"
    assert joined in of_teacher and SHOWN["content"] not in of_policy


@pytest.mark.parametrize("wrong", ["Look.", [3], {"role": "user"}, []])
def test_a_hint_that_is_no_list_of_messages_is_the_users_mistake(
    wrong: Any, renderer: Renderer
) -> None:
    class Wrong(Shop):
        """Returns something else."""

        def hint(self, row: Any) -> Any:
            return wrong

    with pytest.raises(UserCodeError, match=r"Wrong.hint: returned"):
        Wrong(renderer).reset(options={"row": ROW, "hint": True})


def test_the_first_error_of_a_hint_carries_the_row(renderer: Renderer) -> None:
    class Broken(Shop):
        """Has a typo."""

        def hint(self, row: Any) -> Any:
            return row["secrt"]

    with pytest.raises(UserCodeError, match=r"Broken.hint: KeyError: 'secrt' \(row: "):
        Broken(renderer).reset(options={"row": ROW, "hint": True})
