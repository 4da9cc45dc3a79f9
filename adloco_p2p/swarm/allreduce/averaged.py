"""The result of an average for the node that asked for it."""

from dataclasses import dataclass

import torch

from adloco_p2p.core.model.events import AverageFinished


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Averaged:
    """A result, not applied to anything."""

    vector: torch.Tensor
    """float32 [P], equal on every host; not to be written to."""
    residual: torch.Tensor | None = None
    """float32 [P]: the part of this peer's vector that was lost on its way into the average - by the codec, or all of it where
    it was left out; none for a codec whose loss is negligible, and where this peer gave no vector."""
    finished: AverageFinished
    seconds: float = 0.0
