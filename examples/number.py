"""An environment and a reward function as they are written for TRL: find a number."""

from typing import Any


class Number:
    """A number that is searched for."""

    def reset(self, number: int, **row: object) -> str:
        """Begin with a number of 1 to 9."""
        self.number, self.found = number, False
        return " It is one of 1 to 9."

    def guess(self, number: int) -> str:
        """Say whether the number that is searched for is this one, more or less.

        Args:
            number: The guess.
        """
        self.found = self.found or number == self.number
        return "yes" if number == self.number else "more" if number < self.number else "less"

    def get_reward(self) -> float:
        """1.0 if it was found."""
        return float(self.found)


def says_it(completions: list[Any], number: list[int], **columns: object) -> list[float]:
    """Whether the last message has the number."""
    last = [completion[-1]["content"] for completion in completions]
    return [float(str(n) in text) for n, text in zip(number, last, strict=True)]
