"""The teacher at work: it reads the policy's episodes, and says what it would have sampled.

It reads each episode behind its own prompt, which may hold a hint; all that follows the prompt is
the same token ids. Of an episode with several contexts it reads each by itself; a hint is in the
first one's prompt alone. What it says becomes advantages (`taught`) or a part of the loss
(`with_teacher`); `trainers/algorithms/distillation.py` says which.

    teacher/kl              the mean divergence of a token: sampled, log p - log q; exact, that of
                            the whole vocabulary, which `divergence` names
    teacher/logprob         the mean log-probability that the teacher gives a sampled token
    teacher/episodes        the share of episodes in which the teacher has a say
    teacher/hinted          the share of episodes with a hint
    teacher/too_long        the share of episodes that are too long for the teacher with its prompt
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch
from accelerate import Accelerator

from gymnast.agents.models.context_limits import longest_context
from gymnast.trainers.algorithms.aggregations import token_mean
from gymnast.trainers.algorithms.distillation import Teacher
from gymnast.trainers.distributed.processes import together
from gymnast.trainers.learner.policy.head import TeacherStates
from gymnast.trainers.learner.policy.in_time import merged
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.reference import Reference
from gymnast.trainers.learner.policy.shares import (
    Scored,
    Share,
    by_trajectory,
    make_share,
    with_logprobs,
)
from gymnast.types import Span, Trajectory

Credited = list[list[CreditedTrajectory]]


class Elsewhere(Protocol):
    """A teacher in other processes.

    Attributes:
        longest: How many tokens it reads at most.
    """

    longest: int

    def logprobs(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """The log-probability of each token but the first, of each text of token ids.

        They are unfiltered, and at temperature 1.
        """
        ...


@dataclass(frozen=True)
class Teaching:
    """A teacher, and the model that it is.

    Attributes:
        teacher: How it teaches.
        scorer: Its model, here or elsewhere.
        longest: How many tokens it reads at most; None: any number.
    """

    teacher: Teacher
    scorer: "Reference | Elsewhere"
    longest: int | None

    @classmethod
    def of(
        cls,
        teacher: Teacher,
        policy: Any,
        other: Any,
        *,
        temperature: float,
        unused_ids: Sequence[int] = (),
    ) -> "Teaching":
        """A teacher with its model.

        Args:
            teacher: How it teaches.
            policy: The model that is trained, before its first update.
            other: The teacher's own model, where it is another one; or an `Elsewhere`.
            temperature: At which the actions are sampled; the teacher's logits are divided by it
                too. Elsewhere it is 1.
            unused_ids: See `Policy`; the teacher's distributions leave them out too, but elsewhere.
        """
        if teacher.is_served:
            return cls(teacher, other, other.longest)
        model = other if teacher.is_other else policy
        how: dict[str, Any] = {"temperature": temperature, "unused_ids": unused_ids}
        scorer = Reference(model, as_it_is=not teacher.is_base, **how)
        return cls(teacher, scorer, longest_context(model.config))

    def reads(self, trajectory: Trajectory) -> Trajectory | None:
        """A context of an episode as the teacher reads it; None where it has no say.

        That is where the context is too long with the teacher's prompt, has no action, or where the
        policy, as its own teacher, has no hint.
        """
        hinted = self.is_hinted(trajectory)
        if not trajectory.action_tokens or (self.teacher.is_policy and not hinted):
            return None
        if self.is_too_long(trajectory):
            return None
        return _behind(trajectory.teacher_prompt_ids, trajectory) if hinted else trajectory

    def is_hinted(self, trajectory: Trajectory) -> bool:
        """Whether the teacher reads a context behind a prompt of its own."""
        return self.teacher.uses_hints and bool(trajectory.teacher_prompt_ids)

    def is_too_long(self, trajectory: Trajectory) -> bool:
        """Whether a context, behind the teacher's prompt, is longer than the teacher can read."""
        more = 0
        if self.is_hinted(trajectory):
            more = len(trajectory.teacher_prompt_ids) - trajectory.prompt_length
        return self.longest is not None and len(trajectory.ids) + more > self.longest

    def counts(self, credited: Credited) -> dict[str, float]:
        """In which share of the episodes it has a say, and why not; {} without episodes.

        One context with a say is enough, and one that is too long.
        """
        episodes = [[c.trajectory for c in e.contexts] for group in credited for e in group]
        if not episodes:
            return {}
        found = {
            "teacher/episodes": sum(any(self.reads(c) is not None for c in e) for e in episodes),
            "teacher/hinted": sum(any(map(self.is_hinted, each)) for each in episodes),
            "teacher/too_long": sum(any(map(self.is_too_long, each)) for each in episodes),
        }
        return {name: number / len(episodes) for name, number in found.items()}


def _behind(prompt: Sequence[int], trajectory: Trajectory) -> Trajectory:
    """An episode behind another prompt; what the loss does not look at is left out."""
    before, more = trajectory.prompt_length, len(prompt) - trajectory.prompt_length
    return replace(
        trajectory,
        ids=[*prompt, *trajectory.ids[before:]],
        action_mask=[0] * len(prompt) + trajectory.action_mask[before:],
        logprobs=[0.0] * len(prompt) + trajectory.logprobs[before:],
        prompt_length=len(prompt),
        turns=[Span(start + more, end + more) for start, end in trajectory.turns],
        versions=(),
        token_rewards=(),
        experts=None,
    )


