"""Two histories that met: the other one is collected, entry by checked entry, until it outranks our own."""

from collections.abc import Sequence

from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import check_entry
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg, Verify
from adloco_p2p.core.model.types import Decide, Digest

MAX_COLLECTED_BYTES = 256 << 20
"""Of another history, as encoded; it lies in memory until it outranks our own. A longer one is dropped."""


class CandidateChain:
    """At most one is collected at a time; another one starts over."""

    def __init__(self, decide: Decide, verify: Verify) -> None:
        self._decide = decide
        self._verify = verify
        self._ledger: Ledger | None = None
        self._num_bytes = 0

    @property
    def tip(self) -> Sequence[Digest]:
        """The end of what was collected, if anything was."""
        return self._ledger.digests[-1:] if self._ledger is not None else ()

    def forget(self) -> None:
        self._ledger = None

    def follow(self, own: Ledger, entry: LedgerEntry) -> Ledger | None:
        """Take the entry if it is valid and continues what is collected, or leaves our own ledger somewhere. The ledger it
        then ends; none where it was of no use."""
        if self._ledger is None or entry.value.parent != self._ledger.digests[-1]:
            self._ledger = own.truncated(entry.value.parent) if entry.value.parent in own.position else None
            self._num_bytes = 0
        self._num_bytes += len(canonical.encode(entry))
        if self._ledger is None or self._num_bytes > MAX_COLLECTED_BYTES or self.is_wrong(self._ledger, entry):
            self._ledger = None
            return None
        self._ledger.append(entry)
        return self._ledger

    def is_wrong(self, ledger: Ledger, entry: LedgerEntry) -> bool:
        """Whether the entry is no valid next one."""
        return bool(check_entry(entry, ledger=ledger, decide=self._decide, verify=self._verify))


def switch_between(own: Ledger, other: Ledger) -> Reorg:
    """The reorg from one chain to the other: what it drops and adds."""
    common = sum(ours == theirs for ours, theirs in zip(own.digests, other.digests, strict=False)) - 1
    return Reorg(
        fork=own.plan(common),
        lost=own.after(own.digests[common], len(own.digests)),
        won=other.after(own.digests[common], len(other.digests)),
    )
