"""Hosts that the committed averages leave out again and again: they get no work for a while, then are tried again.

Such a host cannot be reached, is too slow, or sends what nobody can use; each round with it costs the others a failed attempt.
While it rests it receives the averages like a newcomer, so that it can go on at once where it is reached again. The reports
of a round are there two plans later, so a host that is tried again is tried for two rounds. All of it is a pure function of
the shares of the plan before and of the reports.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from adloco_p2p.core.model.types import HostShare, InstanceReport, PeerId

MISSED_AVERAGES_LIMIT = 3
"""Left out so many times running, a host rests."""
SHORTEST_BACKOFF_ROUNDS = 4
"""The first rest; each one that follows is twice as long, ..."""
LONGEST_BACKOFF_ROUNDS = 16
"""... up to this."""


def backoff_rounds(missed_averages: int) -> int:
    """Rounds without work for a host that is left out for the `missed_averages`-th time running; 0 where it goes on."""
    if missed_averages < MISSED_AVERAGES_LIMIT:
        return 0
    return min(SHORTEST_BACKOFF_ROUNDS << min(missed_averages - MISSED_AVERAGES_LIMIT, 8), LONGEST_BACKOFF_ROUNDS)


def update_miss_counts(
    hosts: Sequence[HostShare], claims: Mapping[PeerId, InstanceReport], *, round: int, next_round: int
) -> tuple[HostShare, ...]:
    """The shares with what the reports of `round` say of them, for the plan of `next_round`.

    A host is in the average, or left out of it, where more than half of the reports agree on that; otherwise nothing is known.
    Who had no work in that round is not judged.
    """
    return tuple(
        share
        if share.works_from > round or share.place_before is None
        else _update_miss_count(share, _num_naming(share.place_before, claims), len(claims), next_round)
        for share in hosts
    )


def _num_naming(place: int, claims: Mapping[PeerId, InstanceReport]) -> int:
    return sum(claim.contributors >> place & 1 for claim in claims.values())


def _update_miss_count(share: HostShare, num_naming: int, num_claims: int, next_round: int) -> HostShare:
    if 2 * num_naming == num_claims:  # also where nobody reported
        return share
    if 2 * num_naming > num_claims:
        return replace(share, missed_averages=0)
    missed_averages = share.missed_averages + 1
    rest = backoff_rounds(missed_averages)
    return replace(share, missed_averages=missed_averages, works_from=next_round + rest if rest else share.works_from)


def backed_off(candidates: Sequence[PeerId], hosts: Iterable[HostShare], round: int) -> list[PeerId]:
    """Candidates that do not rest in this round, or all where nobody else is left: an instance is never without a host that
    trains it."""
    resting = {share.peer for share in hosts if share.works_from > round and share.missed_averages >= MISSED_AVERAGES_LIMIT}
    return [peer for peer in candidates if peer not in resting] or list(candidates)


def describe_backoff(hosts: Iterable[HostShare]) -> str:
    """In words, who gets no work in this plan and for how long; empty where nobody rests."""
    resting = [share for share in hosts if share.batch_samples == 0 and share.missed_averages >= MISSED_AVERAGES_LIMIT]
    named = ", ".join(
        f"{share.peer} before round {share.works_from} (left out {share.missed_averages} times)" for share in resting
    )
    return f"no work for {named}" if named else ""
