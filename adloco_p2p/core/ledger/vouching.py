"""Old entries that are taken up by their hashes, since electors of a known plan vouch for them by later votes. Pure.

The digest of a plan binds its parent and the value that it was made from, and so every byte of the entries before it, except
for certificates. A vote for an entry is therefore one for its whole history. A peer that is far behind collects a stretch of
entries whose hashes fit, and takes up those after which more than half of the electors of its own last plan have voted: the
electors that could have decided on any other successor of that plan. Light clients do the same with one certificate ("skipping
verification"). Here the votes of all certificates of the stretch count together, since each has little more than half.
"""

from collections.abc import Collection, Iterable, Sequence

from adloco_p2p.core.ledger.certificates import vote_of
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.ledger.validation import binding_problem
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.electorate import electorate, is_majority
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Verify
from adloco_p2p.core.model.scalars import Digest, PeerId

STRETCH = 16
"""Entries that are collected before votes are counted. What is nearer than this to the end of a ledger is verified whole."""
MAX_STRETCH_BYTES = 64 << 20
"""Of their plans and reports, as encoded."""


def proven_voters(entry: LedgerEntry, *, among: Collection[PeerId], verify: Verify) -> Iterable[PeerId]:
    """Those of the peers whose vote for the entry is in its certificate, one after the other, as they are checked."""
    certificate, value = entry.certificate, canonical.digest_once(entry.value)
    for cast in certificate.votes:
        if cast.peer in among and not cast.abstains:
            vote = vote_of(
                cast.peer,
                parent=entry.value.parent,
                value=value,
                certificate=certificate,
                abstains=False,
                signature=cast.signature,
            )
            if verify(cast.peer, vote.payload, cast.signature):
                yield cast.peer


class Stretch:
    """Entries that follow the end of a ledger and each other, by their hashes."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._entries: list[LedgerEntry] = []
        self._num_bytes = 0

    def __contains__(self, plan: Digest) -> bool:
        return any(entry.value.plan == plan for entry in self._entries)

    @property
    def tip(self) -> Sequence[Digest]:
        """The last plan, if there is one."""
        return [entry.value.plan for entry in self._entries[-1:]]

    @property
    def is_full(self) -> bool:
        return len(self._entries) >= STRETCH or self._num_bytes > MAX_STRETCH_BYTES

    def clear(self) -> None:
        self._pop(len(self._entries))

    def extend(self, ledger: Ledger, entry: LedgerEntry) -> bool:
        """Take the entry if it follows. What was collected after another end of the ledger is dropped."""
        if self._entries and self._entries[0].value.parent != ledger.digests[-1]:
            self.clear()
        parent = self._entries[-1].plan if self._entries else ledger.plans[-1]
        if binding_problem(entry, parent):
            return False
        self._entries.append(entry)
        self._num_bytes += _num_bytes(entry)
        return True

    def pop_first(self) -> LedgerEntry:
        return self._pop(1)[0]

    def _pop(self, count: int) -> list[LedgerEntry]:
        popped, self._entries = self._entries[:count], self._entries[count:]
        self._num_bytes -= sum(map(_num_bytes, popped))
        return popped

    def pop_vouched(self, ledger: Ledger) -> list[LedgerEntry]:
        """The first entries, as many as are vouched for by votes for entries after them."""
        electors = frozenset(electorate(ledger.plans[-1]))
        named = {cast.peer for entry in self._entries[1:] for cast in entry.certificate.votes if not cast.abstains}
        if not is_majority(len(electors & named), len(electors)):
            return []  # no signature has to be checked for that
        voters: set[PeerId] = set()
        for place in range(len(self._entries) - 1, 0, -1):
            for voter in proven_voters(self._entries[place], among=electors - voters, verify=self._verify):
                voters.add(voter)
                if is_majority(len(voters), len(electors)):
                    return self._pop(place)
        return []


def _num_bytes(entry: LedgerEntry) -> int:
    """Hashes of these parts were checked, so their sizes are known."""
    return canonical.size_once(entry.plan) + sum(map(canonical.size_once, entry.reports))
