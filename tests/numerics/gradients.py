"""The estimators of method sections 3.3 and 4.1 from whole gradients: what the product's scalars are checked against."""

from collections.abc import Sequence

import torch

from adloco_p2p.numerics.grad_stats import GradientNoise, inner_product, noise_from_products


def gradient_noise(gradients: Sequence[torch.Tensor], samples: Sequence[int]) -> GradientNoise:
    """Noise from M >= 2 mean gradients [P], of `samples[m]` samples each, taken at a common point."""
    products = [[float(inner_product(g, h)) for h in gradients] for g in gradients]
    return noise_from_products(products, samples)
