"""The loss of a large vocabulary, and its gradient, without ever holding all logits.

Logits are the largest tensors of a step: 206 MB for a row of 1,024 tokens and 50,257 words, several times over. Here they are
computed once, for some tokens at a time. The forward pass knows the weight of each token's loss, so it also computes the
gradients of the logits, of the hidden states and of the head while these logits exist (as in Liger Kernel, arXiv 2410.10989).
(`F.linear_cross_entropy` rounds in bfloat16 and is slow on CPUs.)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch

LARGE_VOCABULARY = 8192
"""The smallest vocabulary whose loss is computed in chunks."""
CHUNK_VALUES = 1 << 25
"""The most logits held at a time on a CPU: 128 MiB in fp32, and twice as much again while their gradients are computed."""
GPU_CHUNK_VALUES = 1 << 26
"""The most logits held at a time on a GPU, which would wait for Python between smaller chunks. Compiled code holds twice as
many, since it never makes them in fp32."""
FROZEN_CHUNK_VALUES = 1 << 21
"""The most logits held at a time on a CPU under a frozen head: 8 MiB."""
_TOLERANCE = 1e-4
"""The allowed difference between the model's own logits and those of the head alone, relative to the largest logit."""
_ALIGNED = 64
"""The rows of a head on a GPU are padded to a multiple of this: bfloat16 products with matrices of odd sizes take several times
as long."""

Weights = dict[str, torch.Tensor]
"""The head's parameters by their names."""


class Head:
    """The part of a model that computes logits from hidden states, as a function of its parameters."""

    def __init__(self, module: torch.nn.Module, config: Any) -> None:
        self.module = module
        self.vocab_size: int = config.vocab_size
        self._divisor: float | None = getattr(config, "logits_scaling", None)  # Granite
        self._factor: float | None = getattr(config, "logit_scale", None)  # Cohere
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)  # Gemma 2 and 3
        self._losses: Callable[..., torch.Tensor] = self._token_losses
        self._is_compiled = False
        self._held: Weights | None = None

    @property
    def chunk_values(self) -> int:
        """The most logits that exist at a time. Few under a frozen head on a CPU, where small chunks cost nothing; each chunk
        of a trained head makes a gradient as large as the head."""
        parameters = list(self.module.parameters())
        if parameters[0].device.type == "cuda":
            return GPU_CHUNK_VALUES * (1 + self._is_compiled)
        return CHUNK_VALUES if any(each.requires_grad for each in parameters) else FROZEN_CHUNK_VALUES

    def compile(self, *, backend: str = "inductor") -> None:
        """Compile the losses of a chunk, and their gradient, from now on."""
        self._losses = torch.compile(self._token_losses, backend=backend)
        self._is_compiled = True

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a chunk's gradient of the head's trained parameters."""
        return sum(parameter.nbytes for parameter in self.module.parameters() if parameter.requires_grad)

    @contextmanager
    def holding_weights(self, dtype: torch.dtype) -> Iterator[None]:
        """Make `weights` once, from the parameters as they are now, in this type; inside the context it returns these."""
        device = next(self.module.parameters()).device.type
        with torch.autocast(device, dtype=dtype):
            self._held = self.weights()
        try:
            yield
        finally:
            self._held = None

    def weights(self) -> Weights:
        """Return detached copies of the parameters for all chunks of a loss: in the type of the products, and padded on a
        GPU."""
        if self._held is not None:
            return self._held
        own = {}
        for name, parameter in self.module.named_parameters():
            weight, device = parameter.detach(), parameter.device.type
            if torch.is_autocast_enabled(device) and weight.is_floating_point():
                weight = weight.to(torch.get_autocast_dtype(device))
            if device == "cuda" and len(weight) == self.vocab_size and (short := -self.vocab_size % _ALIGNED):
                weight = torch.nn.functional.pad(weight, (*(0, 0) * (weight.ndim - 1), 0, short))
            own[name] = weight.requires_grad_(parameter.requires_grad)
        return own

    def logits(self, hidden: torch.Tensor, weights: Weights) -> torch.Tensor:
        """Return the logits [k, V] of hidden states [k, D]."""
        logits: torch.Tensor = torch.func.functional_call(self.module, weights, (hidden,))[..., : self.vocab_size]
        if self._divisor is not None:
            logits = logits / self._divisor
        if self._factor is not None:
            logits = logits * self._factor
        if self._cap is not None:
            logits = torch.tanh(logits / self._cap) * self._cap
        return logits

    def losses(self, hidden: torch.Tensor, targets: torch.Tensor, weights: Weights) -> torch.Tensor:
        """Return the losses, in nats, of targets [k] under the logits of hidden states [k, D]; zero where a target is
        IGNORED_LABEL."""
        return self._losses(hidden, targets, weights)

    def _token_losses(self, hidden: torch.Tensor, targets: torch.Tensor, weights: Weights) -> torch.Tensor:
        logits = self.logits(hidden, weights).float()
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED_LABEL)


def head_of(module: transformers.PreTrainedModel) -> Head | None:
    """Return the model's head, to be called with some of the hidden states. None where the vocabulary is small, where the model
    has no separate part below its head, or where its own logits differ from the head's."""
    embeddings = module.get_output_embeddings()
    config = module.config.get_text_config()
    if embeddings is None or config.vocab_size < LARGE_VOCABULARY or body_of(module) is None:
        return None
    head = Head(embeddings, config)
    was_training = module.training
    module.eval()
    with torch.no_grad():
        ids = torch.arange(4, device=embeddings.weight.device).unsqueeze(0)
        whole = module(input_ids=ids, use_cache=False).logits.float()
        # The parameters are used as they are: padded rows may go through another kernel of a GPU, which rounds otherwise.
        own = dict(embeddings.named_parameters())
        parts = head.logits(hidden_states(module, Batch(input_ids=ids, labels=ids)), own).float()
    module.train(was_training)
    is_equal = whole.shape == parts.shape and float((whole - parts).abs().max()) <= _TOLERANCE * float(whole.abs().max())
    return head if is_equal else None


