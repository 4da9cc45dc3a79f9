"""Invariants of whole peers after every event, beside those of the agreement (`checkers.py`).

1. `handle` never raises (checked by the machine that calls it).
2. A host applies only an average for which a majority of the deciding contributors voted, and all hosts the same, unless a
   contributor lies. A host casts one vote on the average of a round, over all restarts, and persists it before it sends it.
3. An instance is averaged, applied, saved and copied only on a machine that has it (checked by the machine).
4. No table of a peer grows beyond its bound, and the ledger verifies (checked at the end).
5. After the last fault all living peers end the run with one state (checked by the world).

Only honest machines are judged.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass

from adloco_p2p.core.agreement.known_peers import MAX_KNOWN
from adloco_p2p.core.averaging.commit_votes import Choice, choice_of
from adloco_p2p.core.ledger.validation import verify_ledger
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.electorate import deciding_contributors
from adloco_p2p.core.model.events import Event, Received
from adloco_p2p.core.model.ledger_entry import LedgerEntry, Reorg, Verify
from adloco_p2p.core.model.messages import AverageDigest, CommitVoted, Leave
from adloco_p2p.core.model.plan import Decide, RoundPlan
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.telemetry import FastForwarded, Log, Resumed
from adloco_p2p.sim.checkers import Checkers, Violation

MAX_TABLE = 2 * MAX_KNOWN
"""The most items in any collection of a peer: one for each former member, and one for each peer that asks to join."""
MAX_DEPTH = 12


class PeerCheckers:
    """The checks of whole peers. The world calls a method for each event, or one of `agreement` for events of that alone."""

    def __init__(self, genesis: RoundPlan, agreement: Checkers, *, liars: Collection[PeerId] = ()) -> None:
        """`liars` are members that depart from the protocol; the collection may grow."""
        self.agreement = agreement
        self._liars = liars
        self._genesis = genesis
        self._heads: dict[PeerId, dict[int, Digest]] = {}
        """The digests of the plans that each peer follows, by peer and round."""
        self._plans: dict[Digest, RoundPlan] = {canonical.digest_once(genesis): genesis}
        self._applied: dict[tuple[Digest, InstanceId], dict[PeerId, Digest]] = {}
        """The average that each host applied, by plan and instance."""
        self._votes: dict[tuple[int, InstanceId, Digest], dict[PeerId, float]] = {}
        """When each peer first voted for an average, by round, instance and average."""
        self._cast: dict[tuple[PeerId, Digest, InstanceId], Choice] = {}
        """The persisted votes, by peer, plan and instance."""
        self._on_disk: dict[tuple[PeerId, int, InstanceId, Choice], None] = {}
        """The persisted votes, by the fields that a message shows."""
        self.num_void = 0
        """The number of times that a round of an instance ended on some host without an outer step."""
        self._began_at: dict[Digest, float] = {canonical.digest_once(genesis): 0.0}
        self._disturbed_at: dict[PeerId, float] = {}
        """When each peer last restarted, or gave up its rounds."""
        self._now = 0.0

    # --- passed on, with what else it means --------------------------------------------------------------------------

    def booted(self, peer: PeerId, now: float, life: int) -> None:
        if life > 1:
            self._disturb(peer)
        first = canonical.digest_once(self._genesis)
        self._heads.setdefault(peer, {self._genesis.round: first})
        self.agreement.booted(peer, now)

    def died(self, peer: PeerId) -> None:
        self._disturb(peer)
        self.agreement.died(peer)

    def handling(self, peer: PeerId, event: Event, now: float) -> None:
        if isinstance(event, Received):
            self.agreement.delivered(peer, event.sender, event.message, now)
        else:
            self.agreement.woke(peer, now)

    def persisting(self, peer: PeerId, record: object) -> None:
        self.agreement.persisting(peer, record)
        if isinstance(record, CommitVoted):
            self._vote_kept(peer, record)
        if isinstance(record, LedgerEntry) and record.value.plan not in self._plans:
            self._plans[record.value.plan] = record.plan
            self._began_at[record.value.plan] = self._now

    def _vote_kept(self, peer: PeerId, record: CommitVoted) -> None:
        vote, choice = record.vote, choice_of(record.vote)
        known = self._cast.setdefault((peer, record.plan, vote.instance), choice)
        if known != choice:
            raise Violation(f"{peer} votes twice on the average of instance {vote.instance} in round {vote.round}")
        self._on_disk[peer, vote.round, vote.instance, choice] = None

    def before_send(self, peer: PeerId, message: object, now: float) -> None:
        if isinstance(message, AverageDigest):
            if message.signature and (peer, message.round, message.instance, choice_of(message)) not in self._on_disk:
                raise Violation(f"{peer} sends a vote on an average that is not on its disk")
            self._votes.setdefault((message.round, message.instance, message.digest), {}).setdefault(peer, self._now)
        if isinstance(message, Leave):
            self.agreement.left(peer)
        self.agreement.before_send(peer, message, now)

    def decided(self, peer: PeerId, plan: RoundPlan) -> None:
        self.agreement.decided(peer, plan)
        self._heads[peer][plan.round] = canonical.digest_once(plan)

    def switched(self, peer: PeerId, switched: Reorg) -> None:
        self.agreement.switched(peer, switched)
        self._disturb(peer)
        for entry in switched.lost:
            self._heads[peer].pop(entry.plan.round, None)
        self._heads[peer].update((entry.plan.round, entry.value.plan) for entry in switched.won)

    def in_time(self, entries: Sequence[LedgerEntry]) -> list[tuple[float, LedgerEntry]]:
        """Return the entries, each with the time at which the first peer had it."""
        return [(self._began_at[entry.value.plan], entry) for entry in entries]

    # --- states ------------------------------------------------------------------------------------------------------

    def at(self, now: float) -> None:
        """Note the world time, before each event."""
        self._now = now

    def logged(self, peer: PeerId, log: Log) -> None:
        if isinstance(log, FastForwarded | Resumed):
            self._disturb(peer)

    def applied(self, peer: PeerId, instance: InstanceId, round: int, average: Digest) -> None:
        """Check an outer step that a host takes with this average."""
        plan = self._heads[peer].get(round)
        if plan is None or peer in self._liars:
            return
        contributors = deciding_contributors(self._plans[plan], instance)
        votes = self._votes.get((round, instance, average), {})
        voters = {*votes, peer, *self._liars} & contributors
        if self._disturbed_at.get(peer, -1e9) >= min(self._began_at[plan], votes.get(peer, math.inf)):
            return  # a job may outlive the plan for which it was made, and the vote from which it follows
        if 2 * len(voters) <= len(contributors):
            raise Violation(f"{peer} applies an average of instance {instance} in round {round} without a majority: {voters}")
        applied = self._applied.setdefault((plan, instance), {})
        applied[peer] = average
        differing = [other for other, digest in applied.items() if digest != average]
        if differing and not any(peer in self._liars for peer in contributors):
            made = {name: digest[:8] for name, digest in applied.items()}
            raise Violation(f"hosts of instance {instance} apply different averages in round {round}: {made}")

    def carried_over(self, peer: PeerId) -> None:
        """Count a round that is void for a host."""
        self.num_void += peer not in self._liars

    def _disturb(self, peer: PeerId) -> None:
        self._disturbed_at[peer] = self._now


def check_ledger(genesis: RoundPlan, entries: list[LedgerEntry], decide: Decide, verify: Verify) -> None:
    """Verify every decision and signature of a ledger. Raises Violation."""
    newest = max([genesis.protocol, *(entry.plan.protocol for entry in entries)])
    problems = verify_ledger(genesis, entries, decide, verify, newest=newest)
    if problems:
        raise Violation(f"the ledger does not verify: {problems[0]}")


def check_tables(owner: PeerId, root: object) -> None:
    """Check that no collection in this object or its parts has more than MAX_TABLE items. Raises Violation."""
    seen: dict[int, None] = {}
    pending: list[tuple[str, object, int]] = [("peer", root, 0)]
    while pending:
        path, item, depth = pending.pop()
        if id(item) in seen or depth > MAX_DEPTH or isinstance(item, str | bytes | int | float | None):
            continue
        seen[id(item)] = None
        if isinstance(item, dict | list | tuple | set | frozenset):
            if len(item) > MAX_TABLE:
                raise Violation(f"{owner} keeps {len(item)} items in {path}")
            values = item.values() if isinstance(item, dict) else item
            pending += [(path, value, depth + 1) for value in values]
        elif is_dataclass(item) and not isinstance(item, type):
            pending += [(f"{path}.{part.name}", getattr(item, part.name), depth + 1) for part in fields(item)]
        elif type(item).__module__.startswith("adloco_p2p.") and hasattr(item, "__dict__"):
            pending += [(f"{path}.{name}", value, depth + 1) for name, value in vars(item).items()]
