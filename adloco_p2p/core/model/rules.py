"""The rules of a run, as far as decisions depend on them: one frozen dataclass per decision.

They are part of the run manifest, so they are equal on every peer and enter the run's digest. The constraints beside the
types are data (`annotated_types`); the configuration loader checks them and names every violation.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from adloco_p2p.core.model.gradient_statistics import BatchTest
from adloco_p2p.core.model.scalars import MAX_HOSTS, Fraction
from adloco_p2p.core.model.words import plural

ATTEMPTS_PER_MINUTE = 6000
"""Of the scrypt that a seat may cost (`core/ledger/proof_of_work.py`), by one core of a present server."""
DEFAULT_PRICE_MINUTES = 10.0
PositiveInt = Annotated[int, Ge(1)]
NaturalInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """How the global batch of an instance is chosen (method sections 3 and 4)."""

    test: BatchTest = "norm"
    """Which condition the batch must satisfy; `constant` never changes the batch, `schedule` reads no statistics and follows
    `ramp`."""
    ramp: Literal["linear", "doubling", "seesaw"] = "linear"
    """Of `test: schedule`, from `initial_batch` to `max_batch`: linearly; in stages of equal length, each twice the last; or as
    the inverse of the learning rate's decay (Seesaw, arXiv 2510.14717)."""
    ramp_samples: PositiveInt | None = None
    """The ramp ends after this many samples of the run; null: with the run, as the decay of the learning rate does."""
    statistic: Literal["pseudo_gradient", "micro_batch"] = "pseudo_gradient"
    """Where the noise is measured. Rounds that cannot give the first (one host, steps a factor of 8 apart) use the second."""
    level: Literal["outer", "inner"] = "outer"
    """For the pseudo-gradient statistic: noise of the averaged outer update, or of one inner step (H times larger)."""
    initial_batch: PositiveInt = 4
    """Global batch of an instance at the start, in samples."""
    max_batch: PositiveInt = 4096
    """The global batch never grows beyond this, in samples."""
    eta: PositiveFloat = 1.3
    """Constant of the norm test; smaller asks for larger batches. At level outer eta / sqrt(H) asks what eta asks at level
    inner."""
    theta: PositiveFloat = 0.9
    """Constant of the inner-product test."""
    nu: PositiveFloat = 5.84
    """Constant of the orthogonality test; 5.84 is about tan 80 degrees."""
    denominator: Literal["unbiased", "naive"] = "unbiased"
    """Squared norm of the true gradient: estimated without bias, or that of the mean gradient (biased upwards)."""
    pooling: Literal["window", "median"] = "window"
    """Over rounds: ratio of sums over the window, or median of the ratios in it."""
    window_rounds: PositiveInt = 5
    """How many rounds are pooled."""
    floor_fraction: Fraction = 0.25
    """The unbiased denominator is never below this fraction of the naive one."""
    growth_cap: Annotated[float, Ge(1)] = 1.5
    """The batch grows at most by this factor per round."""
    may_shrink: bool = False
    """After five rounds that ask for less than half the batch, shrink it by a tenth. Off: the batch is a ratchet."""

    @property
    def is_tested(self) -> bool:
        """Whether the batch follows statistics, which hosts then measure."""
        return self.test not in ("constant", "schedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRules:
    """When gradient accumulation switches on (method section 5)."""

    policy: Literal["exact", "paper", "always", "never"] = "exact"
    """`paper` and `exact`: three regions; `always`: accumulate as soon as the request does not fit; `never`: one pass only."""
    multiple: Annotated[float, Ge(1)] = 2.0
    """Accumulate only when the request exceeds this multiple of what the device holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """When and how instances become one (method section 6)."""

    policy: Literal["none", "worst_with_worst", "best_with_worst", "worst_group"] = "worst_with_worst"
    """Which instances merge: the two smallest requests, the smallest into the largest, or the `group_size` smallest."""
    period_rounds: PositiveInt = 4
    """The interval in rounds at which merges are considered."""
    first_round: NaturalInt = 0
    """No merge before this round."""
    group_size: Annotated[int, Ge(2)] = 2
    """How many instances `worst_group` folds into one."""
    weights: Literal["batch", "hosts_times_batch"] = "batch"
    """Weight of a source: its request per host (the paper), or its global request (the public code)."""
    batch_after: Literal["max", "survivor", "sum"] = "max"
    """Global request of the merged instance, from the global requests of its sources."""
    outer_momentum: Literal["mean", "zero"] = "mean"
    """Outer momentum of the merged instance: the same weighted mean, or zero."""
    inner_state: Literal["keep", "reset"] = "keep"
    """AdamW moments of the survivor's hosts; hosts that adopt foreign parameters always start from zero moments."""
    guard: bool = True
    """Measure the merged point on held-out text first; refuse it when it is worse than the worse source, or, where the source
    was trained apart in a partition, than the instance without it."""
    guard_tolerance: Annotated[float, Ge(0)] = 0.02
    """Nats per token by which the merged point may be worse than what it is measured against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRules:
    """Multi-instance training (method sections 2 and 18)."""

    count: PositiveInt = 3
    """Number of instances k after the start or the fork."""
    start: Literal["fork", "same", "different"] = "fork"
    """`fork`: one instance warms up and is then copied; `same`: k copies from the start; `different`: k random starts."""
    fork_round: PositiveInt = 4
    """The round before which the warmed-up instance is copied."""
    data: tuple[Annotated[str, MinLen(1), MaxLen(200)], ...] = ()
    """For each instance a data set of `data.mixture` that it trains on alone; merged instances train on those of all their
    sources, the one that warms up for the others on all. Evaluated is on all, and on each by itself. Empty: every instance
    trains on all data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRules:
    """How the work of a round is cut (design section 4)."""

    inner_steps: PositiveInt = 32
    """H: optimizer steps per outer round, never micro-batches."""
    rounds: PositiveInt | None = 40
    """The run ends after this many outer rounds; null where it ends by `samples`."""
    samples: PositiveInt | None = None
    """Instead of `rounds`: the run ends once its plans have given out this many rows of the data; the last round is cut."""
    share: Literal["speed", "capped", "equal"] = "speed"
    """Share a batch over hosts by measured samples per second, or equally. `capped`: by speed, but no host gets more than twice
    the median one or, of four or more, a quarter; for runs that anybody may join, since samples are weight in the average."""
    max_step_ratio: Annotated[float, Ge(1)] = 4.0
    """A fast host never does more than this many times H inner steps."""
    step_tolerance: Fraction = 0.25
    """Hosts whose ideal number of steps is within this fraction of H do exactly H, so that pseudo-gradients compare."""
    link_tolerance: Fraction | None = 0.1
    """A host whose link would lengthen the others' rounds by more than this fraction takes part in every second or fourth
    average, or is benched; null: all take part in every average."""
    quorum: Annotated[float, Gt(0), Le(1)] | None = 0.7
    """Once this part of an average's weight has arrived, from more than half of its hosts, those are left out whose uploads are
    too slow to wait for; null: all that live are waited for, those that begin late, too."""
    straggler_tolerance: Annotated[float, Ge(0)] = 1.0
    """Too slow is a host whose rest would take longer, at the rate at which it comes, than 10 s and than so many times the
    computing time of a round: left out, it fetches the average, and is late for the next round, too. A host that began late, as
    after a restart, declines where more than half would wait longer than so many times what its part is worth."""
    rounds_kept: Annotated[int, Ge(2), Le(32)] = 2
    """Finished rounds whose averages every peer still serves, from its disk. A newcomer whose state arrives at most so many
    rounds late goes through them with those averages; one whose state takes longer never gets in. Where averages are small
    beside the state, rounds may be short beside its transfer: where this is not set, 7 are kept with `averaging.codec: int8`, 4
    with half precision, 12 with signs."""
    max_hosts: Annotated[int, Ge(2), Le(MAX_HOSTS)] = 32
    """An instance has at most this many hosts, and no more than its batch has samples; further peers wait on the bench."""
    turn_rounds: PositiveInt = 16
    """After this many rounds a host makes room for a peer that waits on the bench, which fetches the state first."""

    @property
    def length(self) -> str:
        """How long the run is, in words."""
        return f"{self.samples:,} samples" if self.samples is not None else plural(self.rounds or 0, "round")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """Which peers the run lets in, and when they count in full."""

    kind: Literal["tickets", "open", "work"] = "tickets"
    """`tickets`: with an invitation of a signer, which a join link carries; `open`: everybody, so that one who makes up more
    peers than all others together decides what the model becomes; `work`: everybody whose machine computes for it, which makes
    such peers cost something, and prevents none."""
    probation_rounds: Annotated[int, Ge(0), Le(64)] = 8
    """Reports that a newcomer owes until it votes, proposes and reduces; its weight is small until then. 0: full at once."""
    price_minutes: Annotated[float, Ge(0.001), Le(600)] = DEFAULT_PRICE_MINUTES
    """What a seat costs under `work`: minutes of one core of a present server on average, by a lottery. Half of all newcomers
    need less than 0.7 times as much, one in twenty more than three times as much. Such a minute has 6,000 attempts, of 10 ms
    and 4 MiB of memory each."""

    @property
    def in_words(self) -> str:
        """Which peers the run lets in, and at which price."""
        if self.kind != "work":
            return self.kind
        return f"work, {self.price_minutes:g} min of one core a seat ({plural(self.price, 'attempt')} on average)"

    @property
    def price(self) -> int:
        """Of a seat, in attempts on average; 0: none."""
        return max(1, round(self.price_minutes * ATTEMPTS_PER_MINUTE)) if self.kind == "work" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """Whether outer steps that raise the loss are undone."""

    enabled: bool = False
    """Two hosts, drawn by lot, measure the loss before and after every outer step; where both report that it rose by more than
    training explains, the instance goes back to the state before. Costs these two 64 rows forwards, and all of them 8 bytes per
    parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules of a run that the core needs."""

    work: WorkRules = field(default_factory=WorkRules)
    instances: InstanceRules = field(default_factory=InstanceRules)
    batch: BatchRules = field(default_factory=BatchRules)
    switch: SwitchRules = field(default_factory=SwitchRules)
    merge: MergeRules = field(default_factory=MergeRules)
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    guard: GuardRules = field(default_factory=GuardRules)
    assess_every: NaturalInt = 0
    """Rounds from one look at a contribution to the next (`averaging.assess_every`); 0: none."""
    final_fraction: Fraction = 0.1
    """Learning rate at the end of its decay, as a fraction of the peak (`inner.final_fraction`); the ramp `seesaw` reads it."""
