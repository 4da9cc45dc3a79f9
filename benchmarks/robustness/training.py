"""A round of all hosts of one instance at once: the production model and optimizer with a dimension for the host.

Four times as fast as one host after the other on one core, which is what the table of rules costs. tests/benchmarks compares
it with `training.hosting`.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.nn import functional

from adloco_p2p.config.run_config import InnerConfig, RunConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.numerics.layout import Layout, flatten, layout_of
from adloco_p2p.numerics.outer_optimizer import outer_step_
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.learning_rate import LearningRateSchedule
from adloco_p2p.training.model import build_model
from adloco_p2p.training.seeds import initial_seed
from adloco_p2p.training.shell import ModelShell
from benchmarks.method.run import HELDOUT_ROWS, HELDOUT_SEED

Named = dict[str, torch.Tensor]
OptimizerOf = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def schedule_of(run: RunConfig, number: int) -> LearningRateSchedule:
    """Of this round of a run that counts rounds."""
    steps, rounds = run.work.inner_steps, run.work.rounds
    assert rounds is not None
    return LearningRateSchedule(
        inner=run.inner,
        steps_before=number * steps,
        num_steps=steps,
        progress_start=number / rounds,
        progress_end=(number + 1) / rounds,
        batch_ratio=1.0,
    )


def rows_of_host(run: RunConfig, feed: IndexedFeed, host: int, number: int, *, turn: int) -> Batch:
    """One a step, in round `number`; `turn`: how often the feed gave so many before."""
    steps, peer = run.work.inner_steps, PeerId(f"peer{host}")
    return feed.open(instance=InstanceId(0), peer=peer, round=number, first_sample=turn * steps).take(steps)


def apply_(
    run: RunConfig, outer: torch.Tensor, momentum: torch.Tensor, averaged: torch.Tensor, *, rounding_seed: int = 0
) -> None:
    """The run's outer step; see `outer_step_`."""
    rules = run.outer
    kind, rate, factor = rules.kind, rules.learning_rate, rules.momentum
    outer_step_(outer, momentum, averaged, kind=kind, learning_rate=rate, momentum_factor=factor, rounding_seed=rounding_seed)


def measure_of(run: RunConfig, rows: IndexedRows, vocab_size: int) -> Callable[[torch.Tensor], float]:
    """The held-out loss of outer parameters [P], on the rows that all runs are measured on."""
    module = build_model(run.model, vocab_size=vocab_size, sequence_length=run.data.sequence_length, seed=0)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    heldout = IndexedFeed(rows, vocab_size=vocab_size, seed=HELDOUT_SEED).heldout(HELDOUT_ROWS)
    return lambda outer: heldout_loss(shell, outer, heldout, micro_batch=64)


def _adamw(inner: InnerConfig, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.0, betas=inner.betas, eps=inner.eps, weight_decay=inner.weight_decay, fused=True)


