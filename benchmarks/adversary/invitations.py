"""Invitations whose key everybody has, the requests that show them, and the statements that end them."""

from dataclasses import replace

from adloco_p2p.core.model.ledger_entry import Invitation, Statement, Ticket
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.identities import NAME_CHARS, RUN, name_of, sign, signed_by
from benchmarks.adversary import strangers
from benchmarks.adversary.strangers import Aim

KEY = PeerId("key of a link".ljust(NAME_CHARS, "-"))
AUTHOR = name_of(0)


def invitation(seats: int, *, signer: PeerId = AUTHOR) -> Invitation:
    return signed_by(signer, Invitation(run=RUN, signer=signer, key=KEY, seats=seats, last_round=100, signature=""))


def statement(action: str, subject: PeerId, serial: int, *, signer: PeerId = AUTHOR) -> Statement:
    unsigned = Statement(run=RUN, signer=signer, serial=serial, action=action, subject=subject, signature="")  # type: ignore[arg-type]
    return signed_by(signer, unsigned)


def knocking(invitation: Invitation) -> strangers.Deed:
    """Each identity shows the same invitation to another member, all at once."""

    def knocks(at: Aim) -> tuple[object, ...]:
        beat = strangers.beat(at)
        unsigned = Ticket(invitation=invitation, signature="")
        ticket = replace(unsigned, signature=sign(KEY, unsigned.payload(at.me)))
        request = strangers.join_request(at.me, lambda p: at.port.sign(at.me, p), at.plan, beat=beat.beat, ticket=ticket)
        return (replace(beat, joins=(request,)),)

    return knocks
