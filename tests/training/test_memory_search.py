"""The largest micro-batch."""

import gc
from dataclasses import replace

import pytest
import torch

from adloco_p2p.errors import DeviceError
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training.memory_search import MicroBatchLimit, largest_fitting, search_cpu
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from tests.training.small_run import LENGTH, ONE, PEER, RUN, VOCAB_SIZE, hosting


@pytest.mark.parametrize("limit", [1, 2, 3, 16, 100, 1024])
def test_search_finds_the_largest_that_fits(limit: int) -> None:
    for largest in (0, 1, 2, 3, 5, 8, 63, 64, 65, 1000, 5000):
        tried: list[int] = []

        def fits(size: int, largest: int = largest, tried: list[int] = tried) -> bool:
            tried.append(size)
            return size <= largest

        assert largest_fitting(fits, limit=limit) == min(largest, limit)
        assert all(1 <= size <= limit for size in tried)
        assert len(tried) == len(set(tried)) <= 2 * limit.bit_length() + 1


def shell() -> ModelShell:
    module = build_model(RUN.model, vocab_size=VOCAB_SIZE, sequence_length=LENGTH, seed=3)
    return ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)


def cpu_limit(budget_bytes: int, *, length: int = LENGTH, limit: int = 10**6) -> int:
    return search_cpu(shell(), sequence_length=length, vocab_size=VOCAB_SIZE, budget_bytes=budget_bytes, limit=limit)


def test_cpu_limit_is_linear_in_the_budget_and_repeatable() -> None:
    small, large = cpu_limit(20 << 20), cpu_limit(40 << 20)
    assert small == cpu_limit(20 << 20)
    assert large == pytest.approx(2 * small, rel=0.02)
    # the logits and their gradients alone need this much per sample
    per_sample = (20 << 20) / small
    assert 3 * LENGTH * VOCAB_SIZE * 4 < per_sample < 100 * LENGTH * VOCAB_SIZE * 4


def test_cpu_limit_shrinks_with_the_length_and_is_capped() -> None:
    assert cpu_limit(40 << 20, length=16) > 1.8 * cpu_limit(40 << 20, length=32)
    assert cpu_limit(40 << 20, limit=7) == 7


def test_a_budget_too_small_for_one_sample_names_the_setting() -> None:
    peer = hosting(peer=replace(PEER, memory_budget_bytes=1 << 20, max_micro_batch=8))
    assert peer.micro_batch_limit >= 1
    with pytest.raises(DeviceError, match="memory_budget_bytes"):
        cpu_limit(200_000)


@pytest.mark.usefixtures("new_objects")
def test_counting_what_autograd_saves_does_not_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples' activations at once were the largest peak of a peer's life."""
    counted = shell()
    forward = counted.weighted_loss
    held: list[int] = []

    def weighted_loss(rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        before = live_bytes()
        losses = forward(rows)
        held.append(live_bytes() - before)
        return losses

    monkeypatch.setattr(counted, "weighted_loss", weighted_loss)
    search_cpu(counted, sequence_length=LENGTH, vocab_size=VOCAB_SIZE, budget_bytes=20 << 20, limit=8)
    assert len(held) == 2
    assert max(held) < 3 * LENGTH * VOCAB_SIZE * 4, "less than the logits of the two samples take"


def live_bytes() -> int:
    gc.collect()
    tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor]
    return sum({item.untyped_storage()._cdata: item.untyped_storage().nbytes() for item in tensors}.values())


def test_probing_does_not_touch_what_is_hosted() -> None:
    peer = hosting()
    peer.start([ONE])
    before = peer.digests(ONE)
    assert peer.micro_batch_limit == PEER.max_micro_batch
    assert peer.digests(ONE) == before
    assert float(peer.pseudo_gradient(ONE).abs().sum()) == 0.0


def test_the_limit_grows_back_more_patiently_each_time() -> None:
    limit = MicroBatchLimit(16)
    limit.note_round(16)
    limit.note_round(8)

    def rounds_until(samples: int) -> int:
        for count in range(1, 1000):
            limit.note_round(limit.samples)
            if limit.samples == samples:
                return count
        raise AssertionError

    assert [rounds_until(samples) for samples in (10, 12, 15, 16)] == [8] * 4
    for _ in range(100):
        limit.note_round(16)
    assert limit.samples == 16, "never more than was probed"
    limit.note_round(8)
    assert rounds_until(10) == 16
