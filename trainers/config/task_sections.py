"""The sections of a run's YAML that say what is played: `environment`, `data` and `evaluation`.

environment: {id: gymnast/Arithmetic-v0, max_turns: 4, context_length: 1024}
environment: {compose: [gymnast/Arithmetic-v0, "notes.py:Notebook"], max_turns: 4}
environment: {mixture: [{id: gymnast/Arithmetic-v0, weight: 3}, {id: gymnast/Python-v0}]}
data: {train: rows.jsonl, columns: {prompt: question.text, answer: answer}}
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
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

import jmespath
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gymnast.trainers.base.config_errors import NAMED
from gymnast.trainers.base.settings import (
    Count,
    Integer,
    Number,
    Positive,
    PositiveNumber,
    Settings,
    Text,
)
from gymnast.trainers.data.input_paths import BACKEND, CODES, CodeName, RowsName
from gymnast.trainers.evaluation.settings import EvaluationSettings
from gymnast.types import Sampling


def _expressions(columns: dict[str, str]) -> dict[str, str]:
    for name, expression in columns.items():
        try:
            jmespath.compile(expression)
        except jmespath.exceptions.JMESPathError as error:
            reason = str(error).splitlines()[0].rstrip(":")
            raise ValueError(f"{name} must be a jmespath expression ({reason})") from error
    return columns


Columns = Annotated[dict[str, str], AfterValidator(_expressions)]


class WrapperSection(Settings):
    """A wrapper of Gymnasium's. Further keys go to its constructor."""

    model_config = ConfigDict(extra="allow")

    id: CodeName
    """The name of one in `gymnasium.wrappers`, "module:Class" or "path/to/file.py:Class"."""
    func: CodeName | None = None
    """A function, for a wrapper that takes one: "module:name" or "path/to/file.py:name"."""


def _by_id(given: Any) -> Any:
    """A list whose entries may be the `id` alone."""
    if not isinstance(given, list):
        return given
    return [{"id": one} if isinstance(one, str) else one for one in given]


class OneEnvironment(Settings):
    """An environment. Further keys go to its constructor."""

    model_config = ConfigDict(extra="allow")

    id: CodeName | None = None
    """A registered id, "scheme:name", "module:Class" or "path/to/file.py:Class"; or else
    `compose`."""
    compose: Annotated[list[str], CODES] = Field(default_factory=list)
    """Several such names, in place of `id`: the first is the task, and each further one brings its
    tools; see `gymnast.envs.compose`."""
    max_turns: Positive | None = None
    """Actions in an episode; the environment's own default when left out."""
    max_tokens: Positive | None = None
    """Sampled and observed tokens after the prompt."""
    context_length: Positive | None = None
    """All tokens of an episode; the model's context when left out, if it has one."""
    episode_timeout_s: PositiveNumber | None = None
    """Seconds that an episode may take."""
    system_prompt: str | None = None
    """Put before messages that have none."""
    stop_tools: list[str] | None = None
    """Names of tools that end the episode."""
    sandbox: Annotated[str | dict[str, Any] | None, BACKEND] = None
    """Where its boxes come from, if it uses any: a backend ("docker", "local", "module:Class") or
    `{backend: ..., image: ..., memory_bytes: ...}`; see `docs/sandboxes.md`."""

    @property
    def settings(self) -> dict[str, Any]:
        """What the environment's constructor gets: every key that was given but those of ours."""
        ours = {"id", "compose", *self._ours}
        return {k: v for k, v in self.model_dump(exclude=ours).items() if v is not None}

    @property
    def named(self) -> str:
        """What names the environment, for messages."""
        return self.id or f"compose({', '.join(self.compose)})"

    _ours: ClassVar[frozenset[str]] = frozenset()  # further keys that the constructor does not get
    _ways: ClassVar[tuple[str, ...]] = ("id", "compose")
    _not_here: ClassVar[Mapping[str, str]] = {}  # keys of `environment` alone, and what to do

    @model_validator(mode="after")
    def _is_named_once(self) -> Self:
        for key, instead in self._not_here.items():
            if key in (self.model_extra or {}):
                raise _named(key, f"cannot be set here; {instead}")
        ways = [way for way in self._ways if getattr(self, way)]
        if not ways:
            raise _named("id", f"is required, or else {' or '.join(self._ways[1:])}")
        if len(ways) > 1:
            both = f"{' and '.join(ways)} each name an environment"
            raise _named(ways[0], f"cannot be set beside {ways[1]}: {both}; leave one of them out")
        return self


def _named(key: str, why: str) -> PydanticCustomError:
    return PydanticCustomError(NAMED, "{why}", {"why": why, "key": key})


