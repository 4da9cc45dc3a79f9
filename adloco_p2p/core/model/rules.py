"""The rules of a run, as far as decisions depend on them: one frozen dataclass per decision.

They are part of the run manifest, so they are equal on every peer and enter the run's digest. The constraints beside the types
are data (`annotated_types`); the configuration loader checks them and names every violation.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from adloco_p2p.core.model.gradient_statistics import BatchTest
from adloco_p2p.core.model.scalars import MAX_HOSTS, Fraction
from adloco_p2p.core.model.words import plural

ATTEMPTS_PER_MINUTE = 6000
"""How often one core of a present server computes, per minute, the scrypt that a seat may cost
(`core/ledger/proof_of_work.py`)."""
DEFAULT_PRICE_MINUTES = 10.0
PositiveInt = Annotated[int, Ge(1)]
NaturalInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """How the global batch of an instance is chosen (docs/mathematics.md, 3, 4 and 9.3)."""

    test: BatchTest = "norm"
    """The condition that the batch must satisfy. `constant` never changes the batch; `schedule` reads no statistics and follows
    `ramp`."""
    ramp: Literal["linear", "doubling", "seesaw"] = "linear"
    """How `test: schedule` grows the batch from `initial_batch` to `max_batch`: linearly; in stages of equal length, each twice
    the one before; or as the inverse of the learning rate's decay (Seesaw, arXiv 2510.14717)."""
    ramp_samples: PositiveInt | None = None
    """The ramp ends after this many samples of the run; null: at the end of the run, like the decay of the learning rate."""
    statistic: Literal["pseudo_gradient", "micro_batch"] = "pseudo_gradient"
    """Where the noise is measured. Rounds that cannot give the pseudo-gradient statistic (one host, or numbers of steps a
    factor of 8 apart) use the micro-batch one."""
    level: Literal["outer", "inner"] = "outer"
    """For the pseudo-gradient statistic: the noise of the averaged outer update, or that of one inner step (H times larger)."""
    initial_batch: PositiveInt = 4
    """Global batch of an instance at the start, in samples."""
    max_batch: PositiveInt = 4096
    """Upper limit of an instance's global batch, in samples."""
    eta: PositiveFloat = 1.3
    """Constant of the norm test; a smaller one asks for larger batches. eta / sqrt(H) at level `outer` asks for the same batch
    as eta at level `inner`."""
    theta: PositiveFloat = 0.9
    """Constant of the inner-product test."""
    nu: PositiveFloat = 5.84
    """Constant of the orthogonality test; 5.84 is about tan 80 degrees."""
    denominator: Literal["unbiased", "naive"] = "unbiased"
    """The squared norm of the true gradient: estimated without bias, or taken from the mean gradient (biased upwards)."""
    pooling: Literal["window", "median"] = "window"
    """How rounds are combined: the ratio of the sums over the window, or the median of the ratios in it."""
    window_rounds: PositiveInt = 5
    """How many rounds are pooled."""
    floor_fraction: Fraction = 0.25
    """The unbiased denominator is never below this fraction of the naive one."""
    growth_cap: Annotated[float, Ge(1)] = 1.5
    """Greatest factor by which the batch grows per round."""
    may_shrink: bool = False
    """Shrink the batch by a tenth after five rounds that ask for less than half of it. Off: the batch never shrinks."""

    @property
    def is_tested(self) -> bool:
        """Whether the batch follows statistics, which hosts then measure."""
        return self.test not in ("constant", "schedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRules:
    """When gradient accumulation switches on (docs/mathematics.md, 5)."""

    policy: Literal["exact", "paper", "always", "never"] = "exact"
    """`paper` and `exact`: three regions; `always`: accumulate as soon as the request does not fit; `never`: one pass only."""
    multiple: Annotated[float, Ge(1)] = 2.0
    """Accumulate only if the request exceeds this multiple of what the device holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """When and how instances become one (docs/mathematics.md, 6)."""

    policy: Literal["none", "worst_with_worst", "best_with_worst", "worst_group"] = "worst_with_worst"
    """Which instances merge: the two with the smallest requests, the smallest into the largest, or the `group_size`
    smallest."""
    period_rounds: PositiveInt = 4
    """Merges are considered once per this many rounds."""
    first_round: NaturalInt = 0
    """No merge happens before this round."""
    group_size: Annotated[int, Ge(2)] = 2
    """How many instances `worst_group` merges into one."""
    weights: Literal["batch", "hosts_times_batch", "equal"] = "batch"
    """Weight of a source: its request per host (the paper), its global request (the public code), or the same for all. Where
    requests differ because the data of some instances are noisy, requests favour the worse models."""
    batch_after: Literal["max", "survivor", "sum"] = "max"
    """Global request of the merged instance, computed from the global requests of its sources."""
    outer_momentum: Literal["mean", "zero"] = "mean"
    """Outer momentum of the merged instance: the same weighted mean, or zero."""
    inner_state: Literal["keep", "reset"] = "keep"
    """AdamW moments of the survivor's hosts; hosts that adopt foreign parameters always start from zero moments."""
    guard: bool = True
    """First measure the merged point on held-out text, and refuse a merge that is worse than the worse source or, for a source
    that was trained apart in a partition, worse than the instance without it."""
    guard_tolerance: Annotated[float, Ge(0)] = 0.02
    """Nats per token by which the merged point may be worse than what it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRules:
    """Multi-instance training (docs/mathematics.md, 2 and 6)."""

    count: PositiveInt = 3
    """Number of instances k after the start or the fork."""
    start: Literal["fork", "same", "different"] = "fork"
    """`fork`: one instance warms up and is then copied; `same`: k copies from the start; `different`: k random starts."""
    fork_round: PositiveInt = 4
    """The round before which the warmed-up instance is copied."""
    data: tuple[Annotated[str, MinLen(1), MaxLen(200)], ...] = ()
    """For each instance, the data set of `data.mixture` that it trains on alone. A merged instance trains on those of all its
    sources, the instance that warms up for the others on all. Every instance is evaluated on all data sets together and on each
    by itself. Empty: every instance trains on all data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRules:
    """How the work of a round is cut (docs/mathematics.md, 7)."""

    inner_steps: PositiveInt = 32
    """H: optimizer steps per outer round, never micro-batches."""
    rounds: PositiveInt | None = 40
    """The run ends after this many outer rounds; null if it ends by `samples`."""
    samples: PositiveInt | None = None
    """Instead of `rounds`: the run ends once its plans have given out this many rows of the data; the last round is cut."""
    share: Literal["speed", "capped", "equal"] = "speed"
    """How a batch is shared over hosts. `speed`: by measured samples per second; `equal`: equally; `capped`: by speed, but no
    host gets more than twice the median share or, with four or more hosts, more than a quarter. `capped` is for runs that
    anybody may join, because samples are weight in the average."""
    max_step_ratio: Annotated[float, Ge(1)] = 4.0
    """A fast host never does more than this many times H inner steps."""
    step_tolerance: Fraction = 0.25
    """Hosts whose ideal number of steps is within this fraction of H do exactly H, so that their pseudo-gradients are
    comparable."""
    link_tolerance: Fraction | None = 0.1
    """A host whose link would lengthen the others' rounds by more than this fraction takes part in every second or fourth
    average only, or is benched; null: all hosts take part in every average."""
    quorum: Annotated[float, Gt(0), Le(1)] | None = 0.7
    """Once this part of an average's weight has arrived, from more than half of its hosts, it goes on without hosts whose
    uploads are too slow to wait for; null: it waits for all live hosts, late starters included."""
    straggler_tolerance: Annotated[float, Ge(0)] = 1.0
    """A host is too slow if the rest of its upload would take, at its present rate, more than 10 s, more than the median link
    needs for an average, and more than this multiple of the computing time of a round. Left out, it fetches the average and is
    late for the next round, too. A host that began late, as after a restart, declines if more than half of the hosts would wait
    longer than this multiple of what its part is worth."""
    rounds_kept: Annotated[int, Ge(2), Le(32)] = 2
    """Finished rounds whose averages every peer still serves, from its disk. A newcomer whose state arrives at most this many
    rounds late catches up with those averages; one whose state takes longer never gets in. Where averages are small beside the
    state, rounds may be short beside its transfer; the default is therefore 7 with `averaging.codec: int8`, 4 with half
    precision, and 12 with signs."""
    max_hosts: Annotated[int, Ge(2), Le(MAX_HOSTS)] = 32
    """Most hosts of an instance, which also has no more hosts than its batch has samples; further peers wait on the bench."""
    turn_rounds: PositiveInt = 16
    """After this many rounds a host makes room for a peer that waits on the bench; that peer fetches the state first."""

    @property
    def length(self) -> str:
        """Length of the run, in words."""
        return f"{self.samples:,} samples" if self.samples is not None else plural(self.rounds or 0, "round")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """Which peers the run lets in, and when they count in full."""

    kind: Literal["tickets", "open", "work"] = "tickets"
    """`tickets`: peers with a signer's invitation, which a join link carries. `open`: everybody, so an attacker who creates
    more peers than all others together decides what the model becomes. `work`: everybody whose machine computes for a seat,
    which makes such peers cost something, but prevents none."""
    probation_rounds: Annotated[int, Ge(0), Le(64)] = 8
    """Reports that a newcomer owes until it votes, proposes and reduces; its weight is small until then. 0: it counts in full
    at once."""
    price_minutes: Annotated[float, Ge(0.001), Le(600)] = DEFAULT_PRICE_MINUTES
    """Price of a seat under `work`: minutes of one core of a present server on average, as a lottery. Half of all newcomers
    need less than 0.7 times as long, one in twenty more than three times as long. One minute is 6,000 attempts, of 10 ms and 4
    MiB of memory each."""

    @property
    def in_words(self) -> str:
        """Which peers the run lets in, and at which price, in words."""
        if self.kind != "work":
            return self.kind
        return f"work, {self.price_minutes:g} min of one core a seat ({plural(self.price, 'attempt')} on average)"

    @property
    def price(self) -> int:
        """Price of a seat in attempts, on average; 0 for none."""
        return max(1, round(self.price_minutes * ATTEMPTS_PER_MINUTE)) if self.kind == "work" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """Whether outer steps that raise the loss are undone."""

    enabled: bool = False
    """Two hosts, drawn by lot, measure the loss before and after every outer step; if both report that it rose by more than
    training explains, the instance goes back to the state before. This costs the two hosts forward passes over 64 rows, and
    every host 8 bytes per parameter."""


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
    """Rounds from one look at a contribution to the next (`averaging.assess_every`); 0 for none."""
    final_fraction: Fraction = 0.1
    """Learning rate at the end of its decay, as a fraction of the peak (`inner.final_fraction`), for the ramp `seesaw`."""
