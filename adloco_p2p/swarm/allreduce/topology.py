"""The interface of an averaging topology, which moves the parts between the members of one attempt. `butterfly.py` is one.

The averager uses only this interface: it begins an attempt, hands it the streams and notes of other members, awaits its result
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
    """Return for how many averages an honest peer may have streams open: per instance, one attempt and the one before it."""
    return 2 * num_instances


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingLimits:
    """The limits of memory and waiting for the averages of one peer."""

    stall_seconds: float = 5.0
    """The least stall limit: after this silence a peer is a suspect, unless stalls that ended took longer."""
    longest_stall_seconds: float = 20.0
    """The greatest stall limit: no member may be silent for longer, however long earlier stalls took."""
    connect_seconds: float = 20.0
    """A reducer that cannot be reached for this time is a suspect."""
    retry_seconds: float = 0.5
    """The pause before a reducer is dialed again."""
    grace_seconds: float = 0.3
    """The wait, after a stream has ended, for a note that names the true cause."""
    note_seconds: float = 2.0
    """The time for sending a failure to the other members; a member that is not reached by then notices by itself."""
    hello_seconds: float = 5.0
    """An accepted stream that sends no hello within this time is dropped."""
    waiting_seconds: float = 300.0
    """How long a stream may wait for this peer to begin its average."""
    max_waiting: int = most_waiting(1)
    """For how many averages not begun here streams of one peer may wait at a time. A further one ends the oldest wait."""
    max_streams: int = 2048
    """The most accepted streams; fewer where the system allows this process fewer descriptors."""
    max_streams_per_peer: int = 64
    stranger_seconds: float = 5.0
    """The `waiting_seconds` of a peer without a seat, since no plan known here gives it a part in an average."""
    max_stranger_streams: int = 64
    """The most accepted streams of peers without a seat."""
    max_streams_per_stranger: int = 4
    kept_rounds: int = results_kept(2)
    """The rounds before the newest average whose encoded results are held for repairs. The last report of a peer shows that it
    has those before, and its next average is at most two rounds after that report."""
    kept_bytes: int = LEAST_KEPT_BYTES
    """The most bytes of results of earlier rounds, which are held in nameless files; the newest round's are in memory."""
    folder: Path | None = None
    """The folder on whose disk these files are; None for the system's folder of temporary files."""
    held_bytes: int = HELD_BYTES
    """Bytes of contributions that a reducer without a barrier holds for a retry after their means are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The objects that all attempts of one peer share."""

    own_peer: PeerId
    limits: AveragingLimits
    executor: Executor
    """Worker threads for encoding, summing and hashing parts."""
    pool: StreamPool
    stall_detector: StallDetector
    local_fault: Callable[[], Awaitable[str | None]]
    """Returns the fault of this peer's own network daemon, if there is one."""
    notary: Notary
    held: HeldUploads
    keeps_contributions: bool
    """Whether contributions are kept after an attempt, so that parts can be made again from them."""
    on_refused: Callable[[PeerId, str], None]
    """Called with the refused peer and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttemptResult:
    """The result of an attempt for this member."""

    vector: torch.Tensor
    """float32 [P]; not to be written to, since it may lie in `encoded`."""
    encoded: EncodedResult
    """The same result, encoded, as every host holds it."""
    left_out: dict[PeerId, str]
    """Contributors whose vectors the aggregation rule left out, and why."""
    statistics: PseudoGradientStatistics | None
    """None where not all parts are means of the same contributions; see `completion.py`."""
    settled: tuple[Settled, ...]
    """This attempt, and the one that it completes, as kept for members that make parts again."""
    residual: torch.Tensor | None
    """float32 [P]: the part of this member's vector that is not in the average; None for a codec whose loss is negligible."""
    upload_bytes_per_second: float


class Attempt(Protocol):
    """One try at one average. Belongs to the event loop in which it began."""

    @property
    def spec(self) -> AllReduceSpec: ...

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""

    @property
    def decision(self) -> Digest | None:
        """The decision by which a retry can complete the attempt, once there is one; see `completion.py`."""

    @property
    def sent(self) -> Settled | None:
        """After `run` has failed, the own contribution, if it may be in the result of others; without the results."""

    def report_decision(self, on_decided: Callable[[Digest], None]) -> None:
        """Call `on_decided` as soon as there is a decision."""

    def rule_of_rest(self, members: Collection[PeerId]) -> AggregationRule:
        """Return the rule for a retry of these members that completes the attempt. Raises AveragingError."""

    async def completed_by(self, spec: AllReduceSpec, timeout_seconds: float) -> "Attempt":
        """Begin the retry that completes this attempt, which has failed."""

    def let_go(self) -> None:
        """Give up completing this failed attempt; the parts that came are kept for another retry."""

    async def run(self) -> AttemptResult:
        """Run until the whole result is here. Raises AveragingError, with suspects; the caller then calls `closed`, if there is
        a `decision` only after `let_go` or after the retry that completes the attempt."""

    async def serve_stragglers(self) -> None:
        """After `run`, serve slower members until each is served or the deadline has come."""

    async def serve(self, stream: FramedStream, hello: Hello) -> bool:
        """Serve a stream that a peer opened for this average. Return whether it is free for another one."""

    def on_remote_failure(self, reporter: PeerId, spec: bytes, reply: HelloReply) -> None:
        """Handle another member's report that the average has failed."""

    def fail(self, reason: str, suspects: tuple[PeerId, ...] = ()) -> None:
        """End without a result; the first reason stands."""

    def close(self) -> None:
        """End every stream and task. Idempotent."""

    async def closed(self) -> None:
        """Close, and wait until nothing holds the buffers any more."""


Topology = Callable[[AllReduceSpec, torch.Tensor, np.ndarray, float, Context], Attempt]
"""Begins an attempt from its spec, the own vector (float32 [P]), a buffer for the encoded result (uint8), the seconds until the
deadline, and the context."""
