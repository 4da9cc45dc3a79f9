"""Bfloat16 products for the experts of a mixture, because autocast does not cast torch's grouped products.

`transformers` hands them the weights as they are, so a mixture that is trained whole would be multiplied in float32. On CUDA,
torch has a grouped kernel for bfloat16 only, and only on some cards; otherwise it loops over the experts and reads from the
device how many tokens each has (`_grouped_mm_cuda` and `_grouped_mm_fallback` in ATen).
"""

from typing import Any

import torch
import transformers
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

_CAST, _PLAIN = "autocast_grouped_mm", "grouped_mm"
"""The names under which `transformers` finds the products below and its own."""
_ALIGNED = 8
"""Grouped products take bfloat16 matrices whose sizes are multiples of this."""


class _Cast:
    """A layer of experts that shows its weights in another type."""

    def __init__(self, experts: Any, dtype: torch.dtype) -> None:
        self._experts, self._dtype = experts, dtype

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._experts, name)
        return found.to(self._dtype) if _is_stack(found) else found


def cast_experts(module: transformers.PreTrainedModel) -> None:
    """Extend autocast to the module's experts, where they are grouped products."""
    if module.config._experts_implementation == _PLAIN:
        ExpertsInterface.register(_CAST, _forward)
        module.set_experts_implementation(_CAST)


def _forward(experts: torch.nn.Module, hidden: torch.Tensor, *routing: torch.Tensor) -> torch.Tensor:
    """Map hidden states [T, D] to [T, D]. `routing`: experts [T, k] and their weights [T, k]."""
    device = hidden.device.type
    used: Any = experts
    sizes = [size for weight in experts.parameters(recurse=False) if _is_stack(weight) for size in weight.shape[1:]]
    if torch.is_autocast_enabled(device) and all(size % _ALIGNED == 0 for size in sizes):
        used = _Cast(experts, torch.get_autocast_dtype(device))
    found: torch.Tensor = grouped_mm_experts_forward(used, hidden, *routing)
    return found


def _is_stack(value: object) -> bool:
    """Return whether the value holds a matrix for each expert."""
    return isinstance(value, torch.nn.Parameter) and value.ndim == 3
