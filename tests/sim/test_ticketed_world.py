"""A run that admits by tickets among strangers that know its address and a leaked link whose rounds are over: none gets in."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from adloco_p2p.core.agreement.membership import BEATS_PER_INCARNATION
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import Head, Invitation, JoinRequest, Statement, Ticket
from adloco_p2p.core.model.messages import Heartbeat
from adloco_p2p.core.model.plan import GENESIS_PARENT, roster_of
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.adversary import AdversaryPort, stranger_names
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import RUN, name_of, sign, signed_by
from adloco_p2p.sim.synthetic_reports import CAPACITY
from adloco_p2p.sim.world import Parts, World, small_rules

AUTHOR = name_of(0)
LEAKED = PeerId("key of a leaked link")
"""The adversary can sign with it: whoever reads the page has the link."""


def invitation(*, key: PeerId = LEAKED, signer: PeerId = AUTHOR, seats: int = 3, last_round: int = 0) -> Invitation:
    return signed_by(signer, Invitation(run=RUN, signer=signer, key=key, seats=seats, last_round=last_round, signature=""))


class Gatecrashers:
    """Three identities that show a leaked invitation, and forge others; and bans of members."""

    names = stranger_names(3)

    def __init__(self) -> None:
        self.num_sent = 0

    def received(self, port: AdversaryPort, me: PeerId, sender: PeerId, message: object) -> None:
        """They need no answers."""

    def wakes(self, port: AdversaryPort) -> None:
        victims = port.victims()
        if not victims:
            return
        me, victim = port.random.choice(port.names), port.random.choice(victims)
        forge: Callable[[AdversaryPort, PeerId], Ticket | None] = port.random.choice(
            (_nothing, _leaked, _more_rounds, _own_invitation, _of_another_peer)
        )
        self.num_sent += 1
        port.send(me, victim, self._heartbeat(port, me, forge(port, me)))

    def _heartbeat(self, port: AdversaryPort, me: PeerId, ticket: Ticket | None) -> Heartbeat:
        beat = BEATS_PER_INCARNATION + self.num_sent
        unsigned = JoinRequest(peer=me, run=RUN, capacity=CAPACITY, beat=beat, round=0, ticket=ticket, signature="")
        ban = Statement(run=RUN, signer=AUTHOR, serial=beat, action="ban", subject=name_of(1), signature="")
        return Heartbeat(
            beat=beat,
            roster=canonical.digest_once(port.genesis),
            heard=(),
            head=Head(round=0, digest=GENESIS_PARENT, samples=0),
            have=0,
            joins=(replace(unsigned, signature=port.sign(me, unsigned.payload)),),
            statements=(
                replace(ban, signature=port.sign(me, ban.payload)),
                replace(ban, signer=me, signature=port.sign(me, replace(ban, signer=me).payload)),
            ),
        )


def _made_out(port: AdversaryPort, me: PeerId, invited: Invitation, *, holder: PeerId | None = None) -> Ticket:
    unsigned = Ticket(invitation=invited, signature="")
    key = invited.key if invited.key == LEAKED else me
    sign_with = sign if key == LEAKED else port.sign
    return replace(unsigned, signature=sign_with(key, unsigned.payload(holder or me)))


def _nothing(port: AdversaryPort, me: PeerId) -> None:
    del port, me


def _leaked(port: AdversaryPort, me: PeerId) -> Ticket:
    return _made_out(port, me, invitation())


def _more_rounds(port: AdversaryPort, me: PeerId) -> Ticket:
    return _made_out(port, me, replace(invitation(), last_round=100))


def _own_invitation(port: AdversaryPort, me: PeerId) -> Ticket:
    unsigned = replace(invitation(key=me), signature="")
    return _made_out(port, me, replace(unsigned, signature=port.sign(me, unsigned.payload)))


def _of_another_peer(port: AdversaryPort, me: PeerId) -> Ticket:
    return _made_out(port, me, invitation(), holder=next(name for name in port.names if name != me))


@pytest.mark.parametrize("seed", range(2))
def test_an_old_link_and_forged_ones_let_nobody_in_and_forged_bans_end_no_seat(seed: int) -> None:
    crashers = Gatecrashers()
    rules = replace(small_rules(5, 8), admission=AdmissionRules(kind="tickets"))
    world = World(
        seed,
        peers=5,
        rounds=8,
        rules=rules,
        faults=Faults(loss=0.02, faults_end_at=10.0),
        round_seconds=1.2,
        parts=Parts(adversary=crashers),
    )
    world.run()
    assert crashers.num_sent > 20
    assert {roster_of(entry.plan) for entry in world.ledger()} == {roster_of(world.genesis)}, f"seed {seed}"
