"""The README's Shop with a hint: what its jobs with a teacher play."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnast.lookup import imported
from gymnast.types import Message

Shop: Any = imported(f"{Path(__file__).parents[2] / 'examples/shop.py'}:Shop")


class HintedShop(Shop):  # type: ignore[misc]  # examples are untyped
    """A shop whose teacher sees how four other questions are answered."""

    async def hint(self, row: Mapping[str, Any]) -> list[Message]:
        """The worked turns of such a prompt."""
        shop = Shop(worked_turns=4)
        await shop.areset(options={"row": row})
        solved: list[Message] = shop.messages[:-1]
        return solved
