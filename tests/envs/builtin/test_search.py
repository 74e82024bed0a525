"""Search-v0: what a policy finds and reads, when its answer is right, and the made-up world."""

import asyncio
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents import ScriptedAgent
from gymnast.envs import Renderer, call, check_env, make
from gymnast.envs.builtin.search.environment import Search
from gymnast.errors import ConfigError, DataError, UserCodeError
from gymnast.trainers import collect, play_solution
from gymnast.types import Sampling

DOCUMENTS = [
    {
        "id": "b1",
        "title": "Bern",
        "text": "Bern is the capital of Switzerland. It lies on the Aare.",
    },
    {
        "id": "o1",
        "title": "Oslo",
        "text": "Oslo is the capital of Norway. Edvard Munch died there.",
    },
    {"id": "m1", "title": "Edvard Munch", "text": "Edvard Munch painted The Scream in 1893."},
]
ASKED = {"prompt": "In which city did the painter of The Scream die?", "answer": "Oslo"}
PATH = [{"query": "The Scream", "title": "Edvard Munch"}, {"query": "Munch died", "title": "o1"}]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "documents.jsonl"
    path.write_text("\n".join(map(json.dumps, DOCUMENTS)))
    return str(path)


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def results(env: Any) -> list[str]:
    return [str(message["content"]) for message in env.messages if message["role"] == "tool"]


def found(play: Callable[..., Any], env: Any, query: str, **more: Any) -> str:
    play(env, call("search", query=query, **more), row=ASKED)
    return results(env)[-1]


def test_a_search_shows_titles_and_pieces_and_a_document_is_read(
    play: Callable[..., Any], corpus: str
) -> None:
    env = Search(corpus=corpus)
    play(
        env,
        call("search", query="capital of Switzerland"),
        call("search", query="CAPITAL", limit=1),
        call("read", title="edvard  munch"),
        call("read", title="o1"),
        row=ASKED,
    )
    first, one, munch, oslo = results(env)
    assert first == f"[Bern] {DOCUMENTS[0]['text']}\n[Oslo] {DOCUMENTS[1]['text']}"
    assert len(one.splitlines()) == 1
    assert munch == DOCUMENTS[2]["text"] and oslo == DOCUMENTS[1]["text"]
    assert [message["role"] for message in env.messages[:2]] == ["system", "user"]
    assert env.messages[1]["content"] == ASKED["prompt"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "The query has no words."),
        (" \n?!… 🦔 \x00", "The query has no words."),
        ("the Of THE", "The query has only words that nearly every text has."),
        ("x" * 1001, "The query has 1,001 characters, and at most 1,000 can be searched for."),
        ("Reykjavik", "No document has any of these words."),
        ("\ud800 \ufffe", "The query has no words."),
    ],
)
def test_a_query_that_finds_nothing_is_answered_with_a_sentence(
    play: Callable[..., Any], corpus: str, query: str, said: str
) -> None:
    env = Search(corpus=corpus)
    (outcome,) = play(env, call("search", query=query), row=ASKED)
    assert outcome.info["errors"] == []
    assert results(env)[0].startswith(said)


@given(st.text(max_size=1100), st.text(max_size=300), st.integers())
def test_whatever_a_policy_asks_is_answered_in_bounds(query: str, title: str, part: int) -> None:
    env = Search()
    env.reset(seed=0)
    said = [env.search(query, 10), env.read(title, part), env.read(query, part)]
    assert all(isinstance(text, str) and 0 < len(text) < 5000 for text in said)
    env.close()


@pytest.mark.parametrize("limit", [0, -1, 11, 10**9])
def test_a_limit_out_of_bounds_is_refused(
    play: Callable[..., Any], corpus: str, limit: int
) -> None:
    assert "limit" in found(play, Search(corpus=corpus), "capital", limit=limit)


def test_what_is_not_there_cannot_be_read(play: Callable[..., Any], corpus: str) -> None:
    env = Search(corpus=corpus)
    asked = [call("read", title="Munch, Edvard"), call("read", title="Rome"),
             call("read", title="Bern", part=2), call("read", title="?" * 5000)]  # fmt: skip
    outcomes = play(env, *asked, row=ASKED)
    near, none, part, long = results(env)
    assert near.endswith("'Munch, Edvard'. A search for it finds 'Edvard Munch'.")
    assert none == "There is no document with the title 'Rome'."
    assert part == "'Bern' has 1 part, so there is no part 2."
    assert len(long) < 200
    assert not any(outcome.info["errors"] for outcome in outcomes)


