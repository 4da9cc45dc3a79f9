"""The signed report of one peer about one round, with its measurements."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt, MaxLen

from adloco_p2p.core.model.assessments import Assessment
from adloco_p2p.core.model.branches import MAX_BRANCHES, BranchState
from adloco_p2p.core.model.certificate import BranchProof
from adloco_p2p.core.model.complaints import Complaint
from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, PseudoGradientStatistics
from adloco_p2p.core.model.lineage import ProbeVerdict
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import MAX_HOSTS, MAX_INSTANCES, Count, Digest, HexDigest, InstanceId, NonNegative, PeerId
from adloco_p2p.core.model.task_scores import TaskClaim

HostBits = Annotated[int, Ge(0), Lt(1 << MAX_HOSTS)]
"""A set of hosts of one instance, one bit per host in the order of the plan, lowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLosses:
    """The effect of an outer step, as a drawn host measured it on rows that were drawn with it. Nats per token."""

    before: NonNegative
    after: NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReport:
    """The work of one host for one instance in one round."""

    instance: InstanceId
    samples: Count
    """n_m: samples whose gradient entered the pseudo-gradient; 0 for a host that only received, or whose pseudo-gradient is not
    in the average."""
    tokens: Count
    """Predicted tokens."""
    inner_steps: Count
    """h_m: optimizer steps."""
    batch_samples: Count
    """b_m: effective batch per inner step of this host."""
    accumulation_steps: Count
    train_seconds: NonNegative
    loss: NonNegative | None
    """Mean training loss over the round, nats per predicted token."""
    heldout_loss: NonNegative | None
    """Held-out loss of the outer parameters after the round, nats per predicted token; None if it was not evaluated."""
    heldout_losses: Annotated[tuple[NonNegative, ...], MaxLen(MAX_INSTANCES)] = ()
    """Held-out losses on each data set of the mixture, if instances have data of their own."""
    contributors: HostBits
    """The hosts whose pseudo-gradients are in the committed average or, in a void round, those that were there as far as the
    sender has learned; see `core/model/report_form.py`."""
    left_out: HostBits = 0
    """The hosts whose pseudo-gradients the aggregation rule left out of the average."""
    is_void: bool = False
    """No average got a majority: there was no outer step, and the next pseudo-gradient spans this round, too."""
    has_diverged: bool = False
    """The host has no finite pseudo-gradient or, like all hosts, refused the outer step of the committed average; its samples
    are 0."""
    step: StepLosses | None = None
    """Measured losses, from a host that was drawn to measure the outer step."""
    complaint: Complaint | None = None
    """The last complaint of a host that could not make a part again since its last report."""
    assessment: Assessment | None = None
    """The oldest score not yet reported, from a host that was drawn to look at a contribution of an earlier round."""
    pseudo_gradient: PseudoGradientStatistics | None
    half_batch: HalfBatchStatistics | None
    digest: HexDigest
    """Digest of the outer parameters after the round; `state_digest` for a host that did nothing in it."""
    state_digest: HexDigest
    """Root of outer parameters and outer momentum after the round, against which a joiner verifies the state."""
    vector_bytes: Count = 0
    """Size of this host's pseudo-gradient on the wire; 0 if it was in no average."""

    @classmethod
    def without_work(cls, instance: InstanceId, *, state_digest: Digest, contributors: HostBits = 0) -> "InstanceReport":
        """Return the report of a host that has the state after the round and trained nothing in it."""
        return cls(
            instance=instance,
            samples=0,
            tokens=0,
            inner_steps=0,
            batch_samples=0,
            accumulation_steps=0,
            train_seconds=0.0,
            loss=None,
            heldout_loss=None,
            contributors=contributors,
            pseudo_gradient=None,
            half_batch=None,
            digest=state_digest,
            state_digest=state_digest,
        )

    @property
    def is_bare(self) -> bool:
        """The host neither worked in the round nor received its average; it just has the state after it."""
        return not (self.contributors or self.is_void or self.samples)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Report:
    """The report of one peer about one round. `round` is the round that ended. A newcomer's first report names no instance.
    `core/model/report_form.py` bounds its size."""

    peer: PeerId
    round: Count
    plan: HexDigest
    """Digest of the plan that was carried out."""
    capacity: Capacity
    instances: Annotated[tuple[InstanceReport, ...], MaxLen(MAX_INSTANCES)] = ()
    verdict: ProbeVerdict | None = None
    branches: Annotated[tuple[BranchState, ...], MaxLen(MAX_BRANCHES)] = ()
    """States of lost histories that the peer holds, either trained there or fetched for a merge."""
    proof: BranchProof | None = None
    """Proof of a branch that no plan has named yet."""
    tasks: TaskClaim | None = None
    """Scores from a peer that was drawn to score the model on tasks and has done so since its last report."""
