"""The settings of a run's workers: where its episodes are played."""

from typing import ClassVar, Literal

from gymnast.trainers.base.settings import Positive, PositiveNumber, Settings, Text


class WorkerSettings(Settings):
    """Where episodes are played."""

    prefix: ClassVar[str] = "rollouts_"

    backend: Literal["local", "ray"] = "local"
    """local: in each training process; ray: on the workers of a Ray cluster (docs/clusters.md)."""
    workers: Positive = 1
    """How many workers each training process has on the cluster; they share its episodes."""
    cpus: PositiveNumber = 1.0
    """How many of its cluster's CPUs a worker takes."""
    address: Text | None = None
    """The cluster's head, "host:port"; without one `RAY_ADDRESS`, or a cluster on this machine that
    ends with the run."""
