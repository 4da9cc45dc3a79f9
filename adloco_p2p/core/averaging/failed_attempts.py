"""The members that keep making attempts fail, by the reports of all members.

A member that ends an attempt ends it for all, so its report names the members that it could not reach, or else the member whose
report ended the attempt for it. A member that names neither, or names one living member after another, could otherwise stop
every attempt. The causes of a failed attempt are:

- the members that ended it by themselves, as they report;
- if there is none, the reports lead from one member to the next. If the last one names members that it could not reach, and
  some of these report too, it is a cause. If it names a member that reports nothing, both may be causes. If the reports form a
  circle, all members of it may be. If the ways from several members end in this manner, those at the end of all ways count.

A faulty member is among the causes of every attempt that it ends, beside others that change. A member that was a cause twice
lately, and of an attempt of this round, is left out of the retries of this round, the members with the most causes first. So it
misses the average, and the plan gives it no work if it misses averages again and again (`core/planning/host_backoff.py`). A
report that names the same living members again does not count twice: a member whose link to one other is broken is not at
fault. A member that ends an attempt because it contributes other inner steps than the attempt counts is the cause, too, but is
tolerated more often.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from adloco_p2p.core.model.scalars import InstanceId, PeerId

KEPT_ROUNDS = 8
"""The number of rounds for which causes count. A host that was backed off is tried again after 4 rounds at first."""
TOLERATED = 1
"""The number of times that a member may be a cause in these rounds, by a fault of its machine or by another one's lie."""
TOLERATED_PARTIAL = 3
"""The number of these rounds in which a member may besides, once in each, contribute fewer inner steps than planned, as after
a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A member's report that an attempt is over for it."""

    suspects: frozenset[PeerId] = frozenset()
    """The members of the attempt that it could not reach."""
    because: PeerId | None = None
    """The member whose report ended the attempt there."""
    is_partial: bool = False
    """Whether it contributes other inner steps than the attempt counts."""


class FailedAttempts:
    """The failed attempts of the last rounds, of all instances, by the reports that one peer received."""

    def __init__(self) -> None:
        self._reports: dict[tuple[int, InstanceId, int], dict[PeerId, Ended]] = {}

    def note(self, round: int, instance: InstanceId, attempt: int, member: PeerId, ended: Ended) -> None:
        """Note a member's report about an attempt; its first one counts."""
        key = round, instance, attempt
        if key not in self._reports:
            self._reports = {old: kept for old, kept in self._reports.items() if old[0] > round - KEPT_ROUNDS}
            self._reports[key] = {}
        self._reports[key].setdefault(member, ended)

    def named_by(self, member: PeerId, round: int, instance: InstanceId) -> frozenset[PeerId]:
        """Return the members that attempts of this member failed at in the rounds that count in this one."""
        reports = [kept for key, kept in self._reports.items() if key[0] > round - KEPT_ROUNDS and key[1] == instance]
        return frozenset().union(*(kept[member].suspects for kept in reports if member in kept))

    def num_lost_to(self, peers: Set[PeerId], round: int, instance: InstanceId) -> int:
        """Return how many attempts of this round failed because of some of these members alone: they are the causes, or without
        any cause the members that were named, which may be dead or have declined."""
        num_lost = 0
        for key, reports in self._reports.items():
            if key[:2] == (round, instance):
                found = causes(reports, peers).keys() or frozenset().union(*(ended.suspects for ended in reports.values()))
                num_lost += bool(found) and found <= peers
        return num_lost

    def repeated(self, round: int, instance: InstanceId, others: Set[PeerId] = frozenset()) -> tuple[PeerId, ...]:
        """Return the members to leave out of the retries of this round, most frequent causes first. `others`: those that do not
        decide; see `causes`."""
        counts: dict[PeerId, int] = {}
        named: dict[PeerId, frozenset[PeerId]] = {}
        of_this_round: set[PeerId] = set()
        partial: dict[PeerId, set[int]] = {}
        for key, reports in self._reports.items():
            if key[1] != instance:
                continue
            for member, accused in causes(reports, others).items():
                is_new = not accused or not accused <= named.get(member, frozenset())
                if member in reports and reports[member].is_partial:
                    rounds = partial.setdefault(member, set())
                    is_new = key[0] in rounds or len(rounds) >= TOLERATED_PARTIAL
                    rounds.add(key[0])
                counts[member] = counts.get(member, 0) + is_new
                named[member] = named.get(member, frozenset()) | accused
                if key[0] == round:
                    of_this_round.add(member)
        found = [member for member in of_this_round if counts[member] > TOLERATED]
        return tuple(sorted(found, key=lambda member: (-counts[member], member)))


def causes(reports: Mapping[PeerId, Ended], others: Set[PeerId] = frozenset()) -> dict[PeerId, frozenset[PeerId]]:
    """Return the causes of the failure of one attempt, each with the living members that it named as out of reach. Where
    several members may be the cause, it is those that do not decide, `others`, if there are any among them: names cost nothing,
    so they must not make a full member a cause by naming it."""
    by_themselves = [member for member, ended in reports.items() if not ended.suspects and ended.because is None]
    if by_themselves:
        return dict.fromkeys(by_themselves, frozenset())
    ends = [end for end in (_end_of_way(member, reports, others) for member in reports) if end]
    if not ends:
        return {}
    common = frozenset(ends[0]).intersection(*ends)
    return {member: accused for end in ends for member, accused in end.items() if member in common or not common}


def _end_of_way(member: PeerId, reports: Mapping[PeerId, Ended], others: Set[PeerId]) -> dict[PeerId, frozenset[PeerId]]:
    """Return the causes to which the reports lead from this member."""
    way = [member]
    while True:
        ended = reports[way[-1]]
        if ended.suspects:
            alive = ended.suspects.intersection(reports)
            return {way[-1]: alive} if alive else {}
        assert ended.because is not None
        if ended.because in way:
            return _one_of(way[way.index(ended.because) :], others)
        way.append(ended.because)
        if way[-1] not in reports:
            return _one_of(way[-2:], others)


def _one_of(members: Sequence[PeerId], others: Set[PeerId]) -> dict[PeerId, frozenset[PeerId]]:
    return dict.fromkeys([member for member in members if member in others] or members, frozenset())
