"""The hosts that had work in a round, and what most of them report. Pure.

Identities cost nothing until they have served their probation, so reports against a host need two majorities: of the hosts that
had work, reported or not, and of the full members among them.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.scalars import PeerId


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Hosts that had work, and the full members among them."""

    workers: frozenset[PeerId]
    full: frozenset[PeerId]

    @classmethod
    def among(cls, workers: frozenset[PeerId], roster: Sequence[RosterEntry]) -> "Witnesses":
        """Make the witnesses of a round; `roster` is that of the plan that judges."""
        return cls(workers, frozenset(entry.peer for entry in roster if entry.peer in workers and not entry.probation))

    def are_mostly(self, naming: Set[PeerId]) -> bool:
        """Return whether `naming` are a majority both of the hosts and of the full members."""
        return is_majority(len(naming), len(self.workers)) and is_majority(len(naming & self.full), len(self.full))
