"""Averaging over the streams of hivemind's network: equal bytes on every host, or a failure that names the hosts to leave out.

The members and their weights come from the agreed plan and never from the wire. A failed attempt leaves only scratch
behind: the caller tries again with the survivors, under another key. This module joins the pieces for one peer: a topology
(`topology.py`) runs one attempt, `attempt_register.py` keeps the keys, and `result_exchange.py` the results.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from adloco_p2p.background import BackgroundTasks
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.events import AverageFinished
from adloco_p2p.core.model.ledger_entry import Evidence, Sign, Verify
from adloco_p2p.core.model.scalars import MAX_HOSTS, Digest, InstanceId, PeerId
from adloco_p2p.errors import AveragingError, LocalProtocolError
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.assessment import mean_of_others
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec, suitable_part_bytes
from adloco_p2p.swarm.allreduce.attempt_register import AttemptRegister
from adloco_p2p.swarm.allreduce.averaged import Averaged
from adloco_p2p.swarm.allreduce.butterfly import Butterfly
from adloco_p2p.swarm.allreduce.decided_attempts import DecidedAttempts
from adloco_p2p.swarm.allreduce.gram_barrier import left_out_by
from adloco_p2p.swarm.allreduce.handshake import HANDLER, Hello, HelloReply, Purpose, failure, refusal
from adloco_p2p.swarm.allreduce.held_uploads import HeldUploads
from adloco_p2p.swarm.allreduce.pledges import Notary, most_pledges_bytes
from adloco_p2p.swarm.allreduce.receipt_exchange import ReceiptExchange
from adloco_p2p.swarm.allreduce.recheck import Rechecks
from adloco_p2p.swarm.allreduce.result_exchange import ResultExchange
from adloco_p2p.swarm.allreduce.shown_contributions import ShownContributions
from adloco_p2p.swarm.allreduce.topology import Attempt, AttemptResult, AveragingLimits, Context, Topology
from adloco_p2p.swarm.transfer.chunk_protocol import MAX_CHUNK_BYTES
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, StreamLost
from adloco_p2p.swarm.transport.log_limiter import LogLimiter
from adloco_p2p.swarm.transport.stall_detector import StallDetector
from adloco_p2p.swarm.transport.stream_acceptor import StreamAcceptor, StreamLimits, StreamPlaces, places_for_streams
from adloco_p2p.swarm.transport.stream_pool import IDLE_SECONDS, StreamPool

logger = logging.getLogger(__name__)

NOTHING_KEPT = "this peer was not in that average, or keeps nothing of it"
_STOP_SECONDS = 2.0  # for notes and streams that are under way when this peer stops
_NOTES_AT_ONCE = 16
_NUM_THREADS = 2  # for encoding, summing and hashing parts
_WATCH_SECONDS = 1.0
_GAVE_UP = failure("it gave the attempt up, to take part in the next one", ())


class Averager:
    """Runs all averages of one peer. Belongs to the event loop in which `start` ran.

    `part_bytes`, the most bytes of a part, `codec`, `aggregation`, `division` and `topology` must be equal on all members.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        codec: str = "float32",
        aggregation: str = "mean",
        division: str = "all",
        topology: Topology = Butterfly,
        part_bytes: int = 1 << 20,
        limits: AveragingLimits | None = None,
        recheck: float = 0.0,
        is_assessed: bool = False,
        sign: Sign,
        verify: Verify,
        on_evidence: Callable[[Evidence], None],
    ) -> None:
        """`sign` signs in this peer's name; `on_evidence` is called with proof that another peer lied. `recheck` is the rate of
        `drawn_parts`, by which members make parts again. `is_assessed` tells whether assessors look at whole contributions.
        Streams of strangers get few places and little time."""
        assert part_bytes <= MAX_CHUNK_BYTES // 2, "parts are rounded to groups of the codec, and served as chunks"
        self._endpoint = endpoint
        self._codec, self._rule, self._topology = codec_named(codec), rule_named(aggregation, division=division), topology
        self._strict_rule = rule_named(aggregation, division=division, is_strict=True)
        self._part_bytes = part_bytes
        self._limits = limits or AveragingLimits()
        self._notary = Notary(endpoint.me, sign=sign, verify=verify, on_evidence=on_evidence)
        self._refusals, self._noted = LogLimiter(), LogLimiter()
        self._attempts = AttemptRegister(max_waiting=self._limits.max_waiting)
        self._background = BackgroundTasks()
        self._results = ResultExchange(endpoint, codec=self._codec, limits=self._limits)
        self._receipts = ReceiptExchange(endpoint.me, self._notary, self._connect)
        self._is_assessed, self._keeps_contributions = is_assessed, recheck > 0 or is_assessed
        self._held = HeldUploads()
        self._decided = DecidedAttempts(self._attempts, self._held, close=self._close_soon)
        self._rechecks = Rechecks(
            rate=recheck,
            connect=self._connect,
            on_evidence=on_evidence,
            is_coming=self._is_coming,
        )
        self._shown = ShownContributions(self._rechecks, connect=self._connect, local_fault=self._local_fault)
        self._acceptor = StreamAcceptor(endpoint, HANDLER, self._serve, on_refused=self._note_refusal)

    async def start(self) -> None:
        """Begin to accept streams."""
        stream_limits = StreamLimits(
            in_all=places_for_streams(self._limits.max_streams),
            per_peer=self._limits.max_streams_per_peer,
            strangers=self._limits.max_stranger_streams,
            per_stranger=self._limits.max_streams_per_stranger,
        )
        self._places = StreamPlaces(stream_limits, is_stranger=self._endpoint.is_stranger)
        self._context = Context(
            own_peer=self._endpoint.me,
            limits=self._limits,
            executor=ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="averaging"),
            pool=StreamPool(self._connect),
            stall_detector=StallDetector(
                least_seconds=self._limits.stall_seconds, most_seconds=self._limits.longest_stall_seconds
            ),
            local_fault=self._local_fault,
            notary=self._notary,
            held=self._held,
            keeps_contributions=self._keeps_contributions,
            on_refused=self._note_refusal,
        )
        await self._acceptor.start()
        await self._results.start()

    async def stop(self) -> None:
        """End every attempt with a note to its members, and accept no more streams."""
        await self._acceptor.stop()
        await self._results.stop()
        running = self._attempts.running
        for attempt in tuple(running.values()):
            attempt.fail("this peer stops", (self._context.own_peer,))
        await asyncio.sleep(0)  # lets the tasks that await these attempts leave notes for the other members
        await self._background.settled(timeout_seconds=_STOP_SECONDS)
        self._background.cancel()
        self._decided.stop()
        for attempt in tuple(running.values()):
            attempt.close()
        self._receipts.tasks.cancel()
        self._rechecks.tasks.cancel()
        self._context.pool.close()
        self._attempts.wake()
        await self._acceptor.abort(timeout_seconds=_STOP_SECONDS)
        self._context.executor.shutdown(wait=False)

    # --- the requests of the node ---

    async def average(
        self,
        asked: Average,
        vector: torch.Tensor,
        *,
        on_decided: Callable[[Digest], None] = lambda _: None,
        on_not_shown: Callable[[PeerId, PeerId], None] = lambda *_: None,
    ) -> Averaged:
        """Average the members' vectors, float32 [P], contiguous, on the CPU, by the aggregation rule.

        Neither `vector` nor the result may be written to afterwards, because members may make parts again from them later
        (`Rechecks`). All members share the order of `asked.weights`; a member of weight 0 only receives. Where `asked` has no
        shares, the contributors reduce equally much. `on_decided` is called with the decision of this attempt, which a later
        one may complete; for `on_not_shown` see `Rechecks.begin`. The result is held for repairs until results of later rounds
        replace it.

        The caller must use a key only once, even over restarts: to the others, an attempt that was given up is over, and two
        pledges under one key are evidence against this peer.

        Raises AveragingError, with suspects, when there is no result by the deadline or none can be expected any more;
        ValueError for arguments that no plan contains.
        """
        spec = self._spec_of(asked, vector)
        begun = asyncio.get_running_loop().time()
        self._decided.stay(spec.round, spec.instance)
        try:
            running = await self._new_attempt(spec, vector.detach(), asked.timeout_seconds)
            running.report_decision(on_decided)
            self._attempts.begin(running)
            self._rechecks.note_begun(spec)
            result = await self._result_of(running)
            self._settle(running, result, asked.inspected, on_not_shown)
        finally:
            self._decided.expire_later(spec.round, spec.instance, asked.timeout_seconds)
        return _averaged(asked, running, result, seconds=asyncio.get_running_loop().time() - begun)

    def _spec_of(self, asked: Average, vector: torch.Tensor) -> AllReduceSpec:
        """Build the spec that all members share. Raises as `average` does."""
        if sum(weight for _, weight in asked.weights) == 0:
            raise AveragingError("no member has any samples")
        if not _is_flat(vector):
            raise ValueError("vector must be float32 [P], contiguous, on the CPU")
        num_first_members = len(asked.weights) + len(asked.lost)
        spec = AllReduceSpec(
            key=asked.key,
            weights=asked.weights,
            shares=asked.shares or tuple(float(weight > 0) for _, weight in asked.weights),
            size=vector.numel(),
            codec=self._codec,
            part_bytes=min(self._part_bytes, suitable_part_bytes(vector.numel() * 4, num_first_members)),
            rule=self._strict_rule if asked.is_strict else self._rule,
            steps=asked.steps,
            plan=asked.plan,
            round=asked.round,
            instance=asked.instance,
            attempt=asked.attempt,
            lost=asked.lost,
            completes=asked.completes,
            quorum=asked.quorum,
        )
        if self._context.own_peer not in spec.members:
            raise LocalProtocolError("this peer is not a member of the average it was asked for")
        if self._attempts.is_used(asked.key):
            raise AveragingError("this attempt was begun here before, and given up")  # the core has begun the round anew
        return spec

    async def _new_attempt(self, spec: AllReduceSpec, vector: torch.Tensor, timeout_seconds: float) -> Attempt:
        """Begin a fresh attempt, or the retry that completes an earlier one. Raises AveragingError."""
        if spec.completes is None:
            self._decided.let_go(spec.round, spec.instance)
            encoded = self._results.new_buffer(spec.num_result_bytes)
            return self._topology(spec, vector, encoded, timeout_seconds, self._context)
        earlier = self._decided.to_complete(spec)
        rest = replace(spec, rule=earlier.rule_of_rest(spec.members))
        try:
            return await earlier.completed_by(rest, timeout_seconds)
        except asyncio.CancelledError:
            self._attempts.end(rest, _GAVE_UP)
            self._background.begin(self._notify_members(rest, _GAVE_UP))
            raise

    def _close_soon(self, attempt: Attempt) -> None:
        self._background.begin(self._close(attempt))

    async def _close(self, attempt: Attempt) -> None:
        self._attempts.forget(attempt)
        await attempt.closed()

    def _is_coming(self, key: Digest) -> bool:
        """Whether the average with this key has begun here, or may be completed, and has not ended."""
        return self._attempts.is_coming(key) or self._decided.is_kept(key)

    async def _result_of(self, attempt: Attempt) -> AttemptResult:
        try:
            return await attempt.run()
        except AveragingError as error:
            self._end_in_failure(attempt, failure(str(error), error.suspects))
            raise
        except asyncio.CancelledError:
            # The core gave the attempt up to take part in the next one, so the others should not exclude this peer.
            self._end_in_failure(attempt, _GAVE_UP)
            raise

    async def repair(self, asked: RepairAverage, *, size: int, vector: torch.Tensor | None = None) -> Averaged:
        """Fetch a committed result of `size` values from peers that hold it; every part is checked against the digest.

        The result is held under `asked.key`, until `forget`. Where this peer's own `vector` is in the result, the statistics
        are those of `average`. Raises AveragingError.
        """
        begun = asyncio.get_running_loop().time()
        result, traffic = self._results.find(asked.digest), (0, 0)
        if result is None:
            result, traffic = await self._results.fetch(
                asked.digest,
                asked.from_peers,
                size=size,
                timeout_seconds=asked.timeout_seconds,
                silence_seconds=self._context.stall_detector.limit_seconds,
            )
        self._results.hold(asked.key, result, round=asked.round, busy=self._attempts.running, is_fetched=True)
        self._decided.let_go(asked.round, asked.instance)
        self._held.drop(asked.round, asked.instance)
        self._rechecks.wake()
        left_out = left_out_by(result.binding, asked.contributors)
        own = vector.detach() if vector is not None else None
        is_inside = self._context.own_peer in asked.contributors and self._context.own_peer not in left_out
        restored = await self._results.restore(result, own if is_inside else None, self._context.executor)
        is_lost = own is not None and not is_inside and self._codec.needs_feedback
        return Averaged(
            vector=restored.vector,
            residual=own.clone() if own is not None and is_lost else restored.residual,
            finished=AverageFinished(
                asked=asked,
                digest=asked.digest,
                contributors=tuple(sorted(asked.contributors)),
                left_out=left_out,
                statistics=restored.statistics,
                bytes_sent=traffic[0],
                bytes_received=traffic[1],
            ),
            seconds=asyncio.get_running_loop().time() - begun,
        )

    def show_contribution(self, instance: InstanceId, round: int, assessors: Collection[PeerId]) -> None:
        """Let these members, and no others, fetch this peer's contribution to the average of that round, once each."""
        self._shown.show(instance, round, assessors)

    async def contribution(self, instance: InstanceId, round: int, subject: PeerId) -> tuple[torch.Tensor, torch.Tensor]:
        """Fetch the contribution of `subject` to an average that has ended here; return it and the mean of the others, float32
        [P] each. Raises ContributionNotShown if the subject is at fault, AveragingError if something else prevents it."""
        ended = self._rechecks.ended(instance, round)
        settled = next((one for one in ended if one.spec.completes is None), None)
        if settled is None or not any(self._results.of(one.spec.key) for one in ended):
            raise AveragingError(NOTHING_KEPT)
        coefficient, total = settled.share_of(subject)
        if coefficient >= total:
            raise AveragingError("nothing but this contribution is in the average")
        vector = await self._shown.fetch(settled, subject, self._context.executor)
        # only now, because a result that moved to a file meanwhile has given its memory to the next average
        result = next((held for one in ended if (held := self._results.of(one.spec.key)) is not None), None)
        if result is None:
            raise AveragingError(NOTHING_KEPT)
        averaged = (await self._results.restore(result, None, self._context.executor)).vector
        is_scratch = not result.codec.is_verbatim  # a verbatim vector is the very result that is kept for repairs
        without = partial(mean_of_others, averaged, vector, coefficient=coefficient, total=total, is_scratch=is_scratch)
        return vector, await asyncio.get_running_loop().run_in_executor(self._context.executor, without)

    def forget(self, key: Digest) -> None:
        """Drop the encoded result of this key, which is kept for repairs."""
        self._results.forget(key, busy=self._attempts.running)

    def _settle(
        self,
        attempt: Attempt,
        result: AttemptResult,
        inspected: Collection[PeerId],
        on_not_shown: Callable[[PeerId, PeerId], None],
    ) -> None:
        """After a result: keep what others may ask for, serve slower members, and check the reducers."""
        spec, encoded = attempt.spec, result.encoded
        self._attempts.end(spec, refusal("this average has ended; its result can be fetched by its digest"))
        self._results.hold(spec.key, encoded, round=spec.round, busy=self._attempts.running)
        for settled in result.settled:
            receipts = tuple(settled.receipts.values())
            self._receipts.hold(settled.spec, receipts)
            self._receipts.tasks.begin(self._receipts.show(settled.spec, receipts))
            self._rechecks.hold(settled)
            self._rechecks.begin(settled, encoded.part, self._context.executor, inspected=inspected, on_not_shown=on_not_shown)
        self._background.begin(self._serve_stragglers(attempt))
        earlier = self._decided.take(spec)
        if earlier is not None:
            self._background.begin(self._serve_stragglers(earlier))
        for peer, why in result.left_out.items():
            logger.info("averaging.left_out round=%d peer=%s reason=%s", spec.round, peer, why)

    async def settled(self) -> None:
        """Wait, within bounds, until slower members are served, notes are sent and drawn parts are made again."""
        await self._background.settled()
        await self._rechecks.tasks.settled()

    # --- the end of an attempt ---

    def _end_in_failure(self, attempt: Attempt, reply: HelloReply) -> None:
        """Keep the reason, and send it to the others before the streams close, so that they do not suspect this peer. The
        streams stay open where a retry may complete the attempt."""
        self._attempts.end(attempt.spec, reply)
        self._rechecks.hold_sent(attempt.sent)
        is_decided = attempt.decision is not None
        if is_decided:
            self._decided.keep(attempt)
        self._background.begin(self._notify_members(attempt.spec, reply, closes=None if is_decided else attempt))

    async def _notify_members(self, spec: AllReduceSpec, reply: HelloReply, *, closes: Attempt | None = None) -> None:
        turn, limit_seconds = asyncio.Semaphore(_NOTES_AT_ONCE), self._limits.note_seconds
        hello = Hello(purpose=Purpose.ABORT, key=spec.key, spec=spec.digest)

        async def notify(peer: PeerId) -> None:
            async with turn:
                try:
                    stream = await self._connect(peer, limit_seconds)
                    stream.send(FrameKind.HELLO, hello.encode())
                    stream.send(FrameKind.NOTE, reply.encode())
                    await stream.until_closed(limit_seconds)  # closing a stream drops the bytes that are on their way
                    stream.close()
                except StreamLost as error:
                    logger.debug("averaging.note_lost peer=%s error=%s", peer, error)

        others = [peer for peer in spec.members if peer != self._context.own_peer]
        try:
            async with asyncio.timeout(limit_seconds):
                await asyncio.gather(*(notify(peer) for peer in others))
        except TimeoutError:
            logger.debug("averaging.notes_lost key=%.12s", spec.key)
        finally:
            if closes is not None:
                await self._close(closes)

    async def _serve_stragglers(self, attempt: Attempt) -> None:
        try:
            await attempt.serve_stragglers()
        finally:
            await self._close(attempt)

    # --- streams ---

    async def _connect(self, peer: PeerId, timeout_seconds: float) -> FramedStream:
        return await self._endpoint.open_stream(peer, HANDLER, timeout_seconds=timeout_seconds)

    async def _serve(self, stream: FramedStream) -> None:
        """Serve one average after the other on a stream that another peer opened."""
        with self._places.place_of(stream.peer):
            limit_seconds = max(self._limits.hello_seconds, self._context.stall_detector.limit_seconds)
            while await self._serve_next(stream, limit_seconds):
                limit_seconds = 2 * IDLE_SECONDS

    async def _serve_next(self, stream: FramedStream, limit_seconds: float) -> bool:
        """Serve the purpose of the next hello. Return whether another hello may follow."""
        async with asyncio.timeout(limit_seconds):
            hello = Hello.decode(await stream.receive(FrameKind.HELLO))
        limits, is_stranger = self._limits, self._endpoint.is_stranger(stream.peer)
        match hello.purpose:
            case Purpose.AVERAGE:
                patience_seconds = limits.stranger_seconds if is_stranger else limits.waiting_seconds
                look_seconds = min(_WATCH_SECONDS, limits.stall_seconds / 5)
                if await self._attempts.serve(stream, hello, patience_seconds=patience_seconds, look_seconds=look_seconds):
                    return True
                await stream.until_closed(limits.hello_seconds)
            case Purpose.RECEIPTS:
                stream.max_control_bytes = most_pledges_bytes(MAX_HOSTS)
                stream.resume()
                async with asyncio.timeout(limits.hello_seconds):
                    payload = await stream.receive(FrameKind.PLEDGES)
                if not is_stranger:
                    self._receipts.on_shown(stream.peer, hello.key, payload)
                stream.close()  # the other end waits for this before it closes, so that nothing on its way is lost
            case Purpose.RECHECK if not is_stranger and self._keeps_contributions:
                await self._rechecks.serve(stream, hello)
            case Purpose.ASSESS if not is_stranger and self._is_assessed:
                await self._shown.serve(stream, hello)
            case Purpose.ABORT:
                stream.resume()
                async with asyncio.timeout(limits.hello_seconds):
                    reply = HelloReply.decode(await stream.receive(FrameKind.NOTE))
                self._attempts.hear_note(stream.peer, hello, reply, is_stranger=is_stranger)
                if count := self._noted.count(stream.peer, reply.reason, asyncio.get_running_loop().time()):
                    logger.info(
                        "averaging.note peer=%s key=%.12s count=%d reason=%s", stream.peer, hello.key, count, reply.reason
                    )
        return False

    def _note_refusal(self, peer: PeerId, reason: str) -> None:
        count = self._refusals.count(peer, reason, asyncio.get_running_loop().time())
        if count:
            logger.warning("averaging.refused peer=%s count=%d reason=%s", peer, count, reason)

    async def _local_fault(self) -> str | None:
        """Return the fault of this peer's own network daemon, if there is one. A daemon may be slow on a busy machine, but one
        that does not answer within the stall limit makes every other peer look silent."""
        limit_seconds = self._context.stall_detector.limit_seconds
        try:
            async with asyncio.timeout(limit_seconds):
                await self._endpoint.p2p.list_peers()
        except P2PDaemonError:
            return None  # an error message is an answer, too
        except TimeoutError:
            return f"this peer's own network daemon did not answer for {limit_seconds:.3g} s"
        except (ConnectionError, FileNotFoundError, asyncio.IncompleteReadError):
            return "this peer's own network daemon is gone"
        except OSError as error:
            return f"this peer's own network daemon cannot be asked: {error}"
        return None


def _averaged(asked: Average, attempt: Attempt, result: AttemptResult, *, seconds: float) -> Averaged:
    spec, (bytes_sent, bytes_received) = attempt.spec, attempt.traffic
    finished = AverageFinished(
        asked=asked,
        digest=result.encoded.digest,
        contributors=tuple(sorted(spec.members[member] for member in spec.contributors)),
        left_out=tuple(sorted(result.left_out)),
        statistics=result.statistics,
        bytes_sent=bytes_sent,
        bytes_received=bytes_received,
        upload_bytes_per_second=result.upload_bytes_per_second,
    )
    return Averaged(vector=result.vector, residual=result.residual, finished=finished, seconds=seconds)


def _is_flat(tensor: torch.Tensor) -> bool:
    return tensor.ndim == 1 and tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()
