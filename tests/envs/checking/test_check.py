"""check_env: Gymnasium's and ours, on what keeps the contract and on what breaks it."""

import itertools
from typing import Annotated, Any, Literal

import gymnasium.utils.env_checker
import numpy as np
import pytest
from pydantic import BaseModel, Field

from gymnast.envs import Environment, Renderer, check_env, make, tool
from gymnast.envs.checking.report import CheckReport, ToolTried
from gymnast.errors import ConfigError, DataError, UserCodeError


def test_check_env_passes_on_arithmetic(renderer: Renderer) -> None:
    check_env(make("gymnast/Arithmetic-v0", renderer))
    check_env(make("gymnast/Arithmetic-v0", renderer, context_length=1000, max_tokens=300))
    check_env(gymnasium.make("gymnast/Arithmetic-v0", renderer=renderer))


def test_gymnasiums_check_env_passes_on_arithmetic_without_a_warning(renderer: Renderer) -> None:
    gymnasium.utils.env_checker.check_env(make("gymnast/Arithmetic-v0", renderer))


drawn = itertools.count(0.5)  # as good as random


class Sound(Environment):
    """Keeps the contract; each case below breaks it in one place."""

    def __init__(self, renderer: Any = None, **settings: Any) -> None:
        super().__init__(renderer, rows=[{"prompt": "Go."}, {"prompt": "Stay."}], **settings)

    def reward(self, episode: Any) -> Any:
        return 0.0


class Moody(Sound):
    calls = 0

    def setup(self, row: Any) -> Any:
        self.calls += 1
        return [{"role": "user", "content": f"Call {self.calls}."}]


class Typo(Sound):
    def reward(self, episode: Any) -> Any:
        return self.row["answre"]


class Sticky(Sound):
    async def areset(self, **arguments: Any) -> Any:
        ids, info = await super().areset(**arguments)
        del info["stop_ids"]
        return ids, info


class Chatty(Sound):
    async def astep(self, action: Any) -> Any:
        ids, *rest = await super().astep(action)
        return np.append(ids, 5), *rest


class Endless(Sound):
    async def astep(self, action: Any) -> Any:
        ids, reward, _, truncated, info = await super().astep(action)
        return ids, reward, False, truncated, info


class NoReward(Environment):
    def sample_row(self, rng: Any) -> Any:
        return {"prompt": "Go."}


class Forgetful(Sound):
    def reward(self, episode: Any) -> Any:
        float("go" in episode.answer)


class Dice(Sound):
    def reward(self, episode: Any) -> Any:
        return {"luck": next(drawn), "skill": 0.0}


class Watch(Sound):
    def metrics(self, episode: Any) -> Any:
        return {"words": 2.0, "now": next(drawn)}


class Guess(Environment):
    def sample_row(self, rng: Any) -> Any:
        return {"prompt": "Guess.", "answers": [1.0, next(drawn)]}


class Raises(Sound):
    @tool
    def price(self, fruit: str) -> int:
        """Look up a price."""
        return self.prices[fruit]  # type: ignore[attr-defined, no-any-return]


class Photographs(Sound):
    @tool
    def photo(self, of: str) -> Any:
        """Take a photo."""
        return b"\x89PNG"


class Started(Sound):
    @tool
    def start(self) -> str:
        """Start the game."""
        self.board = [0] * 9
        return "started"

    @tool
    def move(self, field: int) -> list[int]:
        """Set a stone."""
        self.board[field] = 1
        return self.board


class Scored(Sound):
    @tool
    def start(self) -> str:
        """Start the game."""
        self.board = [1] * 9
        return "started"

    def reward(self, episode: Any) -> Any:
        return float(sum(self.board))


