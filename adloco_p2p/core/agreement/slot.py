"""The state that the parts of one peer's consensus share: `Context` for the life of the process, `Slot` for one agreement.

Neither holds protocol state: promises, votes and values belong to the part that decides on them.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from adloco_p2p.core.agreement.membership import Membership, Timing
from adloco_p2p.core.agreement.statement_pool import StatementPool
from adloco_p2p.core.ledger.ledger import Ledger
from adloco_p2p.core.model.electorate import electorate, electors, is_majority
from adloco_p2p.core.model.ledger_entry import Sign, Verify
from adloco_p2p.core.model.outcomes import Outcome
from adloco_p2p.core.model.plan import Decide, RoundPlan, roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId

BALLOTS_KEPT = 8
"""The number of sets of absent members for which the counting members are cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One peer: its id and keys, the rule, its view of the members, and the outcomes of the event under way."""

    me: PeerId
    sign: Sign
    verify: Verify
    decide: Decide
    draw: Callable[[], float]
    """Returns a random number, uniform in [0, 1)."""
    members: Membership
    statements: StatementPool
    """Statements and evidence that no plan carries yet."""
    working: dict[int, None] = field(default_factory=dict)
    """The rounds on whose inner steps or average this peer is working."""
    run_out: dict[PeerId, int] = field(default_factory=dict)
    """The round of the last slot in which each member, as a proposer, let a ballot run out."""
    outbox: list[Outcome] = field(default_factory=list)
    """The outcomes in order: a record that must be persisted stands before the messages that depend on it."""

    @property
    def timing(self) -> Timing:
        return self.members.timing

    def emit(self, *outcomes: Outcome) -> None:
        self.outbox.extend(outcomes)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The agreement on the successor of one plan. `ledger` ends with that plan while the slot is open."""

    ledger: Ledger
    parent: RoundPlan
    digest: Digest
    """The digest of the parent, by which messages name the slot."""
    roster: tuple[PeerId, ...]
    electorate: tuple[PeerId, ...]
    """The members of the roster that decide."""
    is_member: bool
    """Whether this peer is on the roster."""

    @cached_property
    def members(self) -> frozenset[PeerId]:
        """The roster as a set."""
        return frozenset(self.roster)

    @cached_property
    def deciders(self) -> frozenset[PeerId]:
        """The electorate as a set."""
        return frozenset(self.electorate)

    @cached_property
    def order(self) -> tuple[PeerId, ...]:
        """The proposers in order of their hash, electors first; computed on demand, so not in the slots of a catch-up."""
        first = self.deciders

        def place(peer: PeerId) -> tuple[bool, bytes]:
            return peer not in first, hashlib.sha256(f"{self.digest}:{peer}".encode("ascii")).digest()

        return tuple(sorted(self.roster, key=place))

    @property
    def round(self) -> int:
        """The round of the plan that is agreed on."""
        return self.parent.round + 1

    @cached_property
    def _counted(self) -> dict[tuple[PeerId, ...], dict[PeerId, None]]:
        return {}

    def counted(self, absent: Sequence[PeerId]) -> Collection[PeerId]:
        """Return the members that count in a ballot with these absent ones, in order; cached, because every message of a ballot
        asks."""
        known, key = self._counted, tuple(absent)
        if key not in known:
            if len(known) >= BALLOTS_KEPT:
                known.clear()
            known[key] = dict.fromkeys(electors(self.electorate, self.roster, absent))
        return known[key]

    def is_quorum(self, peers: Iterable[PeerId], absent: Sequence[PeerId]) -> bool:
        """Return whether the peers include a majority of the members that count."""
        counted = self.counted(absent)
        return is_majority(len([peer for peer in peers if peer in counted]), len(counted))


def next_slot(ledger: Ledger, me: PeerId) -> Slot:
    """Return the slot after the last plan of the ledger."""
    parent = ledger.plans[-1]
    roster = roster_of(parent)
    return Slot(
        ledger=ledger,
        parent=parent,
        digest=ledger.digests[-1],
        roster=roster,
        electorate=electorate(parent),
        is_member=me in roster,
    )
