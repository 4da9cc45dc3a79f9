"""The bench: which members work, which wait, and which of those hold the state, if there are more members than places. Pure.

An instance gives work to at most as many hosts as an inner step of its batch has samples, and has at most
`WorkRules.max_hosts`. The other members wait on the bench: they have no work, report that they are alive, and so keep their
seats. Those that have waited longest, as many as an instance may have hosts, host all the same: they receive the averages,
serve the state, and can take over at once. Members take turns. After `WorkRules.turn_rounds` rounds a host makes room for the
member that has waited longest, only a few hosts at a time, so that most of the working hosts hold the state. A host that goes,
falls silent, is backed off or is suspended is replaced at once. A member that has never reported waits behind all others:
identities that only asked for a seat must not take the places of hosts that hold the state.

The rule remembers nothing of a member but `RosterEntry.is_waiting` and `turn_from`.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from adloco_p2p.core.model.electorate import SILENT_ROUNDS, silent_rounds
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.measurers import lot
from adloco_p2p.core.model.protocol import PROBATION_LIMITED
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import MAX_HOSTS, Digest, PeerId
from adloco_p2p.core.model.words import plural
from adloco_p2p.core.planning.apportionment import MIN_HOSTS
from adloco_p2p.core.planning.host_backoff import MISSED_AVERAGES_LIMIT
from adloco_p2p.core.planning.placement import InstanceDraft, Turns, volunteers

YIELD_PART = 4
"""Only one host in this many, but at least one, makes room per plan, because those that come have no state yet."""


def take_turns(
    drafts: Sequence[InstanceDraft],
    roster: Sequence[RosterEntry],
    *,
    run: Digest,
    round: int,
    work: WorkRules,
    protocol: int,
    is_last: bool = False,
    slow: Container[PeerId] = (),
) -> Turns:
    """Return the turns in the plan of this round. `drafts` still have the hosts of the plan before. After the last round, when
    nothing is trained, all members get the model. `slow` are members that wait because of their links (`link_periods.py`)."""
    if is_last:
        return Turns(roster=tuple(roster), bench=(), max_hosts=MAX_HOSTS, reason="")
    roster = [replace(e, is_waiting=True, turn_from=round) if e.joined_round == round else e for e in roster]
    places_by_draft = [_num_places(draft.plan.requested_batch, work) for draft in drafts]
    places, num_new = sum(places_by_draft), sum(_most_on_probation(number, protocol) for number in places_by_draft)
    rests = _rests([share for draft in drafts for share in draft.plan.hosts])
    drawn = {entry.peer: lot(f"{run}:{entry.turn_from}", entry.peer) for entry in roster}
    offers = [entry for entry in volunteers(roster) if entry.peer not in slow]
    in_order = sorted(offers, key=lambda entry: (entry.turn_from, entry.joined_round, drawn[entry.peer]))
    working, bench = in_order, list[RosterEntry]()
    if len(in_order) > places:
        able, others = _ranked(in_order, rests, places=places, round=round, work=work)
        working = [*_shared_with_newcomers(able, places, num_new), *others][:places]
        chosen = {entry.peer for entry in working}
        bench = [entry for entry in (*_by_wait(able), *others) if entry.peer not in chosen]
    began = {entry.peer: replace(entry, is_waiting=False, turn_from=round) for entry in working if entry.is_waiting}
    ended = {
        entry.peer: replace(entry, is_waiting=True, turn_from=max(round, rests.get(entry.peer, round)))
        for entry in bench
        if not entry.is_waiting
    }
    changed = began | ended
    return Turns(
        roster=tuple(changed.get(entry.peer, entry) for entry in roster),
        bench=tuple(entry.peer for entry in bench),
        max_hosts=work.max_hosts,
        reason=_describe(drafts, len(bench), work) if bench else "",
    )


def _by_wait(entries: Sequence[RosterEntry]) -> list[RosterEntry]:
    """Sort members that already wait before those whose turn ends now."""
    return sorted(entries, key=lambda entry: not entry.is_waiting)


def _num_places(requested: int, work: WorkRules) -> int:
    """Return how many hosts an instance can have: each does at least one sample per inner step."""
    return min(work.max_hosts, max(MIN_HOSTS, requested))


def _rests(shares: Sequence[HostShare]) -> dict[PeerId, int]:
    """Return the first round in which each host may have work again, in any of its instances."""
    rests: dict[PeerId, int] = {}
    for share in shares:
        backed_off_until = share.works_from if share.missed_averages >= MISSED_AVERAGES_LIMIT else 0
        until = max(share.suspended_until, backed_off_until)
        rests[share.peer] = min(until, rests.get(share.peer, until))
    return rests


def _ranked(
    in_order: Sequence[RosterEntry], rests: Mapping[PeerId, int], *, places: int, round: int, work: WorkRules
) -> tuple[list[RosterEntry], list[RosterEntry]]:
    """Return the members that can work, by rank, and the others. `in_order` is sorted by the rounds since which they work or
    wait. First come hosts whose turn lasts, the latest first; then members that wait, the longest wait first; then the hosts
    that make room for them."""

    def is_able(entry: RosterEntry) -> bool:
        if entry.is_waiting and entry.last_report is None:
            return False
        from_round = entry.turn_from if entry.is_waiting else rests.get(entry.peer, 0)
        return silent_rounds(entry, round) < SILENT_ROUNDS and from_round <= round

    able = [entry for entry in in_order if is_able(entry)]
    hosts = [entry for entry in able if not entry.is_waiting]
    waiting = [entry for entry in able if entry.is_waiting]
    most = max(1, places // YIELD_PART)
    yielding = [entry for entry in hosts if round - entry.turn_from >= work.turn_rounds][:most]
    staying = hosts[len(yielding) :]  # hosts whose turn is over come first in this order
    return [*reversed(staying), *waiting, *yielding], [entry for entry in in_order if not is_able(entry)]


def _most_on_probation(places: int, protocol: int) -> int:
    """Return how many hosts of an instance with so many places may be on probation: a minority, or one of two, which is the
    limit of `without_surplus`."""
    return max(1, (places - 1) // 2) if protocol >= PROBATION_LIMITED else places // 2


def _shared_with_newcomers(ranked: Sequence[RosterEntry], places: int, num_new: int) -> list[RosterEntry]:
    """Return the first `places` members, of which `num_new` may be on probation as long as others can work: identities that
    have not cost anything yet must not be most of the hosts."""
    first, rest = ranked[:places], ranked[places:]
    surplus = [entry for entry in first if entry.probation][num_new:]
    members = [entry for entry in rest if not entry.probation][: len(surplus)]
    dropped = {entry.peer for entry in surplus[len(surplus) - len(members) :]}
    return [entry for entry in first if entry.peer not in dropped] + members


def _describe(drafts: Sequence[InstanceDraft], num_benched: int, work: WorkRules) -> str:
    is_fed = all(draft.plan.requested_batch >= work.max_hosts for draft in drafts)
    samples = sum(draft.plan.requested_batch for draft in drafts)
    limit = f"an instance has at most {plural(work.max_hosts, 'host')}" if is_fed else f"too few samples per step, {samples}"
    return f"{plural(num_benched, 'peer')} on the bench: {limit}"
