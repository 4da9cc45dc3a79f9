"""The result of an average for the node that asked for it."""

from dataclasses import dataclass

import torch

from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.scalars import Digest, PeerId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Averaged:
    """A result, not applied to anything."""

    vector: torch.Tensor
    """float32 [P], equal on every host; not to be written to."""
    digest: Digest
    """The part of the result that every host must share; see `numerics/digest.py`."""
    contributors: tuple[PeerId, ...]
    """The peers that gave their vectors, sorted."""
    left_out: tuple[PeerId, ...] = ()
    """Those of them whose vectors the aggregation rule left out."""
    statistics: PseudoGradientStatistics | None
    """Of the vector as it was transmitted; zeros beside the average's norm for a peer that only received, none for what was
    fetched and has nothing of this peer in it, or was made by a rule that sees all contributions."""
    residual: torch.Tensor | None = None
    """float32 [P]: the part of this peer's vector that was lost on its way into the average - by the codec, or all of it where
    it was left out; none for a codec whose loss is negligible, and where this peer gave no vector."""
    bytes_sent: int = 0
    """Until the result was here; slower members may be served afterwards."""
    bytes_received: int = 0
    seconds: float = 0.0
    upload_bytes_per_second: float = 0.0
    """Throughput of the uplink as the receivers measured it; 0 where this peer sent nothing."""
