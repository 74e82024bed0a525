"""Worked turns: what a prompt shows of other rows, and that nothing else changes by it."""

import asyncio
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from call_dialects import FAMILIES
from call_dialects import renderer_of as renderer_of_family
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Episode, Renderer, call, tool
from gymnast.errors import ConfigError, DataError, UserCodeError
from gymnast.sandboxes import SandboxSpec

TEMPLATES = Path(__file__).parent.parent / "rendering/chat_templates"
ROWS: list[Any] = [
    {"prompt": f"What do {n} plums cost?", "count": n, "answer": 7 * n} for n in range(2, 12)
]


class Shop(Environment):
    """Counts in the class how often it was asked, whatever the instance."""

    asked = 0

    @tool
    def price(self, fruit: str) -> int:
        """Look up what a fruit costs."""
        type(self).asked += 1
        return 7

    @tool(stop=True)
    def leave(self) -> str:
        """Leave the shop."""
        return "Bye."

    def reward(self, episode: Episode) -> float:
        return float(str(self.row["answer"]) in episode.answer)

    def solve(self, row: Mapping[str, Any]) -> Any:
        [price] = yield call("price", fruit="plum")
        yield f"They cost {row['count'] * int(price['content'])} cents."


@pytest.fixture(autouse=True)
def count_from_zero() -> Iterator[None]:
    Shop.asked = 0
    yield


def fresh(**members: Any) -> type[Shop]:
    """A class of its own, for which nothing has been played before."""
    return type("Shop", (Shop,), {"asked": 0, **members})


def prompt_of(env: Environment, row: Any = None, seed: int | None = None) -> list[Any]:
    env.reset(seed=seed, options=None if row is None else {"row": row})
    messages = env.messages
    env.close()
    return messages


def questions(messages: list[Any]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "user"]


def test_episodes_on_other_rows_stand_after_the_system_message_and_before_the_prompt() -> None:
    env = fresh()(rows=ROWS, worked_turns=2, system_prompt="Be brief.")
    messages = prompt_of(env, ROWS[0])
    roles = ["user", "assistant", "tool", "assistant"]
    assert [m["role"] for m in messages] == ["system", *roles * 2, "user"]
    assert messages[0]["content"] == "Be brief."
    assert messages[-1]["content"] == ROWS[0]["prompt"]
    shown = {row["prompt"]: row["answer"] for row in ROWS}
    for start in (1, 5):
        question, said, result, answer = messages[start : start + 4]
        assert said["tool_calls"][0]["function"]["arguments"] == {"fruit": "plum"}
        assert result["content"] == "7"
        assert answer["content"] == f"They cost {shown[question['content']]} cents."


def test_all_episodes_share_them_but_never_show_their_own_row() -> None:
    cls = fresh()
    prompts = [prompt_of(cls(rows=ROWS, worked_turns=2), row) for row in ROWS]
    for row, messages in zip(ROWS, prompts, strict=True):
        assert len(questions(messages)) == 3
        assert questions(messages).count(row["prompt"]) == 1
    shared = [tuple(questions(messages)[:-1]) for messages in prompts]
    assert len(set(shared)) == 3  # and two with the spare one in the place of their own
    assert max(map(shared.count, shared)) == len(ROWS) - 2


def test_a_row_of_numpy_numbers_is_known_as_its_own() -> None:
    class Drawing(Shop):
        def sample_row(self, rng: np.random.Generator) -> Any:
            n = rng.integers(2, 5)
            return {"prompt": f"What do {n} plums cost?", "count": n, "answer": 7 * int(n)}

    for n in (2, 3, 4):
        row = {"answer": 7 * n, "count": n, "prompt": f"What do {n} plums cost?"}
        assert questions(prompt_of(Drawing(worked_turns=2), row)).count(str(row["prompt"])) == 1


def test_they_are_played_once_for_all_environments_that_are_made_alike() -> None:
    cls = fresh()

    async def reset_all(envs: list[Shop]) -> None:
        await asyncio.gather(*(env.areset(seed=i) for i, env in enumerate(envs)))

    asyncio.run(reset_all([cls(rows=ROWS, worked_turns=2) for _ in range(64)]))
    played = cls.asked
    assert 3 <= played <= 9
    prompt_of(cls(rows=list(ROWS), worked_turns=2))
    assert cls.asked == played
    prompt_of(cls(rows=ROWS, worked_turns=2, max_turns=4))
    assert cls.asked == 2 * played


def test_an_environment_keeps_its_own_however_many_others_there_are() -> None:
    cls = fresh()
    envs = [cls(rows=ROWS, worked_turns=1, max_tokens=1000 + number) for number in range(40)]
    prompts = [prompt_of(env, ROWS[0]) for env in envs]
    played = cls.asked
    assert [prompt_of(env, ROWS[0]) for env in envs] == prompts
    assert cls.asked == played


def test_what_is_done_to_the_messages_of_an_episode_does_not_reach_the_next_one() -> None:
    env = fresh()(rows=ROWS, worked_turns=1)
    shown = prompt_of(env, ROWS[0])
    expected = [dict(message) for message in shown]
    env.reset(options={"row": ROWS[0]})
    for message in env.messages:
        message["content"] = "spoiled"
    assert prompt_of(env, ROWS[0]) == expected


