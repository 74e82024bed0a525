"""What a program asks and is told, whatever its dialect."""

from dataclasses import dataclass, field
from typing import Any, Literal

from gymnast.types import Message

Finish = Literal["stop", "tool_calls", "length"]


@dataclass(frozen=True)
class Request:
    """A request for one assistant message.

    Attributes:
        messages: The conversation in OpenAI's shape, with texts as strings. The arguments of calls
            are a text, as they were sent, or an object in dialects that send objects.
        tools: The schemas of the tools that may be called, in OpenAI's shape.
        plain: Whether it asks to go on with a text, the content of the one message.
        max_tokens: How many tokens the program wants at most; None: it does not say.
        stop: Texts at which the program's view of the answer ends.
        unused: Names of parameters that it gives and that change nothing.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    plain: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a program is told.

    Attributes:
        message: The parsed assistant message, whose `tool_calls` are `ToolCall`s.
        finish: Why it ends.
        prompt_tokens: Tokens of the context before it.
        completion_tokens: Tokens that were sampled.
    """

    message: Message
    finish: Finish
    prompt_tokens: int
    completion_tokens: int


class Refused(Exception):
    """A request that gets no answer; the program is told why, in its dialect.

    Attributes:
        status: Of HTTP.
        kind: OpenAI's `type` or `code` of the error: "invalid_request_error", say.
        message: What is wrong, as a sentence.
        param: The parameter that is to blame, if one is.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.param = status, kind, message, param
