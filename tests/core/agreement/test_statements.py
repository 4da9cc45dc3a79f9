"""Join requests with tickets, and signers' statements, from one peer to the plan of all."""

from dataclasses import replace

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.statement_pool import MAX_PENDING, StatementPool
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import verify_ledger
from adloco_p2p.core.model.effects import Broadcast
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.sim.identities import verify
from tests.core.agreement.test_consensus import RULES as SWARM_RULES
from tests.core.agreement.test_consensus import Swarm, agreement, decide
from tests.core.core_values import RUN, capacity, peer
from tests.core.ledger.test_admission import AUTHOR, invitation, statement, ticket
from tests.core.ledger.test_evidence import evidence


class TicketedSwarm(Swarm):
    """Of the author, and newcomers that meet it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.genesis = genesis(RUN, [(AUTHOR, capacity())], SWARM_RULES, signers=[AUTHOR])
        self.mail.clear()
        self.journals, self.plans, self.peers = {AUTHOR: []}, {AUTHOR: []}, {}
        self.add(AUTHOR)

    def add(self, name: PeerId) -> GossipAgreement:
        self.journals[name], self.plans[name] = [], []
        made = agreement(name, self.genesis)
        self.peers[name] = made
        self.take(name, made.start((self.genesis,), (), self.now))
        return made

    def visit(self, name: PeerId) -> None:
        """The author hears the newcomer, which has no other contact."""
        beat = self.peers[name].members.heartbeat(self.now)
        self.take(AUTHOR, self.peers[AUTHOR].receive(name, beat, self.now))

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            for name, made in self.peers.items():
                done = made.ledger.plans[-1].round - 1
                if done >= 0 and name in roster_of(made.ledger.plans[done]):
                    self.report(name, done)
            self.deliver()
            self.pass_time(4, among=tuple(self.peers))

    @property
    def roster(self) -> tuple[PeerId, ...]:
        return roster_of(self.peers[AUTHOR].ledger.plans[-1])


def test_a_newcomer_with_a_ticket_gets_a_seat_and_one_without_learns_why_not() -> None:
    swarm = TicketedSwarm()
    welcome, stranger = swarm.add(peer(1)), swarm.add(peer(2))
    welcome.members.ticket = ticket(peer(1), invitation())
    for name in (peer(1), peer(2)):
        swarm.visit(name)
    assert not swarm.peers[AUTHOR].members.candidates(swarm.now)[1:], "a request that is refused is not kept"
    swarm.play(3)
    assert swarm.roster == (AUTHOR, peer(1))
    assert welcome.consensus.refusal() == ""
    assert stranger.consensus.refusal() == "p002 has no invitation"
    ledger = swarm.peers[AUTHOR].ledger
    assert verify_ledger(swarm.genesis, ledger.entries, decide, verify) == []


def test_a_statement_of_the_signer_reaches_the_plan_of_all_by_any_member() -> None:
    swarm = TicketedSwarm()
    invited = invitation()
    for index in (1, 2):
        swarm.add(peer(index)).members.ticket = ticket(peer(index), invited)
        swarm.visit(peer(index))
    swarm.play(3)
    assert swarm.roster == (AUTHOR, peer(1), peer(2))
    ban = statement("ban", peer(2))
    assert swarm.peers[peer(1)].consensus.state(ban) == ""
    swarm.play(4)
    assert swarm.roster == (AUTHOR, peer(1))
    assert [ruling.statement for ruling in swarm.peers[AUTHOR].ledger.admissions.rulings] == [ban]
    assert all(made.members.statements == () for made in swarm.peers.values()), "it is passed on no longer"
    assert "banned" in swarm.peers[peer(2)].consensus.refusal()


def test_statements_that_no_signer_made_are_not_passed_on_and_those_kept_are_bounded() -> None:
    swarm = TicketedSwarm()
    author = swarm.peers[AUTHOR]
    assert author.consensus.state(statement("ban", peer(1), signer=peer(3))).endswith("is not by a signer of this run")
    for serial in range(MAX_PENDING):
        assert author.consensus.state(statement("ban", peer(1), serial=serial)) == ""
    assert f"of {AUTHOR} wait for a plan" in author.consensus.state(statement("ban", peer(1), serial=MAX_PENDING))


def test_a_signer_that_floods_takes_no_place_of_another() -> None:
    other = peer(7)
    plan = genesis(RUN, [(AUTHOR, capacity())], SWARM_RULES, signers=[AUTHOR, other])
    ledger, pool = Ledger(plan, recall=lambda _: pytest.fail("nothing is recalled")), StatementPool(verify)
    for serial in range(MAX_PENDING):
        assert pool.note(statement("ban", peer(1), serial=serial, signer=other), ledger) == ""
    assert pool.note(statement("ban", peer(1), serial=MAX_PENDING, signer=other), ledger).endswith("wait for a plan")
    assert pool.note(statement("ban", peer(1)), ledger) == "", "the author's has its place"


def test_false_evidence_of_one_sender_is_judged_twice_per_plan_and_that_of_others_is_not_held_up() -> None:
    swarm = TicketedSwarm()
    swarm.add(peer(1)).members.ticket = ticket(peer(1), invitation())
    swarm.visit(peer(1))
    swarm.play(3)
    ledger, checked = swarm.peers[AUTHOR].ledger, list[PeerId]()

    def counting(name: PeerId, payload: bytes, signature: str) -> bool:
        checked.append(name)
        return verify(name, payload, signature)

    pool = StatementPool(counting)
    true = evidence(ledger, by=peer(1))
    false = [replace(true, second=replace(true.second, signature=f"{number:02}")) for number in range(9)]

    def judged(count: int, sender: PeerId, *, is_member: bool = True) -> int:
        """Signatures that were checked for it."""
        checked.clear()
        for item in false[:count]:
            assert pool.receive(item, ledger, sender=sender, is_member=is_member)
        return len(checked)

    each = judged(1, peer(2))
    assert each > 0 and judged(9, peer(2)) == each, "one more, and no more"
    assert judged(9, peer(3)) == 2 * each, "another member"
    assert judged(9, peer(4), is_member=False) == 2 * each and judged(9, peer(5), is_member=False) == 0, "all strangers are one"
    before = len(ledger.digests)
    swarm.play(1)
    ledger = swarm.peers[AUTHOR].ledger
    assert len(ledger.digests) > before and judged(9, peer(2)) == 2 * each, "anew with the next plan"
    assert pool.receive(true, ledger, sender=peer(6), is_member=True) == "" and pool.pending(ledger) == (true,)


def test_evidence_reaches_the_plan_of_all_by_any_member_and_waits_once_per_peer() -> None:
    swarm = TicketedSwarm()
    invited = invitation()
    for index in (1, 2):
        swarm.add(peer(index)).members.ticket = ticket(peer(index), invited)
        swarm.visit(peer(index))
    swarm.play(3)
    teller = swarm.peers[peer(1)]
    found, more = (evidence(teller.ledger, by=peer(2), key=Digest(letter * 64)) for letter in "cd")
    assert teller.state(found) == teller.state(more) == ""
    forged = evidence(teller.ledger, by=AUTHOR)
    assert "is not signed" in teller.state(replace(forged, second=replace(forged.second, signature="00")))
    swarm.play(4)
    assert swarm.roster == (AUTHOR, peer(1))
    assert [ruling.statement for ruling in swarm.peers[AUTHOR].ledger.admissions.rulings] == [found]
    assert all(made.members.statements == () for made in swarm.peers.values()), "it is passed on no longer"
    assert verify_ledger(swarm.genesis, swarm.peers[AUTHOR].ledger.entries, decide, verify) == []


@pytest.mark.parametrize("kind", ["order", "evidence"])
def test_a_member_that_a_ban_leaves_without_a_roster_waits(kind: str) -> None:
    """The author bans the only other member and leaves. The next plan would have nobody, and the rule needs one."""
    swarm = TicketedSwarm()
    swarm.add(peer(1)).members.ticket = ticket(peer(1), invitation())
    swarm.visit(peer(1))
    swarm.play(4)
    author, member = swarm.peers[AUTHOR], swarm.peers[peer(1)]
    decree = statement("ban", peer(1)) if kind == "order" else evidence(member.ledger, by=peer(1))
    assert swarm.roster == (AUTHOR, peer(1)) and author.consensus.state(decree) == ""
    author.consensus._flush(swarm.now)
    (leave,) = (effect.message for effect in author.leave(swarm.now) if isinstance(effect, Broadcast))
    for message in (author.members.heartbeat(swarm.now), leave):
        swarm.take(peer(1), member.receive(AUTHOR, message, swarm.now))
    assert [pending.action for pending in member.members.statements] == ["ban"]
    swarm.report(peer(1), member.ledger.plans[-1].round - 1)
    num_plans = len(member.ledger.plans)
    for _ in range(300):
        swarm.now += 1.0
        swarm.take(peer(1), member.tick(swarm.now))
    assert len(member.ledger.plans) == num_plans
