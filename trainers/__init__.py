"""Training: rollouts, advantages, losses, the trainer, and the configuration of runs.

Where to begin reading: `examples/loop.py` (a training loop on one page), `rollouts/one_episode.py`
(one episode), `rollouts/many_episodes.py` (many), `algorithms/advantages.py` and
`algorithms/losses.py` (the algorithm), `learner/update.py` (learning from one batch), `trainer.py`
(all of it).

What it names is imported when it is used: whoever reads the rollouts of a run waits for no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gymnast.trainers.algorithms import advantages, aggregations, losses
    from gymnast.trainers.algorithms.advantages import RewardBatch
    from gymnast.trainers.algorithms.algorithm import Algorithm, make_algorithm
    from gymnast.trainers.algorithms.distillation import Teacher
    from gymnast.trainers.algorithms.kl import Kl
    from gymnast.trainers.cluster.ray_workers import RayWorkers
    from gymnast.trainers.config.files import load_config
    from gymnast.trainers.conversations.agent_speaker import AgentSpeaker
    from gymnast.trainers.conversations.play import play_messages, play_solution
    from gymnast.trainers.data.mixture_rows import MixtureRows
    from gymnast.trainers.data.row_files import load_rows
    from gymnast.trainers.learner.policy.micro_batches import (
        CreditedTrajectory,
        MicroBatch,
        micro_batch,
    )
    from gymnast.trainers.learner.policy.policy import Policy
    from gymnast.trainers.rollouts.many_episodes import Rollouts, collect, stream
    from gymnast.trainers.rollouts.one_episode import rollout
    from gymnast.trainers.rollouts.rewards import Reward
    from gymnast.trainers.rollouts.schedule import Group
    from gymnast.trainers.rollouts.settings import DynamicSampling
    from gymnast.trainers.saving.rollout_files import SavedBranch, SavedTrajectory
    from gymnast.trainers.saving.saved_runs import load_rollouts
    from gymnast.trainers.trainer import Trainer

__all__ = [
    "AgentSpeaker",
    "Algorithm",
    "CreditedTrajectory",
    "DynamicSampling",
    "Group",
    "Kl",
    "MicroBatch",
    "MixtureRows",
    "Policy",
    "RayWorkers",
    "Reward",
    "RewardBatch",
    "Rollouts",
    "SavedBranch",
    "SavedTrajectory",
    "Teacher",
    "Trainer",
    "advantages",
    "aggregations",
    "collect",
    "load_config",
    "load_rollouts",
    "load_rows",
    "losses",
    "make_algorithm",
    "micro_batch",
    "play_messages",
    "play_solution",
    "rollout",
    "stream",
]

# The modules of this package that the names are in.
_HOMES = {
    "algorithms": "advantages aggregations losses",
    "algorithms.advantages": "RewardBatch",
    "algorithms.algorithm": "Algorithm make_algorithm",
    "algorithms.distillation": "Teacher",
    "algorithms.kl": "Kl",
    "cluster.ray_workers": "RayWorkers",
    "config.files": "load_config",
    "conversations.agent_speaker": "AgentSpeaker",
    "conversations.play": "play_messages play_solution",
    "data.mixture_rows": "MixtureRows",
    "data.row_files": "load_rows",
    "learner.policy.micro_batches": "CreditedTrajectory MicroBatch micro_batch",
    "learner.policy.policy": "Policy",
    "rollouts.many_episodes": "Rollouts collect stream",
    "rollouts.one_episode": "rollout",
    "rollouts.rewards": "Reward",
    "rollouts.schedule": "Group",
    "rollouts.settings": "DynamicSampling",
    "saving.rollout_files": "SavedBranch SavedTrajectory",
    "saving.saved_runs": "load_rollouts",
    "trainer": "Trainer",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOME[name]}"
    if _HOME[name] == "algorithms":  # whose modules these are
        return import_module(f"{home}.{name}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
