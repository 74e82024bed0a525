"""How one chat template writes tool calls: the delimiters and the payload between them.

`derivation.py` reads a dialect from a template's renderings, `parsing.py` reads completions by it.
"""

from dataclasses import dataclass

from gymnast.envs.payloads import Payload


@dataclass(frozen=True)
class Dialect:
    """How calls are written in an assistant's turn.

    Attributes:
        payload: The kind of payload.
        open: What comes right before a payload; "" where a call is known by being the turn.
        close: What comes right after it.
        between: What separates payloads that share one `open` and `close`.
        section_open: What comes once before the first `open`.
        section_close: What comes once after the last `close`.
        several: Whether the template writes several calls in a turn.
        as_text: Whether the template takes a call's arguments as a JSON string.
        empty_content: The content of a message that is calls only; None leaves the key out.
    """

    payload: Payload
    open: str
    close: str
    between: str = ""
    section_open: str = ""
    section_close: str = ""
    several: bool = True
    as_text: bool = False
    empty_content: str | None = ""

    def example(self) -> str:
        """What a right call looks like."""
        parts = (self.open, self.payload.example(), self.close)
        return "\n".join(part for part in parts if part)
