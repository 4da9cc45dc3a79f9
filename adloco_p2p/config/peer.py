"""The configuration of one machine. Never hashed, never sent."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from adloco_p2p.core.rules import NaturalInt, PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """One volunteer's machine."""

    device: str = "auto"
    """`auto` (CUDA where there is one), `cpu`, `cuda`, `cuda:N`."""
    num_threads: PositiveInt | None = None
    """CPU threads of torch; none: all cores."""
    deterministic: bool = False
    """Bit-identical repetition on the same machine and thread count, at some cost in speed on GPUs."""
    memory_fraction: Annotated[float, Gt(0), Le(1)] = 0.85
    """Part of the GPU's memory that training may use."""
    memory_budget_bytes: Annotated[int, Ge(1 << 20)] = 2 << 30
    """On a CPU: bytes that one micro-batch may need for its activations and gradients."""
    max_micro_batch: PositiveInt = 1024
    """The probe never tries a larger micro-batch, in samples."""
    max_instances: PositiveInt = 8
    """How many instances this machine may host."""
    checkpoint_period_rounds: PositiveInt = 1
    """Save the state every so many rounds (and at the end and when stopping)."""
    checkpoints_kept: Annotated[int, Ge(2)] = 2
    """The newest ones; at least two, so that a torn one has one before it."""
    host_maddrs: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Where to listen."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses to tell others, where they differ from the listening ones (port forwarding)."""
    client_mode: bool = False
    """Do not accept connections; for machines that nobody can reach."""
    use_relay: bool = True
    """Use relays of others where needed, and be one where possible."""
    use_auto_relay: bool = False
    """Look for a relay by oneself and become reachable through it."""
    upload_bytes_per_second: NaturalInt = 0
    """Cap of all traffic out; 0: none."""
    download_bytes_per_second: NaturalInt = 0
    """Cap of all traffic in; 0: none."""
