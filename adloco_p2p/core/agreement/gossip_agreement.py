"""Agreement among peers on a network: membership and consensus together, behind the port that `Peer` uses.

The shell keeps the order of the outcomes: a record is on disk before anything after it is sent or acted on. The journal holds
every persisted record, in order, and nothing else.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import inf

from adloco_p2p.core.agreement.consensus import Consensus, decided_by
from adloco_p2p.core.agreement.living import Living
from adloco_p2p.core.agreement.membership import Membership, Timing
from adloco_p2p.core.agreement.recovery import COMMIT_VOTES_KEPT, recover
from adloco_p2p.core.ledger.ledger import Ledger, Recall
from adloco_p2p.core.ledger.proof_of_work import Puzzle
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Persist
from adloco_p2p.core.model.events import PeerBack, PeerGone
from adloco_p2p.core.model.ledger_entry import Decree, ProofOfWork, Reorg, Sign, Ticket, Verify
from adloco_p2p.core.model.messages import (
    AverageDigest,
    CommitVoted,
    Entries,
    Heartbeat,
    Incarnation,
    Leave,
    Ping,
    PullEntries,
    SlotMessage,
)
from adloco_p2p.core.model.outcomes import Decided, Outcome
from adloco_p2p.core.model.plan import Decide, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log, Returned, Suspected

PLANS_OF_ACCOUNT = 4
"""The number of newest plans of one call whose absent members are reported as gone; those of older plans only are not."""


class GossipAgreement:
    """One peer's membership and consensus. `records` is the journal of earlier incarnations, empty for a newcomer, and is read
    once; `recall` returns an entry of the journal by its plan. Instants are seconds of the peer's own clock."""

    def __init__(
        self,
        me: PeerId,
        *,
        genesis: RoundPlan,
        records: Iterable[object],
        recall: Recall,
        contacts: Sequence[PeerId],
        capacity: Capacity,
        decide: Decide,
        sign: Sign,
        verify: Verify,
        draw: Callable[[], float],
        timing: Timing,
        ticket: Ticket | ProofOfWork | None = None,
        first_incarnation: int = 1,
    ) -> None:
        """`ticket` lets a newcomer in, if the run asks for one. `first_incarnation`: the number of this incarnation where the
        journal has none."""
        self.members = Membership(me, run=genesis.run, sign=sign, verify=verify, draw=draw, timing=timing)
        self.members.ticket = ticket
        self.consensus = Consensus(
            me,
            sign=sign,
            verify=verify,
            decide=decide,
            members=self.members,
            draw=draw,
            newest_protocol=capacity.newest_protocol,
        )
        self.consensus.ledger = Ledger(genesis, recall=recall)  # a placeholder until `start` reads the journal
        self.me = me
        self.sign = sign
        self.verify = verify
        self._genesis = genesis
        self._records = records
        self._recall = recall
        self._contacts = tuple(contacts)
        self._first_incarnation = first_incarnation
        self._capacity = capacity
        self._living: Living | None = None
        """The living members at the last call that compared them."""
        self._present: tuple[PeerId, ...] = ()
        self._gone: dict[PeerId, None] = {}
        self._data_at: dict[PeerId, float] = {}
        """When data last came from the members that count."""
        self._late: tuple[PeerId, ...] = ()
        """Members whose leases have run out while their data comes."""
        self._suspects: tuple[PeerId, ...] = ()
        self._commit_votes: dict[tuple[Digest, InstanceId], AverageDigest] = {}

    @property
    def ledger(self) -> Ledger:
        return self.consensus.ledger

    @property
    def next_deadline(self) -> float | None:
        deadlines = (self.members.next_deadline, self.consensus.next_deadline)
        return min(deadline for deadline in deadlines if deadline is not None)

    @property
    def last_contact(self) -> float:
        return self.members.last_contact

    def start(self, plans: Sequence[RoundPlan], reports: Sequence[Report], now: float) -> list[Outcome]:
        """Restore the state from the journal. Plans of the ledger that are not among `plans` and are newer are handed out
        again, and this peer's own `reports` are sent again. If the ledger has gone over to another history than that of
        `plans`, the reorg is handed out again."""
        recovered = recover(self._records, self._genesis, recall=self._recall)
        self._records = ()
        self._commit_votes = dict(recovered.commit_votes)
        number = recovered.incarnation + 1 if recovered.incarnation else self._first_incarnation
        incarnation = Incarnation(number=number)
        self.members.start(incarnation=incarnation.number, contacts=self._contacts, capacity=self._capacity, now=now)
        outcomes: list[Outcome] = [Persist(record=incarnation)]
        known = {canonical.digest_once(plan) for plan in plans}
        newest = max((plan.round for plan in plans), default=-1)
        reorg = recovered.switch_from(canonical.digest_once(plans[-1])) if plans else None
        if reorg is not None:
            outcomes.append(reorg)
        else:
            outcomes += [decided_by(entry) for entry in recovered.ledger.since(newest + 1) if entry.value.plan not in known]
        outcomes += self.consensus.start(recovered, now)
        for report in reports:
            if report.peer == self.me:
                outcomes += self.submit(report, now)
        self._capacity = replace(self._capacity, is_leaving=False)  # the last report before a leave states otherwise
        self.members.offer(self._capacity)
        return self._with_changes(outcomes, now)

    def reports_of(self, plan: Digest) -> Sequence[Report]:
        """Return the reports of the ledger entry with this plan; none for the genesis and for plans of other histories."""
        place = self.ledger.position.get(plan, 0)
        return [signed.report for signed in self.ledger.entry(place).reports] if place else []

    def note_work(self, rounds: Collection[int]) -> None:
        self.consensus.note_work(rounds)

    def submit(self, report: Report, now: float) -> list[Outcome]:
        self.members.observe(now)
        self._capacity = replace(report.capacity)
        self.members.offer(report.capacity)
        return self._with_changes(list(self.consensus.submit(report, now)), now)

    def receive(self, sender: PeerId, message: object, now: float) -> list[Outcome]:
        """Handle a message of another peer; kinds that are handled elsewhere are ignored."""
        outcomes: list[Outcome] = []
        if isinstance(message, Heartbeat | Ping | Leave):
            outcomes += self.members.handle(sender, message, now)
        self.members.observe(now)
        if isinstance(message, Heartbeat | PullEntries | Entries | SlotMessage):
            outcomes += self.consensus.receive(sender, message, now)
        elif isinstance(message, Leave):
            outcomes += self.consensus.tick(now)
        return self._with_changes(outcomes, now) if isinstance(message, Leave) or _plans(outcomes) else outcomes

    def note_data(self, peers: Collection[PeerId], now: float) -> None:
        self.members.observe(now)
        self._data_at.update((peer, now) for peer in peers if peer in self._present)

    def tick(self, now: float) -> list[Outcome]:
        return self._with_changes([*self.members.tick(now), *self.consensus.tick(now)], now)

    def keep_vote(self, plan: Digest, vote: AverageDigest) -> list[Persist]:
        """Persist this host's commit vote, so that even after a crash it cannot vote for two different averages."""
        oldest = vote.round - COMMIT_VOTES_KEPT
        self._commit_votes = {key: kept for key, kept in self._commit_votes.items() if kept.round >= oldest}
        self._commit_votes[plan, vote.instance] = vote
        return [Persist(record=CommitVoted(plan=plan, vote=vote))]

    def kept_vote(self, plan: Digest, instance: InstanceId) -> AverageDigest | None:
        return self._commit_votes.get((plan, instance))

    def may_be_apart(self, *, is_alone: bool) -> bool:
        return self.consensus.may_be_apart(self._genesis, is_alone=is_alone)

    def leave(self, now: float) -> list[Outcome]:
        """Become a passive member, which only follows the ledger and takes no part in agreement."""
        return list(self.members.leave(now))

    def state(self, statement: Decree) -> str:
        """Pass on a signer's statement or evidence until a plan carries it. Return why no plan can; empty if one can."""
        return self.consensus.state(statement)

    def refusal(self) -> str:
        """Return why this peer gets no seat, by the ledger as far as it is known here; empty if it has one or may get one."""
        return self.consensus.refusal()

    def puzzle(self) -> Puzzle | None:
        """Return what this peer has to solve now for a seat that costs a proof of work; None if there is nothing to solve."""
        return self.consensus.puzzle()

    def show(self, proof: ProofOfWork) -> None:
        """Show a solution in the join requests from now on."""
        self.members.ticket = proof

    def rejoin(self, capacity: Capacity, now: float) -> list[Outcome]:
        """Cancel the leave by beats that rise again. If plans leave this peer out by now, it asks to join like a newcomer."""
        self._capacity = capacity
        self.members.offer(capacity)
        self.members.rejoin(now)
        return self.tick(now)

    def _with_changes(self, outcomes: list[Outcome], now: float) -> list[Outcome]:
        """Append to the outcomes the members that stopped counting since the last call, those that a plan left out included,
        and those that count again. A member that came and went between two calls is reported as gone, too, because a plan
        counts on it. A member whose data comes is not reported as gone for silence, because its heartbeats may wait behind
        that data; plans may leave it out meanwhile. A passive member gets no rising beats, so nothing is reported to it."""
        if self.members.is_passive:
            return outcomes
        living, plans = self.members.living(now), _plans(outcomes)
        if living is self._living and not plans and not self._late:
            return outcomes
        self._living = living
        counted = dict.fromkeys(self._present)
        for plan in plans[-PLANS_OF_ACCOUNT:]:
            counted.update(dict.fromkeys(roster_entry.peer for roster_entry in plan.roster))
        self._late = tuple(peer for peer in self._present if peer not in living.there and self._sends_data(peer, now))
        present = (*living.there, *self._late)
        there = frozenset(present)
        gone = [peer for peer in counted if peer not in there and peer not in self._gone and peer != self.me]
        back = [peer for peer in present if peer in self._gone]
        self._present = present
        self._data_at = {peer: at for peer, at in self._data_at.items() if peer in there}
        self._gone = {peer: None for peer in (*self._gone, *gone) if peer not in back}
        changes: list[Outcome] = [*(PeerGone(peer=peer) for peer in gone), *(PeerBack(peer=peer) for peer in back)]
        return [*outcomes, *changes, *self._suspicions(living)]

    def _sends_data(self, peer: PeerId, now: float) -> bool:
        """Return whether the peer is a silent member whose data came within a lease."""
        has_sent = now - self._data_at.get(peer, -inf) <= self.members.lease_seconds
        return has_sent and self.members.is_silent_member(peer, now)

    def _suspicions(self, living: Living) -> list[Log]:
        """Return, for the views only, the new suspects and the former ones whose beats rise again. A suspect whose lease has
        run out is gone instead, unless its data comes."""
        suspects = (*(peer for peer in living.there if peer not in living.responsive), *self._late)
        now_suspected, before, there = frozenset(suspects), frozenset(self._suspects), frozenset(living.there)
        new = [peer for peer in suspects if peer not in before]
        cleared = [peer for peer in self._suspects if peer not in now_suspected and peer in there]
        self._suspects = suspects
        return [*(Suspected(peer=peer) for peer in new), *(Returned(peer=peer) for peer in cleared)]


def _plans(outcomes: Iterable[Outcome]) -> list[RoundPlan]:
    plans: list[RoundPlan] = []
    for outcome in outcomes:
        if isinstance(outcome, Decided):
            plans.append(outcome.plan)
        elif isinstance(outcome, Reorg):
            plans += [entry.plan for entry in outcome.won]
    return plans
