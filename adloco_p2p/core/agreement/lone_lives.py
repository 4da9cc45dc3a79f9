"""Emergency entries that a peer followed before it had agreed on any plan with a majority since its last start.

While such a peer was away, the members left out may have gone on and ended the run; a peer that agreed with them saw them fall
silent. The journal shows both, because it holds the starts of the peer between the entries that it followed. (Compaction drops
all starts but the last; an entry after an earlier start then counts as seen.)
"""

from adloco_p2p.core.model.electorate import is_emergency
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import Incarnation
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest


class LoneLives:
    """The lone emergency entries of a journal, whose records are noted in order."""

    def __init__(self) -> None:
        self.entries: set[Digest] = set()
        """The digests of the plans of these entries."""
        self._has_agreed = False
        """Whether a majority of the electors has agreed on a plan since the last start."""

    def note(self, record: object, parent: RoundPlan) -> None:
        """Note a record. `parent` is the plan before it, if it is a ledger entry."""
        if isinstance(record, Incarnation):
            self._has_agreed = False
        elif isinstance(record, LedgerEntry):
            if not is_emergency(record.certificate, parent):
                self._has_agreed = True
            elif not self._has_agreed:
                self.entries.add(record.value.plan)
