"""Emergency entries that a peer followed in a life in which it had agreed on nothing with the members that they leave out.

Such a peer may have been away while these members went on, and ended the run. One that agreed with them in the same life saw
them fall silent. The journal shows both: it holds the starts of the peer between the entries that it followed. (Compaction
drops starts but the last; then an entry of an earlier life counts as seen.)
"""

from adloco_p2p.core.model.electorate import is_emergency
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import Incarnation
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest


class LoneLives:
    """`note` every record of the journal, in order."""

    def __init__(self) -> None:
        self.entries: set[Digest] = set()
        """Plans of such entries."""
        self._has_agreed = False
        """In this life, with a majority of the electors."""

    def note(self, record: object, parent: RoundPlan) -> None:
        """`parent`: of a ledger entry."""
        if isinstance(record, Incarnation):
            self._has_agreed = False
        elif isinstance(record, LedgerEntry):
            if not is_emergency(record.certificate, parent):
                self._has_agreed = True
            elif not self._has_agreed:
                self.entries.add(record.value.plan)
