"""check_env plays episodes again, and says where equal ones come out otherwise."""

import functools
import itertools
import random
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gymnast.envs import Environment, Renderer, call, check_env, make, tool
from gymnast.errors import InfrastructureError


class Notes(Environment):
    """Note an item: the state of an episode is where it belongs, and each class below moves it."""

    def setup(self, row: Any) -> Any:
        self.log: list[str] = []

    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        self.log.append(item)
        return len(self.log)

    def sample_row(self, rng: Any) -> Any:
        return {"prompt": f"Note {rng.integers(1000)}.", "item": f"item {rng.integers(1000)}"}

    def reward(self, episode: Any) -> Any:
        return float(len(episode.calls) > 0)

    def solve(self, row: Any) -> Any:
        yield call("note", item=row["item"])
        yield call("note", item="another")
        yield "Done."


class InClass(Notes):
    shared: list[str] = []  # noqa: RUF012  the mistake

    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        self.shared.append(item)
        return len(self.shared)


class RewardOfClass(InClass):
    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        self.shared.append(item)
        return "noted"

    def reward(self, episode: Any) -> Any:
        return 1 - 1 / (1 + len(self.shared))


class SeenBefore(Notes):
    """Comes out otherwise the first time only."""

    seen: set[str] = set()  # noqa: RUF012  the mistake

    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        known = item in self.seen
        self.seen.add(item)
        return "known" if known else "new"


class Counted(Notes):
    count = 0

    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        type(self).count += 1
        return self.count


BOARD: dict[str, list[str]] = {}


class InModule(Notes):
    """Begins anew in each episode, on a board that all episodes of a row share."""

    def setup(self, row: Any) -> Any:
        BOARD[row["prompt"]] = []

    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        BOARD[self.row["prompt"]].append(item)
        return list(BOARD[self.row["prompt"]])


class Current(Notes):
    """The last episode that began is everybody's."""

    current: Any = None

    def setup(self, row: Any) -> Any:
        type(self).current = row

    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        return self.current["prompt"]


class Left(Notes):
    """What `__init__` makes lasts longer than an episode."""

    def __init__(self, renderer: Any = None, **settings: Any) -> None:
        super().__init__(renderer, **settings)
        self.log = []

    def setup(self, row: Any) -> Any:
        return None


class ByDefault(Notes):
    def setup(self, row: Any, log: list[str] = []) -> Any:  # noqa: B006  the mistake
        self.log = log


@functools.lru_cache
def cached_log() -> list[str]:
    return []


class Cached(Notes):
    def setup(self, row: Any) -> Any:
        self.log = cached_log()


class Chance(Notes):
    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        return random.random()


class NumpyChance(Notes):
    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        return float(np.random.random())


class Seeded(Notes):
    """The seed is right, and the generator is everybody's."""

    def setup(self, row: Any) -> Any:
        random.seed(row["item"])

    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        return random.random()


class Named(Notes):
    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        return str(uuid.uuid4())


class Timed(Notes):
    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        return f"noted at {int(time.time())}"


class InFile(Notes):
    file = Path("notes.txt")

    def setup(self, row: Any) -> Any:
        self.file.write_text("")

    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        with self.file.open("a") as file:
            file.write(f"{item}\n")
        return self.file.read_text()


class Removed(Notes):
    """The first episode that ends takes the file from the others."""

    def setup(self, row: Any) -> Any:
        super().setup(row)
        self.file = Path(f"{row['item']}.txt")
        self.file.write_text("")

    def reward(self, episode: Any) -> Any:
        return float(self.file.exists())

    def cleanup(self) -> None:
        self.file.unlink(missing_ok=True)


class MetricOfClass(InClass):
    @tool
    def note(self, item: str) -> Any:
        """Note an item."""
        self.shared.append(item)
        return "noted"

    def metrics(self, episode: Any) -> Any:
        return {"notes": float(len(self.shared))}


