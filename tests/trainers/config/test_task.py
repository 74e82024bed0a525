"""What a run plays, as its config says: environments, training rows, evaluation rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents.loading.load import load_tokenizer
from gymnast.envs import Environment
from gymnast.errors import ConfigError, DataError, UsageError, UserCodeError
from gymnast.trainers.config.files import parse_config
from gymnast.trainers.config.task import RunTask, prepare_task

CONTEXT_LENGTH = 2048
ARITHMETIC: dict[str, Any] = {"id": "gymnast/Arithmetic-v0", "max_turns": 2}
COLUMNS = {"prompt": "q", "answer": "answer"}
LARGE = ARITHMETIC | {"min_operand": 100, "max_operand": 999}


class WrongGenerator(Environment):
    """Rows from a generator that is written wrongly in one way or another."""

    def sample_row(self, rng: Any) -> Any:
        return self.broken(rng)

    def broken(self, rng: Any) -> Any:
        raise ZeroDivisionError("made on purpose")


class WrongRow(WrongGenerator):
    """Gives a row that is no dict."""

    def broken(self, rng: Any) -> Any:
        return [1]


class NoPrompt(WrongGenerator):
    """Gives a row without a prompt."""

    def broken(self, rng: Any) -> Any:
        return {"question": "Why?"}


class SameRow(WrongGenerator):
    """Gives the same row each time."""

    def broken(self, rng: Any) -> Any:
        return {"prompt": "Why?"}


class OwnStart(NoPrompt):
    """Needs no prompt of a row."""

    def setup(self, row: Any) -> Any:
        return [{"role": "user", "content": row["question"]}]


class AsyncRow(WrongGenerator):
    """Makes rows without blocking."""

    async def sample_row(self, rng: Any) -> Any:
        return {"prompt": f"Say {rng.integers(1000)}."}


class Adding(Environment):
    """Answers with what the row says."""

    def solve(self, row: Any) -> Any:
        return [f"{row['answer']}"]

    def reward(self, episode: Any) -> float:
        return float(episode.answer == str(self.row["answer"]))


def prepare(longest: int | None = CONTEXT_LENGTH, **sections: Any) -> RunTask:
    settings: dict[str, Any] = {
        "model": {"name": "tiny:"},
        "environment": ARITHMETIC,
        "evaluation": {"rows": 5},
        "seed": 4,
    }
    config = parse_config(settings | sections)
    return prepare_task(config, load_tokenizer("tiny:"), longest)


def here(name: str) -> dict[str, Any]:
    return {"id": f"{__file__}:{name}", "max_turns": 2}


def answers(rows: Any) -> list[int]:
    return sorted(row["answer"] for row in rows)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Six rows to train on, and a file with the last two of them."""
    rows = [{"q": f"What is {n} plus 1?", "answer": n + 1} for n in range(6)]
    training, evaluation = tmp_path / "training.jsonl", tmp_path / "evaluation.json"
    training.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    evaluation.write_text(json.dumps(rows[4:]))
    return str(training), str(evaluation)


# The run's own environment


def test_the_environment_gets_its_settings_and_the_models_context() -> None:
    own = {"context_length": 900, "worked_turns": 1, "system_prompt": "Be brief."}
    env: Any = prepare(environment=ARITHMETIC | own).make_env()
    assert (env.max_turns, env.context_length, env.worked_turns) == (2, 900, 1)
    assert env.system_prompt == "Be brief."
    assert prepare().make_env().context_length == CONTEXT_LENGTH


def test_a_model_of_any_context_length_leaves_that_of_episodes_to_the_environment() -> None:
    task = prepare(None, environment=ARITHMETIC | {"context_length": 9999})
    assert task.make_env().context_length == 9999
    with pytest.raises(ConfigError, match=r"^environment\.context_length: must be set"):
        prepare(None)


def test_evaluation_rows_are_taken_from_a_file_and_not_trained_on(files: tuple[str, str]) -> None:
    task = prepare(data={"train": files[0], "columns": COLUMNS}, evaluation={"rows": 2})
    assert len(task.evaluation_rows) == 2
    both = [*task.evaluation_rows, *task.training_rows.batch(0, 4)]
    assert answers(both) == [1, 2, 3, 4, 5, 6]