class MixtureEntry(OneEnvironment):
    """One environment of a mixture: the keys of `environment`, and these."""

    weight: PositiveNumber = 1.0
    """How often it is played, beside the weights of the others."""
    name: Text | None = None
    """What rows and metrics call it; the name of its class when left out."""
    data: RowsName | None = None
    """A file or hub dataset of rows; the environment's own rows when left out."""
    columns: Columns | None = None
    """Columns to add to the rows of `data`, as in the section `data`."""
    keep_columns: bool = True
    """Whether the other columns of `data` stay; else rows have `columns` alone."""

    _ours = frozenset({"weight", "name", "data", "columns", "keep_columns"})
    _not_here: ClassVar[Mapping[str, str]] = {
        "mixture": "list the environments of both mixtures in environment.mixture",
        "wrappers": "those of environment.wrappers wrap the whole mixture",
    }


class EnvironmentSection(OneEnvironment):
    """The environment. Further keys go to its constructor."""

    mixture: Annotated[list[MixtureEntry], BeforeValidator(_by_id)] = Field(default_factory=list)
    """Several environments, in place of `id`: each row is played by one of them; see
    docs/mixtures.md."""
    wrappers: Annotated[list[WrapperSection], BeforeValidator(_by_id)] = Field(default_factory=list)
    """Wrappers of Gymnasium's, the innermost first: names, or `{id: ..., **settings}`."""

    _ours = frozenset({"mixture", "wrappers"})
    _ways = ("id", "compose", "mixture")


class DataSection(Settings):
    """Rows from files or a hub; without the section the environment makes its own."""

    train: RowsName
    """A .jsonl, .json, .csv, .parquet or .arrow file, a folder that `save_to_disk` of `datasets`
    wrote, or a hub dataset's name. All values of a .csv file are text."""
    evaluation: RowsName | None = None
    """The same, for evaluation rows; without it they are taken from `train`."""
    columns: Columns | None = None
    """Columns to add to the rows, each a jmespath expression over a dataset's row."""
    keep_columns: bool = True
    """Whether the dataset's other columns stay; else rows have `columns` alone."""
    split: Text = "train"
    """The split of a hub dataset or a folder; `evaluation` may have another in
    `evaluation_split`."""
    evaluation_split: Text = "test"
    """The split of `evaluation`."""
    subset: Text | None = None
    """The subset of a hub dataset that has several."""


class EvaluationEnvironmentSection(OneEnvironment):
    """A further environment to evaluate in: the keys of `environment`, and these."""

    rows: Positive | None = None
    """How many evaluation rows; when left out, all of `data`, or `evaluation.rows` where the
    environment makes its own."""
    data: RowsName | None = None
    """A file or hub dataset of rows; the environment's own rows when left out."""
    columns: Columns | None = None
    """Columns to add to the rows of `data`, as in the section `data`."""
    keep_columns: bool = True
    """Whether the other columns of `data` stay; else rows have `columns` alone."""

    _ours = frozenset({"rows", "data", "columns", "keep_columns"})
    _not_here: ClassVar[Mapping[str, str]] = {
        "mixture": "list its environments in evaluation.environments, each by a name",
        "wrappers": "those of environment.wrappers wrap the run's own environment alone",
    }


def sampling_keys(*, optional: bool) -> Any:
    """The fields of `Sampling` as keys of a section, but for those that `rollout` fills.

    Args:
        optional: Whether a key that is left out is None, in place of the field's default.
    """
    hints = get_type_hints(Sampling, include_extras=True)
    kinds: dict[Any, Any] = {int: Integer, float: Number}
    keys: dict[str, Any] = {}
    for field in fields(Sampling):
        if field.name not in ("stop_ids", "seed"):
            number, *bounds = get_args(hints[field.name])
            kind: Any = Annotated[(kinds[number], *bounds)]
            keys[field.name] = (kind | None, None) if optional else (kind, field.default)
    return create_model("SamplingKeys", __base__=Settings, **keys)


class EvaluationRows(Settings):
    """What is played in the evaluations of a run."""

    rows: Count | None = None
    """How many evaluation rows; when left out, all of `data.evaluation`, or none without that."""
    environments: dict[str, EvaluationEnvironmentSection] = Field(default_factory=dict)
    """Further environments to evaluate in, by name."""
    seed: Integer = 0
    """Seeds the choice of rows. It is not the run's, so that runs of other seeds compare."""


_Sampling: Any = sampling_keys(optional=True)


class EvaluationSection(_Sampling, EvaluationSettings, EvaluationRows):
    """The evaluations of a run. The keys of `sampling` are as in training when left out."""

    def sampling(self, training: Mapping[str, Any]) -> dict[str, Any]:
        """How evaluation episodes are sampled, by the names of `Sampling`, as is `training`."""
        own = {name: getattr(self, name) for name in training}
        return {**training, **{name: value for name, value in own.items() if value is not None}}