class Replies(Notes):
    said = itertools.count(1)

    def respond(self, message: Any) -> Any:
        if len(self.episode.turns) > 1:
            return None
        return [{"role": "user", "content": f"Go on: {next(self.said)}"}]

    def solve(self, row: Any) -> Any:
        yield call("note", item=row["item"])
        yield "Done?"
        yield "Done."


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        (InClass, "again in the same instance.* result of note.* was '1', then .*InClass.shared"),
        (RewardOfClass, "again in the same instance.* message 3, the reward was"),
        (SeenBefore, "again in the same instance.* note.* was 'new', then 'known'"),
        (Counted, "again in the same instance.* was '1', then .*Counted.count"),
        (InModule, "in turns .* on the same row.* note.*the global BOARD"),
        (Current, "in turns .* on another row.* was 'Note .*Current.current"),
        (Left, "again in the same instance.* was '1', then "),
        (ByDefault, "again in the same instance.*a default argument of ByDefault.setup"),
        (Cached, "again in the same instance.*the cache of the global cached_log"),
        (Chance, "again in the same instance.*global generator of `random`"),
        (NumpyChance, "again in the same instance.*generator of `numpy.random`"),
        (Seeded, "in turns .* on the same row.*global generator of `random`"),
        (Named, "again in the same instance.* no clock time, uuid"),
        (Timed, "again in the same instance.* was 'noted at "),
        (InFile, "in turns .* on the same row.*note"),
        (Removed, "in turns .* on the same row.*reward was 1.0, then 0.0"),
        (MetricOfClass, r"again in the same instance.*info\['metrics'\]\['notes'\] was"),
        (Replies, "again in the same instance.*the reply.*Go on"),
    ],
)
def test_state_that_episodes_share_fails(
    shared: type[Notes],
    words: str,
    renderer: Renderer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=rf"(?s)^solve on the row of seed 0, played {words}"):
        check_env(shared(renderer))


@pytest.mark.parametrize("without", [InClass, SeenBefore, Counted, InModule, Left, Named])
def test_without_solve_the_calls_of_tools_are_compared(
    without: type[Notes], renderer: Renderer
) -> None:
    unsolved = type(without.__name__, (without,), {"solve": Environment.solve})
    with pytest.raises(AssertionError, match=r"^calling note on the row .*note\(item='text'\)"):
        check_env(unsolved(renderer))


def test_a_tool_that_solve_leaves_out_is_compared(renderer: Renderer) -> None:
    class More(Notes):
        shared: list[str] = []  # noqa: RUF012  the mistake

        @tool
        def keep(self) -> int:
            """Keep it."""
            self.shared.append("")
            return len(self.shared)

    with pytest.raises(AssertionError, match=r"^calling keep on the row .* in a second instance"):
        check_env(More(renderer))


def test_without_tools_and_solve_the_environment_is_compared(renderer: Renderer) -> None:
    class Mine(Environment):
        of_all: Any = None

        def sample_row(self, rng: Any) -> Any:
            return {"prompt": "Go.", "number": int(rng.integers(1000))}

        def setup(self, row: Any) -> None:
            Mine.of_all = row["number"]

        def reward(self, episode: Any) -> float:
            return float(Mine.of_all)

    with pytest.raises(AssertionError, match=r"^saying nothing .* on another row, .*reward was"):
        check_env(Mine(renderer))


def test_the_report_names_what_was_compared_and_what_was_not(renderer: Renderer) -> None:
    assert check_env(Notes(renderer)).compared == ("solve",)

    class Further(Notes):
        @tool
        def read(self) -> str:
            """Read the notes."""
            return ", ".join(self.log)

    report = check_env(Further(renderer))
    assert report.compared == ("solve", "calling read")
    assert "\n  solve\n  calling read\n" in str(report)


def test_a_solution_that_differs_itself_is_named(renderer: Renderer) -> None:
    class Undecided(Notes):
        numbers = itertools.count()

        def solve(self, row: Any) -> Any:
            yield call("note", item=f"item {next(self.numbers)}")
            yield "Done."

    with pytest.raises(AssertionError, match=r"message 1 of solve.* was 'item 0', then"):
        check_env(Undecided(renderer))