def body_of(module: transformers.PreTrainedModel) -> Any:
    """Return the model below its head; None where its class does not name that part (Llama 4 without its vision part)."""
    plain: Any = module.get_base_model() if hasattr(module, "get_base_model") else module  # adapters sit inside of it
    return None if plain.base_model is plain else plain.base_model


def hidden_states(module: transformers.PreTrainedModel, rows: Batch, **places: torch.Tensor) -> torch.Tensor:
    """Return the input of the head: [n, L, D]. `places`: see `document_places`."""
    # With positions that restart and without an attention mask, transformers keeps attention inside of each document.
    output = body_of(module)(input_ids=rows.input_ids, position_ids=rows.positions, use_cache=False, **places)
    hidden: torch.Tensor = output.last_hidden_state
    return hidden


def chunked_cross_entropy(
    hidden: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, head: Head
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted sum of the losses, to be differentiated, and the losses [k].

    `hidden`: [k, D]; `targets`: [k]; `weights`: [k], one per token. Losses are in nats, and zero where a target is
    IGNORED_LABEL.
    """
    parameters = [parameter for parameter in head.module.parameters() if parameter.requires_grad]
    total, losses = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, targets, weights, head, torch.is_grad_enabled(), *parameters
    )
    return total, losses


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        head: Head,
        is_differentiated: bool,
        *parameters: torch.Tensor,  # noqa: ARG004 - autograd looks for what is to be differentiated among the arguments
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own = head.weights()
        trained = {name: weight for name, weight in own.items() if weight.requires_grad and is_differentiated}
        of_hidden = torch.empty_like(hidden) if is_differentiated else None
        gradients = {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in trained.items()}
        losses = torch.empty(len(targets), device=hidden.device)
        size = tokens_at_once(head)
        for first in range(0, len(targets), size):
            part = slice(first, first + size)
            if of_hidden is None:
                losses[part] = head.losses(hidden[part], targets[part], own)
                continue
            piece = hidden[part].detach().requires_grad_()
            with torch.enable_grad(), _own_tensors():
                of_part = head.losses(piece, targets[part], own)
                of_hidden[part], *found = torch.autograd.grad(of_part, [piece, *trained.values()], weights[part])
            losses[part] = of_part.detach()
            for name, gradient in zip(trained, found, strict=True):
                gradients[name].add_(gradient)
        if of_hidden is not None:
            rows = {name: parameter.shape for name, parameter in head.module.named_parameters()}
            ctx.save_for_backward(of_hidden, *(gradient[: rows[name][0]] for name, gradient in gradients.items()))
        ctx.mark_non_differentiable(losses)
        return (losses * weights).sum(), losses

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scale, _ = outputs
        # In place, so that torch refuses a second backward.
        of_hidden, *of_parameters = (gradient.mul_(scale) for gradient in ctx.saved_tensors)
        return of_hidden, None, None, None, None, *of_parameters


def tokens_at_once(head: Head) -> int:
    """Return the size of a chunk: a power of two, which divides the number of tokens of most rows, so that all chunks are
    alike."""
    return 1 << max(0, (head.chunk_values // head.vocab_size).bit_length() - 1)


@contextmanager
def _own_tensors() -> Iterator[None]:
    """Save tensors for backward without the hooks of others: this backward follows at once."""
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield
