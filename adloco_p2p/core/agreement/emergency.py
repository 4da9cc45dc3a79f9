"""The heads of the members' ledgers, and whether they contradict an emergency entry.

An emergency entry rests on less than a majority of the electorate: a few members went on because the others were absent to
them. A peer that sees no sign of such an emergency does not follow the entry for now.
"""

from collections.abc import Collection, Mapping, Sequence

from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model.certificate import Certificate
from adloco_p2p.core.model.electorate import electorate, is_emergency
from adloco_p2p.core.model.scalars import Digest, PeerId

STUCK_LEASES = 8
"""A slot that was ready for this many leases without a decision is stuck: the members here voted for different values."""


class EmergencyCheck:
    """The check of emergency entries, kept from slot to slot. Instants are seconds of the peer's own clock."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._heads: dict[PeerId, tuple[Digest, float]] = {}
        """The head that each member last named itself, and when."""

    def open(self, slot: Slot) -> None:
        """Forget the heads of peers that are no members of the slot."""
        self._heads = {peer: head for peer, head in self._heads.items() if peer in slot.members}

    def note_head(self, peer: PeerId, head: Digest, now: float) -> None:
        self._heads[peer] = (head, now)

    def contradicts(
        self, slot: Slot, certificate: Certificate, departed: Sequence[PeerId], *, ready_at: float | None, now: float
    ) -> bool:
        """Return whether a value of this slot, with its certificate and the members `departed` that it takes off the roster, is
        not followed for now (`is_contradicted`). It is followed once the members here have decided nothing for `STUCK_LEASES`
        since `ready_at`."""
        members, me = self._context.members, self._context.me
        lease = members.lease_seconds
        is_stuck = ready_at is not None and now > ready_at + STUCK_LEASES * lease
        if is_stuck or not is_emergency(certificate, slot.parent):
            return False
        living = slot.counted([peer for peer in slot.roster if not members.lease_valid(peer, now)])
        heads = {peer: digest for peer, (digest, at) in self._heads.items() if now - at <= lease and peer in living}
        if me in living and not members.is_passive:
            heads[me] = slot.digest
        return is_contradicted(certificate, departed, heads, slot.ledger, living=living)


def is_contradicted(
    certificate: Certificate,
    departed: Sequence[PeerId],
    heads: Mapping[PeerId, Digest],
    ledger: Ledger,
    *,
    living: Collection[PeerId],
) -> bool:
    """Return whether the next entry of the ledger, an emergency entry, is not followed for now. `heads` are those that the
    `living` electors named within a lease.

    The entry is contradicted if it excludes a living elector whose ledger does not go beyond this one, until half of the
    electors have named a head beyond this ledger, or voted for the entry and gone since: before that, the others can go on
    without the entry. Living electors that have named no head yet count as not ahead, or the first message after a peer's start
    would decide. If half are ahead, the emergency happened while this peer was cut off.
    """
    with_us = {peer for peer, digest in heads.items() if digest in ledger.position}
    voters = {cast.peer for cast in certificate.votes if not cast.abstains}
    went_on = voters.intersection(electorate(ledger.plans[-1])).difference(living)
    num_ahead = len(heads) - len(with_us) + len(went_on)
    is_excluding = not with_us.isdisjoint((*certificate.absent, *departed))
    return is_excluding and 2 * num_ahead < len(living) + len(went_on)
