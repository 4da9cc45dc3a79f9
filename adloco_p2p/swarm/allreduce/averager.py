"""Averaging over the streams of hivemind's network: equal bytes on every host, or a failure that names whom to leave out.

The members and their weights come from the agreed plan and never from the wire. What a failed attempt left behind is
scratch: the caller tries again with the survivors, under another key. `butterfly.py` has one attempt, `result_store.py` what
happens to results afterwards; here is what belongs to a peer: the handler, the keys, the limits.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from adloco_p2p.core.model.types import Digest, PeerId, PseudoGradientStatistics
from adloco_p2p.errors import AveragingError, LocalProtocolError, RemoteProtocolError
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.digest import blob_root, result_index
from adloco_p2p.numerics.reduction import statistics_of
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, suitable_part_bytes
from adloco_p2p.swarm.allreduce.butterfly import AveragingLimits, Butterfly
from adloco_p2p.swarm.allreduce.handshake import HANDLER, Hello, HelloReply, Purpose, failure, refusal
from adloco_p2p.swarm.allreduce.result_store import EncodedResult, ResultDownload, ResultStore
from adloco_p2p.swarm.transfer.chunk_fetcher import ChunkFetcher
from adloco_p2p.swarm.transfer.chunk_protocol import MAX_CHUNK_BYTES
from adloco_p2p.swarm.transfer.chunk_server import ChunkServer
from adloco_p2p.swarm.transport.descriptors import places_for_streams
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, Pacing, StreamLost, open_stream
from adloco_p2p.swarm.transport.log_limiter import Refusals
from adloco_p2p.swarm.transport.stall_detector import StallDetector
from adloco_p2p.swarm.transport.strangers import is_stranger
from adloco_p2p.swarm.transport.stream_pool import IDLE_SECONDS, StreamPool
from adloco_p2p.swarm.transport.traffic import Meter

_LOG = logging.getLogger(__name__)

_NOTE_SECONDS = 2.0  # a note that takes longer comes too late: the others notice by themselves
_NOTES_AT_ONCE = 16
_ENDED_KEYS = 256
_WATCH_SECONDS = 1.0
_DOWNLOADS_KEPT = 2
RESULT_KIND = "average"
"""Name of results among the blobs."""
MAX_REPAIRS = 64
MAX_REPAIRS_PER_PEER = 4
"""Repairs that this peer serves at the same time, in all and of one peer, which hosts several instances."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Averaged:
    """A result, not applied to anything."""

    vector: torch.Tensor
    """float32 [P], equal on every host."""
    digest: Digest
    """What every host must share; see `numerics/digest.py`."""
    contributors: tuple[PeerId, ...]
    """The peers whose vectors are in it, sorted."""
    statistics: PseudoGradientStatistics | None
    """Of the vector as it was transmitted; zeros beside the average's norm for a peer that only received, none for what was
    fetched and has nothing of this peer in it."""
    bytes_sent: int
    """Until the result was here; slower members may be served afterwards."""
    bytes_received: int
    seconds: float
    upload_bytes_per_second: float
    """Throughput of the uplink as the receivers measured it; 0 where this peer sent nothing."""


