"""Training: rollouts, advantages, losses, the trainer, and the configuration of runs.

Where to begin reading: `rollouts/one_episode.py` (one episode), `rollouts/many_episodes.py` (many),
`algorithms/advantages.py` and `algorithms/losses.py` (the algorithm), `learner/update.py` (learning
from one batch), `trainer.py` (all of it).
"""

from gymnast.trainers.algorithms import advantages, aggregations, losses
from gymnast.trainers.algorithms.advantages import RewardBatch
from gymnast.trainers.algorithms.algorithm import Algorithm, make_algorithm
from gymnast.trainers.algorithms.kl import Kl
from gymnast.trainers.config.files import load_config
from gymnast.trainers.data.row_files import load_rows
from gymnast.trainers.rollouts.many_episodes import Group, Rollouts, collect, stream
from gymnast.trainers.rollouts.one_episode import rollout
from gymnast.trainers.rollouts.rewards import Reward
from gymnast.trainers.trainer import Trainer

__all__ = [
    "Algorithm",
    "Group",
    "Kl",
    "Reward",
    "RewardBatch",
    "Rollouts",
    "Trainer",
    "advantages",
    "aggregations",
    "collect",
    "load_config",
    "load_rows",
    "losses",
    "make_algorithm",
    "rollout",
    "stream",
]
