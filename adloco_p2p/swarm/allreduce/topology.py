"""The interface of an averaging topology: how the members of one attempt move their parts. `butterfly.py` is one.

The averager uses this interface alone: it begins an attempt, hands it the streams and notes of other members, awaits its result
or its failure, lets it serve slower members, and closes it.
"""

from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from adloco_p2p.core.model.averages import HELD_BYTES, LEAST_KEPT_BYTES, results_kept
from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.numerics.aggregation.rule import AggregationRule
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.handshake import Hello, HelloReply
from adloco_p2p.swarm.allreduce.held_uploads import HeldUploads
from adloco_p2p.swarm.allreduce.pledges import Notary
from adloco_p2p.swarm.allreduce.result_store import EncodedResult
from adloco_p2p.swarm.allreduce.settled import Settled
from adloco_p2p.swarm.transport.framed_stream import FramedStream
from adloco_p2p.swarm.transport.stall_detector import StallDetector
from adloco_p2p.swarm.transport.stream_pool import StreamPool


def most_waiting(num_instances: int) -> int:
    """Averages for which an honest peer may have streams open: one attempt per instance, and the one given up before it."""
    return 2 * num_instances


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingLimits:
    """Limits of memory and of waiting."""

    stall_seconds: float = 5.0
    """A peer that shows no sign of life for this time is a suspect, ..."""
    longest_stall_seconds: float = 20.0
    """... where ended stalls were short. However long they were, no member may be silent for longer than this."""
    connect_seconds: float = 20.0
    """A reducer that cannot be reached for this time is a suspect."""
    retry_seconds: float = 0.5
    """Pause before a reducer is dialed again."""
    grace_seconds: float = 0.3
    """After a stream has ended: the wait for a note that names the true cause."""
    note_seconds: float = 2.0
    """The time in which a failure is sent to the other members; a member that was not reached by then notices by itself."""
    hello_seconds: float = 5.0
    """An accepted stream that sends no hello by then is dropped."""
    waiting_seconds: float = 300.0
    """How long a stream may wait for this peer to start its average."""
    max_waiting: int = most_waiting(1)
    """Averages not begun here for which streams of one peer may wait at a time. A further one ends the oldest wait."""
    max_streams: int = 2048
    """Accepted streams, in all; fewer where the system allows this process fewer descriptors."""
    max_streams_per_peer: int = 64
    stranger_seconds: float = 5.0
    """`waiting_seconds` of a peer that has no seat: no plan that is known here gives it a part in an average."""
    max_stranger_streams: int = 64
    """Of all accepted streams, those of peers without a seat."""
    max_streams_per_stranger: int = 4
    kept_rounds: int = results_kept(2)
    """Rounds before the newest average whose encoded results are held for repairs: a peer vouches for those before its last
    report, and its next average is at most two rounds after that one; ..."""
    kept_bytes: int = LEAST_KEPT_BYTES
    """... as far as they fit in this, in nameless files on the disk of ..."""
    folder: Path | None = None
    """... this folder; none: where the system has its temporary files. Results of the newest round are held in memory."""
    held_bytes: int = HELD_BYTES
    """Contributions that a reducer holds for a retry although their means are made, under a rule that has no barrier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The parts that all attempts of one peer share."""

    own_peer: PeerId
    limits: AveragingLimits
    executor: Executor
    """For work on whole parts."""
    pool: StreamPool
    stall_detector: StallDetector
    local_fault: Callable[[], Awaitable[str | None]]
    """The fault of this peer's own network daemon, if there is one."""
    notary: Notary
    held: HeldUploads
    keeps_contributions: bool
    """Whether a member's contributions are kept after an attempt, so that parts can be made again from them."""
    on_refused: Callable[[PeerId, str], None]
    """Called with the refused peer and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttemptResult:
    """The result of an attempt for this member."""

    vector: torch.Tensor
    """float32 [P]; not to be written to, since it may lie in `encoded`."""
    encoded: EncodedResult
    """The same, as every host holds it."""
    left_out: dict[PeerId, str]
    """Contributors whose vectors the aggregation rule left out, and why."""
    statistics: PseudoGradientStatistics | None
    """None where the parts are not all of the same contributions; see `completion.py`."""
    settled: tuple[Settled, ...]
    """For members that make parts again: of this attempt, and of the one that it completes."""
    residual: torch.Tensor | None
    """float32 [P]: the part of this member's vector that the others could not use; none where nothing is lost."""
    upload_bytes_per_second: float


class Attempt(Protocol):
    """One try at one average. Belongs to the event loop in which it was begun."""

    @property
    def spec(self) -> AllReduceSpec: ...

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received until now."""

    @property
    def decision(self) -> Digest | None:
        """Once a retry could complete the attempt; see `completion.py`."""

    @property
    def sent(self) -> Settled | None:
        """After `run` has failed, the own contribution, if it may be in the result of others: without its sums."""

    def report_decision(self, on_decided: Callable[[Digest], None]) -> None:
        """Call it as soon as there is a decision."""

    def rule_of_rest(self, members: Collection[PeerId]) -> AggregationRule:
        """For a retry of these members that completes the attempt. Raises AveragingError."""

    async def completed_by(self, spec: AllReduceSpec, timeout_seconds: float) -> "Attempt":
        """Begin the retry that completes this attempt, which has failed."""

    def let_go(self) -> None:
        """No retry completes the attempt, which has failed: what came is kept for other ones."""

    async def run(self) -> AttemptResult:
        """Until the whole result is here. Raises AveragingError, with suspects; the caller then calls `closed`, where there is
        a `decision` after `let_go` or the retry that completes it."""

    async def serve_stragglers(self) -> None:
        """After `run`: serve slower members until each is served or the deadline has come."""

    async def serve(self, stream: FramedStream, hello: Hello) -> bool:
        """Serve a stream that a peer opened for this average. True: it is free for another one."""

    def on_remote_failure(self, reporter: PeerId, spec: bytes, reply: HelloReply) -> None:
        """Another member reports that the average has failed."""

    def fail(self, reason: str, suspects: tuple[PeerId, ...] = ()) -> None:
        """End without a result; the first reason stands."""

    def close(self) -> None:
        """End every stream and task. Idempotent."""

    async def closed(self) -> None:
        """Close, and wait until nothing holds the buffers any more."""


Topology = Callable[[AllReduceSpec, torch.Tensor, np.ndarray, float, Context], Attempt]
"""Begins an attempt: spec; own vector, float32 [P]; room for the encoded result, uint8; seconds until the deadline;
context."""