class Averager:
    """All averages of one peer. Belongs to the event loop in which `start` ran.

    `part_bytes`, the most that a part may have, and `codec` must be equal on all members. `pace` decides when data may be sent
    and read.
    """

    def __init__(
        self,
        p2p: P2P,
        *,
        codec: str = "float32",
        part_bytes: int = 1 << 20,
        limits: AveragingLimits | None = None,
        pace: Pacing | None = None,
        num_threads: int = 2,
        meter: Meter | None = None,
        members: Callable[[], Collection[PeerId]] = frozenset,
    ) -> None:
        """`members`: who has a seat now. The streams of others get few places and little time, except where this peer has
        no seat itself and does not know who has one."""
        self._p2p = p2p
        self._members = members
        self._own_peer = PeerId(p2p.peer_id.to_base58())
        self._codec = codec_named(codec)
        assert part_bytes <= MAX_CHUNK_BYTES // 2, "parts are rounded to groups of the codec, and served as chunks"
        self._part_bytes = part_bytes
        self._limits = limits or AveragingLimits()
        self._pace = pace
        self._num_threads = num_threads
        self._meter = meter or Meter()
        self._running: dict[Digest, Butterfly] = {}
        """Attempts that go on, or that still serve slower members."""
        self._begun = asyncio.Event()
        """Set, and replaced, when an average begins: remote members may wait for it."""
        self._ended: OrderedDict[Digest, tuple[bytes, HelloReply]] = OrderedDict()
        """Keys that are used up: their spec, and the answer to members that come too late."""
        self._early_notes: OrderedDict[tuple[Digest, PeerId], tuple[bytes, HelloReply]] = OrderedDict()
        """Failures of averages that this peer has not begun."""
        self._downloads: dict[Digest, ResultDownload] = {}
        """Results that could not be fetched so far."""
        self._results = ResultStore(kept_rounds=self._limits.kept_rounds, max_bytes=self._limits.kept_bytes)
        self._refusals = Refusals()
        self._stall_detector = StallDetector(
            least_seconds=self._limits.stall_seconds, most_seconds=self._limits.longest_stall_seconds
        )
        self._num_streams: Counter[PeerId] = Counter()
        self._num_stranger_streams = 0
        self._max_streams = self._limits.max_streams
        self._accepted: dict[asyncio.Task[None], FramedStream] = {}
        """Accepted streams and the tasks that serve them."""
        self._pool = StreamPool(self._connect)
        self._background: set[asyncio.Task[None]] = set()
        self._num_readers = 0
        """Repairs that read held results now, here."""
        self._fetcher = ChunkFetcher(
            p2p, RESULT_KIND, pace=pace, meter=self._meter, connect_seconds=self._limits.connect_seconds
        )
        self._server = ChunkServer(
            p2p,
            RESULT_KIND,
            self._results.find_blob,
            pace=pace,
            meter=self._meter,
            members=members,
            max_downloads=MAX_REPAIRS,
            max_downloads_per_peer=MAX_REPAIRS_PER_PEER,
        )

    async def start(self) -> None:
        """Begin to accept streams."""
        self._max_streams = places_for_streams(self._limits.max_streams)
        self._executor = ThreadPoolExecutor(self._num_threads, thread_name_prefix="averaging")
        await self._p2p.add_binary_stream_handler(HANDLER, self._accept)
        await self._server.start()

    async def stop(self) -> None:
        """End every attempt, telling its members, and accept no more streams."""
        try:
            await self._p2p.remove_binary_stream_handler(HANDLER)
        except (OSError, P2PDaemonError, asyncio.IncompleteReadError) as error:
            _LOG.info("averaging.stop daemon=%s", error)  # it is gone, and the handler with it
        await self._server.stop()
        for butterfly in tuple(self._running.values()):
            butterfly.fail("this peer stops", (self._own_peer,))
        await asyncio.sleep(0)  # those who await these attempts run now, and leave notes for the other members
        if self._background:
            await asyncio.wait(self._background, timeout=_NOTE_SECONDS)
        for task in tuple(self._background):
            task.cancel()
        for butterfly in tuple(self._running.values()):
            butterfly.close()
        self._pool.close()
        for stream in self._accepted.values():
            stream.abort()
        self._begun.set()
        if self._accepted:
            await asyncio.wait(self._accepted, timeout=_NOTE_SECONDS)
        self._executor.shutdown(wait=False)

    # --- what the node asks ---

    async def average(
        self,
        *,
        key: Digest,
        weights: tuple[tuple[PeerId, int], ...],
        vector: torch.Tensor,
        timeout_seconds: float,
        shares: tuple[float, ...] | None = None,
        out: torch.Tensor | None = None,
        round: int = 0,
    ) -> Averaged:
        """Weighted mean of the members' vectors: float32 [P], contiguous, on the CPU, untouched until this returns.

        `weights` are samples in an order that all members share; a member of weight 0 only receives. `shares` is how much
        of the vector each member reduces; by default those that contribute share it equally. A key is used once: for the
        others, an attempt that was given up is over. The result is put in `out` where given, which is worth having: new memory
        is a large part of the cost. It is held for repairs until results of later rounds take its place.

        Raises AveragingError, with suspects, when there is no result by the deadline or none can be expected any more;
        ValueError for arguments that no plan contains.
        """
        if sum(weight for _, weight in weights) == 0:
            raise AveragingError("no member has any samples")
        averaged = torch.empty_like(vector) if out is None else out
        if not all(_is_flat(tensor) for tensor in (vector, averaged)) or averaged.shape != vector.shape:
            raise ValueError("vector and out must be float32 [P], contiguous, on the CPU")
        spec = AllReduceSpec(
            key=key,
            weights=weights,
            shares=shares or tuple(float(weight > 0) for _, weight in weights),
            size=vector.numel(),
            codec=self._codec,
            part_bytes=min(self._part_bytes, suitable_part_bytes(vector.numel() * 4, len(weights))),
        )
        if self._own_peer not in spec.members:
            raise LocalProtocolError("this peer is not a member of the average it was asked for")
        if key in self._running or key in self._ended:
            raise AveragingError("this attempt was begun here before, and given up")  # the round was begun anew
        begun = asyncio.get_running_loop().time()
        butterfly = self._begin(spec, vector.detach(), averaged, timeout_seconds)
        try:
            await butterfly.run()
        except AveragingError as error:
            self._end_in_failure(butterfly, failure(str(error), error.suspects))
            raise
        except asyncio.CancelledError:
            # The core decides whom it blames. It takes part in the next attempt, so others should not exclude it for this.
            self._end_in_failure(butterfly, failure("this peer gave up", ()))
            raise
        self._remember_end(spec, refusal("this average has ended; its result can be fetched by its digest"))
        result = self._keep(butterfly, round)
        self._spawn(self._serve_stragglers(butterfly))
        bytes_sent, bytes_received = butterfly.traffic
        return Averaged(
            vector=butterfly.averaged,
            digest=result.digest,
            contributors=tuple(sorted(spec.members[member] for member in spec.contributors)),
            statistics=statistics_of(butterfly.part_sums),
            bytes_sent=bytes_sent,
            bytes_received=bytes_received,
            seconds=asyncio.get_running_loop().time() - begun,
            upload_bytes_per_second=butterfly.upload_bytes_per_second,
        )

    async def repair(
        self,
        *,
        key: Digest,
        digest: Digest,
        from_peers: tuple[PeerId, ...],
        size: int,
        timeout_seconds: float,
        vector: torch.Tensor | None = None,
        contributors: tuple[PeerId, ...] = (),
        round: int = 0,
    ) -> Averaged:
        """Fetch a committed result from peers that hold it; every part is checked against the digest.

        `key` is what `forget` takes afterwards. Where `vector`, this peer's own, is one of the contributions, the statistics
        are those of `average`. Raises AveragingError.
        """
        begun = asyncio.get_running_loop().time()
        result, traffic = self._results.find(digest), (0, 0)
        if result is None:
            wanted = self._download_of(digest, size)
            download = wanted.download
            before = download.bytes_sent, download.bytes_received
            donors = tuple(peer for peer in from_peers if peer != self._own_peer)
            problems = await self._fetcher.fetch(
                download, donors, timeout_seconds=timeout_seconds, silence_seconds=self._stall_detector.limit_seconds
            )
            if not download.is_complete:
                why = "; ".join(problems.values()) or "no donor was named"
                raise AveragingError(f"the result could not be fetched: {why}", suspects=tuple(problems))
            self._downloads.pop(digest, None)
            result = wanted.result
            traffic = download.bytes_sent - before[0], download.bytes_received - before[1]
        self._hold(key, result, round, is_fetched=True)
        own = vector.detach() if vector is not None and self._own_peer in contributors else None
        self._num_readers += 1
        try:
            averaged, statistics = await asyncio.get_running_loop().run_in_executor(self._executor, result.restore, own)
        finally:
            self._num_readers -= 1
        return Averaged(
            vector=averaged,
            digest=digest,
            contributors=tuple(sorted(contributors)),
            statistics=statistics,
            bytes_sent=traffic[0],
            bytes_received=traffic[1],
            seconds=asyncio.get_running_loop().time() - begun,
            upload_bytes_per_second=0.0,
        )

    def _download_of(self, digest: Digest, size: int) -> ResultDownload:
        """The one that was begun, so that a slow line comes to an end over several tries; only of few results."""
        wanted = self._downloads.pop(digest, None) or ResultDownload(digest, codec=self._codec, size=size)
        self._downloads[digest] = wanted
        while len(self._downloads) > _DOWNLOADS_KEPT:
            del self._downloads[next(iter(self._downloads))]
        return wanted

    def forget(self, key: Digest) -> None:
        """Drop the encoded result that is kept for repairs."""
        num_readers = self._num_readers + self._server.num_served_now
        self._results.forget(key, may_reuse=key not in self._running and num_readers == 0)

    async def settled(self) -> None:
        """Until slower members are served and notes are sent; bounded by the deadlines of the averages."""
        while self._background:
            await asyncio.wait(self._background)

    # --- attempts ---

    def _begin(self, spec: AllReduceSpec, vector: torch.Tensor, out: torch.Tensor, timeout_seconds: float) -> Butterfly:
        key = spec.key
        butterfly = Butterfly(
            spec,
            vector,
            averaged=out,
            encoded=self._results.new_buffer(spec.num_result_bytes),
            own_peer=self._own_peer,
            timeout_seconds=timeout_seconds,
            limits=self._limits,
            executor=self._executor,
            pace=self._pace,
            pool=self._pool,
            stall_detector=self._stall_detector,
            local_fault=self._local_fault,
            on_refused=self._note_refusal,
        )
        self._running[key] = butterfly
        for early_key, teller in tuple(self._early_notes):
            if early_key == key:
                butterfly.on_remote_failure(teller, *self._early_notes.pop((early_key, teller)))
        self._begun.set()
        self._begun = asyncio.Event()
        return butterfly

    def _end_in_failure(self, butterfly: Butterfly, reply: HelloReply) -> None:
        """Keep the reason, and send it to the others before the streams close, so that they do not blame this peer."""
        self._remember_end(butterfly.spec, reply)
        self._spawn(self._tell_and_close(butterfly, reply))

    def _remember_end(self, spec: AllReduceSpec, reply: HelloReply) -> None:
        self._ended[spec.key] = spec.digest, reply
        while len(self._ended) > _ENDED_KEYS:
            self._ended.popitem(last=False)

    async def _tell_and_close(self, butterfly: Butterfly, reply: HelloReply) -> None:
        turn = asyncio.Semaphore(_NOTES_AT_ONCE)

        async def notify(peer: PeerId) -> None:
            hello = Hello(purpose=Purpose.ABORT, key=butterfly.spec.key, spec=butterfly.spec.digest)
            async with turn:
                try:
                    stream = await self._connect(peer, _NOTE_SECONDS)
                    stream.send(FrameKind.HELLO, hello.encode())
                    stream.send(FrameKind.NOTE, reply.encode())
                    stream.close()
                except StreamLost as error:
                    _LOG.debug("averaging.note_lost peer=%s error=%s", peer, error)

        others = [peer for peer in butterfly.spec.members if peer != self._own_peer]
        try:
            async with asyncio.timeout(_NOTE_SECONDS):
                await asyncio.gather(*(notify(peer) for peer in others))
        except TimeoutError:
            _LOG.debug("averaging.notes_lost key=%.12s", butterfly.spec.key)
        finally:
            del self._running[butterfly.spec.key]
            await butterfly.closed()

    async def _serve_stragglers(self, butterfly: Butterfly) -> None:
        try:
            await butterfly.serve_stragglers()
        finally:
            del self._running[butterfly.spec.key]
            await butterfly.closed()

    def _keep(self, butterfly: Butterfly, round: int) -> EncodedResult:
        spec = butterfly.spec
        parts = [part for shard in spec.shards for part in shard]
        table = tuple((part.num_bytes, digest) for part, digest in zip(parts, butterfly.part_digests, strict=True))
        result = EncodedResult(
            digest=blob_root(result_index(spec.mean_codec, spec.size, table)),
            codec=spec.mean_codec,
            sent_codec=spec.codec,
            size=spec.size,
            encoded=butterfly.encoded,
            parts=table,
        )
        self._hold(spec.key, result, round)
        return result

    def _hold(self, key: Digest, result: EncodedResult, round: int, *, is_fetched: bool = False) -> None:
        self._results.keep(key, result, round=round, is_fetched=is_fetched)
        for outdated in self._results.outdated():
            self.forget(outdated)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _connect(self, peer: PeerId, timeout_seconds: float) -> FramedStream:
        stream = await open_stream(self._p2p, peer, HANDLER, timeout_seconds=timeout_seconds)
        stream.count_into(self._meter)
        stream.pace = self._pace
        return stream

    def _note_refusal(self, peer: PeerId, reason: str) -> None:
        count = self._refusals.count(peer, reason, asyncio.get_running_loop().time())
        if count:
            _LOG.warning("averaging.refused peer=%s count=%d reason=%s", peer, count, reason)

    async def _local_fault(self) -> str | None:
        """The fault of this peer's own network daemon, if there is one. A slow daemon, on a busy machine, is in order; one that
        does not answer within the stall limit makes every other peer look silent."""
        limit_seconds = self._stall_detector.limit_seconds
        try:
            async with asyncio.timeout(limit_seconds):
                await self._p2p.list_peers()
        except P2PDaemonError:
            return None  # that is an answer, too
        except TimeoutError:
            return f"this peer's own network daemon did not answer for {limit_seconds:.3g} s"
        except (ConnectionError, FileNotFoundError, asyncio.IncompleteReadError):
            return "this peer's own network daemon is gone"
        except OSError as error:
            return f"this peer's own network daemon cannot be asked: {error}"
        return None

    # --- streams from others ---

    async def _accept(self, info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One stream from an authenticated peer. Whatever it sends, nothing is raised and the stream is ended."""
        peer = PeerId(info.peer_id.to_base58())
        is_stranger = self._is_stranger(peer)
        if not self._has_place(peer, is_stranger=is_stranger):
            self._note_refusal(peer, "too many streams")
            writer.transport.abort()
            return
        self._num_streams[peer] += 1
        self._num_stranger_streams += is_stranger
        stream, task = None, asyncio.current_task()
        assert task is not None
        try:
            stream = self._accepted[task] = await FramedStream.take_over(peer, reader, writer)
            stream.count_into(self._meter)
            stream.pace = self._pace
            limit_seconds = max(self._limits.hello_seconds, self._stall_detector.limit_seconds)
            while await self._serve_next(stream, limit_seconds):
                limit_seconds = 2 * IDLE_SECONDS
        except RemoteProtocolError as error:
            self._note_refusal(peer, str(error))
        except (StreamLost, TimeoutError) as error:
            _LOG.debug("averaging.stream_ended peer=%s reason=%s", peer, error)
        finally:
            self._accepted.pop(task, None)
            self._num_stranger_streams -= is_stranger
            self._num_streams[peer] -= 1
            if not self._num_streams[peer]:
                del self._num_streams[peer]
            if stream is None:
                writer.transport.abort()
            else:
                stream.abort()

    def _is_stranger(self, peer: PeerId) -> bool:
        return is_stranger(peer, me=self._own_peer, members=self._members())

    def _has_place(self, peer: PeerId, *, is_stranger: bool) -> bool:
        """Members keep what strangers cannot take."""
        limits = self._limits
        if is_stranger:
            is_full = self._num_stranger_streams >= limits.max_stranger_streams
            return not is_full and self._num_streams[peer] < limits.max_streams_per_stranger
        num_of_members = self._num_streams.total() - self._num_stranger_streams
        is_full = num_of_members >= self._max_streams - limits.max_stranger_streams
        return not is_full and self._num_streams[peer] < limits.max_streams_per_peer

    async def _serve_next(self, stream: FramedStream, limit_seconds: float) -> bool:
        """Do what the next hello asks. True: another one may follow."""
        async with asyncio.timeout(limit_seconds):
            hello = Hello.decode(await stream.receive(FrameKind.HELLO))
        match hello.purpose:
            case Purpose.AVERAGE:
                return await self._accept_average(stream, hello)
            case Purpose.ABORT:
                stream.resume()
                async with asyncio.timeout(self._limits.hello_seconds):
                    self._hear_note(stream.peer, hello, HelloReply.decode(await stream.receive(FrameKind.NOTE)))
        return False

    async def _accept_average(self, stream: FramedStream, hello: Hello) -> bool:
        """Hand the stream to its attempt; wait for the attempt if this peer is not that far yet."""
        loop = asyncio.get_running_loop()
        is_stranger = self._is_stranger(stream.peer)
        give_up = loop.time() + (self._limits.stranger_seconds if is_stranger else self._limits.waiting_seconds)
        while hello.key not in self._running and hello.key not in self._ended:
            if stream.is_lost or loop.time() > give_up:
                raise StreamLost(f"{stream.peer} waited too long for this peer to begin")
            try:
                await asyncio.wait_for(self._begun.wait(), min(_WATCH_SECONDS, self._limits.stall_seconds / 5))
            except TimeoutError:
                stream.show_life((), quiet_seconds=0.0)
        butterfly = self._running.get(hello.key)
        spec, reply = self._ended.get(hello.key, (b"", None))
        if reply and (butterfly is None or reply.status == "failed"):
            answer = reply if spec == hello.spec else refusal("the members do not agree")
            stream.send(FrameKind.HELLO_REPLY, answer.encode())
        else:
            assert butterfly is not None
            if await butterfly.serve(stream, hello):
                return True
        del butterfly  # its buffers are not held while the other end takes its time to hang up
        await stream.until_closed(self._limits.hello_seconds)
        return False

    def _hear_note(self, peer: PeerId, hello: Hello, reply: HelloReply) -> None:
        if reply.status != "failed":
            raise RemoteProtocolError(f"{peer} sent a note that is none")
        _LOG.info("averaging.note peer=%s key=%.12s reason=%s", peer, hello.key, reply.reason)
        if hello.key in self._running:
            self._running[hello.key].on_remote_failure(peer, hello.spec, reply)
        elif hello.key not in self._ended and not self._is_stranger(peer):
            self._early_notes[hello.key, peer] = hello.spec, reply
            while len(self._early_notes) > _ENDED_KEYS:
                self._early_notes.popitem(last=False)


def _is_flat(tensor: torch.Tensor) -> bool:
    return tensor.ndim == 1 and tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()
