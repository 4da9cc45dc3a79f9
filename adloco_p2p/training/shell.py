"""One model on one device, lent to one instance at a time: the module's parameters are views of the borrower's vector."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers

from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.numerics.layout import layout_of, trainable_parameters


class ModelShell:
    """The module, the gradient that every instance shares, and the loss. Instances cost no second module."""

    def __init__(self, module: transformers.PreTrainedModel, *, device: torch.device, is_bfloat16: bool) -> None:
        self.module = module.to(device)
        self.device = device
        self.layout = layout_of(module)
        self.parameters = [parameter for _, parameter in trainable_parameters(module)]
        self.gradient = torch.zeros(self.layout.num_parameters, device=device)  # [P], accumulated by backward
        self.half = torch.zeros(self.layout.num_parameters, device=device)  # [P], the first half's part of the gradient
        self._is_bfloat16 = is_bfloat16
        self._bound: torch.Tensor | None = None
        for parameter, (_, view) in zip(self.parameters, self.layout.views(self.gradient), strict=True):
            parameter.grad = view

    def bind(self, flat: torch.Tensor) -> None:
        """Make the module compute with a vector [P] on its device, without a copy."""
        assert flat.device == self.device, (flat.device, self.device)
        self._bound = flat
        for parameter, (_, view) in zip(self.parameters, self.layout.views(flat), strict=True):
            parameter.data = view

    @contextmanager
    def evaluating(self, flat: torch.Tensor) -> Iterator[None]:
        """Compute with a vector [P] on its device without training, then be again what the shell was before."""
        before, was_training = self._bound, self.module.training
        self.bind(flat)
        self.module.eval()
        try:
            yield
        finally:
            self.module.train(was_training)
            if before is not None:
                self.bind(before)

    def token_losses(self, batch: Batch) -> torch.Tensor:
        """Nats of each prediction, [n, L]; position t predicts token t + 1. Zero where there is nothing to predict: before
        padding and at the row's end."""
        input_ids = batch.input_ids.to(self.device)
        # The one shift. Moving the labels keeps the logits whole; slicing them would copy the largest tensor of all.
        end = torch.full((batch.num_samples, 1), IGNORED_LABEL)
        targets = torch.cat([batch.labels[:, 1:], end], dim=1).to(self.device)  # [n, L]
        # positions that restart, and no attention mask: transformers then keeps attention inside of each document
        positions = None if batch.positions is None else batch.positions.to(self.device)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._is_bfloat16):
            logits = self.module(input_ids=input_ids, position_ids=positions, use_cache=False).logits  # [n, L, V]
        losses = torch.nn.functional.cross_entropy(
            logits.float().view(-1, logits.shape[-1]), targets.view(-1), reduction="none", ignore_index=IGNORED_LABEL
        )
        return losses.view(targets.shape)

    def free_cache(self) -> None:
        """Give memory of failed attempts back, so that smaller ones find it whole."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
