"""The `evaluation` section of a run's YAML.

evaluation:
  rows: 128
  every_steps: 4
  group_size: 4
  temperature: 0.7
  by: {operation: operation, large: "a > `50`"}
  environments:
    hundreds: {id: gymnast/Arithmetic-v0, min_operand: 100, max_operand: 999}
    exam: {id: "exam.py:Exam", max_turns: 4, data: exam.jsonl}
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from gymnast.trainers.config.values import (
    Count,
    EnvironmentSection,
    Integer,
    Number,
    Positive,
    RowSource,
    Section,
    check_expressions,
)


class EvaluationEnvironmentSection(EnvironmentSection):
    """A further environment to evaluate in; keys as in `environment`, and these.

    Attributes:
        rows: How many; when left out, all of `data`, or `evaluation.rows` where it makes its own.
        data: A file or hub dataset of rows; the environment's own rows when left out.
        columns: Of `data`, as in the section of that name.
        keep_columns: As there.
    """

    rows: Positive | None = None
    data: RowSource | None = None
    columns: dict[str, str] | None = None
    keep_columns: bool = True

    _expressions = field_validator("columns")(check_expressions)

    @property
    def settings(self) -> dict[str, Any]:
        """What the environment's constructor gets."""
        ours = {"id", *EvaluationEnvironmentSection.__annotations__}
        return {k: v for k, v in self.model_dump(exclude=ours).items() if v is not None}


class EvaluationSection(Section):
    """Held-out rows. The keys of sampling are as in training when left out.

    Attributes:
        rows: How many; all of `data.evaluation` when left out, or none without that.
        every_steps: Evaluate every so many steps besides before the first and after the last.
        group_size: Episodes a row.
        pass_reward: An episode passes when its reward reaches this.
        by: Columns of the rows, or jmespath expressions by name; see `trainers/evaluation/tags.py`.
        environments: Further environments, by name.
        seed: Of the choice of rows. It is not the run's, so that runs of other seeds compare.
        temperature: 0 is greedy.
        top_p: Of the likeliest tokens that have this much probability together.
        top_k: Of the so many likeliest tokens; 0 is all.
        min_p: Of the tokens that are this share as likely as the likeliest.
        repetition_penalty: 1 is none.
        max_new_tokens: In a turn.
    """

    rows: Count | None = None
    every_steps: Count = 0
    group_size: Positive = 1
    pass_reward: Number = 1.0
    by: Any = Field(default_factory=list)
    environments: dict[str, EvaluationEnvironmentSection] = Field(default_factory=dict)
    seed: Integer = 0
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Count | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None
    max_new_tokens: Positive | None = None

    @field_validator("by")
    @classmethod
    def _tags(cls, by: Any) -> Any:
        texts = [*by, *by.values()] if isinstance(by, dict) else by
        if not isinstance(texts, list) or not all(t and isinstance(t, str) for t in texts):
            raise ValueError("must be a list of columns, or jmespath expressions by name")
        return by

    def sampling(self, training: Mapping[str, Any]) -> dict[str, Any]:
        """How evaluation episodes are sampled, by the names of `Sampling`, as is `training`."""
        own = {name: getattr(self, name) for name in training}
        return {**training, **{name: value for name, value in own.items() if value is not None}}
