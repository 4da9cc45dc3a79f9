"""Experts of a mixture that is trained whole: grouped products in the type of autocast."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adloco_p2p.config.run_config import Scalar
from tests.training.small_run import rows_of
from tests.training.test_chunked_loss import LLAMA, shell_of

SIZES: dict[str, Scalar] = {"num_local_experts": 4, "num_experts_per_tok": 2}
MIXTURES: dict[str, dict[str, Scalar]] = {
    "mixtral": LLAMA | SIZES | {"model_type": "mixtral"},
    "qwen3_moe": LLAMA | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}


class Products(TorchDispatchMode):
    """Notes the types of grouped products, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.ops.aten._grouped_mm.default:
            self.dtypes += [args[0].dtype, args[1].dtype]
        return func(*args, **(kwargs or {}))


def computed(architecture: dict[str, Scalar], *, is_bfloat16: bool) -> tuple[torch.Tensor, torch.Tensor, set[torch.dtype]]:
    """Losses, the gradient, and the types of the products."""
    shell = shell_of(architecture, is_bfloat16=is_bfloat16)
    shell.module.train()
    with Products() as products:
        total, losses = shell.weighted_loss(rows_of("experts", 0, 4))
        total.backward()
    assert len(products.dtypes) == 2 * 2 * 2 * 3, "two layers, two products, each with two of backward"
    return losses, shell.gradient, set(products.dtypes)


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_are_multiplied_in_bfloat16_where_the_rest_is(name: str) -> None:
    exact, exact_gradient, dtypes = computed(MIXTURES[name], is_bfloat16=False)
    assert dtypes == {torch.float32}
    losses, gradient, dtypes = computed(MIXTURES[name], is_bfloat16=True)
    assert dtypes == {torch.bfloat16} and gradient.dtype == torch.float32
    torch.testing.assert_close(losses, exact, rtol=0.02, atol=0.02)
    assert float((gradient - exact_gradient).norm()) < 0.05 * float(exact_gradient.norm())


def test_sizes_that_grouped_products_of_bfloat16_do_not_take_stay_in_float32() -> None:
    *_, dtypes = computed(MIXTURES["mixtral"] | {"intermediate_size": 36}, is_bfloat16=True)
    assert dtypes == {torch.float32}
