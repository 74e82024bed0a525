"""What learns: the policy with its optimizer, the reference, and the whole model.

Where weights are not sharded over processes, the model itself is trained. Where they are, a forward
pass needs collectives, so a sharded copy is trained. After each update the model, which every
process holds whole, takes over the weights of the copy; it is sampled from and saved.

What one update does is in `trainers/learner/update.py`.
"""

import copy
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from accelerate import Accelerator

from gymnast.agents.models.double_precision import FAILURES
from gymnast.agents.models.mergeable import make_mergeable
from gymnast.agents.models.quantized import has_quantized_layers
from gymnast.errors import ModelError, NotEnoughMemory, UsageError, first_line
from gymnast.trainers.algorithms.algorithm import Algorithm
from gymnast.trainers.base.seeds import derive
from gymnast.trainers.distributed.divided import NOTHING, Divided
from gymnast.trainers.distributed.reached_weights import ReachedWeights
from gymnast.trainers.distributed.sharding import whole
from gymnast.trainers.learner.assembly import (
    asked,
    compared_with,
    copies,
    division,
    optimized,
    refreshed_bytes,
)
from gymnast.trainers.learner.credit import (
    Groups,
    advantage_metrics,
    all_alike,
    has_spread,
    with_advantages,
)
from gymnast.trainers.learner.flops import ModelFlops, peak_flops
from gymnast.trainers.learner.memory.available import Available, available
from gymnast.trainers.learner.memory.choice import (
    PLAIN_TOKENS,
    Choice,
    StepMemory,
    micro_batches_line,
    room_for,
    two_digits,
)
from gymnast.trainers.learner.memory.estimate import fixed_memory
from gymnast.trainers.learner.memory.heap import free_exactly, give_back_freed_memory
from gymnast.trainers.learner.memory.measured import PassMeter, gauge_of
from gymnast.trainers.learner.model_checks import check_divided, leaves_out
from gymnast.trainers.learner.optimisation_step import unmeasured
from gymnast.trainers.learner.optimizers.dropping import Dropping
from gymnast.trainers.learner.optimizers.schedules import named_schedule
from gymnast.trainers.learner.outcomes import Outcomes
from gymnast.trainers.learner.policy.kernel_check import choose_kernels, use_plain
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.policy.shares import largest_over_processes
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.trainers.learner.update import Learned, UpdateSettings, imitate, update
from gymnast.types import Trajectory
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

T = TypeVar("T")


