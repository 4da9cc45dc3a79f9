"""Where the members' ledgers end, and whether that contradicts an emergency entry.

An emergency entry rests on less than a majority of the electorate: a few members went on because the others were absent for
them. A peer that sees no sign of such an emergency does not follow it for now.
"""

from collections.abc import Mapping, Sequence

from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model.certificate import Certificate
from adloco_p2p.core.model.electorate import is_emergency
from adloco_p2p.core.model.scalars import Digest, PeerId

STUCK_LEASES = 8
"""A slot that was ready for so many leases and was not decided is stuck: the members here voted for different values."""


class EmergencyCheck:
    """Kept from slot to slot. Instants are seconds of the peer's own clock."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._heads: dict[PeerId, tuple[Digest, float]] = {}
        """Of members: the end of their ledger when they last named it themselves, and when that was."""

    def open(self, slot: Slot) -> None:
        """Of other peers than its members nothing is kept."""
        self._heads = {peer: head for peer, head in self._heads.items() if peer in slot.roster}

    def note_head(self, peer: PeerId, head: Digest, now: float) -> None:
        self._heads[peer] = (head, now)

    def contradicts(
        self, slot: Slot, certificate: Certificate, departed: Sequence[PeerId], *, ready_at: float | None, now: float
    ) -> bool:
        """Whether a value of this slot, with its certificate and the members that it takes off the roster, is not followed
        (`is_contradicted`). It is where the members here had their time since `ready_at` and decided nothing."""
        members, me = self._context.members, self._context.me
        lease = members.lease_seconds
        is_stuck = ready_at is not None and now > ready_at + STUCK_LEASES * lease
        if is_stuck or not is_emergency(certificate, slot.parent):
            return False
        deciding = slot.counted([peer for peer in slot.roster if not members.lease_valid(peer, now)])
        heads = {peer: digest for peer, (digest, at) in self._heads.items() if now - at <= lease and peer in deciding}
        if me in deciding and not members.is_passive:
            heads[me] = slot.digest
        return is_contradicted([*certificate.absent, *departed], heads, slot.ledger, num_living=len(deciding))


def is_contradicted(excluded: Sequence[PeerId], heads: Mapping[PeerId, Digest], ledger: Ledger, *, num_living: int) -> bool:
    """Whether the next entry of the ledger, which excludes these members in an emergency, is not followed for now. `heads`: of
    the electors that live, as they named it within a lease.

    It leaves out one of them whose ledger does not go beyond this one. That counts until half of the `num_living` electors
    have named a head beyond this ledger: before, the others can go on without the entry. Those that named none yet count as
    here, or the first message after a peer's start would decide. Where half are ahead the emergency happened while
    this peer was cut off.
    """
    with_us = {peer for peer, digest in heads.items() if digest in ledger.position}
    return not with_us.isdisjoint(excluded) and 2 * (len(heads) - len(with_us)) < num_living
