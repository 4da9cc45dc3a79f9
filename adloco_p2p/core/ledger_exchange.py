"""Ledger entries for those who are behind, and from those who are ahead or on another history."""

from math import inf

from adloco_p2p.core.events import Send
from adloco_p2p.core.histories import OtherHistory
from adloco_p2p.core.ledger import Decide, Ledger
from adloco_p2p.core.messages import MAX_ENTRIES, MAX_TRAIL, Entries, LedgerEntry, PullEntries, Verify
from adloco_p2p.core.types import Digest, PeerId

ENTRY_BUDGET = 256
"""Ledger entries in one message times the size of the roster stays below this, or it is one entry."""


class LedgerExchange:
    """Asks, answers, and checks what comes; `Consensus` owns the ledger and changes it."""

    def __init__(self, decide: Decide, verify: Verify, *, period_seconds: float) -> None:
        """`period_seconds`: of gossip. One peer gets help unasked at most once in it."""
        self._other = OtherHistory(decide, verify)
        self._period_seconds = period_seconds
        self._helped: dict[PeerId, float] = {}
        """When a peer was last sent entries that it did not ask for, or asked for such that it seems to have."""

    @property
    def is_collecting(self) -> bool:
        """Another history is on its way."""
        return bool(self._other.tip)

    def forget_other(self) -> None:
        self._other.forget()

    # --- ours to others ----------------------------------------------------------------------------------------------

    def entries(self, ledger: Ledger, peer: PeerId, *, after: Digest) -> list[Send]:
        """The next ones after a plan of our ledger; nothing where it is the newest."""
        limit = max(1, min(MAX_ENTRIES, ENTRY_BUDGET // len(ledger.plans[-1].roster)))
        entries = ledger.after(after, limit)
        return [Send(peer=peer, message=Entries(entries=entries))] if entries else []

    def answer(self, ledger: Ledger, peer: PeerId, message: PullEntries) -> list[Send]:
        """What follows the newest plan that both have."""
        common = next((digest for digest in message.trail if digest in ledger.position), None)
        return self.entries(ledger, peer, after=common) if common is not None else []

    def help(self, ledger: Ledger, peer: PeerId, *, after: Digest, now: float) -> list[Send]:
        """For a peer that still works on the successor of an old plan."""
        if now - self._helped.get(peer, -inf) < self._period_seconds:
            return []
        self._helped[peer] = now
        return self.entries(ledger, peer, after=after)

    # --- theirs to us ------------------------------------------------------------------------------------------------

    def pull(self, ledger: Ledger, peer: PeerId) -> Send:
        return Send(peer=peer, message=PullEntries(trail=(*self._other.tip, *ledger.trail())[:MAX_TRAIL]))

    def ask_for_help(self, ledger: Ledger, peer: PeerId, *, now: float) -> list[Send]:
        """Of a peer that works on the successor of a plan that we do not know."""
        if now - self._helped.get(peer, -inf) < self._period_seconds / 4:
            return []
        self._helped[peer] = now
        return [self.pull(ledger, peer)]

    def continued_by(self, ledger: Ledger, entry: LedgerEntry) -> Ledger | None:
        """Whose next entry this is: our own ledger's, to be appended, or that of the other history, which has it now. None
        where it is not valid, or continues neither."""
        if entry.value.parent == ledger.digests[-1] and not self.is_collecting:
            return None if self._other.is_wrong(ledger, entry) else ledger
        return self._other.follow(ledger, entry)
