"""Members and newcomers that know only an older protocol than that of the next plans: they decide nothing and owe nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import check_entry
from adloco_p2p.core.model.certificate import Ballot
from adloco_p2p.core.model.effects import Broadcast, Persist, Send
from adloco_p2p.core.model.ledger_entry import Head, LedgerEntry
from adloco_p2p.core.model.messages import Entries, Heartbeat, Leave, Ping, Prepare, PullEntries
from adloco_p2p.core.model.outcomes import Decided, Outcome
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.sim.identities import sign, verify
from tests.core.agreement.test_consensus import RULES, Swarm, decide
from tests.core.agreement.test_proofs import CHEAP
from tests.core.core_values import RUN, capacity, peer

OLD, NEW = FIRST_UPGRADABLE, FIRST_UPGRADABLE + 1


def going_over(size: int) -> RoundPlan:
    """The first plan, after which the run goes over: the next one is of the new protocol."""
    able = [(peer(index), replace(capacity(), newest_protocol=NEW)) for index in range(size)]
    return replace(genesis(RUN, able, RULES), upgrade_round=1)


def peer_of(me: PeerId, plan: RoundPlan, newest: int) -> GossipAgreement:
    return GossipAgreement(
        me,
        genesis=plan,
        records=(),
        recall=lambda digest: pytest.fail(f"{digest} was forgotten"),
        contacts=(),
        capacity=replace(capacity(), newest_protocol=newest),
        decide=decide,
        sign=lambda payload: sign(me, payload),
        verify=verify,
        draw=lambda: 0.5,
        timing=Timing(),
    )


class UpgradedSwarm(Swarm):
    """Its peers know the next protocol, but those that do not."""

    def __init__(self, size: int, *, old: Sequence[PeerId] = ()) -> None:
        super().__init__(size)
        self.genesis = going_over(size)
        self.mail.clear()
        self.journals = {name: [] for name in self.journals}
        self.peers = {name: peer_of(name, self.genesis, OLD if name in old else NEW) for name in self.peers}
        for name, each in self.peers.items():
            self.take(name, each.start((self.genesis,), (), self.now))

    def entries(self, count: int) -> tuple[LedgerEntry, ...]:
        everybody = tuple(self.peers)
        for round in range(count):
            self.deliver()
            if len(self.peers[peer(0)].ledger.entries) >= count:
                break
            for name in everybody:
                if len(self.peers[name].ledger.plans) > round:
                    self.report(name, round)
            self.pass_time(10, among=everybody)
        return tuple(self.peers[peer(0)].ledger.entries[:count])


def messages(outcomes: Sequence[Outcome]) -> list[object]:
    """What is sent, but for the signs of life."""
    sent = [outcome.message for outcome in outcomes if isinstance(outcome, Send | Broadcast)]
    return [message for message in sent if not isinstance(message, Heartbeat | Ping | Leave)]


def outgrown() -> tuple[GossipAgreement, Swarm, tuple[LedgerEntry, ...]]:
    """A member that follows the run to the plan that goes over, and cannot go on; a swarm that does."""
    swarm = UpgradedSwarm(3)
    entries = swarm.entries(3)
    assert [entry.plan.protocol for entry in entries] == [NEW, NEW, NEW]
    member = peer_of(peer(2), swarm.genesis, OLD)
    member.start((swarm.genesis,), (), swarm.now)
    member.receive(peer(0), Entries(entries=entries[:1]), swarm.now)
    assert [plan.protocol for plan in member.ledger.plans] == [OLD, NEW], "it has verified that the run goes over"
    return member, swarm, entries


def test_an_entry_after_the_plan_that_goes_over_cannot_be_checked_by_the_old_rule() -> None:
    swarm = UpgradedSwarm(3)
    first, second, _ = swarm.entries(3)
    ledger = Ledger(swarm.genesis, recall=lambda digest: pytest.fail(f"{digest} was forgotten"))
    assert check_entry(first, ledger=ledger, decide=decide, verify=verify, newest=OLD) == ""
    ledger.append(first)
    assert check_entry(second, ledger=ledger, decide=decide, verify=verify, newest=NEW) == ""
    assert "protocol 22" in check_entry(second, ledger=ledger, decide=decide, verify=verify, newest=OLD)


def test_an_outgrown_member_answers_no_ballot_and_takes_no_entry() -> None:
    member, swarm, entries = outgrown()
    slot, upgraded = member.consensus.slot, swarm.peers[peer(0)]
    prepare = Prepare(parent=slot.digest, ballot=Ballot(attempt=1, peer=slot.order[0]), absent=())
    assert messages(member.receive(slot.order[0], prepare, swarm.now)) == []
    ahead = replace(upgraded.members.heartbeat(swarm.now), head=Head(round=3, digest=Digest("e" * 64), samples=0))
    assert messages(member.receive(peer(0), ahead, swarm.now)) == []
    outcomes = member.receive(peer(0), Entries(entries=entries[1:]), swarm.now)
    assert not [outcome for outcome in outcomes if isinstance(outcome, Decided | Persist)]
    asked = member.receive(peer(0), PullEntries(locator=(member.ledger.digests[0],)), swarm.now)
    assert [type(message) for message in messages(asked)] == [Entries], "it still serves what it has"


def test_an_outgrown_member_decides_nothing_where_it_is_the_only_one() -> None:
    swarm = UpgradedSwarm(1, old=[peer(0)])
    swarm.deliver()
    swarm.pass_time(5, among=[peer(0)])
    assert [plan.protocol for plan in swarm.peers[peer(0)].ledger.plans] == [OLD, NEW]
    swarm.report(peer(0), 0)
    swarm.report(peer(0), 1)
    swarm.pass_time(60, among=[peer(0)])
    assert len(swarm.peers[peer(0)].ledger.plans) == 2
    assert swarm.peers[peer(0)].consensus.next_deadline is None
    able = UpgradedSwarm(1)
    assert len(able.entries(3)) == 3, "one that knows the protocol goes on"


def test_an_outgrown_member_asks_no_donor_for_what_it_cannot_read() -> None:
    swarm = UpgradedSwarm(3)
    entries = swarm.entries(3)
    member = peer_of(peer(2), swarm.genesis, OLD)
    member.start((swarm.genesis,), (), swarm.now)
    far = replace(swarm.peers[peer(0)].members.heartbeat(swarm.now), head=Head(round=90, digest=Digest("e" * 64), samples=0))
    member.receive(peer(0), far, swarm.now)
    member.receive(peer(1), far, swarm.now)
    member.receive(peer(0), Entries(entries=entries[:1]), swarm.now)
    asked = [message for second in range(1, 60) for message in messages(member.tick(swarm.now + second))]
    assert not [message for message in asked if isinstance(message, PullEntries)]


@pytest.mark.parametrize("is_priced", [True, False])
def test_a_newcomer_that_cannot_follow_computes_nothing_and_is_sent_away_by_no_door(is_priced: bool) -> None:
    """The next plan lets it in or ends it, with the protocol as the reason: no link helps."""
    rules = replace(RULES, admission=CHEAP) if is_priced else RULES
    able = [(peer(0), replace(capacity(), newest_protocol=NEW))]
    agreed = replace(genesis(RUN, able, rules, signers=[peer(0)]), upgrade_round=2)
    for plan, newest, owes in (
        (agreed, OLD, True),
        (replace(agreed, upgrade_round=1), OLD, False),
        (replace(agreed, upgrade_round=1), NEW, True),
        (replace(agreed, upgrade_round=None, protocol=NEW), OLD, False),
    ):
        newcomer = peer_of(peer(1), plan, newest)
        newcomer.start((plan,), (), 0.0)
        assert (newcomer.puzzle() is not None) == (owes and is_priced)
        assert newcomer.refusal() == ("p001 has no invitation" if owes and not is_priced else "")