def test_a_second_instance_that_cannot_be_made_fails(renderer: Renderer) -> None:
    class Single(Notes):
        made = 0

        def __init__(self, renderer: Any = None, **settings: Any) -> None:
            super().__init__(renderer, **settings)
            if type(self).made:
                raise OSError("the port is taken")
            type(self).made += 1

    with pytest.raises(AssertionError, match=r"second instance of Single .* OSError: the port"):
        check_env(Single(renderer))


def test_a_second_solution_that_raises_fails(renderer: Renderer) -> None:
    class Once(Notes):
        prices: dict[str, int] = {"fig": 3}  # noqa: RUF012  the mistake

        @tool
        def note(self, item: str) -> int:
            """Note an item."""
            return self.prices.pop("fig", None) or self.prices["fig"]

        def solve(self, row: Any) -> Any:
            if row["prompt"] != self.row["prompt"] or self.prices:
                yield call("note", item="fig")
            yield "Done."

        def reward(self, episode: Any) -> Any:
            return 1.0

    with pytest.raises(AssertionError, match=r"again in the same instance.*Once.prices"):
        check_env(Once(renderer))


def test_durations_and_addresses_are_odd(renderer: Renderer) -> None:
    class Measured(Notes):
        took = itertools.count(1)
        kept = object()

        @tool
        def note(self, item: str) -> str:
            """Note an item."""
            return f"1 passed in 0.{next(self.took):02}s, {self.kept!r}"

    odd = check_env(Measured(renderer)).odd
    assert any("differs by a time alone" in sentence for sentence in odd)
    assert any("an address of this process" in sentence for sentence in odd)


def test_a_global_generator_is_odd_where_nothing_differs(renderer: Renderer) -> None:
    class Drawn(Notes):
        @tool
        def note(self, item: str) -> bool:
            """Note an item."""
            return random.random() < 2

    [sentence] = check_env(Drawn(renderer)).odd
    assert "the global generator of `random`" in sentence


def test_what_commands_in_a_sandbox_print_is_odd(renderer: Renderer) -> None:
    row = {"prompt": "What time is it?", "check": "true", "solution": "date +%s%N"}
    env = make("gymnast/Shell-v0", renderer, rows=[row], sandbox="local")
    try:
        report = check_env(env)
    finally:
        env.close()
    assert "solve" not in report.compared
    assert any("result of shell" in each and "outside" in each for each in report.odd)


def test_where_a_second_instance_breaks_nothing_fails(renderer: Renderer) -> None:
    class Scarce(Notes):
        """There is one of what it runs on."""

        held: Any = None

        def setup(self, row: Any) -> Any:
            if Scarce.held not in (None, id(self)):
                raise InfrastructureError("the server has no further session")
            Scarce.held = id(self)
            super().setup(row)

        def cleanup(self) -> None:
            Scarce.held = None

    report = check_env(Scarce(renderer))
    assert report.compared == ()
    assert any("no further session" in each for each in report.missed)


def test_instances_are_closed(renderer: Renderer) -> None:
    class Opened(Notes):
        open_now = 0

        def __init__(self, renderer: Any = None, **settings: Any) -> None:
            super().__init__(renderer, **settings)
            type(self).open_now += 1

        def close(self) -> None:
            super().close()
            type(self).open_now -= 1

    env = Opened(renderer)
    check_env(env)
    assert Opened.open_now == 1


def test_what_solve_leaves_does_not_hide_a_bug(renderer: Renderer) -> None:
    class Started(Notes):
        def setup(self, row: Any) -> Any:
            return None

        @tool
        def start(self) -> str:
            """Start."""
            self.log = []
            return "started"

        def solve(self, row: Any) -> Any:
            yield call("start")
            yield call("note", item=row["item"])
            yield "Done."

    with pytest.raises(AssertionError, match=r"note\(item=.*failed because of a bug"):
        check_env(Started(renderer))