def test_a_failure_is_told_to_all_and_tried_again() -> None:
    class Wrong(Shop):
        right = False

        def solve(self, row: Mapping[str, Any]) -> Any:
            return [call("price", fruit="plum"), f"{row['answer'] if self.right else 0}"]

    async def reset_all() -> list[Any]:
        envs = [Wrong(rows=ROWS, worked_turns=1) for _ in range(3)]
        return await asyncio.gather(*(env.areset() for env in envs), return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(reset_all())] == [UserCodeError] * 3
    Wrong.right = True
    assert len(questions(prompt_of(Wrong(rows=ROWS, worked_turns=1)))) == 2


def test_one_that_is_cancelled_while_it_plays_leaves_it_to_the_others() -> None:
    began = asyncio.Event()

    class Slow(Shop):
        async def solve(self, row: Mapping[str, Any]) -> Any:
            began.set()
            await asyncio.sleep(0.01)
            return [f"{row['answer']}"]

    async def run() -> list[Any]:
        first, second = (Slow(rows=ROWS, worked_turns=1) for _ in range(2))
        tasks = [asyncio.create_task(env.areset()) for env in (first, second)]
        await began.wait()
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    cancelled, done = asyncio.run(run())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert not isinstance(done, BaseException)


def test_no_random_number_and_no_metric_of_a_real_episode_changes() -> None:
    class Drawing(Shop):
        def sample_row(self, rng: np.random.Generator) -> Any:
            n = int(rng.integers(2, 1000))
            return {"prompt": f"What do {n} plums cost?", "count": n, "answer": 7 * n}

        def setup(self, row: Mapping[str, Any]) -> Any:
            self.luck = self.np_random.random()

    def seen(worked_turns: int) -> list[Any]:
        env = Drawing(worked_turns=worked_turns)

        async def run() -> list[Any]:
            found = []
            for seed in (3, None, None):
                _, info = await env.areset(seed=seed)
                row, luck = dict(env.row), env.luck
                *_, end = await env.act({"role": "assistant", "content": "No."})
                found.append((row, luck, sorted(info["timings"]), end["metrics"]))
            return found

        return asyncio.run(run())

    assert seen(0) == seen(2)


def test_ids_of_calls_are_nine_letters_and_digits_and_differ() -> None:
    messages = prompt_of(fresh()(rows=ROWS, worked_turns=4), ROWS[0])
    ids = [each["id"] for m in messages for each in m.get("tool_calls", ())]
    assert ids == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert len(set(ids)) == 4 and all(len(id) == 9 and id.isalnum() for id in ids)


def test_they_show_as_many_of_the_tools_as_they_can() -> None:
    class Two(Shop):
        @tool
        def rare(self) -> str:
            """Do what few rows need."""
            return "7"

        def solve(self, row: Mapping[str, Any]) -> Any:
            rare = row["count"] == 11
            return [call("rare") if rare else call("price", fruit="fig"), str(row["answer"])]

    env = Two(worked_turns=1, worked_rows=ROWS[-4:])
    assert "rare" not in str(prompt_of(env, ROWS[0]))
    env = Two(worked_turns=2, worked_rows=ROWS[-4:])
    assert "rare" in str(prompt_of(env, ROWS[0]))


def test_rows_without_a_solution_are_passed_over() -> None:
    class Even(Shop):
        def solve(self, row: Mapping[str, Any]) -> Any:
            return None if row["count"] % 2 else [str(row["answer"])]

    shown = questions(prompt_of(Even(worked_turns=2, worked_rows=ROWS), ROWS[1]))[:-1]
    assert shown == [ROWS[0]["prompt"], ROWS[2]["prompt"]]


def test_tools_run_in_boxes(play: Any) -> None:
    """In the strongest backend that works here."""

    class Boxed(Shop):
        sandbox_spec = SandboxSpec(timeout_s=10.0)

        @tool
        async def run(self, command: str) -> str:
            """Run a command."""
            return (await self.sandbox.aexec(command)).stdout

        async def solve(self, row: Mapping[str, Any]) -> Any:
            [result] = yield call("run", command=f"expr 7 \\* {row['count']}")
            yield f"They cost {result['content'].strip()} cents."

    messages = prompt_of(Boxed(rows=ROWS, worked_turns=1), ROWS[0])
    count = next(row["answer"] for row in ROWS if row["prompt"] == messages[0]["content"])
    assert messages[2]["content"].strip() == str(count)


def earning(value: Any) -> type[Shop]:
    class Paid(Shop):
        def reward(self, episode: Episode) -> Any:
            return value

    return Paid


@pytest.mark.parametrize(
    ("value", "words"), [(0.0, "a reward of 0"), (-1, "a reward of -1"), (None, "no reward")]
)
def test_what_earns_nothing_is_not_shown(value: Any, words: str) -> None:
    env = earning(value)(rows=ROWS, worked_turns=1)
    with pytest.raises(UserCodeError, match=rf"Paid.solve earned {words}.*above 0; mend") as caught:
        env.reset()
    assert "'count'" in str(caught.value) and "'count'" not in caught.value.problem  # the row's


