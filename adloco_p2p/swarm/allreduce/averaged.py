"""The result of an average, as the node that asked for it gets it."""

from dataclasses import dataclass

import torch

from adloco_p2p.core.model.events import AverageFinished


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Averaged:
    """An average and the event that reports it. No parameters have been changed yet."""

    vector: torch.Tensor
    """float32 [P], equal on every host; not to be written to."""
    residual: torch.Tensor | None = None
    """float32 [P]: the part of this peer's vector that the codec lost, or all of it where it was left out. None for a codec
    whose loss is negligible, and where this peer gave no vector."""
    finished: AverageFinished
    seconds: float = 0.0
