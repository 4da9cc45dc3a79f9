"""Telemetry: the events that describe a run to people. The event file holds them as JSON lines, and the views fold them.

An event is one frozen dataclass here; its name in the event file follows from the name of the class. Unless noted otherwise, an
event is about one peer, losses are in nats per predicted token, and a number that is not finite is read back as None.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from adloco_p2p.core.model import canonical, lineage
from adloco_p2p.core.model.course import AS_CONFIGURED, Course
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.task_scores import TaskScore


class Log:
    """An event for the event file and the views, which a peer emits like any other effect."""

    __slots__ = ()
    event: ClassVar[str]
    """Name of the event: that of the class, in snake case."""

    def __init_subclass__(cls) -> None:
        cls.event = "".join(f"_{char.lower()}" if char.isupper() else char for char in cls.__name__).lstrip("_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """An event and its time: a line of the event file."""

    time: float
    """Unix seconds."""
    event: Log


def shared(value: object, kind: type[Any]) -> dict[str, Any]:
    """Return the fields of the dataclass `kind` that `value` has, too, for a summary that repeats them."""
    return {item.name: getattr(value, item.name) for item in fields(kind) if hasattr(value, item.name)}


# --- a session -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting(Log):
    """The node starts and cannot answer requests yet."""

    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Log):
    """A session of a peer begins: the run, the peer and its machine."""

    run: str
    name: str
    peer: str
    mode: str
    rounds: int | None
    """Length of a run that counts rounds."""
    samples: int | None
    """Length of a run that counts samples."""
    inner_steps: int
    parameters: int = 0
    device: str = ""
    micro_batch_limit: int = 0
    """In samples; 0 for a keeper, which trains nothing."""
    unigram_entropy: float | None = None
    """Loss of a model that knows only the frequency of each token."""
    resumed_round: int | None = None
    codec: str = ""
    """Codec of the pseudo-gradients."""
    data_sets: tuple[str, ...] = ()
    """Data sets of the mixture, if instances have data of their own."""
    admission: str = ""
    """Which peers the run lets in and the price of a seat, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening(Log):
    join_link: str
    """Address by which others join through this peer, never with an invitation; empty if others cannot dial it."""
    may_invite: bool = False
    """Whether `adloco-peer invite` prints a link here: it does for signers of the run and, in an open run, for everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstContribution(Log):
    """The first round of this session whose committed average holds this peer's work."""

    round: int
    seconds: float
    """Time since the user's command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pausing(Log):
    """The user asks to pause after a round."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Log):
    round: int
    """The next round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Log):
    round: int
    """The next round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Log):
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Log):
    """The session ends."""

    reason: str
    is_finished: bool
    """The run is complete; otherwise it can be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Log):
    """The run is complete on this peer. Samples, tokens, bytes and wall time are those of this peer, over all its sessions."""

    round: int
    heldout_loss: float | None
    heldout_losses: tuple[float | None, ...] = ()
    """As in `Round`."""
    samples: int
    tokens: int
    bytes_sent: int
    bytes_received: int
    seconds: float


# --- plans -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterLine:
    peer: PeerId
    samples_per_second: float
    """Measured speed; 0 before the first report."""
    last_report: int | None
    upload_bytes_per_second: float = 0.0
    """Throughput of the uplink in the last averages; 0 if nothing was measured yet."""
    probation: int = 0
    """Reports that the peer owes until it votes, proposes and reduces."""
    is_keeper: bool = False
    is_leaving: bool = False
    """The peer's last report announced that it leaves; plans give it no work until a report says otherwise."""
    waits_from: int | None = None
    """Round of the plan since which the peer is on the bench; if it is a later round, the peer may not work before. None if it
    is not on the bench."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLine:
    instance: InstanceId
    requested_batch: int
    effective_batch: int
    mode: str
    reason: str
    hosts: tuple[HostShare, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Log):
    """An agreed plan, without what only the next plan needs."""

    round: int
    digest: Digest
    reason: str
    expected_seconds: float
    """Computing time of the slowest host; 0 before the first reports."""
    is_last: bool
    samples_before: int
    """Samples that the plans of earlier rounds gave out."""
    samples: int
    """Samples that this plan assigns."""
    roster: tuple[RosterLine, ...]
    instances: tuple[InstanceLine, ...]
    forks: tuple[lineage.Fork, ...]
    merges: tuple[lineage.Merge, ...]
    probe: lineage.Merge | None
    course: Course = AS_CONFIGURED
    protocol: int = FIRST_UPGRADABLE
    upgrade_round: int | None = None
    """First round of the next protocol, if one is agreed."""

    def seat(self, peer: str) -> RosterLine | None:
        """Return the roster line of the peer, or None if it has no seat."""
        return next((line for line in self.roster if line.peer == peer), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Log):
    """Instances were merged before `round`."""

    round: int
    sources: tuple[InstanceId, ...]
    target: InstanceId
    weights: tuple[float, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(Log):
    """An instance was copied before `round`."""

    round: int
    source: InstanceId
    targets: tuple[InstanceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Log):
    """Held-out losses at the boundary after `round`: of the sources of a possible merge, and of the merged point."""

    round: int
    sources: tuple[InstanceId, ...]
    target: InstanceId
    source_losses: tuple[float | None, ...]
    merged_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores(Log):
    """A peer claims, in its report, scores of the model on tasks."""

    round: int
    """The model is that of the boundary before this round."""
    peer: PeerId
    model: Digest
    scores: tuple[TaskScore, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt(Log):
    """This peer was drawn to look at a contribution to the average of `round`, and has done so or could not."""

    round: int
    instance: InstanceId
    peer: PeerId
    """The contributor."""
    score: float | None
    """Standard errors by which the contribution lowers the loss of the rows that its host was given further than that of
    others; 0 if it was not shown, None if this peer could not measure it."""
    reason: str
    """Why the contribution was not shown or not measured."""


# --- rounds of one instance on this peer -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase(Log):
    """A round of an instance enters a phase."""

    round: int
    instance: InstanceId
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Log):
    """Inner steps of a round so far."""

    round: int
    instance: InstanceId
    step: int
    num_steps: int
    loss: float | None
    """Loss of the last step."""
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Log):
    """An instance ended a round on this peer."""

    round: int
    instance: InstanceId
    loss: float | None
    """Mean over the inner steps; None if this peer did none."""
    heldout_loss: float | None
    """Held-out loss; None in a round without evaluation."""
    heldout_losses: tuple[float | None, ...] = ()
    """Held-out losses on each data set (`Started.data_sets`), if instances have data of their own."""
    requested_batch: int
    effective_batch: int
    accumulation_steps: int
    mode: str
    reason: str
    samples: int
    tokens: int
    hosts: tuple[PeerId, ...]
    """Hosts whose work the committed average holds."""
    seconds: dict[str, float]
    """Seconds by phase."""
    bytes_sent: int
    """Bytes sent for the committed average."""
    bytes_received: int
    is_ahead: bool = False
    """The inner steps did not wait for the end of the round before."""
    is_void: bool = False
    """The round had no outer step."""
    digest: Digest | None = None
    """Digest of the outer parameters after the round."""
    devices: tuple[str, ...] = ()
    """Devices of this peer that did the inner steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(Log):
    """Another host evaluated an instance after a round, as it claims in its signed report."""

    round: int
    instance: InstanceId
    peer: PeerId
    heldout_loss: float
    heldout_losses: tuple[float, ...] = ()


