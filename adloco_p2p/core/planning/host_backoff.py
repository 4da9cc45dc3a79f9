"""Backoff of hosts that committed averages leave out again and again: they get no work for a while, and are then tried again.

Such a host cannot be reached, is too slow, or sends unusable data; each round with it costs the others a failed attempt. During
its backoff it receives the averages like a newcomer, so that it can continue at once when it is reachable again. The reports of
a round take effect two plans later, so a host is tried for two rounds. All of it is a pure function of the shares of the plan
before and of the reports.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.scalars import PeerId

MISSED_AVERAGES_LIMIT = 3
"""Averages missed in a row after which a host backs off."""
SHORTEST_BACKOFF_ROUNDS = 4
"""Length of the first backoff; each further one is twice as long."""
LONGEST_BACKOFF_ROUNDS = 16
"""Greatest length of a backoff."""


def backoff_rounds(missed_averages: int) -> int:
    """Return the rounds without work for a host that missed this many averages in a row; 0 if it keeps its work."""
    if missed_averages < MISSED_AVERAGES_LIMIT:
        return 0
    return min(SHORTEST_BACKOFF_ROUNDS << min(missed_averages - MISSED_AVERAGES_LIMIT, 8), LONGEST_BACKOFF_ROUNDS)


def update_miss_counts(
    hosts: Sequence[HostShare],
    claims: Mapping[PeerId, InstanceReport],
    *,
    joined: Mapping[PeerId, int],
    round: int,
    next_round: int,
) -> tuple[HostShare, ...]:
    """Return the shares, updated by the reports of `round`, for the plan of `next_round`. `joined` is the round in which each
    host got its seat.

    A host is in the average, or missed it, if more than half of the reports agree on that; otherwise nothing is known. A host
    without work in that round keeps its count. If a round was void and the hosts contradict each other, the one of them that
    joined last missed it: otherwise two hosts that cannot reach each other would make all rounds void.
    """
    had_work = {
        share.peer: _num_naming(share.place_before, claims)
        for share in hosts
        if share.place_before is not None and share.had_work(round)
    }
    if claims and all(claim.is_void for claim in claims.values()):
        contested = [peer for peer, num_naming in had_work.items() if 2 * num_naming == len(claims)]
        if contested:
            had_work[max(contested, key=lambda peer: (joined.get(peer, next_round), peer))] = 0
    return tuple(
        _update_miss_count(share, had_work[share.peer], len(claims), next_round) if share.peer in had_work else share
        for share in hosts
    )


def _num_naming(place: int, claims: Mapping[PeerId, InstanceReport]) -> int:
    return sum(claim.contributors >> place & 1 for claim in claims.values())


def _update_miss_count(share: HostShare, num_naming: int, num_claims: int, next_round: int) -> HostShare:
    if 2 * num_naming == num_claims:  # also if there are no reports
        return share
    if 2 * num_naming > num_claims:
        return replace(share, missed_averages=0)
    missed_averages = share.missed_averages + 1
    rounds = backoff_rounds(missed_averages)
    return replace(share, missed_averages=missed_averages, works_from=next_round + rounds if rounds else share.works_from)


def backed_off(candidates: Sequence[PeerId], hosts: Iterable[HostShare], round: int) -> list[PeerId]:
    """Return the candidates that are not in backoff in this round, or all if no other is left, so that every instance has a
    host that trains it."""
    backed_off = {share.peer for share in hosts if share.works_from > round and share.missed_averages >= MISSED_AVERAGES_LIMIT}
    return [peer for peer in candidates if peer not in backed_off] or list(candidates)


def describe_backoff(hosts: Iterable[HostShare]) -> str:
    """Describe which hosts get no work in this plan, and for how long; empty if none is in backoff."""
    backed_off = [share for share in hosts if share.batch_samples == 0 and share.missed_averages >= MISSED_AVERAGES_LIMIT]
    named = ", ".join(
        f"{share.peer} before round {share.works_from} (missed {share.missed_averages} averages)" for share in backed_off
    )
    return f"no work for {named}" if named else ""
