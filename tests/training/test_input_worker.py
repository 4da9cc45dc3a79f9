"""Rows are read beside the device: bounded, in order, and resumable at what the device took."""

import threading
from collections.abc import Callable

import pytest
import torch

from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.input_worker import READY_BATCHES, InputWorker, ReadyBatches
from tests.training.small_run import LENGTH, ME, ONE, PEER, RUN, VOCAB_SIZE, effect, rows_of, silent, train_round


class CursorFeed:
    """Goes on where it stopped reading, as a stream does: row n is full of n. Notes who reads, and how far."""

    vocab_size, sequence_length = VOCAB_SIZE, LENGTH

    def __init__(self, make_rows: Callable[[int, int], Batch] | None = None) -> None:
        self.next = self.num_ahead = 0
        self.threads: set[str] = set()
        self.fails_at: int | None = None
        self._make_rows = make_rows or numbered

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> "CursorFeed":
        return self

    def take(self, num_samples: int) -> Batch:
        self.threads.add(threading.current_thread().name)
        if self.fails_at is not None and self.next >= self.fails_at:
            raise ConfigError("data.path: gone", code="E207")
        self.next += num_samples
        return self._make_rows(self.next - num_samples, num_samples)

    def read_ahead(self, num_samples: int) -> None:
        self.num_ahead = num_samples

    def heldout(self, num_rows: int) -> Batch:
        return rows_of("heldout", 0, num_rows)

    def drawn(self, lot: str, num_rows: int) -> Batch:
        return rows_of(lot, 0, num_rows)

    def of(self, reads: tuple[InstanceId, ...]) -> "CursorFeed":
        return self

    def state(self, instance: InstanceId) -> dict[str, object]:
        return {"next": self.next}

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:
        assert isinstance(state["next"], int)
        self.next = state["next"]


def numbered(first: int, count: int) -> Batch:
    ids = torch.arange(first, first + count).unsqueeze(1).expand(count, LENGTH)
    return Batch(input_ids=ids, labels=ids)


def opened(worker: InputWorker, num_samples: int, num_batches: int, *, round: int = 0) -> ReadyBatches:
    return worker.open(instance=ONE, peer=ME, round=round, first_sample=0, num_samples=num_samples, num_batches=num_batches)


def taken(batches: ReadyBatches, count: int) -> list[int]:
    return [int(row[0]) for _ in range(count) for row in batches.take().rows.input_ids]


def settle(worker: InputWorker) -> None:
    """Until everything that was asked of the thread is done."""
    worker.heldout(1)


def test_rounds_of_any_batch_read_the_same_line_of_rows() -> None:
    feed = CursorFeed()
    worker = InputWorker(feed, is_pinned=False)
    rows = []
    for number, (size, count) in enumerate([(4, 3), (7, 1), (2, 5), (1, 2)]):
        with opened(worker, size, count, round=number) as batches:
            rows += taken(batches, count)
        settle(worker)
        assert feed.num_ahead == size
    assert rows == list(range(31))
    assert feed.threads == {"input"}


def test_only_so_many_batches_wait_for_the_device() -> None:
    feed = CursorFeed()
    worker = InputWorker(feed, is_pinned=False)
    with opened(worker, 3, 10) as batches:
        for num_taken in range(4):
            settle(worker)
            assert feed.next == 3 * (num_taken + READY_BATCHES)
            assert worker.state(ONE) == {"next": 3 * num_taken}  # what waits counts as unread
            taken(batches, 1)


@pytest.mark.parametrize("num_taken", [0, 1, 4, 5])
def test_what_a_stopped_round_did_not_take_comes_next(num_taken: int) -> None:
    worker = InputWorker(CursorFeed(), is_pinned=False)
    with opened(worker, 2, 5) as batches:
        rows = taken(batches, num_taken)
        settle(worker)
    with opened(worker, 3, 2, round=1) as batches:
        rows += taken(batches, 2)
    assert rows == list(range(2 * num_taken + 6))


def test_an_error_of_reading_comes_to_the_device() -> None:
    feed = CursorFeed()
    feed.fails_at = 4
    worker = InputWorker(feed, is_pinned=False)
    with opened(worker, 2, 5) as batches:
        assert taken(batches, 2) == [0, 1, 2, 3]
        with pytest.raises(ConfigError, match="gone"):
            batches.take()
    with pytest.raises(ConfigError, match="gone"):
        opened(worker, 2, 1).take()


def test_the_thread_ends_with_its_worker() -> None:
    others = set(threading.enumerate())
    worker = InputWorker(CursorFeed(), is_pinned=False)
    settle(worker)
    (thread,) = set(threading.enumerate()) - others
    assert thread.daemon  # one that waits for the network does not keep the process alive
    del worker
    thread.join(240.0)
    assert not thread.is_alive()


def learnable(first: int, count: int) -> Batch:
    return rows_of("train", first, count)


def test_a_killed_peer_resumes_with_the_rows_that_it_would_have_read() -> None:
    """Batches differ from round to round, and the kill comes while read ones wait."""
    works = [effect(round=number, batch=batch, steps=steps) for number, (batch, steps) in enumerate([(4, 3), (6, 2), (3, 4)])]
    whole = Hosting(RUN, PEER, ME, CursorFeed(learnable))
    whole.start([ONE])
    first = Hosting(RUN, PEER, ME, CursorFeed(learnable))
    first.start([ONE])
    for work in works[:2]:
        train_round(whole, work)
        train_round(first, work)
    tensors, meta = first.snapshot(ONE)
    stops = iter([False, False, True])
    first.run_inner(works[2], should_stop=lambda: next(stops), on_progress=silent)  # and then it is killed
    again = Hosting(RUN, PEER, ME, CursorFeed(learnable))
    again.restore(ONE, tensors, meta)
    for peer in (whole, again):
        train_round(peer, works[2])
    assert again.digests(ONE) == whole.digests(ONE)
