"""Reads, tokenises and packs rows in a thread beside the device's.

That thread makes all calls of the feed, in order. Each round sets the number of rows of its inner steps, so the batches that
wait for the device are whole, and few. The feed's place is behind the last batch that the device took: rows read ahead are read
again after a restart, and go back to the feed where a round ends early. So the same rows come in the same order, however much
was read ahead, however the batch grows, and whenever the process is killed.

It is a thread and not a process: reading waits for disks and the network, tokenizers and numpy let other threads run, and a
second process with its libraries costs a peer hundreds of megabytes. (torchdata's StatefulDataLoader would start one for every
epoch of a fixed batch size, and its place is the last batch that came out of the process.)
"""

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.numerics.batch import Batch, Feed, SampleStream, joined

READY_BATCHES = 2
"""Batches of inner steps that are read, or being read, while the device computes."""

Place = dict[str, object]
"""An instance's place in the data of a host: see `Feed.state`."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyBatch:
    """The rows of one inner step."""

    rows: Batch
    """The rows, in pinned memory where the device is CUDA."""
    num_predicted_tokens: int
    place: Place
    """The feed's place behind these rows."""


class InputWorker:
    """The feed of a run, read by a thread of its own. The devices' threads call it, for each instance one of them at a time."""

    def __init__(self, feed: Feed, *, is_pinned: bool) -> None:
        """`is_pinned`: whether rows go to a CUDA device."""
        self.vocab_size, self.sequence_length = feed.vocab_size, feed.sequence_length
        self._feed = feed
        self._is_pinned = is_pinned
        self._thread = _Thread()
        self._places: dict[InstanceId, Place] = {}
        self._ended: dict[InstanceId, Future[None]] = {}
        """For each instance, the end of its last round: its unused rows have gone back to the feed."""

    def open(
        self,
        *,
        instance: InstanceId,
        peer: PeerId,
        round: int,
        first_sample: int,
        num_samples: int,
        num_batches: int,
        reads: tuple[InstanceId, ...] = (),
    ) -> "ReadyBatches":
        """Begin to read the round's `num_batches` batches of `num_samples` rows, and return them, to be used in a `with`.
        `reads`: see `InstancePlan.reads`."""

        def begin() -> tuple[SampleStream, Place]:
            stream = self._of(reads).open(instance=instance, peer=peer, round=round, first_sample=first_sample)
            return stream, self._feed.state(instance)

        if instance in self._ended:
            self._ended.pop(instance).result()
        stream, self._places[instance] = self._thread.submit(begin).result()

        def read() -> ReadyBatch:
            rows = stream.take(num_samples)
            return ReadyBatch(
                rows=rows.pinned() if self._is_pinned else rows,
                num_predicted_tokens=rows.num_predicted_tokens,
                place=self._feed.state(instance),
            )

        def note(taken: ReadyBatch) -> None:
            self._places[instance] = taken.place

        def end(batches: "ReadyBatches") -> None:
            if batches.num_read > batches.num_taken:
                self._feed.restore(instance, self._places[instance])
            else:
                stream.read_ahead(num_samples)

        def close(batches: "ReadyBatches") -> None:
            self._ended[instance] = self._thread.submit(lambda: end(batches))

        return ReadyBatches(self._thread, read, note, close, num_batches=num_batches)

    def heldout(self, num_rows: int, *, reads: tuple[InstanceId, ...] = ()) -> Batch:
        return self._thread.submit(lambda: self._of(reads).heldout(num_rows)).result()

    def drawn(self, lot: str, num_rows: int, *, reads: tuple[InstanceId, ...] = ()) -> Batch:
        return self._thread.submit(lambda: self._of(reads).drawn(lot, num_rows)).result()

    def at(
        self, places: Sequence[int], *, instance: InstanceId, peer: PeerId, round: int, reads: tuple[InstanceId, ...] = ()
    ) -> Batch:
        """Return the rows at these places of the instance's sample order, from a feed whose places determine its rows."""

        def read() -> Batch:
            feed = self._of(reads)
            streams = (feed.open(instance=instance, peer=peer, round=round, first_sample=place) for place in places)
            return joined([stream.take(1) for stream in streams])

        return self._thread.submit(read).result()

    def _of(self, reads: tuple[InstanceId, ...]) -> Feed:
        return self._feed.of(reads) if reads else self._feed

    def state(self, instance: InstanceId) -> Place:
        """Return the feed's place behind the last batch that the device took."""
        if instance not in self._places:
            self._places[instance] = self._thread.submit(lambda: self._feed.state(instance)).result()
        return self._places[instance]

    def restore(self, instance: InstanceId, state: Place) -> None:
        """Continue from a saved place. Raises StorageError for a state that this feed did not give."""
        self._places.pop(instance, None)
        self._thread.submit(lambda: self._feed.restore(instance, state)).result()


class ReadyBatches:
    """The batches of one round, in order; the next `READY_BATCHES` are always being read."""

    def __init__(
        self,
        thread: "_Thread",
        read: Callable[[], ReadyBatch],
        note: Callable[[ReadyBatch], None],
        close: "Callable[[ReadyBatches], None]",
        *,
        num_batches: int,
    ) -> None:
        """`read` is called in the thread; `note` and `close` by the consumer of the batches."""
        self._thread, self._read, self._note, self._close = thread, read, note, close
        self._left = num_batches
        self.num_read = self.num_taken = 0
        self._under_way: deque[Future[ReadyBatch]] = deque()
        for _ in range(READY_BATCHES):
            self._submit_next()

    def take(self) -> ReadyBatch:
        """Return the next batch, at most `num_batches` times. Waits until it is read, and raises the error of its reading."""
        batch = self._under_way.popleft().result()
        self._submit_next()
        self.num_taken += 1
        self._note(batch)
        return batch

    def _submit_next(self) -> None:
        if self._left:
            self._left -= 1
            self._under_way.append(self._thread.submit(self._counted_read))

    def _counted_read(self) -> ReadyBatch:
        self.num_read += 1  # counted first, so that half a batch counts, too
        return self._read()

    def __enter__(self) -> "ReadyBatches":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Give the rows that were read and not taken back to the feed."""
        for future in self._under_way:
            future.cancel()
        self._close(self)


class _Thread:
    """A daemon thread that does jobs in order. The thread of an executor would keep a process alive that waits for the
    network."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(self._jobs,), name="input", daemon=True).start()
        weakref.finalize(self, self._jobs.put, None)

    def submit(self, work: Callable[[], Result]) -> "Future[Result]":
        future: Future[Result] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:  # raised again by the future's `result`
                future.set_exception(error)

        self._jobs.put(job)
        return future

    @staticmethod
    def _work(jobs: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
        while (job := jobs.get()) is not None:
            job()
            del job  # the rows that it read belong to their consumer
