"""A run that admits by tickets among strangers that know its address and a leaked link whose rounds are over: none gets in."""

from dataclasses import replace

import pytest

from adloco_p2p.core.model.ledger_entry import Ticket
from adloco_p2p.core.model.messages import Heartbeat
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.rules import AdmissionRules
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import name_of
from adloco_p2p.sim.world import Parts, World, small_rules
from benchmarks.adversary.invitations import invitation, knocking, made_out, statement
from benchmarks.adversary.strangers import Aim, Deed, Strangers


def _nothing(_at: Aim) -> None:
    return None


def _leaked(at: Aim) -> Ticket:
    return made_out(OVER, at.me)


def _more_rounds(at: Aim) -> Ticket:
    return made_out(replace(OVER, last_round=100), at.me)


def _own_invitation(at: Aim) -> Ticket:
    unsigned = replace(OVER, key=at.me, signature="")
    invited = replace(unsigned, signature=at.port.sign(at.me, unsigned.payload))
    ticket = Ticket(invitation=invited, signature="")
    return replace(ticket, signature=at.port.sign(at.me, ticket.payload(at.me)))


def _of_another_peer(at: Aim) -> Ticket:
    return made_out(OVER, next(name for name in at.port.names if name != at.me))


OVER = invitation(3, last_round=0)
"""A leaked invitation whose rounds are over."""


def with_bans(knocks: Deed) -> Deed:
    """And bans of a member, in the author's name and in that of the stranger."""

    def asks(at: Aim) -> tuple[object, ...]:
        (asked,) = knocks(at)
        assert isinstance(asked, Heartbeat)
        forged = replace(statement("ban", name_of(1), asked.beat), signature="")
        bans = (forged, replace(forged, signer=at.me))
        signed = tuple(replace(ban, signature=at.port.sign(at.me, ban.payload)) for ban in bans)
        return (replace(asked, statements=signed),)

    return asks


@pytest.mark.parametrize("seed", range(2))
def test_an_old_link_and_forged_ones_let_nobody_in_and_forged_bans_end_no_seat(seed: int) -> None:
    forged = (_nothing, _leaked, _more_rounds, _own_invitation, _of_another_peer)
    crashers = Strangers(deeds=[with_bans(knocking(ticket)) for ticket in forged])
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
