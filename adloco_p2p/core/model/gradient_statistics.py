"""Scalars about gradients and pseudo-gradients that hosts measure and report."""

from dataclasses import dataclass

from adloco_p2p.core.model.scalars import Finite, NonNegative, PositiveCount


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfBatchStatistics:
    """Gradient noise measured inside one host, from two halves of an inner step's batch (method section 4.2), averaged
    over the `num_steps` inner steps that were measured. `batch_samples` is this host's batch per inner step."""

    num_steps: PositiveCount
    batch_samples: PositiveCount
    covariance_trace: Finite
    """Unbiased estimate of the trace of the per-sample gradient covariance."""
    true_sqnorm: Finite
    """Unbiased estimate of the squared norm of the true gradient; may be negative."""
    mean_sqnorm: NonNegative
    """Squared norm of the batch gradient (biased upwards by the noise)."""
    inner_variance: NonNegative
    """Per-sample variance of the inner product with the batch gradient."""
    orthogonal_trace: NonNegative
    """Per-sample trace of the covariance orthogonal to the batch gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PseudoGradientStatistics:
    """Three scalars of one host about the vector it transmitted and the average it received (method section 4.3)."""

    own_sqnorm: NonNegative
    """norm2(Delta_m) of the transmitted vector."""
    inner_product: Finite
    """<Delta_m, Delta>."""
    averaged_sqnorm: NonNegative
    """norm2(Delta) of the committed average."""
