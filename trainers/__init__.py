"""Training: rollouts, advantages, losses, the trainer, and the configuration of runs.

Where to begin reading: `rollout.py` (one episode), `collect.py` (many), `advantages.py` and
`losses.py` (the algorithm), `update.py` (learning from one batch), `trainer.py` (all of it).
"""

from gymnast.trainers import advantages, aggregations, losses
from gymnast.trainers.algorithms import Algorithm, make_algorithm
from gymnast.trainers.collect import Group, Rollouts, collect, stream
from gymnast.trainers.config_files import load_config
from gymnast.trainers.data.row_files import load_rows
from gymnast.trainers.kl import Kl
from gymnast.trainers.rewards import Reward
from gymnast.trainers.rollout import rollout
from gymnast.trainers.trainer import Trainer

__all__ = [
    "Algorithm",
    "Group",
    "Kl",
    "Reward",
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
