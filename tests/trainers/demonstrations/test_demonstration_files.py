"""Files of demonstrations: conversations and saved episodes, read for a policy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from gymnast.envs import Renderer
from gymnast.errors import DataError
from gymnast.trainers.demonstrations.files import read_demonstrations
from gymnast.trainers.demonstrations.sources import fitting
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Span
from warmup_runs import demonstration, make_trainer


def test_only_a_new_line_ends_a_line(renderer: Renderer, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Go.\u2028Now."}, {"role": "assistant", "content": "in"}]
    text = json.dumps({"messages": said}, ensure_ascii=False) + "\r\n"
    (tmp_path / "demos.jsonl").write_bytes(text.encode())
    (found,) = read_demonstrations(tmp_path / "demos.jsonl", renderer, min_reward=1.0)
    assert found.messages[0]["content"] == "Go.\u2028Now."


def test_conversations_exported_from_a_table_teach_no_nulls(
    renderer: Renderer, tmp_path: Path
) -> None:
    """Tables give each call the arguments of all others, and each schema all keywords."""
    records = []
    for arguments, properties in (
        ({"door": "red", "at": {"x": 1}}, {"door": {"type": "string"}}),
        ({"key": 3}, {"key": {"type": "integer", "enum": [3]}}),
    ):
        call = {"id": "call00000", "type": "function"}
        said = {"function": {"name": "open", "arguments": arguments}, **call}
        parameters = {"type": "object", "properties": properties}
        tool = {"name": "open", "description": "Open it.", "parameters": parameters}
        messages = [
            {"role": "user", "content": "Open it."},
            {"role": "assistant", "content": "", "tool_calls": [said]},
            {"role": "tool", "content": "Done.", "tool_call_id": "call00000"},
            {"role": "assistant", "content": "It is open."},
        ]
        records.append({"messages": messages, "tools": [{"type": "function", "function": tool}]})
    found = []
    for name, lines in (
        ("own.jsonl", records),
        ("table.jsonl", pyarrow.Table.from_pylist(records).to_pylist()),
    ):
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
        found.append(read_demonstrations(tmp_path / name, renderer, min_reward=1.0))
    assert [each.ids for each in found[0]] == [each.ids for each in found[1]]


def test_saved_episodes_of_the_same_tokenizer_keep_their_ids(
    tokenizer: Any, renderer: Renderer, tmp_path: Path
) -> None:
    odd = demonstration(renderer, "answer")
    letters = [number for letter in "answer" for number in tokenizer.encode(letter)]
    ids = [*odd.ids[: odd.prompt_length], *letters, *renderer.stop_ids[:1]]
    assert ids != odd.ids, "the same text, as another tokenization"
    length = len(ids) - odd.prompt_length
    odd = replace(
        odd,
        ids=ids,
        action_mask=[0] * odd.prompt_length + [1] * length,
        logprobs=[0.0] * len(ids),
        turns=[Span(odd.prompt_length, len(ids))],
        turn_rewards=[1.0],
        no_reward=False,
    )
    worse = replace(odd, turn_rewards=[0.5])
    held_out = replace(odd, row={"prompt": "held out"})
    write_rollouts(tmp_path / "demos.parquet", [[odd, worse, held_out]], tokenizer=tokenizer)
    (found,) = read_demonstrations(
        tmp_path / "demos.parquet", renderer, min_reward=1.0, excluded=[{"prompt": "held out"}]
    )
    assert found.ids == ids
    write_rollouts(tmp_path / "other.parquet", [[odd]])  # nobody says of which tokenizer
    (found,) = read_demonstrations(tmp_path / "other.parquet", renderer, min_reward=1.0)
    assert found.ids == demonstration(renderer, "answer").ids, "laid out anew"


def test_what_is_too_poor_or_too_long_is_counted_and_told(
    renderer: Renderer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = replace(demonstration(renderer), turn_rewards=[1.0], no_reward=False)
    poor = replace(good, turn_rewards=[0.5])
    longer = replace(demonstration(renderer, "open " * 40), turn_rewards=[1.0], no_reward=False)
    write_rollouts(tmp_path / "demos.parquet", [[good, poor, poor, longer]])
    found = read_demonstrations(tmp_path / "demos.parquet", renderer, min_reward=1.0)
    assert "2 of 4 demonstrations have a reward below warmup.min_reward (1)" in caplog.text
    kept = fitting(found, "demos.parquet", len(good.ids))
    assert [each.ids for each in kept] == [good.ids]
    assert (
        "demos.parquet: 1 of 2 demonstrations are longer than environment.context_length "
        f"({len(good.ids)} tokens), and left out" in caplog.text
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: is not JSON"),
        ("{}", 'line 1: must have "messages"'),
        (
            '{"messages": [{"role": "user", "content": "Go."}]}',
            "must hold at least one of the assistant, got 0",
        ),
        ('{"messages": [], "tools": 3}', '"tools" must be a list of schemas'),
        ('{"messages": [], "turns": "2"}', '"turns" must be a whole number'),
    ],
)
def test_a_line_that_is_no_conversation_is_named(
    line: str, message: str, tokenizer: Any, tmp_path: Path
) -> None:
    (tmp_path / "demos.jsonl").write_text(line + "\n")
    with pytest.raises(DataError) as caught:
        make_trainer(tokenizer, warmup={"demonstrations": str(tmp_path / "demos.jsonl")})
    assert message in str(caught.value)


def test_a_saved_call_that_cannot_be_read_leaves_its_episode_out_and_no_other(
    renderer: Renderer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = replace(demonstration(renderer), turn_rewards=[1.0], no_reward=False)
    function = {"name": "open", "arguments": '{"door": '}
    unreadable: Any = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
    }
    bad = replace(good, messages=[good.messages[0], unreadable])
    write_rollouts(tmp_path / "demos.parquet", [[good, bad, good]])  # of no known tokenizer
    found = read_demonstrations(tmp_path / "demos.parquet", renderer, min_reward=1.0)
    assert [each.ids for each in found] == [good.ids, good.ids]
    assert "1 of 3 demonstrations cannot be said with the policy's chat template" in caplog.text
    assert "could not be read" in caplog.text
    write_rollouts(tmp_path / "demos.parquet", [[bad]])
    with pytest.raises(DataError, match=r"none of 1 episodes can be said .* could not be read"):
        read_demonstrations(tmp_path / "demos.parquet", renderer, min_reward=1.0)
