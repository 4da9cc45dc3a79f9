"""How the messages of a slot reach the members: directly in a small roster, relayed by gossip in a large one.

Direct: every member sends its acks and votes to all members and counts theirs itself; a plan is final after one and a half
round trips. Relayed: acks and votes go to the proposer alone, which announces the choice and the certificate; each receiver
relays those to `Timing.fanout` others, so that the messages per peer do not depend on the size of the roster.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from adloco_p2p.core.agreement.slot import Context, Slot
from adloco_p2p.core.model.effects import Broadcast, Send
from adloco_p2p.core.model.ledger_entry import Vote
from adloco_p2p.core.model.messages import Ack, Chosen, Final, Prepare, Proposal, Supply
from adloco_p2p.core.model.scalars import PeerId

REPORTERS_FIRST = 3
"""The number of first proposers that get every report of a large roster at once, and pull the missing ones."""


class Dissemination(Protocol):
    """How the messages of one slot travel. Instants are seconds of the peer's own clock."""

    proposer_announces: bool
    """Whether the proposer alone counts acks, so that it must announce the choice."""

    def report(self, message: Supply, now: float) -> None:
        """Send this peer's own report to the peers that make values."""

    def report_early(self, message: Supply, now: float) -> None:
        """Send a report that was made before the slot opened again, where the proposers of the slot are other peers."""

    def resend_report(self, proposer: PeerId, message: Supply) -> None:
        """Send the report to a proposer that may have missed it."""

    def collects_reports(self, now: float) -> bool:
        """Return whether this peer pulls reports that it lacks."""

    def prepare(self, message: Prepare) -> None: ...

    def propose(self, message: Proposal, now: float) -> None: ...

    def answer(self, proposer: PeerId, message: Ack | Vote) -> None:
        """Send an ack or a vote to the peers that count it."""

    def pass_on(self, message: Proposal | Chosen | Final, now: float, *, without: Sequence[PeerId] = ()) -> None:
        """Relay the newest state of the slot to members that may lack it, except `without`, which have it."""


class Direct:
    """Dissemination of a small roster: every message goes to all members at once."""

    proposer_announces = False

    def __init__(self, context: Context) -> None:
        self._context = context

    def report(self, message: Supply, now: float) -> None:
        del now
        self._context.emit(Broadcast(message=message))

    def report_early(self, message: Supply, now: float) -> None:
        """Do nothing: the report was broadcast."""

    def resend_report(self, proposer: PeerId, message: Supply) -> None:
        """Do nothing: the report was broadcast."""

    def collects_reports(self, now: float) -> bool:
        del now
        return True

    def prepare(self, message: Prepare) -> None:
        self._context.emit(Broadcast(message=message))

    def propose(self, message: Proposal, now: float) -> None:
        del now
        self._context.emit(Broadcast(message=message))

    def answer(self, proposer: PeerId, message: Ack | Vote) -> None:
        del proposer
        self._context.emit(Broadcast(message=message))

    def pass_on(self, message: Proposal | Chosen | Final, now: float, *, without: Sequence[PeerId] = ()) -> None:
        """Do nothing: all members have the messages from which this one follows."""


class Relayed:
    """Dissemination of a large roster: through the proposer, and by gossip."""

    proposer_announces = True

    def __init__(self, context: Context, slot: Slot) -> None:
        self._context = context
        self._slot = slot

    def report(self, message: Supply, now: float) -> None:
        self._send(message, self._first_proposers(now))

    def report_early(self, message: Supply, now: float) -> None:
        self.report(message, now)

    def resend_report(self, proposer: PeerId, message: Supply) -> None:
        self._context.emit(Send(peer=proposer, message=message))

    def collects_reports(self, now: float) -> bool:
        if self._slot.parent.is_last:  # no plan carries the last reports, but the end of the run needs the states they name
            return True
        return self._context.me in self._first_proposers(now)

    def prepare(self, message: Prepare) -> None:
        self._send(message, self._slot.counted(message.absent))

    def propose(self, message: Proposal, now: float) -> None:
        self.pass_on(message, now)

    def answer(self, proposer: PeerId, message: Ack | Vote) -> None:
        self._send(message, [proposer])

    def pass_on(self, message: Proposal | Chosen | Final, now: float, *, without: Sequence[PeerId] = ()) -> None:
        members = self._context.members
        self._send(message, members.sample_live(members.timing.fanout, now, without=without))

    def _send(self, message: Supply | Prepare | Proposal | Chosen | Final | Ack | Vote, peers: Iterable[PeerId]) -> None:
        others = [peer for peer in peers if peer != self._context.me]
        self._context.emit(*(Send(peer=peer, message=message) for peer in others))

    def _first_proposers(self, now: float) -> Sequence[PeerId]:
        return self._context.members.responsive(self._slot.order, now)[:REPORTERS_FIRST]


def dissemination(context: Context, slot: Slot) -> Dissemination:
    """Return the dissemination that fits the size of the roster."""
    return Direct(context) if len(slot.roster) <= context.timing.direct_limit else Relayed(context, slot)
