"""The estimators from whole gradients (docs/mathematics.md, 4.1): what the product's scalars are checked against."""

from collections.abc import Sequence

import torch

from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, noise_from_products
from adloco_p2p.numerics.grad_stats import inner_product


def gradient_noise(gradients: Sequence[torch.Tensor], samples: Sequence[int]) -> HalfBatchStatistics:
    """Noise from M >= 2 mean gradients [P], of `samples[m]` samples each, taken at a common point."""
    products = [[float(inner_product(g, h)) for h in gradients] for g in gradients]
    return noise_from_products(products, samples)
