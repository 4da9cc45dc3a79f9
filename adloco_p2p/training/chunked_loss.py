"""Token losses of a large vocabulary without ever holding all logits.

Logits are the largest tensors of a step: 206 MB for a row of 1,024 tokens and 50,257 words, several times over. Here they exist
for some tokens at a time, in the forward pass for their losses, and once more in the backward pass for their gradients, which
costs one more product with the head. (`F.linear_cross_entropy` rounds in bfloat16 and is slow on CPUs.)
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers

from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch

LARGE_VOCABULARY = 8192
"""From this size on logits are worth the time that it takes to make them twice."""
CHUNK_VALUES = 1 << 25
"""Logits held at a time: 128 MiB in fp32; twice as much again while their gradients are made."""
FROZEN_CHUNK_VALUES = 1 << 21
"""The same under a frozen head on a CPU: 8 MiB."""
_TOLERANCE = 1e-4
"""Between the model's own logits and those of the head alone, relative to the largest."""

LogitsOf = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [k, D] -> logits [k, V]."""


def chunk_values(head: torch.nn.Module) -> int:
    """Logits of the head that exist at a time. Few where that costs nothing: each chunk gives a head that is trained a gradient
    as large as the head, and a GPU is efficient on large products only."""
    is_small = all(parameter.device.type == "cpu" and not parameter.requires_grad for parameter in head.parameters())
    return FROZEN_CHUNK_VALUES if is_small else CHUNK_VALUES


def head_of(module: transformers.PreTrainedModel) -> LogitsOf | None:
    """The function from last hidden states to logits, to be called with some of the states. None where the vocabulary is small,
    where the model has no separate part below its head, or where its own logits differ from the function's."""
    head = module.get_output_embeddings()
    config = module.config.get_text_config()
    if head is None or config.vocab_size < LARGE_VOCABULARY or body_of(module) is None:
        return None

    def logits_of(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = head(hidden)
        if (divisor := getattr(config, "logits_scaling", None)) is not None:  # Granite
            logits = logits / divisor
        if (factor := getattr(config, "logit_scale", None)) is not None:  # Cohere
            logits = logits * factor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:  # Gemma 2 and 3
            logits = torch.tanh(logits / cap) * cap
        return logits

    was_training = module.training
    module.eval()
    with torch.no_grad():
        ids = torch.arange(4, device=head.weight.device).unsqueeze(0)
        whole = module(input_ids=ids, use_cache=False).logits.float()
        parts = logits_of(hidden_states(module, Batch(input_ids=ids, labels=ids))).float()
    module.train(was_training)
    is_equal = whole.shape == parts.shape and float((whole - parts).abs().max()) <= _TOLERANCE * float(whole.abs().max())
    return logits_of if is_equal else None


def body_of(module: transformers.PreTrainedModel) -> Any:
    """The model below its head; none where its class does not name that part (Llama 4 without its vision part)."""
    plain: Any = module.get_base_model() if hasattr(module, "get_base_model") else module  # adapters sit inside of it
    return None if plain.base_model is plain else plain.base_model


def hidden_states(module: transformers.PreTrainedModel, rows: Batch, **places: torch.Tensor) -> torch.Tensor:
    """The input of the head: [n, L, D]. `places`: `document_places`."""
    # positions that restart, and no attention mask: transformers then keeps attention inside of each document
    output = body_of(module)(input_ids=rows.input_ids, position_ids=rows.positions, use_cache=False, **places)
    hidden: torch.Tensor = output.last_hidden_state
    return hidden


def chunked_cross_entropy(
    hidden: torch.Tensor, targets: torch.Tensor, logits_of: LogitsOf, head: torch.nn.Module
) -> torch.Tensor:
    """Nats of each target [k] under the logits of hidden states [k, D]; zero where it is IGNORED_LABEL. `head`: the module
    whose parameters `logits_of` uses."""
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    losses: torch.Tensor = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, targets, logits_of, chunk_values(head), *parameters
    )
    return losses


def _losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none", ignore_index=IGNORED_LABEL)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, targets: torch.Tensor, logits_of: LogitsOf, num_values: int, *parameters: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden, targets, *parameters)
        ctx.logits_of = logits_of
        device = hidden.device.type
        ctx.autocast = {"dtype": torch.get_autocast_dtype(device), "enabled": torch.is_autocast_enabled(device)}
        ctx.size = max(1, num_values // logits_of(hidden[:1]).shape[-1])  # tokens of a chunk
        parts = [slice(first, first + ctx.size) for first in range(0, len(targets), ctx.size)]
        return torch.cat([_losses(logits_of(hidden[part]), targets[part]) for part in parts])

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (of_losses,) = outputs
        hidden, targets, *parameters = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_parameters: list[torch.Tensor] = []
        with torch.autocast(hidden.device.type, **ctx.autocast):  # one for all chunks: it casts the head once
            for first in range(0, len(targets), ctx.size):
                part = slice(first, first + ctx.size)
                piece = hidden[part].detach().requires_grad_()
                with torch.enable_grad():
                    losses = _losses(ctx.logits_of(piece), targets[part])
                of_hidden[part], *found = torch.autograd.grad(losses, [piece, *parameters], of_losses[part])
                if of_parameters:
                    for total, gradient in zip(of_parameters, found, strict=True):
                        total.add_(gradient)
                else:
                    of_parameters = found
        return of_hidden, None, None, None, *of_parameters
