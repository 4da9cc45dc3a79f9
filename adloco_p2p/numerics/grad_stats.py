"""Inner products of gradients, from which `core/model/gradient_statistics.py` estimates the gradient noise."""

import torch

_CHUNK = 1 << 20
"""Elements converted to fp64 at a time: bounds the scratch memory to a few times 8 MiB."""
_HOT_CHUNK_CPU, _HOT_CHUNK = 1 << 16, 1 << 22
"""Elements converted at a time in the inner loop: few enough for the cache of a CPU, enough elsewhere for few kernels."""
_ROW = 1 << 12
"""Elements of one partial sum. Each row is summed on its own, so the result does not depend on the number of threads."""


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the type in which many fp32 values are summed: fp64, or fp32 on Apple's GPUs, which have no fp64."""
    return torch.float32 if device.type == "mps" else torch.float64


def inner_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return <left, right> of two flat vectors [P] as an fp64 scalar on their device, summed in a fixed order and without
    synchronisation."""
    total = torch.zeros((), dtype=torch.float64, device=left.device)
    for x, y in zip(torch.split(left, _CHUNK), torch.split(right, _CHUNK), strict=True):
        products = x.double() * y.double()  # exact for fp32 factors
        whole = products.numel() // _ROW * _ROW
        total += products[:whole].view(-1, _ROW).sum(dim=1).sum() + products[whole:].sum()
    return total


def half_products(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return [norm2(first), <first, second>, norm2(second)], from which the noise of one inner step follows.

    The result is of `sum_dtype`, on the device. `first` and `second` [P] are the parts of the batch gradient from two groups of
    its samples. Results of pieces of the two vectors add up to that of the whole.
    """
    # Dot products are five times faster than `inner_product`, which the inner loop needs, and reproducible enough for it.
    chunk = _HOT_CHUNK_CPU if first.device.type == "cpu" else _HOT_CHUNK
    dtype = sum_dtype(first.device)
    dots = torch.zeros(3, dtype=dtype, device=first.device)
    for x, y in zip(torch.split(first, chunk), torch.split(second, chunk), strict=True):
        wide_x, wide_y = x.to(dtype), y.to(dtype)
        dots += torch.stack([wide_x.dot(wide_x), wide_x.dot(wide_y), wide_y.dot(wide_y)])
    return dots
