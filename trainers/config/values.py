"""What the sections of a run's YAML share: the kinds of values, and the environment's section."""

from typing import Annotated, Any

import jmespath
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gymnast.trainers.data.input_paths import CODE, ROWS


def _whole(value: Any) -> Any:
    """1e3 is a float in YAML, and a whole number all the same."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Integer, Field(ge=0)]
Positive = Annotated[Integer, Field(ge=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
CodeSource = Annotated[Text, CODE]  # "module:name" or "path/to/file.py:name"
RowSource = Annotated[Text, ROWS]  # a file or a hub dataset


class Section(BaseModel):
    """One section of the YAML: no unknown keys, no value taken for another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def check_expressions(columns: dict[str, str] | None) -> dict[str, str] | None:
    """Columns as they are, each a jmespath expression."""
    for name, expression in (columns or {}).items():
        try:
            jmespath.compile(expression)
        except jmespath.exceptions.JMESPathError as error:
            reason = str(error).splitlines()[0].rstrip(":")
            raise ValueError(f"{name} must be a jmespath expression ({reason})") from error
    return columns


class EnvironmentSection(Section):
    """The environment. Further keys go to its constructor.

    Attributes:
        id: A registered id, "module:Class" or "path/to/file.py:Class".
        max_turns: Actions in an episode; the environment's own default when left out.
        max_tokens: Sampled and observed tokens after the prompt.
        context_length: All tokens of an episode; that of the model when left out.
        episode_timeout_s: Seconds an episode may take.
        system_prompt: Put before messages that have none.
        stop_tools: Names of tools that end the episode.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    id: CodeSource
    max_turns: Positive | None = None
    max_tokens: Positive | None = None
    context_length: Positive | None = None
    episode_timeout_s: Annotated[Number, Field(gt=0)] | None = None
    system_prompt: str | None = None
    stop_tools: list[str] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the environment's constructor gets: every key that was given but the id."""
        return {k: v for k, v in self.model_dump(exclude={"id"}).items() if v is not None}
