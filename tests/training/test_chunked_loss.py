"""Losses and gradients of some tokens at a time equal those of all logits, for every architecture."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PretrainedConfig

from adloco_p2p.config.run_config import Scalar
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.training import chunked_loss
from adloco_p2p.training.accumulation import accumulate_gradient
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from tests.training.small_run import ARCHITECTURE, LENGTH, RUN, VOCAB_SIZE, rows_of

LLAMA: dict[str, Scalar] = dict(ARCHITECTURE)
ARCHITECTURES: dict[str, dict[str, Scalar]] = {
    "llama": LLAMA,
    "llama, head of its own": LLAMA | {"tie_word_embeddings": False},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "gemma": LLAMA | {"model_type": "gemma", "head_dim": 16},
    "gemma2, capped": LLAMA | {"model_type": "gemma2", "head_dim": 16, "final_logit_softcapping": 0.5},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 4},
    "cohere": LLAMA | {"model_type": "cohere", "logit_scale": 0.25},
    "granite": LLAMA | {"model_type": "granite", "logits_scaling": 3.0},
}


def shell_of(architecture: dict[str, Scalar], *, is_bfloat16: bool = False) -> ModelShell:
    torch.set_num_threads(1)
    model = replace(RUN.model, architecture=architecture)
    module = build_model(model, vocab_size=VOCAB_SIZE, sequence_length=LENGTH, seed=3)
    return ModelShell(module, device=torch.device("cpu"), is_bfloat16=is_bfloat16)


class Casts(TorchDispatchMode):
    """Counts casts of a model's parameters to bfloat16, by their names."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._names = {parameter.data_ptr(): name for name, parameter in module.named_parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.ops.aten._to_copy.default and kwargs["dtype"] == torch.bfloat16:
            self.counts.update(filter(None, [self._names.get(args[0].data_ptr())]))
        return func(*args, **(kwargs or {}))


