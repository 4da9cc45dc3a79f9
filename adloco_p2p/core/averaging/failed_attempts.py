"""Which members keep making attempts fail, by what all members report.

A member that ends an attempt ends it for all, so it names the members that it could not reach, or else the member whose report
ended the attempt for it. A report that names neither, or names one live member after the other, could otherwise stop every
attempt. Of a failed attempt these are the causes:

- the members that ended it by themselves, as they report;
- where there is none, the reports lead from one member to the next. Where the last one names members that it could not reach,
  and some of these report too, it is a cause. Where it names a member that reports nothing, both are. Where the reports form a
  circle, its members are.

A member that is a cause twice lately, and of an attempt of this round, is left out of the retries of this round. So it misses
the average, and the plan gives it no work where it misses averages again and again (`core/planning/host_backoff.py`). A report
that names the same live member again does not count twice: a member whose link to one other is broken is not at fault. One
faulty member makes at most one other a cause of each attempt.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from adloco_p2p.core.model.scalars import InstanceId, PeerId

KEPT_ROUNDS = 8
"""Rounds over which causes count. A host that was backed off is tried again after 4 rounds at first."""
TOLERATED = 1
"""A member may be a cause so often in that time: by a fault of its machine, or by another one's lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A member's report that an attempt is over for it."""

    suspects: frozenset[PeerId] = frozenset()
    """Members of the attempt that it could not reach."""
    because: PeerId | None = None
    """The member whose report ended it there."""


class FailedAttempts:
    """Those of the last rounds, of all instances, as one peer received the reports."""

    def __init__(self) -> None:
        self._reports: dict[tuple[int, InstanceId, int], dict[PeerId, Ended]] = {}

    def note(self, round: int, instance: InstanceId, attempt: int, member: PeerId, ended: Ended) -> None:
        """Of each member the first report of an attempt counts."""
        key = round, instance, attempt
        if key not in self._reports:
            self._reports = {old: kept for old, kept in self._reports.items() if old[0] > round - KEPT_ROUNDS}
            self._reports[key] = {}
        self._reports[key].setdefault(member, ended)

    def repeated(self, round: int, instance: InstanceId) -> frozenset[PeerId]:
        """Members to leave out of the retries of this round."""
        counted: dict[PeerId, set[Hashable]] = {}
        of_this_round: set[PeerId] = set()
        for key, reports in self._reports.items():
            if key[1] != instance:
                continue
            for member, accused in causes(reports).items():
                counted.setdefault(member, set()).add(accused or key)  # the same accusation again is no further cause
                if key[0] == round:
                    of_this_round.add(member)
        return frozenset(member for member in of_this_round if len(counted[member]) > TOLERATED)


def causes(reports: Mapping[PeerId, Ended]) -> dict[PeerId, frozenset[PeerId]]:
    """Of one attempt, with the live members that each named in vain."""
    by_themselves = [member for member, ended in reports.items() if not ended.suspects and ended.because is None]
    if by_themselves or not reports:
        return dict.fromkeys(by_themselves, frozenset())
    links = [next(iter(reports))]
    while True:
        ended = reports[links[-1]]
        if ended.suspects:
            alive = ended.suspects.intersection(reports)
            return {links[-1]: alive} if alive else {}
        assert ended.because is not None
        if ended.because in links:
            return dict.fromkeys(links[links.index(ended.because) :], frozenset())
        links.append(ended.because)
        if links[-1] not in reports:
            return dict.fromkeys(links[-2:], frozenset())
