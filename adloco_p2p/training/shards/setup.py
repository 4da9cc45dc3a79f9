"""The settings that a peer hands to the processes that hold its model in parts, and names that they share."""

from dataclasses import dataclass

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig

MOMENTS = ("exp_avg", "exp_avg_sq")
LOCAL = "local"
"""The names of the vectors that a group holds in parts: the parameters, and Adam's moments as in a checkpoint."""
MAX_SETUP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The setup of member `rank` in a group of `size`."""

    run: RunConfig
    device: str
    num_threads: int
    """The member's part of the peer's threads."""
    deterministic: bool
    tf32: bool
    memory_fraction: float
    activation_checkpointing: bool
    """The four fields above are the peer's settings of these names."""
    vocab_size: int
    sequence_length: int
    rank: int
    size: int
    meeting_place: str = ""
    """A file in memory in which the members find each other; the group fills it in."""
    stall_seconds: float = 0.0
    """How long one member may wait for another; the group fills it in."""

    @property
    def machine(self) -> PeerConfig:
        return PeerConfig(
            device=self.device,
            num_threads=self.num_threads,
            deterministic=self.deterministic,
            tf32=self.tf32,
            memory_fraction=self.memory_fraction,
        )
