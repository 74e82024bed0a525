"""What learns: the policy with its optimizer, the reference, and the whole model.

Where weights are not sharded over processes, the model itself is trained. Where they are, a forward
pass needs collectives, so a sharded copy is trained. After each update the model, which every
process holds whole, takes over the weights of the copy; it is sampled from and saved.

What one update does is in `trainers/learner/update.py`.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator

from gymnast.agents.models.mergeable import make_mergeable
from gymnast.agents.models.quantized import has_quantized_layers
from gymnast.errors import UsageError
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
from gymnast.trainers.learner.memory.available import Available, available
from gymnast.trainers.learner.memory.choice import Choice, StepMemory, room_for
from gymnast.trainers.learner.memory.estimate import fixed_memory
from gymnast.trainers.learner.memory.heap import free_exactly, give_back_freed_memory
from gymnast.trainers.learner.model_checks import check_divided, leaves_out
from gymnast.trainers.learner.optimizers.dropping import Dropping
from gymnast.trainers.learner.optimizers.schedules import named_schedule
from gymnast.trainers.learner.outcomes import Outcomes
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.policy.shares import largest_over_processes
from gymnast.trainers.learner.settings import LearnerSettings
from gymnast.trainers.learner.update import Learned, UpdateSettings, imitate, update
from gymnast.types import Trajectory
from gymnast.visible import visible_logger

logger = visible_logger(__name__)


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
        self._settings = UpdateSettings(
            algorithm, settings.max_grad_norm, settings.tokens_per_microbatch, reward_weights
        )
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
            entropies=algorithm.entropy_bonus != 0 or algorithm.taught_exactly,
        )
        if accelerator.is_main_process:
            _tell(model, policy)
        if divided.anything:
            self.memory.measure()
        self._schedule = named_schedule(settings.schedule)
        self.policy, self.optimizer = optimized(policy, trained, accelerator, settings, divided)
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # of the model, of the copy
        if trained is not model:
            self._follow(model, trained)

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
        tokens = min(self._settings.tokens_per_microbatch, batch_tokens)
        choice = self.memory.choose(tokens, longest, actions)
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
        self.optimizer.scheduled = self._schedule(min(1.0, done))
        together = [t for group in groups for t in group] + [*demonstrations]
        with self._learning_from(together, "update", step):
            learned = update(
                self.policy,
                self.optimizer,
                groups,
                self._settings,
                self._accelerator,
                self._reference,
                self._teaching,
                demonstrations,
                scale_by_teaching=scale_by_teaching,
            )
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
        settings = replace(self._settings, algorithm=algorithm)
        with self._learning_from([t for group in groups for t in group], "update", 0):
            learned = update(
                *(self.policy, Dropping(self.optimizer), groups, settings, self._accelerator),
                *(self._reference, self._teaching),
            )
        return learned.metrics

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
        try:
            with self._learning_from(demonstrations, "imitate", step):
                found = imitate(
                    self.policy, self.optimizer, demonstrations, self._settings, self._accelerator
                )
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

    @contextmanager
    def _learning_from(
        self, trajectories: Sequence[Trajectory], purpose: str, step: int
    ) -> Iterator[None]:
        """Within the block there is memory for these trajectories, and dropout is seeded."""
        if self.memory.room is not None:
            lengths = [len(context.ids) for each in trajectories for context in each.contexts]
            actions = sum(trajectory.action_tokens for trajectory in trajectories)
            self._choose(max(lengths, default=0), sum(lengths), actions)
        give_back_freed_memory(self._accelerator.device)  # what sampling took
        with torch.random.fork_rng(devices=[]):
            process = self._accelerator.process_index
            torch.manual_seed(derive(self._seed, purpose, step, process))
            yield

    @torch.no_grad()
    def gather(self) -> None:
        """Make the model equal to what is trained; a collective call, one weight at a time."""
        for copied, weight in self._copies:
            copied.copy_(whole(weight))


def _tell(model: Any, policy: Policy) -> None:
    """Say how a model is trained, where it is not as one may think."""
    if sentence := leaves_out(model):
        logger.warning(sentence)
    if policy.not_packed:
        logger.info(
            "training on padded rows, in which each trajectory computes its prompt: %s",
            policy.not_packed,
        )
