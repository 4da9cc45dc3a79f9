"""Events, which can happen to a peer: the inputs of `Peer.handle`. `effects.py` has what it may ask of its shell."""

from dataclasses import dataclass, field, fields

from adloco_p2p.core.model.assessments import ContributionAssessed
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.commands import Command
from adloco_p2p.core.model.complaints import PartNotShown
from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, PseudoGradientStatistics
from adloco_p2p.core.model.lineage import ProbeVerdict
from adloco_p2p.core.model.messages import WireMessage
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.task_scores import TasksScored


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
    """The decisions in a checkpoint at the boundary before `round`, enough to continue with the same ones."""

    round: int
    """The first round that is not done."""
    plans: tuple[RoundPlan, ...]
    """Known plans from `round - 1` on, in order."""
    reports: tuple[Report, ...] = ()
    """Known reports that no known plan has used yet."""
    held: tuple[InstanceId, ...] = ()
    """Instances whose state at the boundary before `round` is saved in the checkpoint."""
    totals: Totals = field(default_factory=Totals)
    is_finished: bool = False
    """The last plan is carried out and nothing is left to do."""
    doubtful: tuple[InstanceId, ...] = ()
    """Instances among `held` whose state may not be that of the run (`HostedInstance.doubtful_from`)."""

    def reported_state(self, peer: PeerId, instance: InstanceId) -> Digest | None:
        """Return the root of the instance's state at the boundary, as the peer reported it, or None."""
        reports = [report for report in self.reports if report.peer == peer and report.round == self.round - 1]
        return next((item.state_digest for report in reports for item in report.instances if item.instance == instance), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerResult:
    """The outcome of one round of inner steps for one instance on this host."""

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
    """Samples per pass that each device holds now; lower than before after an out-of-memory error."""
    has_diverged: bool = False
    """The loss or a parameter is not finite, or far larger than in any model, so there is no pseudo-gradient."""
    devices: tuple[str, ...] = ()
    """Names of the devices of this machine that did the steps."""


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
    """The time of `next_deadline` has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionApplied:
    """The rewinds, forks and merges before `round` are done."""

    round: int
    missing: tuple[InstanceId, ...] = ()
    """Instances that were to be rewound to a state that this peer does not keep."""
    epoch: int = 0
    """Epoch of the job that ended; a peer drops the ends of jobs of an earlier epoch than its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerFinished:
    instance: InstanceId
    round: int
    result: InnerResult
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfAverage:
    """Base of the events about an average that the core asked for."""

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
    """The attempt has all contributions and has fixed their coefficients; if it fails now, a retry can complete it."""

    decision: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageFinished(_OfAverage):
    """The average is in a scratch buffer; it is not applied yet."""

    digest: Digest
    """Digest of the part of the result that all hosts must share; see `numerics/digest.py`."""
    contributors: tuple[PeerId, ...]
    """Hosts whose pseudo-gradients the attempt had, sorted."""
    statistics: PseudoGradientStatistics | None
    """Statistics of the own pseudo-gradient as it was transmitted; for a host that only received, all 0 except the norm of the
    average. None for a fetched average without this host, and for one of a rule that sees all contributions."""
    left_out: tuple[PeerId, ...] = ()
    """Contributors whose pseudo-gradients the aggregation rule left out; the digest covers them."""
    bytes_sent: int = 0
    """Bytes sent until the result was here; slower members may be served afterwards."""
    bytes_received: int = 0
    upload_bytes_per_second: float = 0.0
    """Throughput of the own uplink as the receivers measured it; 0 if it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageFailed(_OfAverage):
    reason: str
    suspects: tuple[PeerId, ...] = ()
    because: PeerId | None = None
    """The member whose report ended the attempt here, if there are no suspects."""
    upload_bytes_per_second: float = 0.0
    """Throughput of the own uplink if the others went on without this host because it was still sending; else 0."""
    vector_bytes: int = 0
    """Size of the own pseudo-gradient on the wire, if the uplink was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterApplied:
    """The outer step is done, or the round is over without one."""

    instance: InstanceId
    round: int
    digest: Digest
    state_digest: Digest
    is_refused: bool = False
    """Nothing was changed: the step would have led to parameters that are not finite, or far larger than those of any model."""
    epoch: int = 0
    seconds: float | None = None
    """Time that the device took; None for all the time since the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    instance: InstanceId
    round: int
    heldout_loss: float | None
    """Nats per predicted token; None if the peer has nothing to evaluate on."""
    heldout_losses: tuple[float, ...] = ()
    """Losses on each data set of the mixture, if instances have data of their own."""
    epoch: int = 0
    seconds: float | None = None
    """Time that the device took; None for all the time since the request."""
    state_digest: Digest | None = None
    """Root of the state, after the last plan only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasured:
    instance: InstanceId
    round: int
    before: float
    """Loss before the outer step, in nats per predicted token."""
    after: float
    epoch: int = 0
    seconds: float | None = None
    """Time that the device took; None for all the time since the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    round: int
    verdict: ProbeVerdict
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFetched:
    instance: InstanceId
    round: int
    """The boundary of the state is the one before this round."""
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKept:
    """The snapshot that a `SnapshotState` asked for is made and is served."""

    instance: InstanceId
    """Key under which the snapshot is served."""
    round: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    instance: InstanceId
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded:
    """The user gives a command."""

    command: Command
    reason: str = "asked"
    """Origin of or reason for the command, for the event file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateServed:
    """`peer` has the instance's state at the boundary before `round`, and got at least a part of it from this peer."""

    instance: InstanceId
    round: int
    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportHeard:
    """A signed report of another peer has come in."""

    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReceived:
    """Data of averages or states has come from these peers in the last second. Their heartbeats may wait behind it."""

    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGone:
    """Membership declares the peer dead, or it has left."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBack:
    peer: PeerId


DeviceEnd = TransitionApplied | InnerFinished | OuterApplied | StepMeasured | Evaluated | Probed
"""Ends of jobs that carry an epoch, a fencing token. A fast-forward or a reorg raises the peer's epoch, so that ends of jobs
from before have no effect."""

RoundEvent = InnerFinished | AverageDecided | AverageFinished | AverageFailed | OuterApplied | StepMeasured | Evaluated
"""Events about one round of one instance."""

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
    | DataReceived
    | PeerGone
    | PeerBack
)
