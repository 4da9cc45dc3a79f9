"""Which members host instances and which wait on the bench, where more come than can work. Pure.

An instance has at most as many hosts as an inner step of its batch has samples, and at most `WorkRules.max_hosts`. The members
beyond that wait on the bench: they host nothing, report that they live, and so keep their seats. They take turns. A turn lasts
`WorkRules.turn_rounds` rounds, since a host that is new has to fetch the state first; then the host makes room for the member
that has waited longest, a few hosts at a time, so that most of them hold the state. A host that goes, falls silent, is backed
off or is suspended is replaced at once.

`RosterEntry.turn_from` is all that the rule remembers of a member: since which round it hosts, or waits.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from adloco_p2p.core.model.electorate import SILENT_ROUNDS, silent_rounds
from adloco_p2p.core.model.measurers import lot
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.types import MAX_HOSTS, Digest, HostShare, PeerId, RosterEntry
from adloco_p2p.core.model.words import plural
from adloco_p2p.core.planning.apportionment import MIN_HOSTS
from adloco_p2p.core.planning.host_backoff import MISSED_AVERAGES_LIMIT
from adloco_p2p.core.planning.placement import InstanceDraft, volunteers

YIELD_PART = 4
"""At most one of so many hosts makes room per plan, and one at least: those that come have no state yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The members that host in the next plan, and those that wait."""

    roster: tuple[RosterEntry, ...]
    """With the rounds from which they host or wait."""
    max_hosts: int
    """Of an instance."""
    benched: frozenset[PeerId]
    reason: str
    """Empty where nobody waits."""


def take_turns(
    drafts: Sequence[InstanceDraft],
    roster: Sequence[RosterEntry],
    *,
    run: Digest,
    round: int,
    work: WorkRules,
    is_last: bool = False,
) -> Turns:
    """The turns in the plan of this round. `drafts` still have the hosts of the plan before. After the last round, where
    nothing is trained, all members get the model."""
    if is_last:
        return Turns(roster=tuple(roster), benched=frozenset(), max_hosts=MAX_HOSTS, reason="")
    places = sum(_num_places(draft.plan.requested_batch, work) for draft in drafts)
    before = frozenset(peer for draft in drafts for peer in draft.holders)
    rests = _rests([share for draft in drafts for share in draft.plan.hosts])
    offers = {entry.peer: entry for entry in volunteers(roster)}
    hosting = frozenset(offers)
    if len(offers) > places:
        drawn = {peer: lot(f"{run}:{round}", peer) for peer in offers}
        in_order = sorted(offers.values(), key=lambda entry: (entry.turn_from, entry.joined_round, drawn[entry.peer]))
        able, others = _ranked(in_order, before, rests, places=places, round=round, work=work)
        chosen = [*_shared_with_newcomers(able, places), *others][:places]
        hosting = frozenset(entry.peer for entry in chosen)
    benched = frozenset(offers) - hosting
    entries = tuple(
        replace(entry, turn_from=_turn_from(entry, hosting, before, rests, round)) if entry.peer in offers else entry
        for entry in roster
    )
    reason = _describe(drafts, len(benched), work) if benched else ""
    return Turns(roster=entries, benched=benched, max_hosts=work.max_hosts, reason=reason)


def _num_places(requested: int, work: WorkRules) -> int:
    """Hosts that an instance can have: every one does at least one sample per inner step."""
    return min(work.max_hosts, max(MIN_HOSTS, requested))


def _rests(shares: Sequence[HostShare]) -> dict[PeerId, int]:
    """From which round on each host may have work again, of any of its instances."""
    rests: dict[PeerId, int] = {}
    for share in shares:
        backed_off_until = share.works_from if share.missed_averages >= MISSED_AVERAGES_LIMIT else 0
        until = max(share.suspended_until, backed_off_until)
        rests[share.peer] = min(until, rests.get(share.peer, until))
    return rests


def _ranked(
    in_order: Sequence[RosterEntry],
    before: Container[PeerId],
    rests: Mapping[PeerId, int],
    *,
    places: int,
    round: int,
    work: WorkRules,
) -> tuple[list[RosterEntry], list[RosterEntry]]:
    """Those that can work, by rank, and the others. `in_order`: by the rounds since which they host or wait. First come hosts
    whose turn lasts, the latest before the earlier ones; then members that wait, the longest wait first; then the hosts that
    make room for them."""

    def is_able(entry: RosterEntry) -> bool:
        from_round = rests.get(entry.peer, 0) if entry.peer in before else entry.turn_from
        return silent_rounds(entry, round) < SILENT_ROUNDS and from_round <= round

    able = [entry for entry in in_order if is_able(entry)]
    hosts = [entry for entry in able if entry.peer in before]
    waiting = [entry for entry in able if entry.peer not in before]
    most = max(1, places // YIELD_PART)
    yielding = [entry for entry in hosts if round - entry.turn_from >= work.turn_rounds][:most]
    staying = hosts[len(yielding) :]  # those whose turn is over come first in this order
    return [*reversed(staying), *waiting, *yielding], [entry for entry in in_order if not is_able(entry)]


def _shared_with_newcomers(ranked: Sequence[RosterEntry], places: int) -> list[RosterEntry]:
    """The first ones, of which at most half are on probation as long as others can work: names that have cost nothing yet must
    not be most of the hosts."""
    first, rest = ranked[:places], ranked[places:]
    surplus = [entry for entry in first if entry.probation][places // 2 :]
    members = [entry for entry in rest if not entry.probation][: len(surplus)]
    dropped = {entry.peer for entry in surplus[len(surplus) - len(members) :]}
    return [entry for entry in first if entry.peer not in dropped] + members


def _turn_from(
    entry: RosterEntry, hosting: Container[PeerId], before: Container[PeerId], rests: Mapping[PeerId, int], round: int
) -> int:
    if entry.joined_round == round or (entry.peer in hosting and entry.peer not in before):
        return round
    if entry.peer in before and entry.peer not in hosting:
        return max(round, rests.get(entry.peer, round))
    return entry.turn_from


def _describe(drafts: Sequence[InstanceDraft], num_benched: int, work: WorkRules) -> str:
    is_fed = all(draft.plan.requested_batch >= work.max_hosts for draft in drafts)
    samples = sum(draft.plan.requested_batch for draft in drafts)
    limit = f"an instance has at most {plural(work.max_hosts, 'host')}" if is_fed else f"too few samples per step, {samples}"
    return f"{plural(num_benched, 'peer')} on the bench: {limit}"
