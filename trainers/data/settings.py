"""The settings of what a step plays: dynamic sampling and the curriculum."""

from typing import Annotated

import jmespath
from pydantic import AfterValidator, Field

from gymnast.errors import ConfigError
from gymnast.trainers.base.settings import Number, Positive, Settings, Text


def _expression(text: str) -> str:
    try:
        jmespath.compile(text)
    except jmespath.exceptions.JMESPathError as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise ValueError(f"must be a column or a jmespath expression ({reason})") from error
    return text


class DynamicSamplingSettings(Settings):
    """Groups without spread are replaced by further rows within the step."""

    most_rows: Positive
    """Rows that a step plays at most, over all processes; at least `rows_per_step`."""


class CurriculumSettings(Settings):
    """Rows are drawn by how often they pass; see docs/sampling.md."""

    target: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    """The pass rate that is preferred."""
    uniform_share: Annotated[Number, Field(ge=0, le=1)] = 0.1
    """The share of the draws in which every row is as likely as another, so that none is
    forgotten."""
    pass_reward: Number = 1.0
    """An episode passes if its reward is at least this."""
    discount: Annotated[Number, Field(ge=0, le=1)] = 0.5
    """What earlier episodes of a row count for, each time that it is played again: the policy has
    changed since."""
    by: Annotated[Text, AfterValidator(_expression)] | None = None
    """A column of the rows, or a jmespath expression: rows with the same value are estimated
    together. Required where rows are made without end, since none of them comes again."""


class RowSettings(Settings):
    """Which rows a step plays."""

    dynamic_sampling: DynamicSamplingSettings | None = None
    """Replace groups from which the estimator learns nothing by further rows within the step."""
    curriculum: CurriculumSettings | None = None
    """Draw rows by how often they pass, rather than epoch by epoch."""

    def most_rows(self, rows_per_step: int, place: str = "") -> int:
        """How many rows a step plays at most.

        Args:
            rows_per_step: How many groups it is to train on.
            place: What precedes the settings' names in the error: "trainer.".

        Raises:
            ConfigError: It could not reach `rows_per_step`.
        """
        if self.dynamic_sampling is None:
            return rows_per_step
        most = self.dynamic_sampling.most_rows
        if most < rows_per_step:
            raise ConfigError(
                f"{place}dynamic_sampling.most_rows: must be >= {rows_per_step}, "
                f"{place}rows_per_step, got {most}; three times as many is a good beginning"
            )
        return most