class OldReset(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Opaque(Sound):
    def setup(self, row: Any) -> Any:
        return [{"role": "user", "content": "Go.", "extra": float("nan")}]


def test_check_env_passes_on_a_sound_environment(renderer: Renderer) -> None:
    check_env(Sound(renderer))


@pytest.mark.parametrize(
    ("broken", "error", "words"),
    [
        (
            Moody,
            AssertionError,
            r"two resets with the same seed differ: messages\[0\]\['content'\] was 'Call 1.', then",
        ),
        (NoReward, AssertionError, r"NoReward has no reward.*Write reward\(self, episode\)"),
        (Forgetful, AssertionError, "reward returned None after each .*`return`"),
        (Dice, AssertionError, "step 1 of two episodes .* differ: reward was"),
        (Watch, AssertionError, r"step 1 .* differ: info\['metrics'\]\['now'\] was"),
        (Guess, AssertionError, r"differ: row\['answers'\]\[1\] was .*self.np_random"),
        (
            Raises,
            AssertionError,
            r"(?s)price\(fruit=\"text\"\) failed because of a bug.*line.*'prices'",
        ),
        (Photographs, AssertionError, r"photo\(of=\"text\"\) failed because of a bug.*holds bytes"),
        (Typo, UserCodeError, "KeyError: 'answre'"),
        (Sticky, AssertionError, "the info of reset lacks stop_ids"),
        (Chatty, AssertionError, "tokens"),
        (Endless, AssertionError, "terminated=False"),
        (
            Started,
            AssertionError,
            r"(?s)move\(field=1\) failed because of a bug.*attribute 'board'",
        ),
        (Scored, UserCodeError, "Scored.reward: AttributeError: .* no attribute 'board'"),
        (OldReset, AssertionError, r"reset takes no seed and no options. Write reset\(self, \*,"),
        (Opaque, AssertionError, "messages cannot be written as JSON"),
    ],
)
def test_check_env_says_what_is_broken(
    broken: type[Sound],
    error: type[Exception],
    words: str,
    renderer: Renderer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(error, match=words):
        check_env(broken(renderer, max_tokens=500))
    assert not caplog.records  # the error says it all


def test_check_env_needs_a_renderer_rows_and_an_environment(renderer: Renderer) -> None:
    with pytest.raises(ConfigError, match="renderer"):
        check_env(Sound())
    with pytest.raises(DataError, match="rows"):
        check_env(Environment(renderer))
    with pytest.raises(AssertionError, match="not a subclass"):
        check_env(gymnasium.make("CartPole-v1"))


def test_check_env_passes_with_tools_and_async_hooks(renderer: Renderer) -> None:
    class Later(Sound):
        async def setup(self, row: Any) -> None:
            self.count = 0

        @tool
        async def count_up(self) -> int:
            """Count."""
            self.count += 1
            return self.count

        async def reward(self, episode: Any) -> float:
            return float(self.count)

    check_env(Later(renderer))


class Account(BaseModel):
    name: str
    limit: Annotated[int, Field(ge=10, multiple_of=5)]


class Shop(Sound):
    """Tools whose arguments can be made, and one whose cannot."""

    def __init__(self, renderer: Any = None, **settings: Any) -> None:
        super().__init__(renderer, **settings)
        self.asked: list[str] = []

    @tool
    def price(self, fruit: str) -> int:
        """Look up a price."""
        self.asked.append(fruit)
        return {"pear": 4}[fruit]

    @tool(stop=True)
    def pay(self, coins: list[Literal[2, 5]], account: Account) -> dict[str, Any]:
        """Pay."""
        return {"paid": sum(coins), "by": account}

    @tool
    def track(self, code: Annotated[str, Field(pattern=r"^[A-Z]{3}-\d{9}$")]) -> str:
        """Track a parcel."""
        return f"parcel\n\x1b[31m{code}"

    def reward(self, episode: Any) -> Any:
        return None if not episode.calls else float(not episode.errors)


def test_check_env_calls_every_tool_and_shows_what_a_model_reads(renderer: Renderer) -> None:
    env = Shop(renderer)
    report = check_env(env)
    assert env.asked == ["text"]
    assert [(tool.call, tool.answer, tool.note) for tool in report.tools] == [
        ('price(fruit="text")', "Error: price: KeyError: 'text'", ""),
        (
            'pay(coins=[2], account={"name": "text", "limit": 10})',
            '{"paid": 2, "by": {"name": "text", "limit": 10}}',
            "ends the episode",
        ),
        (
            "track(code: str)",
            None,
            "no value was found for code: str with the pattern '^[A-Z]{3}-\\\\d{9}$'",
        ),
    ]
    assert report.rewards == (0.0, 1.0)
    assert report.prompt_tokens == len(renderer.tokenizer.encode(report.prompt))
    shown = str(report)
    for text in (
        '  | {"type": "function", "function": {"name": "price"',
        "  | <|im_start|>assistant",
        "  price(fruit=\"text\") -> Error: price: KeyError: 'text'",
        "  track(code: str)  was not called: no value was found",
        "  other episodes  0 to 1 (each tool called once, random tokens)",
    ):
        assert text in shown


def test_a_report_stays_readable() -> None:
    tried = ToolTried("look()", "a\n\x1b[31m" + "x" * 900)
    tried_nothing = ToolTried("look()", "null", "it returned None")
    shown = str(CheckReport("\n".join(map(str, range(500))), 900, (tried,), (1.0,)))
    assert "[... 440 lines left out ...]" in shown
    assert "xxx... (907 characters)" in shown
    assert "\x1b" not in shown and max(map(len, shown.splitlines())) < 300
    assert "(it returned None)" in str(CheckReport("Go.", 1, (tried_nothing,), (0.0,)))
    assert "There are no tools." in str(CheckReport("Go.", 1, (), (0.0,)))