class Trainees:
    """n hosts of a Llama of one layer, with the AdamW moments of each, or with another `optimizer` of parameters [n, P], whose
    learning rate is set before each step."""

    def __init__(self, run: RunConfig, *, vocab_size: int, num_hosts: int, optimizer: OptimizerOf | None = None) -> None:
        seed = initial_seed(run, InstanceId(0))
        module = build_model(run.model, vocab_size=vocab_size, sequence_length=run.data.sequence_length, seed=seed)
        self._config = module.config
        assert self._config.num_hidden_layers == 1 and self._config.tie_word_embeddings
        self.layout: Layout = layout_of(module)
        self.start = flatten(module)  # [P]
        self._inner: InnerConfig = run.inner
        self._parameter = torch.nn.Parameter(self.start.repeat(num_hosts, 1))  # [n, P]
        self._optimizer = (optimizer or partial(_adamw, run.inner))([self._parameter])
        self._rotation = _rotation(run.data.sequence_length, self._config)

    def inner_round(
        self, outer: torch.Tensor, rows: list[Batch], schedule: LearningRateSchedule, *, batch: int = 1
    ) -> torch.Tensor:
        """The local parameters [n, P] after the inner steps from `outer` [P]: `rows[m]` [H * batch, L] are those of host m,
        `batch` of them a step."""
        self._parameter.data.copy_(outer.expand_as(self._parameter))
        ids, labels = (
            torch.stack([getattr(one, name).unflatten(0, (-1, batch)) for one in rows]) for name in ("input_ids", "labels")
        )  # [n, H, b, L]
        for step in range(ids.shape[1]):
            self._optimizer.param_groups[0]["lr"] = schedule.learning_rate(step, None)
            self._parameter.grad = None
            torch.autograd.backward(self._loss(ids[:, step], labels[:, step]))
            assert self._parameter.grad is not None
            norms = self._parameter.grad.norm(dim=1, keepdim=True)
            self._parameter.grad.mul_((self._inner.clip_norm / (norms + 1e-6)).clamp_(max=1.0))
            self._optimizer.step()
        return self._parameter.data

    def share_moments(self, names: Sequence[str]) -> None:
        """Each of the AdamW moments of these names becomes, on every host, its mean over the hosts."""
        state = self._optimizer.state[self._parameter]
        for name in names:
            state[name].copy_(state[name].mean(dim=0).expand_as(state[name]))

    def _loss(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum over hosts of the mean over each one's rows of the mean loss of a row; ids [n, b, L]."""
        logits = self._logits(ids)
        targets = functional.pad(labels[..., 1:], (0, 1), value=IGNORED_LABEL)  # [n, b, L]
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED_LABEL)
        counts = (targets != IGNORED_LABEL).sum(dim=-1).clamp(min=1)
        return (losses.view(targets.shape).sum(dim=-1) / counts).mean(dim=1).sum()

    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        """[n, b * L, V] of ids [n, b, L]."""
        weights = self._weights()
        embedding = weights["model.embed_tokens.weight"]  # [n, V, d]
        places = ids.flatten(1) + torch.arange(len(ids))[:, None] * embedding.shape[1]
        x = functional.embedding(places, embedding.flatten(0, 1))  # [n, b * L, d]
        attended = self._normed(x, weights["model.layers.0.input_layernorm.weight"])
        x = x + self._attention(attended, weights, length=ids.shape[-1])
        y = self._normed(x, weights["model.layers.0.post_attention_layernorm.weight"])
        gated = functional.silu(_linear(y, weights, "mlp.gate_proj")) * _linear(y, weights, "mlp.up_proj")
        x = x + _linear(gated, weights, "mlp.down_proj")
        return torch.bmm(self._normed(x, weights["model.norm.weight"]), embedding.mT)

    def _weights(self) -> Named:
        pieces = self._parameter.split([entry.size for entry in self.layout.entries], dim=1)
        return {entry.name: piece.reshape(-1, *entry.shape) for entry, piece in zip(self.layout.entries, pieces, strict=True)}

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self._config.rms_norm_eps) * weight[:, None]

    def _attention(self, x: torch.Tensor, weights: Named, *, length: int) -> torch.Tensor:
        hosts, tokens, _ = x.shape  # tokens: of all rows of a host, each of this length
        queries, keys, values = (
            _linear(x, weights, f"self_attn.{letter}_proj")
            .unflatten(1, (-1, length))
            .flatten(0, 1)
            .unflatten(2, (-1, self._config.head_dim))
            .transpose(1, 2)
            for letter in "qkv"
        )
        queries, keys = self._rotated(queries), self._rotated(keys)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return _linear(mixed.transpose(1, 2).reshape(hosts, tokens, -1), weights, "self_attn.o_proj")

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        cosines, sines = self._rotation
        first, second = x.chunk(2, dim=-1)
        return x * cosines + torch.cat([-second, first], dim=-1) * sines


def _linear(x: torch.Tensor, weights: Named, name: str) -> torch.Tensor:
    return torch.bmm(x, weights[f"model.layers.0.{name}.weight"].mT)


def _rotation(length: int, config: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [L, head] of the rotary embedding."""
    size, theta = config.head_dim, config.rope_parameters["rope_theta"]  # type: ignore[attr-defined]
    frequencies = theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()
