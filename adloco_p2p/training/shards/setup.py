"""What a peer and the processes that hold its model in parts have to know of each other."""

from dataclasses import dataclass

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig

MOMENTS = ("exp_avg", "exp_avg_sq")
LOCAL = "local"
"""Names of the vectors that a group holds in parts: Adam's moments, as in a checkpoint, and the parameters."""
MAX_SETUP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Of the member `rank` of a group of `size`."""

    run: RunConfig
    device: str
    num_threads: int
    """Its part of those of the peer."""
    deterministic: bool
    tf32: bool
    memory_fraction: float
    activation_checkpointing: bool
    """As the peer's settings of these names."""
    vocab_size: int
    sequence_length: int
    rank: int
    size: int
    meeting_place: str = ""
    """A file in memory in which the members find each other; the group fills it in, and ..."""
    stall_seconds: float = 0.0
    """... how long one may wait for another."""

    @property
    def machine(self) -> PeerConfig:
        return PeerConfig(
            device=self.device,
            num_threads=self.num_threads,
            deterministic=self.deterministic,
            tf32=self.tf32,
            memory_fraction=self.memory_fraction,
        )