@pytest.mark.parametrize(
    ("right", "given", "reward"),
    [
        ("Oslo", "Oslo", 1.0),
        ("Oslo", "<answer>oslo.</answer>", 1.0),
        ("Oslo", "Bern? No: <answer>Bern</answer> <answer> Oslo\n</answer> it is.", 1.0),
        ("Oslo", "<answer>Oslo", 1.0),
        ("Oslo", "It is Oslo.", 0.0),
        ("Oslo", "Oslo <answer></answer>", 0.0),
        ("Oslo", "", 0.0),
        ("The Scream", "the  scream", 1.0),
        (["New York", "New York City"], "new york city", 1.0),
        ("Zu\u0308rich", "Zürich", 1.0),
        (1893, "<answer>It was in 1893.</answer>", 1.0),
        (1893, "1,893", 1.0),
        (1893, "1894", 0.0),
        (1893, "some day", 0.0),
        ("1893", "1893", 1.0),
        (2.5, "2.50 km", 1.0),
    ],
)
def test_an_answer_is_compared_as_it_is_meant(
    play: Callable[..., Any], corpus: str, right: Any, given: str, reward: float
) -> None:
    row = {**ASKED, "answer": right}
    (outcome,) = play(Search(corpus=corpus), answer(given), row=row)
    assert (outcome.reward, outcome.info["metrics"]["right"]) == (reward, reward)


def test_the_path_of_a_row_is_played_and_measured(play: Callable[..., Any], corpus: str) -> None:
    env = Search(corpus=corpus)
    row = {**ASKED, "path": PATH}
    played = asyncio.run(play_solution(env, row))
    assert played.reward == 1.0 and len(played.turns) == 5
    counted = {"search/calls": 2.0, "search/reads": 2.0, "search/path_read": 1.0, "right": 1.0}
    assert counted.items() <= played.metrics.items()
    wrong = [call("read", title="OSLO"), call("read", title="Bern"), call("read", title="Rome")]
    outcomes = play(env, *wrong, answer("Oslo"), row=row)
    counted = {"search/calls": 0.0, "search/reads": 3.0, "search/path_read": 0.5, "right": 1.0}
    assert counted.items() <= outcomes[-1].info["metrics"].items()
    (outcome,) = play(env, answer("Oslo"), row=ASKED)
    assert "search/path_read" not in outcome.info["metrics"]
    assert env.solve(ASKED) is None


# --- The made-up world


def test_its_own_questions_are_solved_by_their_paths() -> None:
    env = Search()
    rng = np.random.default_rng(0)
    rows = [env.sample_row(rng) for _ in range(100)]
    assert 35 < sum(len(row["path"]) == 2 for row in rows) < 65
    assert len({row["prompt"] for row in rows}) > 90
    for row in rows:
        played = asyncio.run(play_solution(env, row))
        assert played.reward == 1.0
        shown = [message["content"] for message in played.messages if message["role"] == "tool"]
        for hop, searched in zip(row["path"], shown[::2], strict=True):
            assert f"[{hop['title']}] " in searched  # it can be found
        assert str(row["answer"]) in shown[-1]  # and the last document says it
        assert str(row["answer"]) not in row["prompt"]
    env.close()


@pytest.mark.parametrize(("share", "hops"), [(0.0, 1), (1.0, 2)])
def test_the_share_of_questions_with_two_hops_is_kept(share: float, hops: int) -> None:
    env, rng = Search(two_hops=share), np.random.default_rng(0)
    assert {len(env.sample_row(rng)["path"]) for _ in range(20)} == {hops}


def test_a_second_document_is_needed_where_a_question_says_so() -> None:
    """Neither what the first search shows nor the first document has the answer."""
    env, rng = Search(two_hops=1.0), np.random.default_rng(1)
    for _ in range(50):
        row = env.sample_row(rng)
        env.reset(options={"row": row})
        document = env.read(row["path"][0]["title"])
        assert row["path"][1]["title"] in document and str(row["answer"]) not in document
    env.close()


def test_seeds_draw_the_world_and_the_questions(renderer: Renderer) -> None:
    def asked(seed: int, **settings: Any) -> Any:
        env: Any = make("gymnast/Search-v0", renderer, **settings)
        env.reset(seed=seed)
        row = dict(env.row)
        env.close()
        return row

    assert asked(3) == asked(3)
    assert asked(3) != asked(4)
    one, other = asked(3), asked(3, world=1)
    assert other["world"] == 1 and one["prompt"] != other["prompt"]
    env = Search()  # a row brings its world with it
    assert asyncio.run(play_solution(env, other)).reward == 1.0


# --- Gymnasium's conventions