def taught(
    credited: Credited,
    teaching: Teaching,
    accelerator: Accelerator,
    *,
    tokens_per_microbatch: int,
) -> tuple[Credited, dict[str, float]]:
    """Add a sampling teacher's part to the advantages; a collective call.

    The policy's log-probabilities are those that the agent sampled with.

    Args:
        credited: Of all processes, the same in each.
        teaching: The teacher.
        accelerator: Of this process.
        tokens_per_microbatch: How many packed tokens one forward pass takes.

    Returns:
        The groups, with an advantage a token where the teacher has a say; and metrics.
    """
    contexts = [[context for e in group for context in e.contexts] for group in credited]
    read = {id(c.trajectory): teaching.reads(c.trajectory) for group in contexts for c in group}
    groups = [[read[id(c.trajectory)] for c in group] for group in contexts]
    views = [[view for view in group if view is not None] for group in groups]
    if isinstance(teaching.scorer, Reference):
        of_teacher = _here(views, teaching.scorer, accelerator, tokens_per_microbatch)
    else:
        of_teacher = _elsewhere([*chain(*views)], teaching.scorer, accelerator)

    def part_of(context: CreditedTrajectory) -> torch.Tensor:
        view = read[id(context.trajectory)]
        if view is None:
            return torch.zeros_like(context.token_advantages)
        return teaching.teacher.advantages(_sampled(view), of_teacher[id(view)])

    def with_part(episode: CreditedTrajectory) -> CreditedTrajectory:
        advantages = episode.token_advantages
        if any(read[id(context.trajectory)] is not None for context in episode.contexts):
            parts = [part_of(context) for context in episode.contexts]
            advantages = advantages + merged(parts, episode.trajectory)
        return replace(episode, advantages=advantages, by_token=True)

    metrics = teaching.counts(credited)
    if of_teacher:
        theirs = torch.cat(list(of_teacher.values()))
        sampled = {id(view): _sampled(view) for view in chain(*views)}
        ours = torch.cat([sampled[key] for key in of_teacher])
        metrics["teacher/kl"] = (ours - theirs).mean().item()
        metrics["teacher/logprob"] = theirs.mean().item()
    return [[with_part(episode) for episode in group] for group in credited], metrics


def _here(
    views: list[list[Trajectory]], scorer: Reference, accelerator: Accelerator, tokens: int
) -> dict[int, torch.Tensor]:
    """What a model in this process makes of the action tokens, by the `id` of each episode."""
    share = make_share(
        [[CreditedTrajectory(v, torch.zeros(len(v.turns))) for v in group] for group in views],
        token_mean,
        accelerator,
        divide=scorer.split,
        tokens_per_microbatch=tokens,
        also_idle=True,
    )
    share = with_logprobs(share, reference=scorer.logprobs)
    found = [s.reference_logprobs for s in share.batches if s.reference_logprobs is not None]
    return by_trajectory(share, found, accelerator)


def _elsewhere(
    views: Sequence[Trajectory], scorer: Elsewhere, accelerator: Accelerator
) -> dict[int, torch.Tensor]:
    """What other processes make of them; each process asks for every n-th episode."""
    places = range(accelerator.process_index, len(views), accelerator.num_processes)
    told = together(accelerator, lambda: scorer.logprobs([views[place].ids for place in places]))
    found = {}
    for process, part in enumerate(told):
        for place, logprobs in zip(
            range(process, len(views), accelerator.num_processes), part, strict=True
        ):
            found[id(views[place])] = _of_actions(views[place], [0.0, *logprobs])
    return found


def _sampled(trajectory: Trajectory) -> torch.Tensor:
    """The policy's log-probabilities of its action tokens, as the agent reported them."""
    return _of_actions(trajectory, trajectory.logprobs)


def _of_actions(trajectory: Trajectory, numbers: Sequence[float]) -> torch.Tensor:
    """Those of the action tokens, of one number a token."""
    mask = torch.tensor(trajectory.action_mask, dtype=torch.bool)
    return torch.tensor(numbers, dtype=torch.float32)[mask]


def with_teacher(share: Share, teaching: Teaching) -> Share:
    """Have an exact teacher read each micro-batch of a share just before its loss.

    Its states of one micro-batch exist at a time. It is the same in all steps of a batch: only a
    batch of one step may have the policy itself as an exact teacher.
    """
    read = [replace(s, teacher=partial(_states, s, teaching)) for s in share.batches]
    return replace(share, batches=read)


def _states(scored: Scored, teaching: Teaching) -> TeacherStates | None:
    """What the teacher makes of a micro-batch; zeros where it has no say, None without any."""
    device = scored.batch.targets.device
    views = [teaching.reads(trajectory) for trajectory in scored.trajectories]
    read = [view for view in views if view is not None]
    if not read:
        return None
    taught = torch.cat(
        [
            torch.full((t.action_tokens,), float(view is not None))
            for t, view in zip(scored.trajectories, views, strict=True)
        ]
    ).to(device)
    credited = [CreditedTrajectory(view, torch.zeros(len(view.turns))) for view in read]
    assert isinstance(teaching.scorer, Reference)  # an exact teacher is not elsewhere
    found = teaching.scorer.hidden(micro_batch(credited, device))
    hidden = found.new_zeros(len(taught), found.shape[-1])
    hidden[taught.bool()] = found
    return TeacherStates(hidden, teaching.scorer.logits, teaching.teacher.divergences, taught)