def test_evaluation_rows_may_have_a_file_of_their_own(files: tuple[str, str]) -> None:
    data = {"train": files[0], "evaluation": files[1], "columns": COLUMNS}
    task = prepare(data=data, evaluation={})
    assert answers(task.evaluation_rows) == [5, 6]
    assert answers(task.training_rows.batch(0, 4)) == [1, 2, 3, 4]
    with pytest.raises(DataError, match=r"evaluation.rows: must be <= 2"):
        prepare(data=data, evaluation={"rows": 3})


def test_rows_may_be_made_without_blocking() -> None:
    task = prepare(environment=here("AsyncRow"))
    assert len({row["prompt"] for row in task.evaluation_rows}) == 5


def test_a_row_generator_that_is_wrong_is_named() -> None:
    with pytest.raises(UserCodeError, match="sample_row: raised ZeroDivisionError"):
        prepare(environment=here("WrongGenerator"))
    with pytest.raises(UserCodeError, match=r"sample_row: gave \[1\]; a row must be a dict"):
        prepare(environment=here("WrongRow"))
    with pytest.raises(UserCodeError, match=r"sample_row: gave .*, which has no 'prompt'; give "):
        prepare(environment=here("NoPrompt"))


@pytest.mark.parametrize(("kind", "rows"), [("SameRow", 4), ("OwnStart", 1)])
def test_an_environment_of_one_row_has_none_to_evaluate(kind: str, rows: int) -> None:
    with pytest.raises(DataError, match="; make its rows vary with rng, or "):
        prepare(environment=here(kind), evaluation={"rows": rows})
    task = prepare(environment=here(kind), evaluation={"rows": 0})
    assert len({str(row) for row in task.training_rows.batch(0, 4)}) == 1


# The rows of worked turns


def shown(env: Any, row: Any) -> list[str]:
    """The questions that a prompt shows before its own."""
    env.reset(seed=0, options={"row": row})
    env.close()
    return [m["content"] for m in env.messages if m["role"] == "user"][:-1]


@pytest.mark.parametrize("evaluation_seed", range(3))
def test_no_worked_turn_shows_a_row_that_is_held_out(evaluation_seed: int) -> None:
    own = ARITHMETIC | {"min_operand": 2, "max_operand": 5}  # 32 questions in all
    evaluation = {"rows": 20, "seed": evaluation_seed}
    task = prepare(environment=own, evaluation=evaluation)
    held_out = {row["prompt"] for row in task.evaluation_rows}
    for row in [*task.evaluation_rows, *task.training_rows.batch(0, 20)]:
        questions = shown(task.make_env(), row)
        assert (
            len(questions) == 2 and not held_out & {*questions} and row["prompt"] not in questions
        )


