"""Training: rollouts, advantages, losses, the trainer, and the configuration of runs.

Where to begin reading: `examples/loop.py` (a training loop on one page), `rollouts/one_episode.py`
(one episode), `rollouts/many_episodes.py` (many), `algorithms/advantages.py` and
`algorithms/losses.py` (the algorithm), `learner/update.py` (learning from one batch), `trainer.py`
(all of it).
"""

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