MAX_SAMPLE_TEXT = 2000
"""Most characters of a sample text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleText(Log):
    """A prompt of the run, continued by the outer parameters of an instance after a round."""

    round: int
    instance: InstanceId
    prompt: str
    text: str
    """At most MAX_SAMPLE_TEXT characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageFailed(Log):
    round: int
    instance: InstanceId
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageRetried(Log):
    round: int
    instance: InstanceId
    attempt: int
    without: tuple[PeerId, ...]
    """Contributors of the attempt before that are not in this one."""
    completes: bool = False
    """The attempt before had its decision: the contributors in `without` stay in the mean, and only the parts that they were to
    reduce are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundVoid(Log):
    """No average of an instance got a majority: the round ends without an outer step, and its work goes into the next one."""

    round: int
    instance: InstanceId
    voters: tuple[PeerId, ...]
    """Hosts whose commit votes have arrived here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory(Log):
    """The device ran out of memory."""

    instance: InstanceId
    round: int
    micro_batch_limit: int
    """Samples per pass from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastForwarded(Log):
    """The peer was rounds behind, gave up its work in progress, and continues from the state of others."""

    from_round: int
    to_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Log):
    round: int
    """First round that the checkpoint does not include."""


# --- other peers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Log):
    """A plan admits a peer."""

    peer: PeerId
    round: int
    """The first round whose plan counts on the peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCard(Log):
    """A member's announcement about itself, and the round trip to it. The member signed the record; its truth is unchecked."""

    peer: PeerId
    nickname: str
    version: str
    reach: str
    """`direct` (addresses of its own), `relay` (only through others), or `client` (accepts no connections)."""
    round_trip_seconds: float | None
    """Round trip from this peer; None for itself, and without a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled(Log):
    """A plan carries a statement of a signer, or evidence."""

    round: int
    action: str
    subject: str
    """The peer or the key of an invitation that it is about; empty if it is about the run."""
    by: str
    """The signer, or `evidence`."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected(Log):
    """A peer was silent for half a lease."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned(Log):
    """A peer that was suspected or gone counts again."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Log):
    """A peer left, or its lease ran out."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Log):
    """Another peer refused messages of this one at its border."""

    peer: PeerId
    """The peer that refused the messages."""
    reason: str
    """Reason in that peer's words."""
    count: int
    """Messages refused since the last such event."""


