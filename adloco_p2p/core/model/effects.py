"""Effects, which a peer may ask of its shell: what `Peer.handle(event, now)` returns.

The shell performs them IN ORDER. Short ones (Persist, Send, Broadcast, Log) end before the next begins, so a Persist is on disk
before the Send that follows it. Long ones run on, and their end comes back as an event.
"""

from dataclasses import dataclass

from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, CancelAverage, RepairAverage
from adloco_p2p.core.model.events import Durable
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan
from adloco_p2p.core.model.lineage import Fork, Merge
from adloco_p2p.core.model.messages import JournalRecord, WireMessage
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.task_scores import ScoreTasks
from adloco_p2p.core.model.telemetry import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    peer: PeerId
    message: WireMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """Send by gossip, without a guarantee, to every peer of the roster that the shell can reach.

    A bare report travels only if the roster is fixed.
    """

    message: WireMessage | Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Append to the journal and sync before the next effect."""

    record: JournalRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """At the boundary before `round`, perform the rewinds that the guard ordered, then forks, then merges. Sources other than
    the target of a merge are dropped."""

    round: int
    forks: tuple[Fork, ...]
    merges: tuple[Merge, ...]
    rewinds: tuple[tuple[InstanceId, Digest], ...] = ()
    """Instances to rewind, and the earlier states that they go back to."""
    epoch: int = 0
    """The peer's epoch when it asked; the event that ends the job repeats it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropInstance:
    """This peer no longer hosts the instance: free its memory, if it is still there."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardRound:
    """Give up unfinished inner steps of the instance after the present step, and reset its local parameters to the outer
    parameters, if it is here. They cause no `InnerFinished`, except one that is on its way already."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndInner:
    """End the inner steps of this round early, after the present one but not before `least_steps`. `InnerFinished` reports
    those that are done."""

    instance: InstanceId
    round: int
    least_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInner:
    """Run H inner steps of one instance, from its outer parameters as they are when the job begins."""

    round: int
    plan: InstancePlan
    share: HostShare
    progress_start: float
    """Part of the run that lies before the first inner step, in [0, 1]."""
    progress_end: float
    learning_rate_factor: float = 1.0
    """Factor on the learning rate of the configuration's schedule."""
    is_ahead: bool = False
    """The outer step of the round before is still to come; it must not change the local parameters."""
    together: tuple[InstanceId, ...] = ()
    """All instances that this peer trains in the round, including this one; its devices are distributed among them."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOuter:
    """Apply the outer step with the committed average."""

    instance: InstanceId
    round: int
    keeps_own: bool = False
    """The average does not contain the own pseudo-gradient, which becomes part of the next one."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryOver:
    """The round is void: there is no outer step, the local parameters stay, and the next pseudo-gradient spans this round, too.
    `OuterApplied` answers with the digests of the unchanged state."""

    instance: InstanceId
    round: int
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureStep:
    """Measure the loss before and after the outer step of `round`, on the same rows, which are drawn by `state`."""

    instance: InstanceId
    round: int
    state: Digest
    """Root of the state after the step."""
    reads: tuple[InstanceId, ...] = ()
    """Own data sets of the instance, from its plan: the rows come from the data that it trains on."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Measure the held-out loss of the outer parameters after `round`."""

    instance: InstanceId
    round: int
    is_final: bool = False
    """The state is that of the end of the run, so it is served to others, too."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Measure the held-out losses of the sources and of the merged point, at the boundary after `round`."""

    round: int
    merge: Merge
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchState:
    instance: InstanceId
    round: int
    digest: Digest
    from_peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotState:
    """Serve a copy of the instance's outer parameters and momentum under the key `copy`, as its state at the boundary before
    `round`, until `ReleaseState`. No copy is made if `copy` is the instance itself."""

    instance: InstanceId
    copy: InstanceId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseState:
    """Stop serving the copy, and free its memory if it is still here."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveInstance:
    """Write the instance's state at the boundary before `round` into the checkpoint that is being made."""

    instance: InstanceId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Complete the checkpoint at the boundary before `durable.round`; all of `durable.held` were saved before."""

    durable: Durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    reason: str
    is_finished: bool
    """The run is complete; otherwise it can be resumed."""
    is_urgent: bool = False
    """Abandon work on the device; pending saves are still made."""
    error: str = ""
    """Code of the error that ends the peer; empty for an orderly end."""


DeviceJob = Transition | RunInner | ApplyOuter | CarryOver | MeasureStep | Evaluate | Probe
"""Jobs that end with a `DeviceEnd`, which repeats their epoch."""

DeviceEffect = DeviceJob | DropInstance | DiscardRound | SnapshotState | ReleaseState | SaveInstance | SaveCheckpoint
"""Effects that a device thread performs: that of the instance's device or, for several devices, that of the last one to
arrive."""

Effect = (
    DeviceEffect
    | Send
    | Broadcast
    | Persist
    | EndInner
    | Average
    | CancelAverage
    | RepairAverage
    | FetchState
    | ScoreTasks
    | AssessContribution
    | ShowContribution
    | Log
    | Stop
)
