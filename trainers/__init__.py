"""Training: rollouts, advantages, losses, the trainer, and the configuration of runs.

Where to begin reading: `rollout.py` (one episode), `collect.py` (many), `advantages.py` and
`losses.py` (the algorithm), `update.py` (one optimisation step), `trainer.py` (all of it).
"""

from gymnast.trainers import advantages, losses
from gymnast.trainers.collect import Group, Rollouts, collect, stream
from gymnast.trainers.config import load_config
from gymnast.trainers.rollout import rollout
from gymnast.trainers.trainer import Trainer

__all__ = [
    "Group",
    "Rollouts",
    "Trainer",
    "advantages",
    "collect",
    "load_config",
    "losses",
    "rollout",
    "stream",
]