# --- machine and network ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Warning(Log):  # noqa: A001  # its name in the event file follows; used as telemetry.Warning
    """A condition that needs attention begins or ends."""

    key: str
    message: str
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoodStill(Log):
    """The process did not run: it was suspended, the machine slept, or its clock was set."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock(Log):
    """The clocks of other peers compared with that of this machine."""

    offset_seconds: float
    uncertainty_seconds: float
    peers: tuple[PeerId, ...]
    offsets_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(Log):
    """Bytes since the last such event, by kind of traffic."""

    round: int
    sent: dict[str, int]
    received: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth(Log):
    """Bytes of this session, and the present rates and caps; a cap or budget of 0 means none."""

    sent_bytes: int = 0
    received_bytes: int = 0
    up_bytes_per_second: float | None = None
    """Measured upload rate; None if it is not measured."""
    down_bytes_per_second: float | None = None
    up_cap_bytes_per_second: int = 0
    down_cap_bytes_per_second: int = 0
    budget_bytes: int = 0
    """Budget of the day."""
    budget_left_bytes: int | None = None
    is_quiet: bool = False
    """Quiet hours are in force: the lower ones of their caps and the user's apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of the machine; None stands for what its driver does not report."""

    index: int
    memory_bytes: int
    memory_limit_bytes: int
    utilisation_fraction: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Log):
    """Load of the machine, including other programs."""

    processor_fraction: float
    memory_bytes: int
    memory_limit_bytes: int
    process_memory_bytes: int
    """Resident memory of this node's process."""
    gpus: tuple[Gpu, ...] = ()
    """GPUs that the node trains on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDownload(Log):
    """Progress of the download of an instance's state to this peer, in verified bytes."""

    round: int
    """The boundary of the state is the one before this round."""
    instance: InstanceId
    received_bytes: int
    total_bytes: int
    bytes_per_second: float | None
    """Mean rate since the download began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proving(Log):
    """This peer computes for its seat (`admission.kind: work`)."""

    price: int
    """Attempts that a seat takes on average."""
    attempts: int
    """Attempts so far."""
    seconds: float
    """Time spent in the attempts."""
    is_over: bool
    """The proof of work is found."""


LIVE_ONLY = (Progress, Phase, Bandwidth, Machine, Listening, StateDownload)
"""Events for live views only: they are frequent or tell only about the present, so the event file does not hold them."""
EVENTS: Mapping[str, type[Log]] = {
    kind.event: kind for kind in [*globals().values()] if isinstance(kind, type) and issubclass(kind, Log) and kind is not Log
}
"""All events of this module, by name."""


def to_line(stamped: Stamped) -> str:
    """Return the event as a line of the event file, without line end: an ASCII JSON object of `event`, `time` and the
    fields."""
    plain = {"event": stamped.event.event, "time": stamped.time, **canonical.to_plain(stamped.event)}
    return json.dumps(_finite(plain), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite with None, because JSON cannot hold them."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case _:
            return value
