"""Everything that can happen to a peer, and everything a peer may ask its shell to do.

`Peer.handle(event, now)` returns effects, which the shell performs IN ORDER. Short ones (Persist, Send, Broadcast, Log) end
before the next begins, so Persist before Send is a guarantee. Long ones are handed over; their end comes back as an event.
"""

from dataclasses import dataclass, field, fields

from adloco_p2p.core.model.assessments import AssessContribution, ContributionAssessed, ShowContribution
from adloco_p2p.core.model.averages import Average, CancelAverage, RepairAverage
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.complaints import PartNotShown
from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, PseudoGradientStatistics
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan
from adloco_p2p.core.model.ledger_entry import Decree, Reorg
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.messages import JournalRecord, WireMessage
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.task_scores import ScoreTasks, TasksScored
from adloco_p2p.core.model.telemetry import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The work of this peer since it first joined the run."""

    samples: int = 0
    tokens: int = 0
    """Predicted tokens."""
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0
    """Wall time in which the peer ran."""

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def __sub__(self, other: "Totals") -> "Totals":
        return Totals(**{item.name: getattr(self, item.name) - getattr(other, item.name) for item in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """The decisions in a checkpoint at the boundary before `round`: enough to continue with the same ones."""

    round: int
    """The first round that is not done."""
    plans: tuple[RoundPlan, ...]
    """Known plans from `round - 1` on, in order."""
    reports: tuple[Report, ...] = ()
    """Known reports that no known plan has used yet."""
    held: tuple[InstanceId, ...] = ()
    """Instances whose state lies beside it, at the boundary before `round`."""
    totals: Totals = field(default_factory=Totals)
    is_finished: bool = False
    """The last plan is carried out: nothing is left to do."""
    doubtful: tuple[InstanceId, ...] = ()
    """Of `held`: instances whose state may not be that of the run (`HostedInstance.doubtful_from`)."""

    def reported_state(self, peer: PeerId, instance: InstanceId) -> Digest | None:
        """Root of the instance's state at the boundary, as the peer reported it."""
        reports = [report for report in self.reports if report.peer == peer and report.round == self.round - 1]
        return next((item.state_digest for report in reports for item in report.instances if item.instance == instance), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerResult:
    """The outcome of the inner steps of one round of one instance on this host."""

    samples: int
    tokens: int
    """Predicted tokens."""
    inner_steps: int
    batch_samples: int
    """Effective batch per inner step."""
    accumulation_steps: int
    loss: float
    """Mean over the round, nats per predicted token."""
    seconds: float
    half_batch: HalfBatchStatistics | None
    micro_batch_limit: int
    """Samples of one pass that each device holds now; smaller than before after an out-of-memory."""
    has_diverged: bool = False
    """The loss or a parameter is not finite, or far beyond that of any model: there is no pseudo-gradient."""
    devices: tuple[str, ...] = ()
    """Of this machine, that did them, by name."""


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """First event. The shell has restored (or freshly built) the instances that `durable` holds."""

    durable: Durable
    capacity: Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A checked message from an authenticated peer."""

    sender: PeerId
    message: WireMessage | Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """`next_deadline` has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionApplied:
    """Ways back, forks and merges before `round` are done."""

    round: int
    missing: tuple[InstanceId, ...] = ()
    """Instances that were to go back to a state that is not kept here."""
    epoch: int = 0
    """Of the job that ended: a peer drops ends of an earlier epoch than its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerFinished:
    instance: InstanceId
    round: int
    result: InnerResult
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfAverage:
    """About an average that the core asked for."""

    asked: Average | RepairAverage

    @property
    def instance(self) -> InstanceId:
        return self.asked.instance

    @property
    def round(self) -> int:
        return self.asked.round

    @property
    def is_repair(self) -> bool:
        return isinstance(self.asked, RepairAverage)


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageDecided(_OfAverage):
    """The attempt has all contributions, and what decides their coefficients. Should it fail now, a retry can complete it."""

    decision: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageFinished(_OfAverage):
    """The average lies in a scratch buffer; nothing was applied."""

    digest: Digest
    """The part of the result that every host must share; see `numerics/digest.py`."""
    contributors: tuple[PeerId, ...]
    """The hosts that gave their pseudo-gradients, as the attempt had them, sorted."""
    statistics: PseudoGradientStatistics | None
    """Of the own pseudo-gradient as it was transmitted; zeros beside the average's norm for a host that only received. None for
    an average that was fetched and has nothing of this host in it, or was made by a rule that sees all contributions."""
    left_out: tuple[PeerId, ...] = ()
    """Those of the contributors whose pseudo-gradients the aggregation rule left out; the digest binds them."""
    bytes_sent: int = 0
    """Until the result was here; slower members may be served afterwards."""
    bytes_received: int = 0
    upload_bytes_per_second: float = 0.0
    """Throughput of the own uplink as the receivers measured it; 0 where it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageFailed(_OfAverage):
    reason: str
    suspects: tuple[PeerId, ...] = ()
    because: PeerId | None = None
    """The member whose report ended the attempt here, where it names no suspects."""
    upload_bytes_per_second: float = 0.0
    """Throughput of the own uplink, where the others went on without this host because it still sent; else 0."""
    vector_bytes: int = 0
    """Of the own pseudo-gradient as it travels, where the uplink was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterApplied:
    """The outer step is done, or the round is over without one."""

    instance: InstanceId
    round: int
    digest: Digest
    state_digest: Digest
    is_refused: bool = False
    """The step would have led to parameters that are not finite, or far beyond those of any model: nothing was changed."""
    epoch: int = 0
    seconds: float | None = None
    """That the device took for it; None: all since it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    instance: InstanceId
    round: int
    heldout_loss: float | None
    """Nats per predicted token; None where the peer has nothing to evaluate on."""
    heldout_losses: tuple[float, ...] = ()
    """On each data set of the mixture by itself, where instances have data of their own."""
    epoch: int = 0
    seconds: float | None = None
    """That the device took for it; None: all since it was asked to."""
    state_digest: Digest | None = None
    """Root of the state, after the last plan only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasured:
    instance: InstanceId
    round: int
    before: float
    """Nats per predicted token."""
    after: float
    epoch: int = 0
    seconds: float | None = None
    """That the device took for it; None: all since it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    round: int
    verdict: ProbeVerdict
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFetched:
    instance: InstanceId
    round: int
    """The instance's state at the boundary before this round."""
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKept:
    """A copy was made, and is served."""

    instance: InstanceId
    """The name of the copy."""
    round: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    instance: InstanceId
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded:
    """The user asks."""

    command: Command
    reason: str = "asked"
    """The origin or reason of the command, for the event file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateServed:
    """`peer` has the instance's state at the boundary before `round`, at least a part of it from this peer."""

    instance: InstanceId
    round: int
    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportHeard:
    """A signed report of another peer has come in."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGone:
    """Membership declares the peer dead, or it has left."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBack:
    peer: PeerId


DeviceEnd = TransitionApplied | InnerFinished | OuterApplied | StepMeasured | Evaluated | Probed
"""Ends of jobs that carry an epoch, a fencing token: a fast-forward or a reorg raises the peer's, and what the device was asked
before then ends without consequence."""

RoundEvent = InnerFinished | AverageDecided | AverageFinished | AverageFailed | OuterApplied | StepMeasured | Evaluated
"""About one round of one instance."""

Event = (
    RoundEvent
    | DeviceEnd
    | Started
    | Received
    | Ticked
    | StateFetched
    | StateKept
    | FetchFailed
    | Commanded
    | StateServed
    | TasksScored
    | PartNotShown
    | ContributionAssessed
    | PeerGone
    | PeerBack
)


# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    peer: PeerId
    message: WireMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """To every peer of the roster that the shell can reach; gossip, not a promise.

    A bare report travels only where the roster is fixed."""

    message: WireMessage | Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Append to the journal and sync before the next effect."""

    record: JournalRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """Go back where the guard ordered it, apply forks, then merges, at the boundary before `round`. Sources that are merged
    away are dropped."""

    round: int
    forks: tuple[Fork, ...]
    merges: tuple[Merge, ...]
    rewinds: tuple[tuple[InstanceId, Digest], ...] = ()
    """Instances and the earlier states that they go back to."""
    epoch: int = 0
    """Of the peer when it asked; the event that ends the job repeats it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropInstance:
    """This peer hosts the instance no longer: free its memory, if it is still there."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardRound:
    """Forget unfinished work: inner steps of the instance end after the present one, and its local parameters return to the
    outer parameters, if it is here. No `InnerFinished` comes of them, unless it is on its way already."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndInner:
    """End the inner steps of this round early, after the present one and not before `least_steps` of them. `InnerFinished`
    comes with those that are done."""

    instance: InstanceId
    round: int
    least_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInner:
    """Train: H inner steps of one instance from its outer parameters, as they are when it begins."""

    round: int
    plan: InstancePlan
    share: HostShare
    progress_start: float
    """Part of the run behind the first inner step, in [0, 1]."""
    progress_end: float
    learning_rate_factor: float = 1.0
    """Times the rate of the configuration's schedule."""
    is_ahead: bool = False
    """The outer step of the round before is still to come, and leaves the local parameters alone."""
    together: tuple[InstanceId, ...] = ()
    """All instances that the plan gives this peer to train in the round, this one among them: its devices are dealt to them."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOuter:
    """Apply the outer step with the committed average."""

    instance: InstanceId
    round: int
    keeps_own: bool = False
    """The own pseudo-gradient is not in it, and becomes part of the next one."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryOver:
    """The round is void: no outer step. Local parameters stay as they are, and the next pseudo-gradient spans this round, too.
    Answered by `OuterApplied` with the digests of the unchanged state."""

    instance: InstanceId
    round: int
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureStep:
    """The loss before and after the outer step of `round`, on the same rows, drawn by `state`."""

    instance: InstanceId
    round: int
    state: Digest
    """After the step."""
    reads: tuple[InstanceId, ...] = ()
    """As in the instance's plan: the rows are of the data that it trains on."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Held-out loss of the outer parameters after `round`."""

    instance: InstanceId
    round: int
    is_final: bool = False
    """The state is that of the end of the run: it is served to others, too."""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Measure the held-out loss of the sources and of the would-be merge, at the boundary after `round`."""

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
    """Copy the instance's outer parameters and momentum to `copy`, if that is another name, and serve them under it as the
    state at the boundary before `round`, until `ReleaseState`."""

    instance: InstanceId
    copy: InstanceId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseState:
    """Serve the copy no longer, and free its memory if it is still here."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveInstance:
    """Write the instance's state at the boundary before `round` into the checkpoint that is being made."""

    instance: InstanceId
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Complete the checkpoint at the boundary before `durable.round`: all of `durable.held` were saved before."""

    durable: Durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    reason: str
    is_finished: bool
    """The run is complete; otherwise it can be resumed."""
    is_urgent: bool = False
    """Work on the device is given up; what is to be saved is saved all the same."""
    error: str = ""
    """Code of the error that ends the peer; empty where it ends in order."""


DeviceJob = Transition | RunInner | ApplyOuter | CarryOver | MeasureStep | Evaluate | Probe
"""Jobs whose end comes back as a `DeviceEnd`, with their epoch."""

DeviceEffect = DeviceJob | DropInstance | DiscardRound | SnapshotState | ReleaseState | SaveInstance | SaveCheckpoint
"""Performed by the thread of an instance's device, or by that of the last device that comes to it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A plan is final."""

    plan: RoundPlan
    reports: tuple[Report, ...] = ()
    """Those it was decided from, where they are known."""
    decrees: tuple[Decree, ...] = ()
    """Statements of signers and evidence that the plan carries."""


Outcome = Decided | Reorg | PeerGone | PeerBack | ReportHeard | Effect
"""Outcomes of the agreement: facts for the peer, and effects that keep their place among them."""
