"""One model on one device, lent to one instance at a time: the module's parameters are views of the borrower's vector."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import transformers

from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.numerics.grad_stats import half_products, sum_dtype
from adloco_p2p.numerics.layout import layout_of, trainable_parameters
from adloco_p2p.training.adapters import leave_casts_to_autocast
from adloco_p2p.training.chunked_loss import body_of, chunked_cross_entropy, head_of, hidden_states
from adloco_p2p.training.compiling import keep_graphs
from adloco_p2p.training.document_kernel import document_places, try_attention
from adloco_p2p.training.experts import cast_experts
from adloco_p2p.training.plugins import Loss
from adloco_p2p.training.row_documents import known_documents


class ModelShell:
    """The module, the loss, and the gradient that all instances share, so that another instance needs no second module."""

    def __init__(
        self,
        module: transformers.PreTrainedModel,
        *,
        device: torch.device,
        is_bfloat16: bool,
        loss: Loss | None = None,
        is_divided: bool = False,
    ) -> None:
        """`loss`: a loss for each token in place of cross-entropy. `is_divided`: processes (`training/shards`) hold the
        parameters and their gradient, so neither is here and `bind` must not be called."""
        self.module = module.to(device)
        self.device = device
        self.layout = layout_of(module)
        self.parameters = [] if is_divided else [parameter for _, parameter in trainable_parameters(module)]
        self.matrices = block_matrices(module)
        size = 0 if is_divided else self.layout.num_parameters
        self.gradient = torch.zeros(size, device=device)  # [P], accumulated by backward
        self._is_bfloat16 = is_bfloat16
        self._recomputes = False
        self._loss = loss
        self._head = head_of(self.module) if loss is None else None  # another loss needs the logits of all tokens
        if is_bfloat16:  # from here on every forward is inside of autocast
            leave_casts_to_autocast(self.module)
            cast_experts(self.module)
        self._bound: torch.Tensor | None = None
        self._has_document_kernel = False
        if not is_divided:
            self._accumulate_in_place()

    @property
    def is_loss_chunked(self) -> bool:
        """Whether the logits of a micro-batch are made, and freed, for some tokens at a time."""
        return self._head is not None

    def logits_bytes(self, num_tokens: int) -> int:
        """Return the bytes that a chunked loss of that many tokens needs beside the tensors that autograd saves: logits and
        their gradient in fp32, logits in the model's own type, and a chunk's gradient of the head. 0 where all logits are
        saved."""
        if self._head is None:
            return 0
        return 3 * 4 * min(self._head.chunk_values, num_tokens * self._head.vocab_size) + self._head.gradient_bytes

    @contextmanager
    def keeping_activations(self) -> Iterator[None]:
        """Switch activation checkpointing off inside, because what it recomputes cannot be counted."""
        is_on = self._recomputes
        if is_on:
            self.module.activation_checkpointing_disable()
        try:
            yield
        finally:
            if is_on:
                self.recompute_activations()

    @contextmanager
    def casting_once(self) -> Iterator[None]:
        """Cast trained parameters to bfloat16 once for all micro-batches inside, so they must not change. With activation
        checkpointing each micro-batch casts them, since the casts would outlive the saved tensors. Backward belongs inside."""
        if not self._is_bfloat16 or self._recomputes:
            yield
            return
        # Torch drops its casts where the outermost autocast context ends. This one casts nothing itself, and moves that to the
        # step's end.
        with ExitStack() as stack:
            stack.enter_context(torch.autocast(self.device.type, enabled=False))
            if self._head is not None:
                stack.enter_context(self._head.holding_weights(torch.bfloat16))
            yield

    def recompute_activations(self) -> None:
        """Use activation checkpointing from now on. Raises ConfigError for a model that does not support it."""
        try:
            self.module.activation_checkpointing_enable()
        except ValueError as error:
            raise ConfigError(
                f"activation_checkpointing: {self.module.config.model_type} does not support it; leave it off", code="E209"
            ) from error
        self._recomputes = True

    def compile(self, *, backend: str = "inductor") -> None:
        """Compile the model below its head, and the loss of a chunk, from now on. A second size of rows compiles the model once
        more, for all sizes."""
        keep_graphs()
        body = body_of(self.module)
        (self.module if body is None else body).compile(backend=backend)
        if self._head is not None:
            self._head.compile(backend=backend)

    def try_document_kernel(self, rows: Batch) -> bool:
        """Compute rows of several documents without masks from now on, if torch's kernel for them agrees with masked attention
        for this model on this device; return whether it does. Call it before `bind` and `compile`. `rows`: rows of several
        documents for the trial."""
        assert self._bound is None and rows.has_several_documents

        def gradient() -> torch.Tensor:
            """Return a copy on the host, as the device may be short of memory; with the same random numbers every time."""
            self.gradient.zero_()
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(0)
                torch.autograd.backward(self.weighted_loss(rows)[0])
            return self.gradient.to("cpu", copy=True)

        self.module.train()
        masked = gradient()
        self._has_document_kernel = True
        self._has_document_kernel = try_attention(self.module, masked, gradient)
        self.gradient.zero_()
        return self._has_document_kernel

    def _accumulate_in_place(self) -> None:
        for parameter, (_, view) in zip(self.parameters, self.layout.views(self.gradient), strict=True):
            parameter.grad = view

    @contextmanager
    def measuring(self) -> Iterator[torch.Tensor]:
        """Measure the gradient that backward adds inside against the earlier one, parameter by parameter as it comes, so that
        no second gradient of the model is ever held. Gives the `half_products`, complete at the end."""
        products = torch.zeros(3, dtype=sum_dtype(self.device), device=self.device)
        awaited = dict(zip(self.parameters, (view for _, view in self.layout.views(self.gradient)), strict=True))

        def add(parameter: torch.nn.Parameter) -> None:
            assert parameter.grad is not None
            so_far, coming = awaited.pop(parameter), parameter.grad
            products.add_(half_products(so_far.view(-1), coming.reshape(-1)))
            so_far.add_(coming)
            parameter.grad = None

        handles = [
            parameter.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]
            for parameter in self.parameters
        ]
        for parameter in self.parameters:
            parameter.grad = None
        try:
            yield products
            for so_far in awaited.values():  # no gradient came, as for an expert without tokens
                products[0] += half_products(so_far.view(-1), so_far.view(-1))[0]
        finally:
            for handle in handles:
                handle.remove()
            self._accumulate_in_place()

    def bind(self, flat: torch.Tensor) -> None:
        """Let the module compute with a vector [P] on its device, without a copy."""
        assert flat.device == self.device, (flat.device, self.device)
        self._bound = flat
        for parameter, (_, view) in zip(self.parameters, self.layout.views(flat), strict=True):
            parameter.data = view

    def unbind(self) -> None:
        """Release the vector of the instance; `bind` comes before the next use."""
        self._bound = None
        for parameter in self.parameters:
            parameter.data = torch.empty(0, device=self.device)

    @contextmanager
    def evaluating(self, flat: torch.Tensor) -> Iterator[None]:
        """Compute with a vector [P] on its device, without training, and restore the state of the shell afterwards."""
        before, was_training = self._bound, self.module.training
        self.bind(flat)
        self.module.eval()
        try:
            yield
        finally:
            self.module.train(was_training)
            if before is not None:
                self.bind(before)

    def next_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the token that follows the ids [n]: [vocabulary], fp32 on the CPU."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._is_bfloat16):
            logits: torch.Tensor = self.module(input_ids=ids[None].to(self.device), use_cache=False).logits[0, -1]
        return logits.float().cpu()

    def token_losses(self, batch: Batch) -> torch.Tensor:
        """Return the loss of each prediction in nats, [n, L], not differentiated; position t predicts token t + 1. Zero where
        there is nothing to predict: before padding and at the row's end."""
        return self.weighted_loss(batch)[1]

    def weighted_loss(self, batch: Batch, weights: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the `token_losses`, each times the weight of its row [n, 1], to be differentiated, and the
        losses."""
        batch = batch.to(self.device)
        places = document_places(batch) if self._has_document_kernel else {}
        # The only shift. Moving the labels keeps the logits whole; slicing them would copy the largest tensor of all.
        end = batch.labels.new_full((batch.num_samples, 1), IGNORED_LABEL)
        targets = torch.cat([batch.labels[:, 1:], end], dim=1)  # [n, L]
        if weights is None:
            weights = torch.ones(batch.num_samples, 1, device=self.device)
        with (
            torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._is_bfloat16),
            known_documents(has_several=batch.has_several_documents, needs_mask=not places),
        ):
            if self._head is not None:
                hidden = hidden_states(self.module, batch, **places)
                each = weights.expand(targets.shape).reshape(-1)
                total, losses = chunked_cross_entropy(hidden.flatten(0, 1), targets.view(-1), each, self._head)
                return total, losses.view(targets.shape)
            # With positions that restart and without an attention mask, transformers keeps attention inside of each document.
            output = self.module(input_ids=batch.input_ids, position_ids=batch.positions, use_cache=False, **places)
        logits = output.logits  # [n, L, V]
        if self._loss is not None:
            losses = self._loss(logits.float(), targets)
        else:
            losses = torch.nn.functional.cross_entropy(
                logits.float().view(-1, logits.shape[-1]), targets.view(-1), reduction="none", ignore_index=IGNORED_LABEL
            ).view(targets.shape)
        return (losses * weights).sum(), losses.detach()

    def free_cache(self) -> None:
        """Return unused memory, of failed attempts, searches or inner steps, so that others find it unfragmented."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)


def block_matrices(module: transformers.PreTrainedModel) -> frozenset[str]:
    """Return the names of the trainable matrices, and stacks of matrices, except embeddings and the head, which look tokens up
    or score them, and kernels of one channel, whose slices are single rows."""
    tables = [part.weight for part in module.modules() if isinstance(part, torch.nn.Embedding)]
    head = module.get_output_embeddings()
    tables += [] if head is None else [head.weight]
    by_token = {id(table) for table in tables}
    return frozenset(
        name
        for name, parameter in trainable_parameters(module)
        if (parameter.ndim == 2 or (parameter.ndim == 3 and 1 not in parameter.shape[1:])) and id(parameter) not in by_token
    )


def frozen_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of the parameters that are not trained: the base of adapters."""
    return sum(parameter.nbytes for parameter in module.parameters() if not parameter.requires_grad)


def num_frozen(module: torch.nn.Module) -> int:
    """Return the number of these parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if not parameter.requires_grad)
