"""Invariants that must hold after every event, checked from outside: nothing here reads a peer's own conclusions.

1. One history per connected swarm: two plans for one parent exist only if a peer that accepted the one had been silent, for a
   whole lease, to a peer that took part in the other.
2. A member is excluded only after it was silent for a whole lease by the clock of each peer that takes part, or has left.
3. A peer votes for one value per slot, accepts one value per ballot, and none below its promise, restarts included.
4. Promises, acceptances and votes are on a peer's disk before it sends them.
5. Every plan follows by the rule from its parent and from reports that their peers submitted, and from nothing else.
6. Every plan was voted for by a majority of distinct members that counted.
7. A ledger only grows, or changes to one that the electors of the last common plan prefer, or to one of higher rank where they
   are undecided.
8. After the last fault all living peers come to the same last plan (checked by the world).
9. The training of either side of a partition is merged into the history that wins, or dropped for a reason (`sim/healing.py`).
"""

from collections.abc import Collection, Sequence

from adloco_p2p.core.agreement.membership import ROSTERS_KEPT, Timing
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.ledger_entry import JoinRequest, LedgerEntry, Reorg, Verify, Vote
from adloco_p2p.core.model.messages import Accepted, Ack, Heartbeat, Leave, Prepare, Promise, Promised, Proposal, Refusal, Voted
from adloco_p2p.core.model.plan import Decide, RosterChange, RoundPlan, members_of, roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.run_progress import proven_samples
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.healing import Healing
from adloco_p2p.sim.orders import signers_and_course
from adloco_p2p.sim.votes import counted_of, electors_of, votes_of

BEATS_PER_LIFE = 10_000_000
"""The range of the beats of one process."""


class Violation(AssertionError):
    """A violated invariant."""


