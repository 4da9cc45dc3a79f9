"""The inner optimizers: against slow versions of our own, saved and resumed, and what their state weighs."""

from dataclasses import replace
from typing import Any, Literal, get_args

import pytest
import torch

from adloco_p2p.config.run_config import AveragingConfig, InnerConfig
from adloco_p2p.core.model.lineage import Fork
from adloco_p2p.core.model.rules import BatchRules, WorkRules
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.layout import Entry, Layout
from adloco_p2p.training.inner_optimizer import InnerOptimizer, inner_optimizer
from tests.training.small_run import ONE, RUN, TWO, effect, hosting, train_round, with_run

MUON = replace(RUN.inner, kind="muon")
EIGHT_BIT = replace(RUN.inner, kind="adamw8bit")
Kind = Literal["adamw", "muon", "adamw8bit"]
KINDS = get_args(Kind)


def needs(kind: str) -> None:
    if kind == "adamw8bit":
        pytest.importorskip("torchao")


def layout_of_shapes(**shapes: tuple[int, ...]) -> Layout:
    entries, offset = [], 0
    for name, shape in shapes.items():
        size = int(torch.tensor(shape).prod())
        entries.append(Entry(name=name, shape=shape, offset=offset, size=size))
        offset += size
    return Layout(entries=tuple(entries))


