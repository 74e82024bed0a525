"""What is written for TRL, and without Gymnast: environments, tools and rewards."""

import sqlite3
import threading
from fractions import Fraction
from typing import Any

GATE = threading.Event()  # what hangs waits here
MADE: list[Any] = []


class Base:
    """What a subclass inherits counts too."""

    def look(self) -> str:
        """Look around."""
        return "Shelves."


class Shop(Base):
    """Fruits and their prices."""

    motto = "fresh"

    def __init__(self) -> None:
        MADE.append(self)
        self.sold = 0
        self.prices = sqlite3.connect(":memory:")  # of the thread that makes it

    def reset(self, **row: Any) -> str | None:
        """Begin with a fruit."""
        self.sold, self.row = 0, row
        self.prices.executescript("drop table if exists p; create table p (fruit, cents)")
        self.prices.execute("insert into p values ('pear', 3)")
        return f" We have {row['fruit']}s." if "fruit" in row else None

    def price(self, fruit: str, count: int = 1) -> int:
        """Look up what fruits cost, in cents.

        Args:
            fruit: Its name.
            count: How many.

        Returns:
            The price of all.
        """
        found = self.prices.execute("select cents from p where fruit = ?", (fruit,)).fetchone()
        if found is None:
            raise ValueError(f"there is no {fruit}")
        return int(found[0]) * count

    async def buy(self, count: int) -> dict[str, int]:
        """Buy some fruits.

        Args:
            count: How many.
        """
        self.sold += count
        return {"bought": count}

    @staticmethod
    def shout(text: str) -> str:
        """Say something aloud.

        Args:
            text: What to say.
        """
        return text.upper()

    @property
    def mood(self) -> str:
        raise AssertionError("a property is no tool, and is not asked for")

    @classmethod
    def other(cls) -> None:
        """A class method is no tool."""

    def _count(self) -> int:
        return self.sold

    def get_reward(self) -> float:
        """How many were sold."""
        return float(self.sold)


class Library:
    """Without a reward of its own."""

    def reset(self, **row: Any) -> None:
        """Begin."""
        assert "environment" not in row

    def borrow(self, title: str) -> str:
        """Borrow a book.

        Args:
            title: Its title.
        """
        return f"{title}, for two weeks"


BOTH = {"shop": Shop, "library": Library}


def made() -> Shop:
    """What makes a shop."""
    return Shop()


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


async def wait(seconds: float) -> str:
    """Wait for a while.

    Args:
        seconds: How long.
    """
    return f"waited {seconds:g} s"


TOOLS = [add, wait]


def short(completions: list[Any], **columns: Any) -> list[float]:
    """The shorter the better."""
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [1 / (1 + len(text)) for text in texts]


def fitting(
    prompts: list[Any], completions: list[Any], fruit: list[str], **columns: Any
) -> list[float | None]:
    """Whether the fruit is named; nothing is said of stones."""
    pairs = zip(completions, fruit, strict=True)
    return [None if f == "stone" else float(f in c[-1]["content"]) for c, f in pairs]


async def judged(
    completions: list[Any], environments: list[Any], log_metric: Any, **columns: Any
) -> list[float]:
    """How much was sold, as somebody else counts it."""
    log_metric("sold", environments[0].sold)
    columns["log_extra"]("sold", [environments[0].sold])
    return [each._count() * 0.1 for each in environments]


class Odd:
    """Every accident that an environment can have."""

    accident = ""

    def __init__(self) -> None:
        MADE.append(self)
        if Odd.accident == "make":
            raise RuntimeError("no room")

    def reset(self, **row: Any) -> Any:
        """Begin with an accident."""
        if Odd.accident == "hang":
            GATE.wait(30)
        if Odd.accident == "raise":
            raise ZeroDivisionError
        return {"number": 3, "huge": "on " * 10**6}.get(Odd.accident)

    def act(self, how: str) -> Any:
        """Do something wrong.

        Args:
            how: In which way.
        """
        if how == "raise":
            raise RuntimeError("broken")
        if how == "exit":
            raise SystemExit(3)
        if how == "hang":
            GATE.wait(30)
        parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
        picture = [{"type": "image", "image": "data:"}]
        odd = {"huge": "on " * 10**6, "object": threading, "parts": parts, "picture": picture}
        return odd.get(how, how)

    def get_reward(self) -> Any:
        """A reward with an accident."""
        if Odd.accident == "slow reward":
            GATE.wait(30)
        lies = {"text": "much", "infinite": float("inf"), "none": None, "large": 10**400}
        if Odd.accident == "broken":
            raise ZeroDivisionError
        return lies.get(Odd.accident, 1.0)


def lying(completions: list[Any], **columns: Any) -> Any:
    """A reward function with an accident."""
    lies = {"too many": [1.0, 1.0], "one": 1.0, "words": ["good"]}
    lies |= {"large one": [-(10**5000)], "fraction": [Fraction(1, 4)]}
    if Odd.accident == "raises":
        raise KeyError("column")
    return lies.get(Odd.accident, [0.5])