def test_it_keeps_gymnasiums_and_gymnasts_rules(renderer: Renderer, corpus: str) -> None:
    rows = [{**ASKED, "path": PATH}]
    for settings in ({}, {"two_hops": 1.0}, {"corpus": corpus, "rows": rows}):
        env: Any = make("gymnast/Search-v0", renderer, **settings)
        check_env(env)
        gymnasium.utils.env_checker.check_env(env)
        env.close()
    made: Any = gymnasium.make("gymnast/Search-v0", renderer=renderer, corpus=corpus, rows=rows)
    again: Any = gymnasium.make(made.spec)
    assert again.reset(seed=0)[0].tolist() == made.reset(seed=0)[0].tolist()
    again.close()
    made.close()


def test_a_copy_names_the_corpus_and_does_not_hold_it(renderer: Renderer, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"title": "Long", "text": "a word " * 200_000}))
    env: Any = make("gymnast/Search-v0", renderer, corpus=str(path), rows=[ASKED])
    env.reset(seed=0)
    data = pickle.dumps(env)
    assert len(data) < 100_000 < path.stat().st_size
    copy = pickle.loads(data)
    assert copy.reset(seed=0)[0].tolist() == env.reset(seed=0)[0].tolist()
    assert copy.read("Long", 1) == env.read("Long", 1)
    copy.close()
    env.close()


def test_environments_of_other_processes_have_the_corpus_too(
    corpus: str, tmp_path: Path, tokenizer: Any
) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    envs: Any = gymnasium.make_vec(
        "gymnast/Search-v0",
        1,
        "async",
        vector_kwargs={"shared_memory": False, "context": "spawn"},
        renderer=str(tmp_path / "tokenizer"),
        corpus=corpus,
        rows=[{**ASKED, "path": PATH}],
    )
    envs.reset(seed=0)
    ids = Renderer(tokenizer).encode({**call("search", query="Munch"), "role": "assistant"})
    observations, *_ = envs.step((np.array(ids),))
    assert "Edvard Munch" in tokenizer.decode(observations[0])
    envs.close()


@pytest.mark.slow
def test_a_thousand_episodes_leave_nothing_behind(renderer: Renderer, corpus: str) -> None:
    row = {**ASKED, "path": PATH}
    env: Any = make("gymnast/Search-v0", renderer, corpus=corpus)
    said = [{"role": "assistant", **one} if isinstance(one, dict) else answer(one)
            for one in env.solve(row)]  # fmt: skip
    agent = ScriptedAgent([renderer.encode(one, tools=env.tools) for one in said])
    before = set(threading.enumerate())
    played = asyncio.run(
        collect(
            lambda: make("gymnast/Search-v0", renderer, corpus=corpus),
            agent,
            [row],
            group_size=1000,
            sampling=Sampling(max_new_tokens=200),
        )
    )
    assert played.metrics["episodes/finished"] == 1000 == len(played.trajectories)
    assert {one.reward for one in played.trajectories} == {1.0}
    assert {len(one.turns) for one in played.trajectories} == {5}
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive() or "Search" not in thread.name
    env.close()


# --- Mistakes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"two_hops": 2}, "Search: two_hops must be a share from 0 to 1, got 2"),
        ({"two_hops": "half"}, "two_hops must be a share from 0 to 1, got 'half'"),
        ({"corpus": 3}, "Search: corpus must be the path of a file or folder, got 3"),
        ({"part_characters": 10}, "part_characters must be a whole number >= 100, got 10"),
        ({"snippet_characters": 2.5}, "snippet_characters must be a whole number >= 20, got 2.5"),
        ({"world": True}, "world must be a whole number >= 0, got True"),
        ({"corpus_columns": {"text": "x"}}, "corpus_columns needs a corpus"),
        ({"corpus_columns": {"body": "x"}}, "must map some of title, text, id to"),
        ({"corpus_columns": {"text": "x["}}, "corpus_columns.text must be a column or"),
        ({"corpus_columns": {"text": 3}}, "corpus_columns.text must be a column or"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Search(**settings)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"answer": None}, "needs an `answer`"),
        ({"answer": []}, "needs an `answer`"),
        ({"answer": "?!"}, "a text with a letter or digit"),
        ({"answer": True}, "needs an `answer`"),
        ({"answer": ["Oslo", {}]}, "needs an `answer`"),
        ({"path": "Oslo"}, "`path` must be a list like"),
        ({"path": [{"title": 3}]}, "`path` must be a list like"),
        ({"path": [{"title": "Rome"}]}, "the corpus has no document 'Rome', which is on the path"),
    ],
)
def test_a_wrong_row_says_what_is_wrong(changed: dict[str, Any], said: str, corpus: str) -> None:
    with pytest.raises((DataError, UserCodeError), match=said):
        Search(corpus=corpus).reset(options={"row": ASKED | changed})


def test_a_row_without_a_corpus_is_refused() -> None:
    with pytest.raises((DataError, UserCodeError), match=r"name them: corpus: documents\.jsonl"):
        Search().reset(options={"row": ASKED})