def made(inner: InnerConfig, parameters: torch.Tensor, layout: Layout, *matrices: str) -> InnerOptimizer:
    return inner_optimizer(inner, parameters, layout, matrices=frozenset(matrices))


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- Muon --------------------------------------------------------------------------------------------------------------


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz written out in fp64 (arXiv 2502.16982), of a matrix that is at most as tall as wide."""
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_muon_steps_matrices_and_adamw_the_rest() -> None:
    layout = layout_of_shapes(table=(6, 4), wide=(4, 10), norm=(5,), tall=(8, 3))
    parameters = random(layout.num_parameters, seed=1)
    before = parameters.clone()
    optimizer = made(MUON, parameters, layout, "wide", "tall")
    gradients = [random(layout.num_parameters, seed=seed) for seed in (2, 3)]
    for gradient in gradients:
        optimizer.step(gradient, 0.01)
    values = dict(layout.views(parameters))
    for name, is_tall in (("wide", False), ("tall", True)):
        expected = dict(layout.views(before))[name].double()
        momentum = torch.zeros_like(expected)
        for gradient in gradients:
            coming = dict(layout.views(gradient))[name].double()
            momentum = 0.95 * momentum + 0.05 * coming
            update = 0.05 * coming + 0.95 * momentum  # Nesterov
            step = orthogonalized(update.T).T if is_tall else orthogonalized(update)
            expected = expected * (1 - 0.01 * 0.1) - 0.01 * 0.2 * max(expected.shape) ** 0.5 * step
        moved = float((expected - dict(layout.views(before))[name]).norm())
        assert float((values[name] - expected).norm()) < 0.02 * moved, "torch iterates in bfloat16"
    for name in ("table", "norm"):
        parameter = torch.nn.Parameter(dict(layout.views(before))[name].clone())
        adamw = torch.optim.AdamW([parameter], lr=0.01, betas=MUON.betas, eps=MUON.eps, weight_decay=MUON.weight_decay)
        for gradient in gradients:
            parameter.grad = dict(layout.views(gradient))[name].clone()
            adamw.step()
        assert torch.allclose(values[name], parameter.detach(), atol=1e-7)


def test_stacked_matrices_are_stepped_one_by_one() -> None:
    """As the experts of one layer are stored."""
    stacked, alone = layout_of_shapes(experts=(2, 4, 6)), layout_of_shapes(first=(4, 6), second=(4, 6))
    ends = []
    for layout, names in ((stacked, ("experts",)), (alone, ("first", "second"))):
        parameters = random(48, seed=4)
        made(MUON, parameters, layout, *names).step(random(48, seed=5), 0.01)
        ends.append(parameters)
    assert torch.equal(*ends)


def test_only_adapters_are_trained() -> None:
    """Nothing but matrices, as with LoRA: no AdamW beside Muon."""
    layout = layout_of_shapes(a=(2, 16), b=(16, 2))
    optimizer = made(MUON, torch.zeros(64), layout, "a", "b")
    assert {name: tensor.numel() for name, tensor in optimizer.state.items()} == {"momentum_buffer": 64}


def test_a_model_without_matrices_has_no_use_for_muon() -> None:
    with pytest.raises(ConfigError, match=r"inner\.kind: muon"):
        made(MUON, torch.zeros(4), layout_of_shapes(norm=(4,)))


def test_embeddings_and_the_head_are_no_matrices_of_blocks() -> None:
    names = hosting()._shell.matrices
    assert all(".self_attn." in name or ".mlp." in name for name in names)
    assert len(names) == 2 * 7


# --- 8-bit AdamW -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 255, 256, 4095, 4096, 5000, (1 << 20) + 17, (1 << 20) + 4096, (1 << 20) + 4351])
def test_the_state_is_coded_whatever_the_size(size: int) -> None:
    """torchao falls back to fp32 without a word where 256 does not divide a size: only a small rest may."""
    needs("adamw8bit")
    optimizer = made(EIGHT_BIT, torch.zeros(size), layout_of_shapes(all=(size,)))
    num_bytes = sum(tensor.nbytes for tensor in optimizer.state.values())
    assert num_bytes <= size * (2 + 2 * 4 / 256) + 4352 * 8
    optimizer.step(torch.ones(size), 0.01)
    assert sum(tensor.nbytes for tensor in optimizer.state.values()) == num_bytes
    assert all(bool(tensor.any()) for tensor in optimizer.state.values() if len(tensor)), "the step writes to these tensors"


def test_eight_bits_step_almost_like_thirty_two() -> None:
    needs("adamw8bit")
    layout = layout_of_shapes(all=(10_000,))
    ends = []
    for inner in (RUN.inner, EIGHT_BIT):
        parameters = torch.zeros(10_000)
        optimizer = made(inner, parameters, layout)
        for seed in range(5):
            optimizer.step(1.0 + 0.3 * random(10_000, seed=seed), 0.01)
        ends.append(parameters)
    assert float((ends[0] - ends[1]).norm() / ends[0].norm()) < 0.01


# --- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("decayed", "gain"), [("all", 1 - 0.01 * 0.1), ("matrices", 1.0)])
def test_what_decays_where_the_gradient_is_zero(kind: Kind, decayed: Literal["all", "matrices"], gain: float) -> None:
    """No parameter begins or ends with a block of the 8-bit state."""
    needs(kind)
    layout = layout_of_shapes(first=(5,), table=(70, 61), norm=(7,), wide=(4, 10), experts=(2, 3, 4), last=(3,))
    parameters = torch.ones(layout.num_parameters)
    optimizer = made(replace(RUN.inner, kind=kind, decayed=decayed), parameters, layout, "wide", "experts")
    optimizer.step(torch.zeros_like(parameters), 0.01)
    for name, values in layout.views(parameters):
        expected = 1 - 0.01 * 0.1 if name in ("table", "wide", "experts") else gain
        torch.testing.assert_close(values, torch.full_like(values, expected), rtol=0, atol=1e-7)


def test_decayed_matrices_are_torchs_two_groups_of_parameters() -> None:
    layout = layout_of_shapes(table=(6, 4), norm=(5,), tall=(8, 3))
    parameters = random(layout.num_parameters, seed=1)
    expected = {name: torch.nn.Parameter(view.clone()) for name, view in layout.views(parameters)}
    groups: list[dict[str, Any]] = [
        {"params": [expected["table"], expected["tall"]]},
        {"params": [expected["norm"]], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.01, betas=RUN.inner.betas, eps=RUN.inner.eps, weight_decay=RUN.inner.weight_decay)
    optimizer = made(replace(RUN.inner, decayed="matrices"), parameters, layout)
    for seed in (2, 3, 4):
        gradient = random(layout.num_parameters, seed=seed)
        for name, view in layout.views(gradient):
            expected[name].grad = view.clone()
        adamw.step()
        optimizer.step(gradient, 0.01)
    for name, view in layout.views(parameters):
        torch.testing.assert_close(view, expected[name].detach(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_resume_equals_uninterrupted(kind: Kind) -> None:
    needs(kind)
    run = with_run(inner=replace(RUN.inner, kind=kind))
    whole = hosting(run)
    whole.start([ONE])
    train_round(whole, effect())
    resumed = hosting(run)
    resumed.restore(ONE, *whole.snapshot(ONE))
    for peer in (whole, resumed):
        train_round(peer, effect(round=1))
    (tensors, meta), (again, meta_again) = whole.snapshot(ONE), resumed.snapshot(ONE)
    assert meta == meta_again and tensors.keys() == again.keys()
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls(kind: Kind) -> None:
    needs(kind)
    peer = hosting(with_run(inner=replace(RUN.inner, kind=kind)))
    peer.start([ONE])
    before = peer.evaluate(ONE)
    for round_number in range(3):
        train_round(peer, effect(round=round_number, batch=8, micro=8, steps=10))
    assert peer.evaluate(ONE) < before - 0.4


def test_muon_with_fragments_and_forks() -> None:
    """Fragments cut matrices in two; the inner step sees whole ones all the same. A fork has its source's state."""
    plain_run = with_run(inner=MUON, work=WorkRules(rounds=6), batch=BatchRules(test="constant"))
    peers = [hosting(run) for run in (plain_run, replace(plain_run, averaging=AveragingConfig(fragments=3)))]
    for peer in peers:
        peer.start([ONE])
        train_round(peer, effect())
    whole, cut = (peer.snapshot(ONE)[0]["momentum_buffer"] for peer in peers)
    assert torch.equal(whole, cut)
    peers[0].transition([Fork(source=ONE, targets=(TWO,))], [])
    assert torch.equal(peers[0].snapshot(TWO)[0]["momentum_buffer"], whole)
