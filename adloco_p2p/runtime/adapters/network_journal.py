"""The consensus's memory on the disk: records that a crash must not lose, and the ledger, which is too long for memory."""

import time
from collections.abc import Iterator
from pathlib import Path

from adloco_p2p import decode
from adloco_p2p.core.agreement.recovery import COMMIT_VOTES_KEPT
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.messages import RECORD_KINDS, Accepted, CommitVoted, Incarnation, JournalRecord, Promised, Voted
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.errors import StorageError
from adloco_p2p.storage.journal import MAX_RECORD_BYTES, Journal, read_records

MAX_KIND_BYTES = 32
LEAST_BYTES = 1 << 20
"""A shorter journal is not rewritten."""
_ENTRY = LedgerEntry.__name__.encode("ascii") + b" "
"""What the record of a ledger entry begins with."""


class NetworkJournal:
    """Appends records, finds ledger entries again, and drops records that later ones supersede.

    It keeps the ledger entries and the votes (one per slot in a peer's whole life), the newest commit votes, the last
    incarnation, and of each slot that is not settled the last promise and the last acceptance. The file is rewritten when its
    size has doubled, so that on average every record is copied once.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._places: dict[tuple[type, Digest | None], int] = {}
        """The place of the last record, by kind and subject."""
        self._commit_votes: dict[tuple[Digest, InstanceId], tuple[int, int]] = {}
        """By plan and instance: the round of this peer's commit vote, and its place."""
        self._compact_at = LEAST_BYTES

    def records(self) -> Iterator[object]:
        """Yield all records of earlier starts, oldest first. Read them once, before the first `append`. Raises StorageError."""
        for place, data in self._journal.read():
            record = _record(data, where=str(self._journal.path))
            self._note(record, place)
            yield record

    def append(self, record: JournalRecord) -> None:
        """Append a record. Raises StorageError."""
        kind = type(record).__name__.encode("ascii")
        self._note(record, self._journal.append(kind + b" " + canonical.encode(record)))
        if self._journal.size_bytes >= self._compact_at:
            self._compact()

    def recall(self, plan: Digest) -> LedgerEntry:
        """Read the ledger entry of this plan. Raises StorageError."""
        place = self._places[LedgerEntry, plan]
        record = _record(self._journal.read_at(place), where=str(self._journal.path))
        assert isinstance(record, LedgerEntry)
        return record

    def _note(self, record: object, place: int) -> None:
        match record:
            case LedgerEntry(value=value):
                self._places[LedgerEntry, value.plan] = place
                for kind in (Promised, Accepted):  # the slot is settled
                    self._places.pop((kind, value.parent), None)
            case Promised(parent=parent) | Voted(parent=parent):
                self._places[type(record), parent] = place
            case Accepted(value=value):
                self._places[Accepted, value.parent] = place
            case CommitVoted(plan=plan, vote=vote):
                oldest = vote.round - COMMIT_VOTES_KEPT
                self._commit_votes = {key: kept for key, kept in self._commit_votes.items() if kept[0] >= oldest}
                self._commit_votes[plan, vote.instance] = (vote.round, place)
            case Incarnation():
                self._places[Incarnation, None] = place

    def _compact(self) -> None:
        moved = self._journal.keep(sorted([*self._places.values(), *(place for _, place in self._commit_votes.values())]))
        self._places = {key: moved[place] for key, place in self._places.items()}
        self._commit_votes = {key: (round, moved[place]) for key, (round, place) in self._commit_votes.items()}
        self._compact_at = max(LEAST_BYTES, 2 * self._journal.size_bytes)


def journal_records(path: Path) -> list[JournalRecord]:
    """Read all records of the journal at `path`, which a running peer may be writing, oldest first. Raises StorageError."""
    return [_record(data, where=str(path)) for _, data in read_records(path)]


def newest_plan(path: Path) -> Digest | None:
    """Return the plan with which the ledger of the journal at `path` ends; None if it has no entry. Raises StorageError."""
    newest = b""
    for _, data in read_records(path):
        if data.startswith(_ENTRY):
            newest = data
    if not newest:
        return None
    entry = _record(newest, where=str(path))
    assert isinstance(entry, LedgerEntry)
    return entry.value.plan


def first_incarnation(key: Path, *, began: float) -> int:
    """Return the number of this peer's incarnation where its journal has none: 1, or the minutes since 1970 where its `key`, a
    file, is older than this process, which `began` by the monotonic clock. Such a peer may have lost its journal, and others
    let it in only by an incarnation that is newer than all that they know of it."""
    process_age = time.monotonic() - began
    key_age = time.time() - key.stat().st_mtime
    return int(time.time() // 60) if key_age > process_age else 1


def _record(data: bytes, *, where: str) -> JournalRecord:
    """Decode a record, which is the kind's name, a space, and the canonical bytes of the value. Raises StorageError."""
    name, _, content = data.partition(b" ")
    kind = RECORD_KINDS.get(name[:MAX_KIND_BYTES].decode("ascii", errors="replace"))
    if kind is None:
        raise StorageError(
            f"{where}: a record of unknown kind {name[:MAX_KIND_BYTES]!r}; written by another version?", code="E405"
        )
    value: JournalRecord = decode.decode(kind, content, max_bytes=MAX_RECORD_BYTES)
    return value
