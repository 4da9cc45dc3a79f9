"""Attention without a mask for rows that hold several documents: on GPUs, by torch's kernel for sequences of different lengths.

A mask takes a byte or more for each pair of tokens of a row, masked attention also computes the pairs across documents, and no
flash attention takes a mask. The kernel (`varlen_attn`) gets the rows as one line of documents, and the places where they
begin. It is torch's own, for bfloat16 on NVIDIA's Ampere generation and newer, and maybe on others. So `try_attention` tries it
with the model on the device, forward and backward; where the kernel raises an error or differs from masked attention, the model
stays as it was. Layers that need more than documents and causality, such as windows shorter than the row, still get their mask.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training.row_documents import is_mask_needed

MOST_DOCUMENTS = (1 << 16) - 1
"""The most documents of a micro-batch in the kernel, which uses a block of threads for each: CUDA's limit."""
_ATTENTION = "documents"
_TRIAL = "documents_trial"
"""The names under which transformers finds `_attention` and `_trial`."""
_TOLERANCE, _GRADIENT_TOLERANCE = 0.05, 0.1
"""The allowed difference between the kernel and masked attention, several roundings of bfloat16: of values relative to the
largest, and of gradients relative to their norm."""


def document_places(rows: Batch) -> dict[str, torch.Tensor]:
    """Return where documents begin in the line of all tokens of the rows, and where it ends, int32, as an argument of a forward
    that every layer hands on to its attention; empty where the kernel is not to be used. Waits for no device."""
    count = sum(rows.documents)
    if rows.positions is None or not rows.has_several_documents or count > MOST_DOCUMENTS:
        return {}
    firsts = torch.nonzero_static(rows.positions.flatten() == 0, size=count).flatten()
    return {"cu_seq_lens_q": torch.nn.functional.pad(firsts, (0, 1), value=rows.positions.numel()).int()}


def try_attention(
    module: transformers.PreTrainedModel, masked: torch.Tensor, without_masks: Callable[[], torch.Tensor]
) -> bool:
    """Switch the module to attention without masks, if that agrees with masked attention, and return whether it did; otherwise
    the module stays as it was. `masked`: the gradient [P] of rows of several documents; `without_masks` computes it with
    `document_places`."""
    plain: Any = module.get_base_model() if hasattr(module, "get_base_model") else module  # adapters wrap the base
    before = plain.config._attn_implementation
    if before != "sdpa":
        return False
    for name, function, mask_function in ((_TRIAL, _trial, sdpa_mask), (_ATTENTION, _attention, _mask)):
        transformers.AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, mask_function)
    try:
        plain.set_attn_implementation(_TRIAL)
        if not float((without_masks() - masked).norm()) <= _GRADIENT_TOLERANCE * float(masked.norm()):
            raise ArithmeticError("the gradient of torch's kernel for documents is another than that of masked attention")
    except Exception:  # torch refuses a card, a type or a size with various errors, and an older one lacks the kernel
        plain.set_attn_implementation(before)
        return False
    plain.set_attn_implementation(_ATTENTION)
    return True


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Map query [n, heads, L, d], and key and value [n, heads or groups of them, L, d], to [n, L, heads, d]."""
    if attention_mask is not None or cu_seq_lens_q is None:
        others |= {"dropout": dropout, "scaling": scaling}
        masked: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
        return masked
    if dropout or others.get("position_bias") is not None or others.get("softcap") is not None:
        raise NotImplementedError("dropout, a position bias or capped scores in attention")
    from torch.nn.attention.varlen import varlen_attn  # older versions of torch lack it

    num_rows, _, length, _ = query.shape
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    query, key, value = (each.transpose(1, 2).flatten(0, 1).to(dtype) for each in (query, key, value))  # [n L, heads, d]
    places = (cu_seq_lens_q, cu_seq_lens_q, length, length)
    grouped: Any = {"enable_gqa": True} if key.shape[1] != query.shape[1] else {}  # older torches do not know the argument
    found = varlen_attn(query, key, value, *places, scale=scaling, window_size=(-1, 0), **grouped)
    assert isinstance(found, torch.Tensor), "the sums of the scores were not asked for"
    return found.view(num_rows, length, *found.shape[1:]), None


def _mask(*, kv_length: int, local_size: int | None = None, **others: Any) -> torch.Tensor | None:
    """Return the mask; None where it would contain no more than documents and causality."""
    is_more = others.get("attention_mask") is not None or others.get("use_vmap")
    is_window = local_size is not None and local_size <= kv_length
    if not (is_mask_needed() or is_more or is_window):
        return None
    mask: torch.Tensor | None = sdpa_mask(kv_length=kv_length, local_size=local_size, **others)
    return mask


def _trial(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute `_attention` without the mask. Raises ArithmeticError where it differs from masked attention."""
    expected, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    found, _ = _attention(module, query, key, value, None, **others)
    error, largest = (float(each.detach().abs().max()) for each in (found - expected, expected))
    if not error <= _TOLERANCE * largest:
        raise ArithmeticError("torch's kernel for documents computes something else than masked attention")
    return found, None
