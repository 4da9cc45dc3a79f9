"""Ledger entries for those who are behind, and from those who are ahead or on another history."""

from math import inf

from adloco_p2p.core.ledger.fork_choice import CandidateChain
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import Send
from adloco_p2p.core.model.ledger_entry import MAX_ENTRIES, LedgerEntry, Verify
from adloco_p2p.core.model.messages import MAX_LOCATOR, Entries, PullEntries
from adloco_p2p.core.model.types import MAX_ROSTER, Decide, Digest, PeerId, roster_of

ENTRIES_BYTES = 1 << 20
"""Canonical bytes of the ledger entries in one message, or it is one entry."""
STRANGERS_PER_PERIOD = 8
"""Peers outside the roster, all together, that get entries in one period of gossip; members are served beside them."""
MAX_REMEMBERED = 2 * MAX_ROSTER
"""Peers of which is known when they were served, or asked; the ones served longest ago are forgotten."""


class LedgerExchange:
    """Asks, answers, and checks what comes; `Consensus` owns the ledger and changes it."""

    def __init__(self, decide: Decide, verify: Verify, *, period_seconds: float) -> None:
        """`period_seconds`: of gossip. One peer gets entries at most once in it, however often it asks."""
        self._other = CandidateChain(decide, verify)
        self._period_seconds = period_seconds
        self._served: dict[PeerId, float] = {}
        """When a peer was last sent entries; the latest at the end."""
        self._strangers_served: list[float] = []
        """When peers outside the roster were, in the last period."""
        self._asked: dict[PeerId, float] = {}
        """When a peer was last asked for entries because it is ahead in slots; the latest at the end."""

    @property
    def is_collecting(self) -> bool:
        """Another history is on its way."""
        return bool(self._other.tip)

    def forget_other(self) -> None:
        self._other.forget()

    # --- ours to others ----------------------------------------------------------------------------------------------

    def answer(self, ledger: Ledger, peer: PeerId, message: PullEntries, *, now: float) -> list[Send]:
        """What follows the newest plan that both have."""
        common = next((digest for digest in message.locator if digest in ledger.position), None)
        return self.serve(ledger, peer, after=common, now=now) if common is not None else []

    def serve(self, ledger: Ledger, peer: PeerId, *, after: Digest, now: float) -> list[Send]:
        """The next entries after a plan of our ledger; nothing where it is the newest, or where the peer, or strangers
        together, had theirs in this period. Nothing is read before that is known."""
        if after == ledger.digests[-1] or not self._may_serve(peer, now, is_member=peer in roster_of(ledger.plans[-1])):
            return []
        return [Send(peer=peer, message=Entries(entries=_next_entries(ledger, after)))]

    def _may_serve(self, peer: PeerId, now: float, *, is_member: bool) -> bool:
        """Whether it is the peer's turn; then it has had it."""
        since = now - self._period_seconds
        if self._served.get(peer, -inf) > since:
            return False
        if not is_member:
            self._strangers_served = [served for served in self._strangers_served if served > since]
            if len(self._strangers_served) >= STRANGERS_PER_PERIOD:
                return False
            self._strangers_served.append(now)
        _remember(self._served, peer, now)
        return True

    # --- theirs to us ------------------------------------------------------------------------------------------------

    def pull(self, ledger: Ledger, peer: PeerId) -> Send:
        return Send(peer=peer, message=PullEntries(locator=(*self._other.tip, *ledger.locator())[:MAX_LOCATOR]))

    def ask_for_help(self, ledger: Ledger, peer: PeerId, *, now: float) -> list[Send]:
        """Of a peer that works on the successor of a plan that we do not know."""
        if now - self._asked.get(peer, -inf) < self._period_seconds / 4:
            return []
        _remember(self._asked, peer, now)
        return [self.pull(ledger, peer)]

    def continued_by(self, ledger: Ledger, entry: LedgerEntry) -> Ledger | None:
        """Whose next entry this is: our own ledger's, to be appended, or that of the other history, which has it now. None
        where it is not valid, or continues neither."""
        if entry.value.parent == ledger.digests[-1] and not self.is_collecting:
            return None if self._other.is_wrong(ledger, entry) else ledger
        return self._other.follow(ledger, entry)


def _next_entries(ledger: Ledger, after: Digest) -> tuple[LedgerEntry, ...]:
    """One entry, and as many more as fit into ENTRIES_BYTES."""
    chosen: list[LedgerEntry] = []
    num_bytes, first = 0, ledger.position[after] + 1
    for entry in ledger.between(first, first + MAX_ENTRIES):
        num_bytes += canonical.size_once(entry)
        if chosen and num_bytes > ENTRIES_BYTES:
            break
        chosen.append(entry)
    return tuple(chosen)


def _remember(times: dict[PeerId, float], peer: PeerId, now: float) -> None:
    times.pop(peer, None)
    times[peer] = now
    if len(times) > MAX_REMEMBERED:
        times.pop(next(iter(times)))
