"""The status of a run as one peer knows it, which contains everything that the views show. `status_fold.py` builds it from
events; other files of this room compute from it what views show.

Rounds are numbered from 0, as in plans and events. A boundary has the number of the round that it precedes: forks and merges of
round 12 happen after round 11 and before round 12.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from adloco_p2p.core.model import telemetry
from adloco_p2p.views.records import Activity, Decision, Incident, Life
from adloco_p2p.views.round_results import RoundResults

MAX_PLANS = 4
"""The most plans that are kept: the current one, and those decided ahead of it."""
MAX_SCORERS = 8
"""The most peers whose scores on tasks are kept, those with the latest claims."""
MAX_SAMPLE_TEXTS = 40
"""The most sample texts that are kept, the newest ones."""
MAX_INCIDENTS = 50
"""The most past troubles that are kept for the view; `counts` still counts all of them."""

SLOW_PEER = "slow peer"
"""The key of the condition that rounds wait for the uplink of a peer."""
ORDERS = "signers"
"""The key of the condition that signers of the run ordered something that is still to come."""
UPGRADE = "upgrade"
"""The key of the condition that the run is to follow a newer protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Everything that the views need. It grows with the rounds times the instances of the run; what could grow faster has a
    limit above."""

    run: str = ""
    name: str = ""
    peer: str = ""
    mode: str = ""
    rounds: int | None = None
    """The length of a run that counts rounds."""
    rounds_unstopped: int | None = None
    """The length in rounds without an order of signers to end sooner."""
    samples: int | None = None
    """The length of a run that counts samples."""
    inner_steps: int = 0
    parameters: int = 0
    device: str = ""
    micro_batch_limit: int = 0
    admission: str = ""
    """Which peers the run lets in, and the price of a seat."""
    codec: str = ""
    """The codec of the pseudo-gradients."""
    data_sets: tuple[str, ...] = ()
    """The data sets of the mixture, where instances have data of their own."""
    unigram_entropy: float | None = None
    """Nats per token: the loss of a model that knows only the frequency of each token."""
    earlier_seconds: float = 0.0
    """Running time of the sessions before this one."""
    session_start: float | None = None
    """Unix seconds at which this session began."""
    last_time: float | None = None
    active_round: int | None = None
    """The round on which this peer works; None before it began one."""
    plans: tuple[telemetry.Plan, ...] = ()
    """Plans by round, at most MAX_PLANS."""
    activities: Mapping[int, Activity] = field(default_factory=dict)
    results: RoundResults = field(default_factory=RoundResults)
    """Results by round and instance."""
    averaging_bytes: Mapping[int, int] = field(default_factory=dict)
    """Bytes that this peer sent for each instance in its newest round of it with others."""
    lives: Mapping[int, Life] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    incidents: tuple[Incident, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)
    """Present conditions: message by key."""
    orders: str = ""
    """The present and coming orders of the run's signers, in words."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The signer's reasons for the newest pause and stop, by action."""
    bans: Mapping[str, telemetry.Ruled] = field(default_factory=dict)
    """The rulings about presently banned peers: by whom, when and why."""
    evaluated: Mapping[tuple[int, int], telemetry.HeldOut] = field(default_factory=dict)
    """Claims of other hosts about rounds that have not ended here, by (round, instance)."""
    task_scores: Mapping[str, telemetry.TaskScores] = field(default_factory=dict)
    """The newest claim of each peer, at most MAX_SCORERS; the newest of all last."""
    sample_texts: tuple[telemetry.SampleText, ...] = ()
    """Sample texts by round."""
    peer_states: Mapping[str, str] = field(default_factory=dict)
    """The last membership event of a peer: joined, left, suspected, returned."""
    peer_cards: Mapping[str, telemetry.PeerCard] = field(default_factory=dict)
    """Cards by peer, at most MAX_ROSTER, the latest ones."""
    traffic: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes sent and received by kind, where they were counted: averaging with its failed attempts, gossip, state."""
    last_checkpoint: int | None = None
    first_contribution_seconds: float | None = None
    """Seconds from the user's command to the first round of this session whose committed average contains this peer's work."""
    state: str = "starting"
    """starting, running, pausing, paused, stopping, stopped, finished."""
    join_link: str = ""
    """The link with which others join through this peer; empty where others cannot dial it."""
    may_invite: bool = False
    """Whether `adloco-peer invite` prints a link for this peer."""
    starting: str = ""
    """The phase of a starting node, before it can be asked."""
    stopping: str | None = None
    """The reason for stopping or pausing."""
    finish: telemetry.Finished | None = None
    downloads: Mapping[int, telemetry.StateDownload] = field(default_factory=dict)
    """States on their way to this peer, by instance."""
    fetched: frozenset[int] = frozenset()
    """Instances whose state has come to this peer since its start."""
    proving: telemetry.Proving | None = None
    """The peer's computation for its seat, if it is under way."""
    bandwidth: telemetry.Bandwidth | None = None
    """Present rates and caps; None where nothing measures them."""
    machine: telemetry.Machine | None = None
    """The present load of the machine."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often each event came."""

    @property
    def elapsed_seconds(self) -> float:
        """Running time of this peer over all sessions."""
        if self.session_start is None or self.last_time is None:
            return self.earlier_seconds
        return self.earlier_seconds + max(0.0, self.last_time - self.session_start)

    @property
    def current_round(self) -> int:
        """The round in progress. The plan of a round is decided during the round before, so the newest plan alone does not give
        it; a peer that hosts nothing has only plans to go by."""
        newest = self.plans[-1].round - 1 if self.plans else 0
        return max(self.active_round or 0, newest)

    @property
    def current_plan(self) -> telemetry.Plan | None:
        """The plan of the round in progress, or the nearest one known."""
        begun = [plan for plan in self.plans if plan.round <= self.current_round]
        return begun[-1] if begun else self.plans[0] if self.plans else None

    @property
    def is_seated(self) -> bool:
        """Whether the newest known plan gives this peer a seat."""
        return bool(self.plans) and self.plans[-1].seat(self.peer) is not None