def test_the_worked_turns_of_a_dataset_are_training_rows(files: tuple[str, str]) -> None:
    section = {"id": here("Adding")["id"], "worked_turns": 2}
    exam = {**section, "data": files[1], "columns": COLUMNS}
    data = {"train": files[0], "columns": COLUMNS}
    evaluation = {"rows": 2, "environments": {"exam": exam | {"worked_turns": 1}}}
    task = prepare(environment=section, data=data, evaluation=evaluation)
    excluded = [*task.evaluation_rows, *task.evaluation_environments["exam"].rows]
    held_out = {row["prompt"] for row in excluded}
    for row in [*task.evaluation_rows, *task.training_rows.batch(0, 8)]:
        questions = shown(task.make_env(), row)
        assert questions and not held_out & {*questions} and row["prompt"] not in questions
    first, second = task.evaluation_environments["exam"].rows
    make_exam: Any = task.evaluation_environments["exam"].environment
    assert shown(make_exam(), first) == [second["prompt"]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("given", [None, 6])
def test_worked_turns_that_an_environment_makes_itself_are_no_evaluation_rows_of_its_data(
    given: int | None, seed: int, tmp_path: Path
) -> None:
    """The rows of a file have fewer columns than those it makes, and the same questions."""
    signs = {"add": ("plus", int.__add__), "multiply": ("times", int.__mul__)}
    rows = [
        {
            "prompt": f"What is {a} {word} {b}?",
            "answer": of(a, b),
            "a": a,
            "b": b,
            "operation": name,
        }
        for name, (word, of) in signs.items()
        for a in (2, 3)
        for b in (2, 3)
    ]
    asked = [{"q": row["prompt"], "answer": row["answer"]} for row in rows]
    (tmp_path / "all.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in asked))
    own = ARITHMETIC | {"min_operand": 2, "max_operand": 3, "worked_turns": 2}
    own |= {} if given is None else {"worked_rows": rows[:given]}
    data = {"train": str(tmp_path / "all.jsonl"), "columns": COLUMNS}
    task = prepare(environment=own, data=data, evaluation={"rows": 4, "seed": seed})
    held_out = {row["prompt"] for row in task.evaluation_rows}
    for row in [*task.evaluation_rows, *task.training_rows.batch(0, 3)]:
        questions = shown(task.make_env(), row)
        assert len(questions) == 2 and not held_out & {*questions}


def test_too_few_rows_for_worked_turns_are_named(tmp_path: Path) -> None:
    own = ARITHMETIC | {"min_operand": 2, "max_operand": 3, "worked_turns": 4}
    with pytest.raises(
        DataError, match=r"^environment\.worked_turns: is 4, and of .* only 3 can be"
    ):
        prepare(environment=own, evaluation={"rows": 5})


# Further environments to evaluate in


def test_worked_turns_of_a_further_environment_are_not_among_its_rows_where_it_makes_others() -> (
    None
):
    few = ARITHMETIC | {"min_operand": 2, "max_operand": 4, "rows": 9}
    task = prepare(evaluation={"rows": 3, "environments": {"exam": few}})
    rows = task.evaluation_environments["exam"].rows
    make_exam: Any = task.evaluation_environments["exam"].environment
    for row in rows:
        assert not {*shown(make_exam(), row)} & {each["prompt"] for each in rows}


def test_a_further_environment_may_have_a_file_of_rows_none_of_which_is_trained_on(
    files: tuple[str, str],
) -> None:
    section = {"id": "gymnast/Arithmetic-v0", "data": files[1], "columns": COLUMNS}
    data = {"train": files[0], "columns": COLUMNS}
    task = prepare(data=data, evaluation={"rows": 1, "environments": {"exam": section}})
    assert answers(task.evaluation_environments["exam"].rows) == [5, 6]
    trained = {row["answer"] for row in task.training_rows.batch(0, 60)}
    assert trained == {1, 2, 3, 4} - {row["answer"] for row in task.evaluation_rows}
    with pytest.raises(DataError, match=r"evaluation.environments.exam.rows: must be <= 2, the"):
        prepare(evaluation={"rows": 1, "environments": {"exam": section | {"rows": 4}}})


def test_rows_made_by_a_further_environment_are_not_trained_on() -> None:
    """Both make rows by one generator; the further environment makes more evaluation rows."""
    few = ARITHMETIC | {"min_operand": 2, "max_operand": 4}
    evaluation = {"rows": 3, "environments": {"more": few | {"rows": 12}}}
    task = prepare(environment=few, evaluation=evaluation)
    rows = task.evaluation_environments["more"].rows
    assert len(rows) == 12
    assert not [row for row in task.training_rows.batch(0, 50) if row in rows]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"id": "gymnast/Arithmetik-v0"}, "id: there is no environment 'gymnast/Arithmetik-v0'"),
        ({"id": "gymnast/Arithmetic-v0", "max_turn": 3}, "Arithmetic has no setting 'max_turn'"),
        (
            LARGE | {"context_length": 9999},
            "context_length: must be <= 2048, the context that tiny:",
        ),
        (LARGE | {"max_operand": 102, "rows": 99}, "rows: must be <= 18, got 99"),
        ({"id": "gymnast.envs:Environment"}, "data: is required: Environment makes no rows"),
    ],
)
def test_a_further_environment_that_is_wrong_is_named(
    section: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        prepare(evaluation={"rows": 5, "environments": {"other": section}})
    place = "evaluation.environments.other"
    assert str(caught.value).startswith((f"{place}: {message}", f"{place}.{message}"))


def test_a_run_is_not_prepared_where_prompts_hold_their_answers(tmp_path: Path) -> None:
    """Neither is an evaluation nor a dry run, which prepare the same."""
    user, said = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(f"{json.dumps({'messages': [user, said], 'n': n})}\n" for n in range(6))
    )
    environment = here("Adding")
    for columns in ({"prompt": "messages"}, {"n": "n"}):
        with pytest.raises(DataError) as caught:
            prepare(environment=environment, data={"train": str(rows), "columns": columns})
        message = str(caught.value)
        assert "rows.jsonl, line 1" in message
        assert '{prompt: "messages[:-1]", answer: "messages[-1].content"}' in message
    columns = {"prompt": "messages[:-1]", "answer": "messages[-1].content"}
    task = prepare(environment=environment, data={"train": str(rows), "columns": columns})
    row = task.training_rows.row(0)
    assert (row["prompt"], row["answer"]) == ([user], "4")