def test_what_earns_less_than_1_is_shown_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    prompt_of(earning(0.5)(worked_rows=ROWS[:1], worked_turns=1), ROWS[1])
    assert "Paid.solve earned a reward of 0.5" in caplog.text


def test_of_several_that_earn_less_than_1_one_warning_tells(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prompt_of(earning(0.5)(rows=ROWS, worked_turns=2), ROWS[1])
    (told,) = [text for text in caplog.messages if "if an episode can earn more" in text]
    assert "3 of 3 worked turns earned less than 1" in told


class Mute(Environment):
    """Without a solution."""

    def reward(self, episode: Episode) -> float:
        return 1.0


AnyShop: Any = Shop
WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: Mute(worked_turns=1), ConfigError, r"worked_turns=1: Mute has no `solve`.*call\("),
    (lambda: Shop(worked_turns=-1), ConfigError, "worked_turns must be a whole number >= 0"),
    (lambda: AnyShop(worked_turns="2"), ConfigError, "worked_turns must be a whole number >= 0"),
    (lambda: Shop(worked_turns=2, worked_rows=ROWS[:1]), ConfigError, "worked_turns must be <= 1"),
    (lambda: AnyShop(worked_rows="rows"), ConfigError, "worked_rows must be a list of rows"),
    (lambda: Shop(worked_turns=1).reset(options={"row": ROWS[0]}), DataError, "worked_rows=\\["),
    (
        lambda: AnyShop(worked_turns=1, worked_rows=[3], rows=ROWS).reset(),
        DataError,
        "given the row 3",
    ),
    (
        lambda: Shop(worked_turns=3, rows=ROWS[:2]).reset(),
        DataError,
        "worked_turns is 3, but the number of different rows with a solution is 2",
    ),
]


@pytest.mark.parametrize(("make", "error", "words"), WRONG)
def test_what_is_wrong_is_named(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_gymnasium_makes_it_as_well() -> None:
    gymnasium.register("tests/Worked-v0", AnyShop, kwargs={"rows": ROWS})
    env = gymnasium.make("tests/Worked-v0", worked_turns=1, disable_env_checker=True).unwrapped
    assert isinstance(env, Shop)
    assert len(questions(prompt_of(env, ROWS[0]))) == 2


# ---- in tokens


@cache
def renderer_of(name: str) -> Renderer:
    if name in FAMILIES:
        return renderer_of_family(name)
    return Renderer(tiny_tokenizer(), chat_template=(TEMPLATES / f"{name}.jinja").read_text())


REFUSED = ("positional",)  # as every conversation with calls is
NAMES = [*FAMILIES, *sorted({path.stem for path in TEMPLATES.glob("*.jinja")} - {*REFUSED})]


class Said(Shop):
    """A solution that its rows have."""

    def reward(self, episode: Episode) -> float:
        return 1.0

    def solve(self, row: Mapping[str, Any]) -> Any:
        says = [*[call("price", fruit=fruit) for fruit in row["fruits"]]]
        return [*says, call("leave") if row["stops"] else "Done."]


rows = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.text(min_size=1, max_size=20),
            "fruits": st.lists(st.text(max_size=10), max_size=3),
            "stops": st.booleans(),
        }
    ),
    min_size=3,
    max_size=3,
    unique_by=str,
)


@settings(max_examples=60)
@given(st.sampled_from(NAMES), rows)
def test_a_prompt_with_worked_turns_renders_and_grows_only_at_its_end(
    name: str, rows: list[Any]
) -> None:
    env = Said(renderer_of(name), worked_turns=2, worked_rows=rows[:2])
    context, info = env.reset(options={"row": rows[2]})
    renderer = renderer_of(name)
    assert context.tolist() == renderer.prompt(env.messages, env.tools)
    said = renderer.encode({"role": "assistant", **call("price", fruit="fig")}, tools=env.tools)
    observation, _, terminated, truncated, info = env.step(said)
    env.close()
    assert not terminated and not truncated and not info["errors"]
    assert "7" in renderer.tokenizer.decode(observation)


STRICT = """\
{%- for message in messages %}
{%- if message.role == 'user' and loop.index0 and messages[loop.index0 - 1].role == 'tool' %}
{{- raise_exception('Roles must alternate') }}
{%- endif %}
{%- endfor %}""" + (TEMPLATES / "xml.jinja").read_text()


def test_where_no_user_may_follow_a_tool_a_stop_tool_is_followed_by_a_last_word() -> None:
    rows = [{"prompt": f"Go {n}.", "fruits": [], "stops": True} for n in range(3)]
    strict = Renderer(tiny_tokenizer(), chat_template=STRICT)
    roles = [
        [message["role"] for message in prompt_of(Said(renderer, rows, worked_turns=1), rows[0])]
        for renderer in (renderer_of("xml"), strict)
    ]
    shown = ["user", "assistant", "tool"]
    assert roles == [[*shown, "user"], [*shown, "assistant", "user"]]