class Checkers:
    """The checks on the whole world, with knowledge of all peers. The world calls a method before each thing takes place."""

    def __init__(
        self,
        genesis: RoundPlan,
        *,
        decide: Decide,
        verify: Verify,
        timing: Timing,
        is_gentle: bool,
        healing: Healing,
        liars: Collection[PeerId] = (),
    ) -> None:
        """`liars` are identities that depart from the protocol. Their signed statements count, their acts are not judged."""
        self.healing = healing
        self._decide = decide
        self._verify = verify
        self._timing = timing
        self._is_gentle = is_gentle
        self._liars = liars
        first = canonical.digest_once(genesis)
        self._first = first
        self._plans: dict[Digest, RoundPlan] = {first: genesis}
        self._parents: dict[Digest, Digest] = {}
        self._ever: dict[PeerId, None] = {roster_entry.peer: None for roster_entry in genesis.roster}
        self._samples: dict[Digest, int] = {first: 0}
        self._reports: dict[Digest, None] = {}
        self._known_entries: dict[tuple[int, ...], LedgerEntry] = {}
        """The checked entries by the identities of their parts, from which each peer makes an entry of its own."""
        self._heads: dict[PeerId, Digest] = {}
        self._disk: dict[tuple[object, ...], None] = {}
        self._newest_on_disk: dict[PeerId, Digest] = {}
        """The plan of the ledger entry that each peer persisted last."""
        self._votes: dict[tuple[PeerId, Digest], Digest] = {}
        self._acks: dict[tuple[PeerId, Digest, Ballot], Digest] = {}
        self._floor: dict[tuple[PeerId, Digest], Ballot] = {}
        self._absent: dict[tuple[Digest, Ballot], list[tuple[PeerId, ...]]] = {}
        """The absent members that each ballot names. A liar may name others in each of its messages."""
        self._acted: dict[Digest, dict[PeerId, None]] = {}
        """The peers that promised, accepted or voted, by slot."""
        self._left_out: dict[Digest, dict[PeerId, None]] = {}
        """The peers that were rightly excluded by one that took part, by slot."""
        self._recovered_roster: dict[Digest, None] = {}
        """The slots whose whole roster was silent to the peer that settled them."""
        self._children: dict[Digest, dict[Digest, None]] = {}
        self._beats: dict[PeerId, dict[PeerId, int]] = {}
        self._incarnations: dict[PeerId, dict[PeerId, None]] = {}
        """The members whose incarnation each peer learned from themselves."""
        self._renewed_at: dict[PeerId, dict[PeerId, float]] = {}
        self._booted_at: dict[PeerId, float] = {}
        self._awake_at: dict[PeerId, float] = {}
        self._gone: dict[PeerId, None] = {}
        self._understood: dict[PeerId, dict[Digest, None]] = {}
        """The plans whose rosters each peer has, in the order in which they came."""

    # --- life and evidence -------------------------------------------------------------------------------------------

    def booted(self, peer: PeerId, now: float) -> None:
        """Note that a process begins with the ledger on its disk, and understands the rosters of those plans at once."""
        self.healing.booted(peer)
        self._beats[peer], self._renewed_at[peer], self._incarnations[peer] = {}, {}, {}
        self._booted_at[peer] = self._awake_at[peer] = now
        self._heads[peer] = self._newest_on_disk.get(peer, self._first)
        self._understood[peer] = {}
        for digest in reversed(self._history(self._heads[peer])):
            self._understand(peer, digest)

    def died(self, peer: PeerId) -> None:
        self._beats.pop(peer, None)
        self.healing.died(peer)

    def left(self, peer: PeerId) -> None:
        self._gone[peer] = None

    def repeated(self, report: Report) -> None:
        """Note the report that a restarted liar submits from its checkpoint, which differs because it lacks the lie."""
        self._reports[canonical.digest_once(report)] = None

    def reported(self, report: Report) -> None:
        forgotten = self.healing.forgotten(report.peer, report)
        if forgotten:
            raise Violation(forgotten)
        self._reports[canonical.digest_once(report)] = None

    def woke(self, peer: PeerId, now: float) -> None:
        """Extend the leases at a peer by a gap of its own time, which proves nothing about the others."""
        gap = now - self._awake_at[peer]
        if gap > self._timing.stall_seconds:
            self._booted_at[peer] += gap
            renewed_at = self._renewed_at[peer]
            for other in renewed_at:
                renewed_at[other] += gap
        self._awake_at[peer] = now

    def delivered(self, peer: PeerId, sender: PeerId, message: object, now: float) -> None:
        self.woke(peer, now)
        match message:
            case Heartbeat():
                for request in message.joins:
                    self._take_join(peer, request, now)
                members = members_of(self._plans[self._heads[peer]])
                if sender not in members:
                    return
                for life in message.lives:
                    if life.peer in members:
                        self._take_own_beat(peer, life.peer, life.incarnation * BEATS_PER_LIFE, now)
                self._take_own_beat(peer, sender, message.beat, now)
                roster = self._plans.get(message.roster)
                if roster is not None and message.roster in list(self._understood[peer])[-ROSTERS_KEPT:]:
                    known = self._beats[peer]
                    for other, beat in message.beats(roster_of(roster)):
                        if other in members and beat > known.get(other, 0):
                            self._take_relayed_beat(peer, other, beat, now)
                for leave in message.leaves:
                    self._incarnations[peer][leave.peer] = None
            case Leave():
                self._incarnations[peer][message.peer] = None
            case Refusal():
                members = members_of(self._plans[self._heads[peer]])
                if sender not in members or message.parent != self._heads[peer]:
                    return
                for other, beat in message.alive:
                    if other in members:
                        self._take_relayed_beat(peer, other, beat, now)

    def _take_join(self, peer: PeerId, request: JoinRequest, now: float) -> None:
        self._take_own_beat(peer, request.peer, request.beat, now)

    def _take_own_beat(self, peer: PeerId, other: PeerId, beat: int, now: float) -> None:
        """Take a beat that came from the other peer itself, or with its signature."""
        known = self._beats[peer].get(other, 0)
        if other not in self._incarnations[peer] and beat // BEATS_PER_LIFE < known // BEATS_PER_LIFE:
            self._beats[peer][other] = 0
        self._incarnations[peer][other] = None
        self._take_beat(peer, other, beat, now)

    def _take_relayed_beat(self, peer: PeerId, other: PeerId, beat: int, now: float) -> None:
        """Take a beat that a third peer passed on: it counts within the incarnation that the other peer made known itself, or
        while none is known."""
        known = self._beats[peer].get(other, 0)
        if other not in self._incarnations[peer] or beat // BEATS_PER_LIFE == known // BEATS_PER_LIFE:
            self._take_beat(peer, other, beat, now)

    def _take_beat(self, peer: PeerId, other: PeerId, beat: int, now: float) -> None:
        if beat > self._beats[peer].get(other, 0):
            self._beats[peer][other] = beat
            self._renewed_at[peer][other] = now

    # --- journal and messages --------------------------------------------------------------------------------------

    def persisting(self, peer: PeerId, record: object) -> None:
        match record:
            case Promised():
                self._disk[peer, "promise", record.parent, record.ballot] = None
            case Accepted():
                parent, digest = record.value.parent, canonical.digest_once(record.value)
                self._disk[peer, "promise", parent, record.ballot] = None
                self._disk[peer, "ack", parent, record.ballot, digest] = None
            case Voted():
                self._disk[peer, "vote", record.parent, record.value] = None
            case LedgerEntry():
                self._check_entry(peer, record)
                for request in record.value.joined:
                    if request.peer != peer:  # a copy of the request that comes later is no news
                        self._take_beat(peer, request.peer, request.beat, self._awake_at[peer])
                self._newest_on_disk[peer] = record.value.plan

    def before_send(self, peer: PeerId, message: object, now: float) -> None:
        match message:
            case Prepare():
                self._absent[message.parent, message.ballot] = [message.absent]
                self._need(peer, "promise", message.parent, message.ballot)
            case Proposal() if message.ballot.peer == peer:
                self._absent[message.parent, message.ballot] = [message.absent]
                value = canonical.digest_once(message.value)
                self._check_ack(peer, Ack(parent=message.parent, ballot=message.ballot, value=value), now)
            case Promise():
                self._need(peer, "promise", message.parent, message.ballot)
                self._take_part(peer, message.parent, message.ballot, now)
                floor = self._floor.get((peer, message.parent))
                self._floor[peer, message.parent] = max(message.ballot, floor or message.ballot)
            case Ack():
                self._check_ack(peer, message, now)
            case Vote():
                self._check_vote(peer, message)

    def forged(self, message: object) -> None:
        """Note a message of a liar, which is not judged, but which others may answer."""
        if isinstance(message, Prepare | Proposal):
            self._absent.setdefault((message.parent, message.ballot), []).append(message.absent)

    def _need(self, *key: object) -> None:
        if key not in self._disk:
            raise Violation(f"{key[0]} sends what is not on its disk: {key[1]}")

    def _check_ack(self, peer: PeerId, ack: Ack, now: float) -> None:
        self._need(peer, "ack", ack.parent, ack.ballot, ack.value)
        key = (peer, ack.parent, ack.ballot)
        if self._acks.setdefault(key, ack.value) != ack.value:
            raise Violation(f"{peer} accepts two values in ballot {ack.ballot}")
        if ack.ballot < self._floor.get((peer, ack.parent), ack.ballot):
            raise Violation(f"{peer} accepts in ballot {ack.ballot} below its promise")
        self._take_part(peer, ack.parent, ack.ballot, now)

    def _check_vote(self, peer: PeerId, vote: Vote) -> None:
        if vote.abstains:
            return
        self._need(peer, "vote", vote.parent, vote.value)
        if self._votes.setdefault((peer, vote.parent), vote.value) != vote.value:
            raise Violation(f"{peer} votes for two values in one slot")

    def _take_part(self, peer: PeerId, parent: Digest, ballot: Ballot, now: float) -> None:
        """Check that the absent members of a ballot are silent to a peer that promises or accepts in it."""
        self._acted.setdefault(parent, {})[peer] = None
        problems = [self._wrongly_excluded(peer, parent, absent, now) for absent in self._absent[parent, ballot]]
        if all(problems):
            raise Violation(problems[0])
        for absent, problem in zip(self._absent[parent, ballot], problems, strict=True):
            if not problem:  # which of a liar's messages the peer took part in is not known
                self._left_out.setdefault(parent, {}).update(dict.fromkeys(absent))

    def _wrongly_excluded(self, peer: PeerId, parent: Digest, absent: Sequence[PeerId], now: float) -> str:
        """Return what shows that one of the absent members is not silent to the peer, or ""."""
        lease = self._timing.lease(len(self._plans[parent].roster))
        for other in absent:
            if other in self._gone or other in self._liars:  # a peer may be right to take a liar's leave message seriously
                continue
            renewed_at = self._renewed_at[peer].get(other, self._booted_at[peer])
            if other == peer or now - renewed_at < lease - 1e-3:
                return f"{peer} excludes {other}, whose beat came {now - renewed_at:.3f} s ago (lease {lease:.1f} s)"
        return ""

    # --- ledgers -----------------------------------------------------------------------------------------------------

    def _check_entry(self, peer: PeerId, entry: LedgerEntry) -> None:
        parts = tuple(map(id, (entry.plan, entry.value, entry.certificate, *entry.reports)))
        if parts not in self._known_entries:
            self._check_new_entry(entry)
            self._known_entries[parts] = entry
            if len(entry.certificate.absent) == len(self._plans[entry.value.parent].roster):  # a former member continues alone
                self._absent[entry.value.parent, entry.certificate.ballot] = [entry.certificate.absent]
                self._take_part(peer, entry.value.parent, entry.certificate.ballot, self._awake_at[peer])
                self._recovered_roster[entry.value.parent] = None
        digest = canonical.digest_once(entry.plan)
        self._children.setdefault(entry.plan.parent, {})[digest] = None
        if len(self._children[entry.plan.parent]) > 1:
            self._check_fork(peer, entry)

    def _check_fork(self, peer: PeerId, entry: LedgerEntry) -> None:
        parent = entry.plan.parent
        excused = [other for other in self._left_out.get(parent, {}) if other in self._acted.get(parent, {})]
        is_excused = bool(excused) and not self._is_gentle
        if not (is_excused or parent in self._recovered_roster):  # a member may come back after all others ended the run
            raise Violation(f"{peer} has a second plan of round {entry.plan.round}, and no peer was cut off")

    def _check_new_entry(self, entry: LedgerEntry) -> None:
        """Check invariants 5 and 6 without the code under test."""
        value, parent = entry.value, self._plans[entry.value.parent]
        reports = [signed.report for signed in entry.reports]
        for report in reports:
            if report.peer not in self._liars and canonical.digest_once(report) not in self._reports:
                raise Violation(f"round {entry.plan.round} uses a report that {report.peer} never submitted")
        for join in value.joined:
            if not self._verify(join.peer, join.payload, join.signature):
                raise Violation(f"round {entry.plan.round} admits {join.peer}, who never asked")
        broken = self.healing.broken(entry)
        if broken:
            raise Violation(broken)
        try:
            signers, course = signers_and_course(parent, value)
        except ValueError as error:
            raise Violation(f"round {entry.plan.round}: {error}") from None
        banned = {made.subject for made in value.statements if made.action == "ban" and made.subject in roster_of(parent)}
        change = RosterChange(
            joined=tuple((join.peer, join.capacity) for join in value.joined),
            departed=tuple(sorted({*value.departed, *banned})),
            branches=self.healing.newly_named(entry),
            signers=signers,
            course=course,
        )
        ordered = tuple(sorted(reports, key=lambda report: report.peer))
        if len({report.peer for report in ordered}) < len(ordered) or self._decide(parent, ordered, change) != entry.plan:
            raise Violation(f"round {entry.plan.round} does not follow from its parent and the reports by the rule")
        certificate = entry.certificate
        counted = counted_of(parent, certificate)
        heir = certificate.ballot.peer
        if not counted and heir in self._ever and heir in [join.peer for join in value.joined]:
            counted = [heir]
        self._ever.update((roster_entry.peer, None) for roster_entry in entry.plan.roster)
        about = value.parent, canonical.digest_once(value)
        votes, abstained = votes_of(certificate, about=about, counted=counted, verify=self._verify)
        if 2 * len(votes) <= len(counted) - len(abstained):
            raise Violation(f"round {entry.plan.round} is final by {len(votes)} of {len(counted)} votes")
        self._acted.setdefault(value.parent, {}).update(dict.fromkeys(sorted(votes)))
        self._left_out.setdefault(value.parent, {}).update(dict.fromkeys(certificate.absent))
        digest = canonical.digest_once(entry.plan)
        self._plans[digest] = entry.plan
        self._parents[digest] = value.parent
        before = self._parents.get(value.parent)
        reported = self._plans[before] if before is not None else None
        self._samples[digest] = self._samples[value.parent] + proven_samples(reported, entry.reports)

    def decided(self, peer: PeerId, plan: RoundPlan) -> None:
        """Check that a peer acts only on plans that are on some disk, and note its new head."""
        digest = canonical.digest_once(plan)
        if digest not in self._plans:
            raise Violation(f"{peer} acts on a plan of round {plan.round} that is on no disk")
        self._heads[peer] = digest
        self.healing.decided(peer, plan)
        self._understand(peer, digest)

    def switched(self, peer: PeerId, switched: Reorg) -> None:
        before = self._rank(self._heads[peer]) if not switched.lost else self._rank(_end(switched.lost))
        after = self._rank(_end(switched.won))
        preferred = self._preferred(switched)
        is_on_disk = self._heads[peer] == _end(switched.won)  # a restart before the next checkpoint
        if not is_on_disk and (preferred < 0 or (preferred == 0 and after <= before)):
            raise Violation(f"{peer} changes to a history of lower rank: {after} after {before}")
        self._heads[peer] = _end(switched.won)
        self.healing.switched(peer, switched)
        for entry in switched.won:
            self._understand(peer, canonical.digest_once(entry.plan))

    def _understand(self, peer: PeerId, digest: Digest) -> None:
        self._understood[peer].pop(digest, None)
        self._understood[peer][digest] = None

    def _history(self, digest: Digest) -> list[Digest]:
        """Return the digests from this plan back to the first."""
        found = [digest]
        while found[-1] in self._parents:
            found.append(self._parents[found[-1]])
        return found

    def _preferred(self, switched: Reorg) -> int:
        """Return 1 if the electors prefer the side of the fork that won, -1 if they prefer the other one, 0 for neither. Where
        the first entries show no preference, electors count that voted on one side alone."""
        if not switched.lost:
            return 0
        electors = electors_of(switched.fork)
        sides = [
            {cast.peer for cast in side[0].certificate.votes if not cast.abstains} for side in (switched.lost, switched.won)
        ]
        single = [peer for peer in electors if peer not in sides[0] & sides[1]]
        counts = []
        for voters, entry in zip(sides, (switched.lost[0], switched.won[0]), strict=True):
            voted, kept = (
                [p for p in single if p in voters],
                [p for p in single if p not in (*entry.value.departed, *entry.certificate.absent)],
            )
            proven = max(0, min(len(kept), 2 * len(voted) - 1))
            counts.append((2 * proven > len(electors), proven))
        if counts[0] == counts[1]:
            lost, won = (
                {cast.peer for entry in side for cast in entry.certificate.votes if not cast.abstains}
                for side in (switched.lost, switched.won)
            )
            counts = [
                (False, len([p for p in electors if p in one and p not in other])) for one, other in ((lost, won), (won, lost))
            ]
        return (counts[1] > counts[0]) - (counts[1] < counts[0])

    def _rank(self, digest: Digest) -> tuple[int, int, str]:
        return self._samples[digest], self._plans[digest].round, digest


def _end(entries: Sequence[LedgerEntry]) -> Digest:
    return canonical.digest_once(entries[-1].plan)
