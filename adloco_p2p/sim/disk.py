"""The part of a simulated machine that survives a crash: its journal, the ledger, and one checkpoint."""

from dataclasses import dataclass, field

from adloco_p2p.core.model.events import Durable
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.scalars import Digest, InstanceId


@dataclass(slots=True)
class Disk:
    """The disk of one simulated machine."""

    journal: list[object] = field(default_factory=list)
    entries: dict[Digest, LedgerEntry] = field(default_factory=dict)
    durable: Durable | None = None
    states: dict[tuple[int, InstanceId], object] = field(default_factory=dict)
    """The states by boundary and instance, of the checkpoint and of the one that is being made."""

    def append(self, record: object) -> None:
        self.journal.append(record)
        if isinstance(record, LedgerEntry):
            self.entries[record.value.plan] = record

    def recall(self, plan: Digest) -> LedgerEntry:
        return self.entries[plan]

    @property
    def is_complete(self) -> bool:
        """Whether the checkpoint is that of the run's end, in the history with which the ledger ends."""
        newest = next((record for record in reversed(self.journal) if isinstance(record, LedgerEntry)), None)
        if self.durable is None or not self.durable.is_finished:
            return False
        return newest is None or newest.plan == self.durable.plans[-1]

    def complete(self, durable: Durable) -> None:
        """Complete a checkpoint, which replaces the one before."""
        self.durable = durable
        self.states = {key: state for key, state in self.states.items() if key[0] >= durable.round}