class Learner:
    """Trains a model.

    Args:
        model: Whole in every process. It is trained itself or, where weights are divided over
            processes, follows a divided copy.
        accelerator: Of this process.
        algorithm: What is learned by.
        settings: The optimizer's, and those of a batch.
        reward_weights: Of the parts of the reward, by name.
        temperature: At which the actions are sampled.
        divided: What several processes divide among themselves.
        seed: Of dropout.
        teacher_model: That of `algorithm.teacher`, where it is another one, or the servers that
            have it: a `teaching.Elsewhere`.
        unused_ids: Ids that have a logit and are no tokens; they are never sampled.

    Attributes:
        outcomes: The rewards that the run has seen.
        memory: What a step takes, and what becomes of its activations.
        gauge: Measures the memory of the device; None where nothing does.
        peak_flops: What the device computes at most, in FLOP/s; None where it is not known, or the
            FLOPs of the model are not.
        policy: The model as the loss sees it; with several processes, wrapped within `joined`.
        optimizer: Over the trained weights.

    Raises:
        ModelError: The model cannot be trained, or not be saved afterwards.
        ConfigError: The optimizer cannot update these weights, or they cannot be divided.
    """

    def __init__(
        self,
        model: Any,
        accelerator: Accelerator,
        algorithm: Algorithm,
        settings: LearnerSettings,
        *,
        reward_weights: Mapping[str, float],
        temperature: float,
        seed: int,
        divided: Divided = NOTHING,
        teacher_model: Any = None,
        unused_ids: Sequence[int] = (),
    ) -> None:
        if has_quantized_layers(model):
            check_divided(divided)
        make_mergeable(model)
        self._accelerator, self._seed = accelerator, seed
        self._asked_tokens = settings.tokens_per_microbatch  # None: chosen step by step
        self._settings = UpdateSettings(
            algorithm=algorithm,
            max_grad_norm=settings.max_grad_norm,
            tokens_per_microbatch=self._asked_tokens or PLAIN_TOKENS,
            reward_weights=reward_weights,
        )
        self.gauge, self._corrected = gauge_of(accelerator.device), False
        self.outcomes = Outcomes()
        self._replays = settings.replay_routing
        self._refreshes_every = algorithm.kl.refresh_every_steps if algorithm.kl else 0
        self._reference, self._teaching = compared_with(
            *(algorithm, model, teacher_model), temperature=temperature, unused_ids=unused_ids
        )
        several = accelerator.num_processes > 1
        divided = divided if several else NOTHING
        self._sums_gradients = several and not divided.anything
        trained = copy.deepcopy(model) if divided.weights else model
        way = asked(settings.activations, accelerator.device)
        policy = Policy(
            trained,
            temperature=temperature,
            activations=way or "keep",
            replay_routing=settings.replay_routing,
            unused_ids=unused_ids,
        )
        rate = peak_flops(accelerator.device, policy.model.dtype, settings.peak_tflops)
        flops = None if rate is None else _counted(policy)
        self.peak_flops = None if flops is None else rate
        self._settings = replace(self._settings, flops=flops)
        self.memory = StepMemory(
            policy,
            fixed_memory(
                model,
                [weight for weight in trained.parameters() if weight.requires_grad],
                division(accelerator.num_processes, divided),
                others=[teacher_model] if isinstance(teacher_model, torch.nn.Module) else [],
                copies=copies(algorithm, model),
                later=refreshed_bytes(self._reference, self._refreshes_every, model),
            ),
            asked=way,
            entropies=algorithm.taught_exactly
            or (algorithm.entropy_bonus != 0 and (divided.weights or not policy.head_is_matrix)),
            share=settings.memory,
            fills=accelerator.device.type != "cpu",
            in_one_process=not several,
        )
        if accelerator.is_main_process:
            _tell(model, policy)
        if accelerator.device.type == "cuda":
            self._check_kernels(policy)
        if divided.anything:
            self.memory.measure()
        self._schedule = named_schedule(settings.schedule)
        self.policy, self.optimizer = optimized(policy, trained, accelerator, settings, divided)
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # of the model, of the copy
        if trained is not model:
            self._follow(model, trained)

    def _check_kernels(self, policy: Policy) -> None:
        """Check the kernels of training; if they are wrong in one process, none uses them."""
        algorithm, accelerator = self._settings.algorithm, self._accelerator
        right = choose_kernels(
            policy,
            entropy="trained" if algorithm.entropy_bonus else "measured",
            reports=accelerator.is_main_process,
        )
        (wrong,) = largest_over_processes(accelerator, [float(not right)])
        if wrong:
            use_plain(policy)
            scorer = None if self._teaching is None else self._teaching.scorer
            for reference in (self._reference, scorer):
                if isinstance(reference, Reference):
                    reference.use_plain()

    def _follow(self, model: Any, trained: Any) -> None:
        """Have the model take over the weights of its divided copy."""
        wholes = dict(model.named_parameters())
        named = trained.named_parameters()
        self._copies = [(wholes[name], weight) for name, weight in named if weight.requires_grad]
        model.requires_grad_(False)

    @property
    def parts(self) -> dict[str, Outcomes | Reference]:
        """What changes from step to step beside the weights, by name; for `RunState`."""
        parts: dict[str, Outcomes | Reference] = {"outcomes": self.outcomes}
        if self._reference is not None:
            parts["reference"] = self._reference
        return parts

    def kept_of_reference(self, *, warms_up: bool) -> int:
        """What a checkpoint holds of the reference, in bytes: its weights, once it is refreshed.

        Args:
            warms_up: Whether the run has a warm-up, at whose end it is.
        """
        refreshed = self._refreshes_every or warms_up
        return self._reference.refreshed_bytes if self._reference and refreshed else 0

    def kv_budget(self) -> int | None:
        """Return how much memory keys and values may take by default; a collective call.

        They stay while a step is learned from: a quarter of what weights, optimizer, gradients, and
        the copies of weights into which adapters are folded leave. None where the memory is not
        known, or nothing is left.
        """
        room = self._room()
        if room is None:
            return None
        fixed = self.memory.fixed
        taken = fixed.weights + fixed.optimizer + fixed.gradients
        left = room.nbytes - taken - fixed.folded
        return left // 4 if left >= 4 else None

    def prepare(self, longest: int, batch_tokens: int) -> Choice:
        """Choose how steps are made, by the memory there is now; a collective call.

        Args:
            longest: How long an episode is at most, in tokens; 0 where nobody says.
            batch_tokens: How many tokens a step's batch has at most.

        Raises:
            NotEnoughMemory: A step would not fit.
        """
        self.memory.room = self._room() or self.memory.room
        return self._choose(longest, batch_tokens)

    def _room(self) -> Available | None:
        """Return the memory that every process has for a step; None where it is not known."""
        free = available(self._accelerator.device)
        least = -math.inf if free is None else -free.nbytes
        (found,) = largest_over_processes(self._accelerator, [least])
        if free is None or not math.isfinite(found):
            return None
        free = Available(-int(found) + self.memory.kv_held, free.of)
        return room_for(self.memory.fixed, free)

    def _choose(self, longest: int, batch_tokens: int, actions: int | None = None) -> Choice:
        """Choose how the next step is made; all processes choose alike."""
        choice = self.memory.choose(self._asked_tokens, longest, actions, batch_tokens=batch_tokens)
        self.memory.policy.activations = choice.activations
        if choice.exact:
            free_exactly(self._accelerator.device)
        return choice

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Within the block updates can be made; a collective call.

        Where every process has whole weights, torch's DDP sums their gradients. It must not outlive
        the connection of the processes: freed after its end, it may wait for a thread that waits
        for it. So it exists within the block alone.
        """
        for weight in self.optimizer.parameters:
            weight.grad = None  # of an update that an error ended
        if not self._sums_gradients:
            yield
            return
        policy = self.policy
        self.policy = joined = self._accelerator.prepare(ReachedWeights(policy))
        try:
            yield
        finally:
            self.policy = policy
            for thread_holder in ("logger", "reducer"):  # also where a traceback holds the rest
                joined.__dict__.pop(thread_holder, None)
            del joined
            self._accelerator.free_memory()  # drops its own reference, and collects cycles

    def update(
        self,
        groups: Groups,
        step: int,
        *,
        done: float = 0.0,
        demonstrations: Sequence[Trajectory] = (),
        played: Groups | None = None,
        scale_by_teaching: bool = False,
    ) -> Learned:
        """Learn from a step's trajectories; a collective call.

        Args:
            groups: Of all processes.
            step: How many steps came before; seeds dropout, so that a resumed run draws the same.
            done: The share of the run's steps that came before, for the schedule.
            demonstrations: Of all processes, to learn from beside them.
            played: All groups of the step, where others were played than are learned from.
            scale_by_teaching: Multiply the learning rate by the share of episodes that teach.

        Raises:
            NotEnoughMemory: An episode is too long for the memory there is.
            UsageError: Routing is to be replayed, and an episode does not say which experts were
                chosen.
        """
        if self._replays and any(
            context.experts is None for group in groups for t in group for context in t.contexts
        ):
            raise UsageError(
                "replay_routing: the agent's completions have no experts (`Completion.experts`), "
                "though it says that it keeps them; set replay_routing to false"
            )
        if self._refreshes_every and step and step % self._refreshes_every == 0:
            assert self._reference is not None
            self._reference.refresh()

        def learn(settings: UpdateSettings) -> Learned:
            self.optimizer.scheduled = self._schedule(min(1.0, done))
            return update(
                self.policy,
                self.optimizer,
                groups,
                settings,
                self._accelerator,
                self._reference,
                self._teaching,
                demonstrations,
                scale_by_teaching=scale_by_teaching,
            )

        together = [t for group in groups for t in group] + [*demonstrations]
        learned = self._learn_from(together, "update", step, learn)
        self.gather()
        return replace(learned, metrics=learned.metrics | self.outcomes.metrics(groups, played))

    def try_update(self, groups: Groups) -> dict[str, float]:
        """Compute an update from a step's trajectories and drop its gradients: nothing changes.

        Every episode gets an advantage, so that all are computed, as in a step in which all differ.

        Args:
            groups: Of this process, which is the only one.

        Returns:
            The metrics of an update; those of advantages are of the ones that were given.

        Raises:
            NotEnoughMemory: An episode is too long for the memory there is.
        """
        algorithm = replace(self._settings.algorithm, estimator=all_alike)

        def learn(settings: UpdateSettings) -> Learned:
            settings = replace(settings, algorithm=algorithm)
            return update(
                *(self.policy, Dropping(self.optimizer), groups, settings, self._accelerator),
                *(self._reference, self._teaching),
            )

        together = [t for group in groups for t in group]
        return self._learn_from(together, "update", 0, learn).metrics

    def outcome_metrics(self, groups: Groups) -> dict[str, float]:
        """What an update would say of advantages and of groups, without making one.

        Args:
            groups: Of all processes.
        """
        estimator, weights = self._settings.algorithm.estimator, self._settings.reward_weights
        credited = with_advantages(groups, estimator, weights)
        return advantage_metrics(credited) | Outcomes().metrics(groups)

    def has_spread(self, group: Sequence[Trajectory]) -> bool:
        """Whether the estimator learns anything from a group; see `credit.has_spread`."""
        settings = self._settings
        return has_spread(group, settings.algorithm.estimator, settings.reward_weights)

    def imitate(
        self, demonstrations: Sequence[Trajectory], step: int, *, learning_rate: float | None = None
    ) -> dict[str, float]:
        """Take one optimisation step towards demonstrations; a collective call.

        Args:
            demonstrations: Of all processes.
            step: How many such steps came before; seeds dropout.
            learning_rate: Of all weights; None is what they have.

        Returns:
            `loss`, the mean negative log-likelihood of a token, in nats, at the temperature of
            sampling, and the metrics of the step, named as those of an update.

        Raises:
            NotEnoughMemory: A demonstration is too long for the memory there is.
        """
        self.optimizer.scheduled, self.optimizer.one_rate = 1.0, learning_rate

        def learn(settings: UpdateSettings) -> dict[str, float]:
            return imitate(self.policy, self.optimizer, demonstrations, settings, self._accelerator)

        try:
            found = self._learn_from(demonstrations, "imitate", step, learn)
        finally:
            self.optimizer.one_rate = None
        self.gather()
        return found

    def begin_anew(self) -> None:
        """Go on from the weights as they are, as if they had been loaded; a collective call.

        The optimizer forgets its moments and its steps, and the reference is the policy as it is.
        """
        self.optimizer.forget()
        if self._reference is not None:
            self._reference.refresh()

    @property
    def algorithm(self) -> Algorithm:
        """What is learned by."""
        return self._settings.algorithm

    def _learn_from(
        self,
        trajectories: Sequence[Trajectory],
        purpose: str,
        step: int,
        learn: Callable[[UpdateSettings], T],
    ) -> T:
        """Learn within the memory there is, with dropout seeded; a collective call.

        Where the size of micro-batches is chosen, one that runs out of memory in spite of the
        estimate is halved.

        Raises:
            NotEnoughMemory: There is not enough.
        """
        lengths = [len(context.ids) for each in trajectories for context in each.contexts]
        longest, batch_tokens = max(lengths, default=0), sum(lengths)
        actions = sum(trajectory.action_tokens for trajectory in trajectories)
        while True:
            choice = None
            limit = self.memory.plain_limit(self._asked_tokens)
            if self.memory.room is not None:
                choice = self._choose(longest, batch_tokens, actions)
                limit = choice.limit
            meter = self._meter(choice)
            settings = replace(
                self._settings,
                tokens_per_microbatch=limit,
                around_pass=meter.measuring if meter else unmeasured,
            )
            taken = self._steps_done
            give_back_freed_memory(self._accelerator.device)  # what sampling took
            try:
                with torch.random.fork_rng(devices=[]):
                    process = self._accelerator.process_index
                    torch.manual_seed(derive(self._seed, purpose, step, process))
                    learned = learn(settings)
            except torch.OutOfMemoryError as error:
                tokens = max(longest, min(limit, batch_tokens))
                self._halve(tokens, longest, error, again=taken == self._steps_done)
            else:
                if meter is not None and choice is not None:
                    self._correct(meter, choice, longest, batch_tokens, actions)
                return learned
            gc.collect()  # what the error's traceback held
            torch.cuda.empty_cache()

    @property
    def _steps_done(self) -> int:
        """The optimisation steps that were taken or skipped."""
        return self.optimizer.steps + self.optimizer.skipped

    def _halve(
        self, tokens: int, longest: int, error: torch.OutOfMemoryError, *, again: bool
    ) -> None:
        """Allow half of the tokens of micro-batches that ran out of memory.

        Args:
            tokens: Of a micro-batch, at most.
            longest: Of the longest episode.
            error: Of torch.
            again: Whether the update can be made again: no weight has changed.

        Raises:
            NotEnoughMemory: They were set, or cannot be halved; or the update cannot be made again.
        """
        alone = self._accelerator.num_processes == 1  # else others wait in a collective call
        chosen = self._asked_tokens is None
        if chosen and alone and again and self.memory.halve(tokens, longest):
            self.optimizer.zero_grad()
            logger.warning(
                "a step ran out of memory with micro-batches of up to %s tokens; it is made again "
                "with up to %s",
                f"{tokens:,}",
                f"{self.memory.most_that_fit:,}",
            )
            return
        if tokens > longest:
            smaller = two_digits(max(longest, tokens // 2))
            remedy = f"Set trainer.tokens_per_microbatch to {max(1, smaller)}."
        else:
            remedy = (
                f"The longest episode has {longest:,}: lower environment.context_length, or set "
                "trainer.activations to recompute."
            )
        raise NotEnoughMemory(
            f"a step ran out of memory with micro-batches of up to {tokens:,} tokens "
            f"({first_line(error)}). {remedy}"
        ) from error

    def _meter(self, choice: Choice | None) -> PassMeter | None:
        """Return what measures a step's passes, where its size is chosen by their memory."""
        chosen = self._asked_tokens is None and self.memory.fills and choice is not None
        if not chosen or self._corrected or self.gauge is None:
            return None
        return PassMeter(self.gauge, self.memory.policy.count_tokens)

    def _correct(
        self, meter: PassMeter, choice: Choice, longest: int, batch_tokens: int, actions: int
    ) -> None:
        """Correct the estimate by the passes of a step; a collective call.

        Args:
            meter: Has measured them.
            choice: How they were made.
            longest: Of the step, like the numbers that follow: see `StepMemory.choose`.
            batch_tokens: Of its episodes.
            actions: Of its episodes.
        """
        own = self.memory.off_by(meter.passes, choice)
        (off_by,) = largest_over_processes(self._accelerator, [0.0 if own is None else own])
        if not off_by:
            return  # no pass was long enough
        self._corrected = True
        self.memory.correct(off_by)
        with suppress(NotEnoughMemory):  # which the next step raises, if it is as long
            now = self._choose(longest, batch_tokens, actions)
            same = (now.tokens, now.activations) == (choice.tokens, choice.activations)
            if not same and self._accelerator.is_main_process:
                logger.info(
                    "from now on %s: the first step took %.2f of what was estimated for its "
                    "activations",
                    micro_batches_line(now),
                    off_by,
                )

    @torch.no_grad()
    def gather(self) -> None:
        """Make the model equal to what is trained; a collective call, one weight at a time."""
        for copied, weight in self._copies:
            copied.copy_(whole(weight))


def _counted(policy: Policy) -> ModelFlops | None:
    """Count the FLOPs of the model's passes, as far as its modules say what they are."""
    try:
        return ModelFlops.of(policy.model, packed=policy.path == "packed")
    except (ModelError, *FAILURES) as error:  # a figure is no reason to end a run
        logger.info("perf/mfu is not reported: %s", error)
        return None


def _tell(model: Any, policy: Policy) -> None:
    """Say how a model is trained, where it is not as one may think."""
    if sentence := leaves_out(model):
        logger.warning(sentence)
    if policy.not_packed:
        logger.info(
            "training on padded rows, in which each trajectory computes its prompt: %s",
            policy.not_packed,
        )
