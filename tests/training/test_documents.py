"""Rows of several documents: each is read as if it were alone."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training import document_kernel
from adloco_p2p.training.memory_search import synthetic_rows
from adloco_p2p.training.shell import ModelShell
from tests.training.small_run import LENGTH, VOCAB_SIZE
from tests.training.test_adapters import ARCHITECTURES, build, save_base

CUTS = [(0, 9, LENGTH), (0, 20, LENGTH)]
"""Where the two documents of each row begin and end."""


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_losses_of_packed_documents_are_those_of_the_documents_alone(model_type: str, rank: int, tmp_path: Path) -> None:
    module = build(save_base(tmp_path, model_type), rank=rank)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    ids = torch.randint(VOCAB_SIZE, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    positions = torch.stack([torch.cat([torch.arange(b - a), torch.arange(c - b)]) for a, b, c in CUTS])
    for training in (False, True):
        shell.module.train(training)
        packed = shell.token_losses(Batch(input_ids=ids, labels=ids, positions=positions))
        across = shell.token_losses(Batch(input_ids=ids, labels=ids))
        for row, cuts in enumerate(CUTS):
            for start, stop in itertools.pairwise(cuts):
                part = ids[row : row + 1, start:stop]
                alone = shell.token_losses(Batch(input_ids=part, labels=part))
                assert (packed[row, start : stop - 1] - alone[0, :-1]).abs().max() < 1e-4
            assert (across - packed)[row, cuts[1] :].abs().max() > 1e-2


@pytest.mark.parametrize(("rank", "has_kernel"), [(0, False), (2, False), (2, True)])
def test_a_compiled_model_computes_the_same_without_a_break(
    rank: int, has_kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole rows, rows of documents, another number of rows, and another instance's parameters; traced, and run as traced."""
    module = build(save_base(tmp_path, "llama"), rank=rank)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_by_hand)
    assert not has_kernel or shell.try_document_kernel(TRIAL)
    shell.module.eval()
    ids = torch.randint(VOCAB_SIZE, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(9), torch.arange(LENGTH - 9)]).expand(3, -1)
    batches = [Batch(input_ids=ids[:n], labels=ids[:n], positions=p) for n, p in ((2, None), (2, positions[:2]), (3, None))]
    instances = [torch.cat([p.detach().flatten() for p in shell.parameters]) * scale for scale in (1.0, 0.9)]

    def computed() -> list[torch.Tensor]:
        found = []
        for flat in instances:
            shell.bind(flat)
            for batch in batches:
                shell.gradient.zero_()
                total, losses = shell.weighted_loss(batch)
                total.backward()
                found += [losses, shell.gradient.clone()]
        return found

    plain = computed()
    counters.clear()
    torch._dynamo.reset()
    shell.compile(backend="aot_eager")
    for ours, theirs in zip(computed(), plain, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not counters["graph_break"] and 0 < counters["stats"]["unique_graphs"] <= len(batches) + 1


def test_every_form_of_rows_is_compiled(tmp_path: Path) -> None:
    """Plain rows and rows of documents; one, a fixed number, and others; trained, evaluated and sampled. Each form is traced
    once, and computed as traced from then on."""
    shell = ModelShell(build(save_base(tmp_path), rank=0), device=torch.device("cpu"), is_bfloat16=False)
    flat = torch.cat([parameter.detach().flatten() for parameter in shell.parameters])
    shell.bind(flat)
    ids = torch.randint(VOCAB_SIZE, (4, LENGTH), generator=torch.Generator().manual_seed(1))
    counters.clear()
    torch._dynamo.reset()
    shell.compile(backend="eager")

    def compute(count: int, positions: torch.Tensor | None) -> None:
        rows = None if positions is None else positions.expand(count, -1)
        shell.weighted_loss(Batch(input_ids=ids[:count], labels=ids[:count], positions=rows))

    def life() -> int:
        forms = list(itertools.product((1, 2, 3), (None, torch.arange(LENGTH), torch.arange(LENGTH) % 9)))
        for form in forms:
            compute(*form)
        with torch.no_grad(), shell.evaluating(flat.clone()):
            for form in forms:
                compute(*form)
            for length in (3, 4, 5):
                shell.next_logits(ids[0, :length])
        return int(counters["stats"]["unique_graphs"])

    assert life() == life() > 8, "torch's own limit"
    assert not counters["unimplemented"] and not counters["graph_break"]


# --- without masks -----------------------------------------------------------------------------------------------------


TRIAL = synthetic_rows(2, LENGTH, VOCAB_SIZE, num_documents=2)


def varlen_by_hand(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What torch documents of `varlen_attn`, which runs on GPUs only: tokens [T, heads, d] of one document after another."""
    assert cu_seq_q is cu_seq_k and cu_seq_q.dtype == torch.int32 and max_q == max_k
    assert window_size == (-1, 0) and query.shape[0] == key.shape[0] == value.shape[0]
    places = torch.arange(query.shape[0], device=query.device)
    document = torch.bucketize(places, cu_seq_q[1:], right=True)
    mask = (document[:, None] == document[None]) & (places[:, None] >= places[None])
    query, key, value = (each.transpose(0, 1)[None] for each in (query, key, value))
    attention = torch.nn.functional.scaled_dot_product_attention
    found = attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
    return found[0].transpose(0, 1)


def packed_rows() -> Batch:
    ids = torch.randint(VOCAB_SIZE, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    positions = torch.stack([torch.cat([torch.arange(b - a), torch.arange(c - b)]) for a, b, c in CUTS])
    return Batch(input_ids=ids, labels=ids, positions=positions)


def computed(shell: ModelShell, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses, and the gradient of their sum."""
    shell.gradient.zero_()
    total, losses = shell.weighted_loss(batch)
    total.backward()
    return losses, shell.gradient.clone()


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of documents that torch's kernel, here by hand, was called with."""
    calls: list[int] = []

    def called(*arguments: Any, **more: Any) -> torch.Tensor:
        calls.append(len(arguments[3]) - 1)
        return varlen_by_hand(*arguments, **more)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", called)
    return calls


@pytest.mark.parametrize("is_recomputed", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_kernel_for_documents_computes_what_masks_do(
    model_type: str, rank: int, is_recomputed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_calls: list[int]
) -> None:
    shell = ModelShell(build(save_base(tmp_path, model_type), rank=rank), device=torch.device("cpu"), is_bfloat16=False)
    if is_recomputed:
        shell.recompute_activations()
    shell.module.train()
    rows = packed_rows()
    alone = Batch(input_ids=rows.input_ids, labels=rows.labels)
    masked, whole = computed(shell, rows), computed(shell, alone)
    assert shell.try_document_kernel(TRIAL) and not shell.gradient.any()
    kernel_calls.clear()
    with monkeypatch.context() as patch:
        patch.setattr(document_kernel, "sdpa_mask", None)  # no mask is made
        without = computed(shell, rows)
    for found, expected in zip(without, masked, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert set(kernel_calls) == {4} and len(kernel_calls) == 2 * (1 + is_recomputed)
    kernel_calls.clear()
    assert all(torch.equal(found, expected) for found, expected in zip(computed(shell, alone), whole, strict=True))
    assert not kernel_calls, "rows of one document go torch's usual way"


def test_a_window_that_is_shorter_than_the_row_keeps_its_mask(tmp_path: Path, kernel_calls: list[int]) -> None:
    """The first layer attends to all of a document, the second one to 24 tokens of it."""
    layers = ["full_attention", "sliding_attention"]
    base = save_base(tmp_path, "qwen2", sliding_window=24, use_sliding_window=True, layer_types=layers)
    shell = ModelShell(build(base, rank=0), device=torch.device("cpu"), is_bfloat16=False)
    shell.module.train()
    masked = computed(shell, packed_rows())
    assert shell.try_document_kernel(synthetic_rows(2, 16, VOCAB_SIZE, num_documents=2))
    kernel_calls.clear()
    for found, expected in zip(computed(shell, packed_rows()), masked, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert kernel_calls == [4]


def test_more_documents_than_the_kernel_can_take_keep_their_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_calls: list[int]
) -> None:
    shell = ModelShell(build(save_base(tmp_path), rank=0), device=torch.device("cpu"), is_bfloat16=False)
    shell.module.train()
    masked = computed(shell, packed_rows())
    assert shell.try_document_kernel(TRIAL)
    kernel_calls.clear()
    monkeypatch.setattr(document_kernel, "MOST_DOCUMENTS", 3)
    for found, expected in zip(computed(shell, packed_rows()), masked, strict=True):
        assert torch.equal(found, expected)
    assert not kernel_calls


def test_where_the_kernel_does_not_do_the_same_masks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")

    def across(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu: torch.Tensor, *_: Any, **more: Any) -> Any:
        one = torch.tensor([0, query.shape[0]], dtype=torch.int32)
        return varlen_by_hand(query, key, value, one, one, LENGTH, LENGTH, **more)

    def only_forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        return value * 0 + varlen_by_hand(query, key, value, *rest, **more).detach()

    for kernel, model_type, sizes in (
        (only_forward, "llama", {}),
        (refuses, "llama", {}),
        (across, "llama", {}),
        (varlen_by_hand, "llama", {"attention_dropout": 0.1}),
        (varlen_by_hand, "gemma2", {"head_dim": 16}),  # capped scores
    ):
        base = save_base(tmp_path / f"{kernel.__name__}-{model_type}-{len(sizes)}", model_type, **sizes)
        shell = ModelShell(build(base, rank=0), device=torch.device("cpu"), is_bfloat16=False)
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
        shell.module.eval()
        masked = shell.token_losses(packed_rows())
        assert not shell.try_document_kernel(TRIAL) and not shell.gradient.any()
        shell.module.eval()
        assert torch.equal(shell.token_losses(packed_rows()), masked)


def test_chance_elsewhere_in_the_model_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_by_hand)
    base = save_base(tmp_path, "gpt2", resid_pdrop=0.1, attn_pdrop=0.0)
    shell = ModelShell(build(base, rank=0), device=torch.device("cpu"), is_bfloat16=False)
    before = torch.get_rng_state()
    assert shell.try_document_kernel(TRIAL) and torch.equal(torch.get_rng_state(), before)


def test_documents_are_counted_where_rows_are_made() -> None:
    rows = packed_rows()
    alone = Batch(input_ids=rows.input_ids, labels=rows.labels, positions=torch.arange(LENGTH).expand(2, -1))
    assert rows.documents == (2, 2) and rows.rows(1, 2).documents == (2,) and rows.to(torch.device("meta")).documents == (2, 2)
    assert rows.has_several_documents and not alone.has_several_documents
    assert Batch(input_ids=rows.input_ids, labels=rows.labels).documents == ()
