"""What several processes divide among themselves: nothing, all of a policy, or parts (ZeRO)."""

from dataclasses import dataclass

from gymnast.trainers.distributed.sharding import wants_sharding
from gymnast.trainers.distributed.zero_settings import Zero, wants_zero


@dataclass(frozen=True)
class Divided:
    """What is divided, and by whom; by default nothing.

    Attributes:
        sharded: Whether FSDP2 divides weights, gradients and optimizer.
        zero: What DeepSpeed divides.
    """

    sharded: bool = False
    zero: Zero | None = None

    @property
    def anything(self) -> bool:
        """Whether anything is divided."""
        return self.sharded or self.zero is not None

    @property
    def weights(self) -> bool:
        """Whether weights are, so that no process has them whole."""
        return self.sharded or (self.zero is not None and self.zero.stage == 3)


NOTHING = Divided()


def asked_to_divide() -> Divided:
    """What the launcher asks for.

    Raises:
        ConfigError: It asks for what is not supported.
    """
    return Divided(wants_sharding(), wants_zero())
