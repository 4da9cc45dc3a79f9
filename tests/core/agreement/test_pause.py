"""No plan is proposed while signers pause the run, or while only keepers are left."""

from dataclasses import replace

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import Action, Statement
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.sim.identities import sign
from tests.core.agreement.test_consensus import RULES, Swarm, agreement
from tests.core.agreement.test_statements import TicketedSwarm
from tests.core.core_values import RUN, capacity, peer
from tests.core.ledger.test_admission import AUTHOR, invitation, request, statement, ticket


def order(action: Action, serial: int, *, round: int = 0) -> Statement:
    unsigned = replace(statement(action, PeerId(""), serial=serial), round=round)
    return replace(unsigned, signature=sign(AUTHOR, unsigned.payload))


def test_a_paused_run_waits_for_the_resumption_and_for_nothing_else() -> None:
    swarm = TicketedSwarm()
    author = swarm.peers[AUTHOR]
    swarm.play(2)
    assert author.consensus.state(order("pause", 0)) == ""
    swarm.play(4)
    paused_from = author.ledger.plans[-1].course.paused_from
    assert paused_from == author.ledger.head.round + 1
    swarm.add(peer(1)).members.ticket = ticket(peer(1), invitation())
    swarm.visit(peer(1))
    swarm.play(4)
    assert author.ledger.head.round == paused_from - 1
    assert author.consensus.next_deadline is None, "there is nothing to wake up for"
    for serial in range(1, 25):  # more than one plan carries
        author.consensus.state(statement("ban", peer(20 + serial), serial=serial))
    assert author.consensus.state(order("resume", 25)) == ""
    swarm.play(3)
    assert author.ledger.head.round > paused_from
    assert peer(1) in roster_of(author.ledger.plans[-1])
    assert author.ledger.plans[-1].course.paused_from is None
    assert len(author.ledger.admissions.bans()) == 24


class KeptSwarm(Swarm):
    """Of a peer that trains, and a keeper."""

    def __init__(self) -> None:
        super().__init__(1)
        offers = [(peer(0), capacity()), (peer(1), replace(capacity(), is_keeper=True))]
        self.genesis = genesis(RUN, offers, RULES)
        self.mail.clear()
        self.journals, self.plans, self.peers = {}, {}, {}
        for name, _ in offers:
            self.journals[name], self.plans[name] = [], []
            self.peers[name] = agreement(name, self.genesis)
            self.take(name, self.peers[name].start((self.genesis,), (), self.now))

    def report(self, name: PeerId, round: int) -> None:
        each = self.peers[name]
        offer = replace(capacity(), is_keeper=name == peer(1))
        made = Report(peer=name, round=round, plan=canonical.digest(each.ledger.plans[round]), capacity=offer)
        self.take(name, each.submit(made, self.now))

    def knock(self, name: PeerId, offer: Capacity) -> None:
        """The keeper hears a newcomer, and has time."""
        stranger = agreement(name, self.genesis)
        stranger.start((self.genesis,), (), self.now)
        unsigned = replace(request(name), capacity=offer)
        asking = replace(unsigned, signature=sign(name, unsigned.payload))
        beat = replace(stranger.members.heartbeat(self.now), joins=(asking,))
        self.take(peer(1), self.peers[peer(1)].receive(name, beat, self.now))
        self.pass_time(4, among=[peer(1)])


def test_a_keeper_alone_waits_and_lets_in_the_next_that_trains() -> None:
    swarm = KeptSwarm()
    keeper = swarm.peers[peer(1)]
    for name in (peer(0), peer(1)):
        swarm.report(name, 0)
    swarm.deliver()
    before = keeper.ledger.head.round
    assert before >= 1
    for round in range(1, before + 1):
        swarm.report(peer(1), round)
    swarm.pass_time(40, among=[peer(1)])
    assert keeper.ledger.head.round == before
    swarm.knock(peer(3), replace(capacity(), is_keeper=True))
    assert keeper.ledger.head.round == before, "another keeper is no help"
    swarm.knock(peer(2), capacity())
    assert roster_of(keeper.ledger.plans[-1]) == (peer(1), peer(2), peer(3))