def test_the_head_is_cast_once_for_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    monkeypatch.setattr(chunked_loss, "CHUNK_VALUES", 40 * VOCAB_SIZE)
    shell = shell_of(LLAMA, is_bfloat16=True)
    with Casts(shell.module) as casts:
        shell.weighted_loss(rows_of("cast", 0, 5))[0].backward()
    assert casts.counts["model.embed_tokens.weight"] == 1, "five chunks"


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize("vocabulary", [2, 8192])
def test_an_inner_step_casts_each_parameter_once(vocabulary: int, is_measured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the head, with the logits of some tokens or of all; the gradient is that of a cast for each micro-batch."""
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", vocabulary)
    shell = shell_of(LLAMA | {"tie_word_embeddings": False}, is_bfloat16=True)
    assert shell.is_loss_chunked == (vocabulary == 2)
    matrices = {name for name, parameter in shell.module.named_parameters() if parameter.ndim == 2 and "embed" not in name}
    with Casts(shell.module) as casts:
        accumulate_gradient(shell, packed(), micro_batch=2, is_measured=is_measured)
    found = shell.gradient.clone()
    assert casts.counts == dict.fromkeys(matrices, 1)
    monkeypatch.setattr(shell, "casting_once", nullcontext)
    with Casts(shell.module) as casts:
        accumulate_gradient(shell, packed(), micro_batch=2, is_measured=is_measured)
    assert casts.counts == dict.fromkeys(matrices, 3)
    assert torch.equal(found, shell.gradient)


def test_a_model_without_a_part_below_its_head_has_whole_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    shell = shell_of(LLAMA)
    assert chunked_loss.head_of(shell.module) is not None
    monkeypatch.setattr(type(shell.module), "base_model_prefix", "language_model")  # as of Llama 4's text model
    assert chunked_loss.head_of(shell.module) is None


def packed() -> Batch:
    """Padding, a prompt that is not learned, and two documents in a row."""
    rows = rows_of("chunked", 0, 5, is_padded=True)
    rows.labels[1, 3:9] = IGNORED_LABEL
    positions = torch.arange(LENGTH).repeat(5, 1)
    positions[2, 10:] -= 10
    return replace(rows, positions=positions)


def step(shell: ModelShell) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses, gradient, and noise products, of a measured step of two micro-batches."""
    _, noise = accumulate_gradient(shell, packed(), micro_batch=3, is_measured=True)
    assert noise is not None
    return shell.token_losses(packed()).detach(), shell.gradient.clone(), noise[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_losses_and_gradients_are_those_of_all_logits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shell_of(ARCHITECTURES[name])
    assert not whole.is_loss_chunked
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    monkeypatch.setattr(chunked_loss, "CHUNK_VALUES", 7 * VOCAB_SIZE)  # seven tokens at a time
    chunked = shell_of(ARCHITECTURES[name])
    assert chunked.is_loss_chunked
    losses, gradient, noise = step(whole)
    found_losses, found_gradient, found_noise = step(chunked)
    assert torch.allclose(found_losses, losses, atol=1e-5)
    assert float((found_gradient - gradient).norm() / gradient.norm()) < 1e-5
    assert torch.allclose(found_noise, noise, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2, capped"])
def test_compiled_chunks_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    monkeypatch.setattr(chunked_loss, "CHUNK_VALUES", 32 * VOCAB_SIZE)
    torch._dynamo.reset()
    plain, compiled = shell_of(ARCHITECTURES[name]), shell_of(ARCHITECTURES[name])
    compiled.compile(backend="aot_eager")
    for found, expected in zip(step(compiled), step(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_gives_the_same_products(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, gradient, _ = step(shell_of(LLAMA, is_bfloat16=True))
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    monkeypatch.setattr(chunked_loss, "CHUNK_VALUES", 50 * VOCAB_SIZE)
    found_losses, found_gradient, _ = step(shell_of(LLAMA, is_bfloat16=True))
    assert torch.allclose(found_losses, losses, atol=1e-5)
    assert float((found_gradient - gradient).norm() / gradient.norm()) < 1e-2  # bfloat16 sums of other lengths


def test_a_model_whose_logits_are_others_keeps_them_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scaling that the chunked loss does not know."""
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    module = build_model(RUN.model, vocab_size=VOCAB_SIZE, sequence_length=LENGTH, seed=3)
    forward = module.forward

    def doubled(*arguments: object, **named: object) -> object:
        output = forward(*arguments, **named)
        output.logits = 2 * output.logits
        return output

    module.forward = doubled
    assert not ModelShell(module, device=torch.device("cpu"), is_bfloat16=False).is_loss_chunked


def test_all_logits_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    monkeypatch.setattr(chunked_loss, "CHUNK_VALUES", 7 * VOCAB_SIZE)
    shell = shell_of(LLAMA)
    largest: list[int] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.ndim and result.shape[-1] == VOCAB_SIZE:
                largest.append(result.numel())
            return result

    with Watch():
        accumulate_gradient(shell, packed(), micro_batch=5, is_measured=False)
    assert largest and max(largest) <= 7 * VOCAB_SIZE


def test_a_frozen_head_on_a_cpu_holds_few_logits_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = torch.nn.Linear(5, 40)
    head = chunked_loss.Head(linear, PretrainedConfig(vocab_size=40))
    assert head.chunk_values == chunked_loss.CHUNK_VALUES
    linear.requires_grad_(False)
    assert head.chunk_values == chunked_loss.FROZEN_CHUNK_VALUES < chunked_loss.CHUNK_VALUES
    monkeypatch.setattr(chunked_loss, "FROZEN_CHUNK_VALUES", 3 * 40)
    sizes: list[int] = []
    logits = head.logits

    def noted(hidden: torch.Tensor, weights: chunked_loss.Weights) -> torch.Tensor:
        sizes.append(len(hidden))
        return logits(hidden, weights)

    monkeypatch.setattr(head, "logits", noted)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(11, 5, generator=generator).requires_grad_()
    targets = torch.randint(40, (11,), generator=generator)
    weights = torch.rand(11, generator=generator)
    total, _ = chunked_loss.chunked_cross_entropy(hidden, targets, weights, head)
    (found,) = torch.autograd.grad(total, [hidden])
    expected = (torch.nn.functional.cross_entropy(linear(hidden), targets, reduction="none") * weights).sum()
    assert torch.allclose(found, torch.autograd.grad(expected, [hidden])[0], atol=1e-6)
    assert max(sizes) == 2, "the power of two below three"


def test_nothing_is_differentiated_that_is_only_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    shell = shell_of(LLAMA)
    expected = shell.token_losses(packed())
    monkeypatch.setattr(torch.autograd, "grad", None)
    with torch.no_grad():
        assert torch.equal(shell.token_losses(packed()), expected)


def test_a_head_whose_rows_are_padded_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs, whose products need sizes that are aligned."""
    linear = torch.nn.Linear(5, 41)
    head = chunked_loss.Head(linear, PretrainedConfig(vocab_size=41))
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(11, 5, generator=generator)
    targets, weights = torch.randint(41, (11,), generator=generator), torch.rand(11, generator=generator)

    def gradients() -> list[torch.Tensor]:
        states = hidden.clone().requires_grad_()
        total, losses = chunked_loss.chunked_cross_entropy(states, targets, weights, head)
        return [losses, total.detach(), *torch.autograd.grad(3 * total, [states, linear.weight, linear.bias])]

    plain, own = gradients(), head.weights

    def padded() -> chunked_loss.Weights:
        return {
            name: torch.nn.functional.pad(weight.detach(), (*(0, 0) * (weight.ndim - 1), 0, 23)).requires_grad_()
            for name, weight in own().items()
        }

    monkeypatch.setattr(head, "weights", padded)
    for found, expected in zip(gradients(), plain, strict=True):
        torch.testing.assert_close(found, expected)
    expected = torch.nn.functional.cross_entropy(linear(hidden), targets, reduction="none").detach()
    torch.testing.assert_close(plain[0], expected)


def test_rounding_of_padded_products_does_not_give_the_chunks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's kernel for padded rows may round otherwise than that for the head as it is, by up to a bit of bfloat16."""
    monkeypatch.setattr(chunked_loss, "LARGE_VOCABULARY", 2)
    weights = chunked_loss.Head.weights

    def rounded(head: chunked_loss.Head) -> chunked_loss.Weights:
        return {name: weight * (1 + 2**-8) for name, weight in weights(head).items()}

    monkeypatch.setattr(chunked_loss.Head, "weights", rounded)
    assert shell_of(LLAMA).is_loss_chunked
