"""The tokens of a saved episode: all of them, what they stand for, and who wrote each."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymnast.trainers.inspecting.index import Index
from gymnast.trainers.inspecting.tokens import saved_tokens, token_lines
from gymnast.trainers.saving.rollout_files import SavedTrajectory, write_rollouts
from gymnast.types import Span, VersionSpan
from saved_episodes import episode, said


def test_each_token_says_who_wrote_it_and_what_was_learned(
    tmp_path: Path, encode: Callable[[str], list[int]], tokenizer: Any
) -> None:
    ids = encode("Say é\x1b now")
    sampled = range(2, len(ids) - 1)
    played = replace(
        episode(said("é")),
        ids=ids,
        action_mask=[int(place in sampled) for place in range(len(ids))],
        logprobs=[-0.5 if place in sampled else 0.0 for place in range(len(ids))],
        prompt_length=2,
        turns=[Span(2, len(ids) - 1)],
        versions=[VersionSpan(2, len(ids) - 1, 3)],
    )
    advantages = [[[2.0 * mask for mask in played.action_mask]]]
    path = tmp_path / "rollouts/step_00001.parquet"
    write_rollouts(path, [[played]], tokenizer=tokenizer, advantages=advantages)

    saved = Index(tmp_path).entry("step_00001/0/0").load()
    tokens = saved_tokens(saved)
    assert [token.id for token in tokens] == ids
    assert "".join(token.text or "" for token in tokens) == "Say é\x1b now"
    kinds = [token.kind for token in tokens]
    assert kinds == ["prompt"] * 2 + ["sampled"] * len(sampled) + ["observed"]
    for token in tokens:
        expected = (-0.5, 2.0, 3) if token.kind == "sampled" else (None, None, None)
        assert (token.logprob, token.advantage, token.version) == expected

    prompt, action, observation = token_lines(saved)
    assert prompt.split()[:2] == ["prompt", "2"] and observation.split()[:2] == ["observed", "1"]
    assert "\\x1b" in action and "\x1b" not in action


def test_tokens_without_a_text_are_shown_as_ids() -> None:
    given = {"ids": [5, 6], "action_mask": [0, 1], "logprobs": [0.0, -1.0], "prompt_length": 1}
    played = replace(episode(said("x")), **given, turns=[Span(1, 2)])  # type: ignore[arg-type]
    saved = SavedTrajectory(played, None, 0, 0, "step_00001")
    assert token_lines(saved) == ["prompt       1  #5", "sampled      1  #6"]


def test_an_episode_in_messages_has_no_tokens() -> None:
    saved = SavedTrajectory(episode(said("x")), None, 0, 0, "step_00001")
    assert token_lines(saved) == ["(no tokens: it was played in messages)"]
