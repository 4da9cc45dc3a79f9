"""Invitations whose key everybody has, the requests that show them, and the statements that end them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from adloco_p2p.core.model.ledger_entry import Invitation, ProofOfWork, Statement, Ticket
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.identities import NAME_CHARS, RUN, name_of, sign, signed_by
from benchmarks.adversary import strangers
from benchmarks.adversary.strangers import Aim, Deed

KEY = PeerId("key of a link".ljust(NAME_CHARS, "-"))
AUTHOR = name_of(0)


def invitation(seats: int, *, signer: PeerId = AUTHOR, last_round: int = 100) -> Invitation:
    return signed_by(signer, Invitation(run=RUN, signer=signer, key=KEY, seats=seats, last_round=last_round, signature=""))


def statement(action: str, subject: PeerId, serial: int, *, signer: PeerId = AUTHOR) -> Statement:
    unsigned = Statement(run=RUN, signer=signer, serial=serial, action=action, subject=subject, signature="")  # type: ignore[arg-type]
    return signed_by(signer, unsigned)


def made_out(invitation: Invitation, holder: PeerId) -> Ticket:
    """Make out the invitation to this peer, with the key of the link."""
    unsigned = Ticket(invitation=invitation, signature="")
    return replace(unsigned, signature=sign(KEY, unsigned.payload(holder)))


def knocking(ticket: Invitation | Callable[[Aim], Ticket | ProofOfWork | None]) -> Deed:
    """A deed: each identity shows the same invitation to another member, all at once; or the ticket, or the proof of work, that
    it makes."""

    def knocks(at: Aim) -> tuple[object, ...]:
        shown = made_out(ticket, at.me) if isinstance(ticket, Invitation) else ticket(at)
        beat = strangers.beat(at)
        request = strangers.join_request(at.me, partial(at.port.sign, at.me), at.plan, beat=beat.beat, ticket=shown)
        return (replace(beat, joins=(request,)),)

    return knocks
