"""Of any program's requests: each context is its prompt, what was sampled and what was appended."""

import json
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymnast.envs import Environment, NextRequest, Renderer
from gymnast.types import StopReason

TEXT = st.text(max_size=12) | st.sampled_from(["<|im_end|>", "<tool_call>", "word " * 30])
ASK = st.tuples(
    st.sampled_from(["open", "plain", "extend", "extend", "extend"]),
    st.integers(0, 3),
    st.lists(TEXT, min_size=1, max_size=3),
)
ACTION = st.tuples(st.lists(st.integers(0, 1029), max_size=12), st.booleans())


class Random(Environment):
    """Asks what its row says; an extension is of one of the contexts that there are."""

    def setup(self, row: Any) -> None:
        self.left = list(row["asks"])
        self.refused = 0
        self.endings: list[str] = []

    def next_request(self, message: Any, cut: bool) -> Any:
        if not self.left:
            self.endings.append("end")
            return None
        kind, number, texts = self.left.pop(0)
        branch = None
        if kind == "extend" and self.turns:
            branch = number % self.branches
        said: Any = [{"role": "user", "content": text} for text in texts]
        if kind == "plain":
            said = said[:1]
        return NextRequest(branch, said, plain=kind == "plain", refuse=self.refuse)

    @property
    def turns(self) -> int:
        return len(self.episode.turns)

    def refuse(self, reason: str) -> None:
        assert reason
        self.refused += 1

    def stop_program(self) -> None:
        self.endings.append("stop")

    def reward(self, episode: Any) -> float:
        assert len(self.endings) == 1
        return 1.0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    asks=st.lists(ASK, max_size=8),
    actions=st.lists(ACTION, min_size=10, max_size=10),
    max_tokens=st.none() | st.integers(1, 200),
    context_length=st.none() | st.integers(150, 250),
    max_turns=st.integers(1, 9),
)
def test_contexts_are_exact_and_within_all_limits(
    asks: list[Any],
    actions: list[tuple[list[int], bool]],
    max_tokens: int | None,
    context_length: int | None,
    max_turns: int,
    renderer: Renderer,
) -> None:
    env = Random(
        renderer, max_tokens=max_tokens, context_length=context_length, max_turns=max_turns
    )
    asks = [("open", 0, ["Begin."]), *asks]
    prompt, info = env.reset(options={"row": {"asks": asks}, "branches": True})
    contexts, prompts, spent = [prompt.tolist()], [len(prompt)], 0
    acted: list[list[int]] = [[]]
    for taken, (sampled, stops) in enumerate(actions, start=1):
        branch = info["branch"]
        assert info["tokens_left"] >= 1
        action = [*sampled, *(info["stop_ids"][:1] if stops else [])][: info["tokens_left"]]
        before = info["tokens_left"]
        ids, reward, terminated, truncated, info = env.step(action)
        contexts[branch] += action
        acted[branch] += action
        spent += len(action) + len(ids)
        if terminated or truncated:
            assert len(ids) == 0
            assert reward == 1.0
            break
        if "prompt_ids" in info:
            assert len(ids) == 0
            assert info["branch"] == len(contexts)
            contexts.append(list(info["prompt_ids"]))
            prompts.append(len(contexts[-1]))
            acted.append([])
        elif info["branch"] == branch:
            assert info["tokens_left"] == before - len(action) - len(ids)
        contexts[info["branch"]] += ids.tolist()
        length = len(contexts[info["branch"]])
        assert context_length is None or info["tokens_left"] <= context_length - length
        assert max_tokens is None or info["tokens_left"] <= max_tokens - spent
        assert taken < max_turns
    held = env._contexts
    assert held is not None
    assert [context.ids.tolist() for context in held.opened] == contexts
    assert env.branches == len(contexts)
    assert env.endings == ["end" if terminated else "stop"]
    assert terminated == (info["stop_reason"] == StopReason.environment)
    assert max_tokens is None or spent <= max_tokens
    assert sum(map(len, acted)) <= spent
    json.dumps([env.messages_of(number) for number in range(env.branches)])
    env.close()
    assert len(env.endings) == 1


def test_actions_and_observations_never_change_what_is_there(
    renderer: Renderer, tokenizer: Any
) -> None:
    """Ids that decode and encode to others stay as they were sampled."""
    env = Random(renderer)
    asks = [("open", 0, ["One?"]), ("open", 0, ["Two?"]), ("extend", 0, ["Three?"])]
    prompt, _ = env.reset(options={"row": {"asks": asks}, "branches": True})
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "word"]
    assert tokenizer.encode(tokenizer.decode(letters), add_special_tokens=False) != letters
    first = np.array([*letters, *renderer.stop_ids[:1]])
    env.step(first)
    ids = env.step(first)[0]
    held = env._contexts
    assert held is not None
    assert held.opened[0].ids.tolist() == [*prompt, *first, *ids]
