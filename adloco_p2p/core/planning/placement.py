"""The hosts of every instance of the next plan, and how an instance's batch is cut over its hosts and into passes."""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import median_high, median_low

from adloco_p2p.core.model.electorate import SILENT_ROUNDS, silent_rounds
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan, SwitchMode
from adloco_p2p.core.model.protocol import FIRST_UPGRADABLE, PROBATION_LIMITED
from adloco_p2p.core.model.roster_entry import RosterEntry
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import MAX_HOSTS, InstanceId, PeerId, shortened
from adloco_p2p.core.planning.apportionment import MIN_HOSTS, allocate_hosts, credible_speeds, share_batch
from adloco_p2p.core.planning.assessment import IDLE_FRACTION, describe_idle, idle_hosts
from adloco_p2p.core.planning.host_backoff import backed_off, describe_backoff
from adloco_p2p.core.planning.link_periods import ALL_IN_EVERY_AVERAGE, LinkPeriods
from adloco_p2p.core.planning.suspension import describe_suspensions, suspended
from adloco_p2p.core.planning.switch_mode import granted_batch, plan_batch

MAX_SECONDS = 1e30
LONGEST_FACTOR = 16.0
"""A round is expected to last at most this many times what the median host takes, whatever the slowest host claims: otherwise
the others would wait that long for a host that claims to stand still. A machine that really is slower misses averages, and is
backed off."""
FIRST_SHARE = 0.5
"""Part of a mean host's work that a newcomer gets. With it nobody waits for a newcomer whose state takes a quarter of the round
(`core/peer/fetching.py`) and which is a third slower than the others."""

_MODES: tuple[SwitchMode, ...] = ("single", "capped", "accumulate")
"""Modes in the order of the switch; an instance has the mode of the host that is furthest in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceDraft:
    """An instance on its way into the next plan. `plan` still has the hosts of the previous plan."""

    plan: InstancePlan
    holders: tuple[PeerId, ...]
    """Peers that hold the instance's state, or a part of its sources; they are preferred as hosts."""
    ready: tuple[PeerId, ...]
    """Peers that hold the whole state and can train at once; empty if no peer does, or every peer can make it from the run's
    seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The members that work in the next plan, and those that wait."""

    roster: tuple[RosterEntry, ...]
    """Members, each with whether it works or waits, and since when."""
    bench: tuple[PeerId, ...]
    """Members that wait, the longest wait first; members that cannot work come last."""
    max_hosts: int
    """Most hosts of an instance."""
    reason: str
    """Why members wait; empty if none does."""


def volunteers(roster: Sequence[RosterEntry]) -> list[RosterEntry]:
    """Return the members that are to train: neither keepers nor peers that leave, unless there are no others."""
    training = [roster_entry for roster_entry in roster if not roster_entry.capacity.is_keeper] or list(roster)
    return [roster_entry for roster_entry in training if not roster_entry.capacity.is_leaving] or training


def place_hosts(
    drafts: Sequence[InstanceDraft],
    turns: Turns,
    round: int,
    rules: Rules,
    protocol: int = FIRST_UPGRADABLE,
    *,
    periods: LinkPeriods = ALL_IN_EVERY_AVERAGE,
    is_plain: bool = True,
) -> tuple[tuple[InstancePlan, ...], float]:
    """Return the instances with their hosts and shares, and the computing time of the slowest host, in seconds; from protocol
    22 on, of the slowest full member with work.

    Peers that leave get nothing, unless all leave. Peers on the bench get no work; the first of them receive the averages, as
    long as an instance has fewer than its most hosts.

    A newcomer to the run fetches the state while the others begin the round, so its first share is smaller (FIRST_SHARE); if it
    finds that it would be too late, it withdraws (`core/peer/fetching.py`). Then its first report is missing, and it is given
    no work until that comes, however long its state takes. A member that is new to an instance only receives the first average,
    and so do all newcomers if instances are forked, merged or rewound (`is_plain`: none is forked or merged). So does a host
    that missed averages (`host_backoff.py`), or did not show what it sent to them (`suspension.py`), as long as another host
    can train. Seats whose reports are missing train only as a minority (`outvoted`), and so do members on probation
    (`without_surplus`; `protocol`: that of the plan before). A host with a slow link takes part in few averages, or has no
    instance (`periods`). A peer's speed is split over its instances by their requests. Keepers receive every average of as many
    instances as they hold, and are given no work.
    """
    benched = frozenset(turns.bench) | periods.benched(round)
    staying = [roster_entry for roster_entry in volunteers(turns.roster) if roster_entry.peer not in benched]
    limits = {roster_entry.peer: roster_entry.capacity.micro_batch_limit for roster_entry in staying}
    full = _full(staying, protocol)
    speeds = _credible_speeds(staying, full)
    hosts, unplaced = _allocated(drafts, staying, full, turns.max_hosts)
    receivers = _receivers(hosts, drafts, [*turns.bench, *unplaced], turns.max_hosts)
    starting = {entry.peer for entry in staying if entry.joined_round == round > 0}
    trainers = _trainers(drafts, hosts, staying, starting if is_plain else (), round, rules, periods)
    if protocol >= PROBATION_LIMITED:
        trainers = {instance: without_surplus(some, staying) for instance, some in trainers.items()}
    loads = dict.fromkeys(speeds, 0)
    for draft in drafts:
        for peer in trainers[draft.plan.instance]:
            loads[peer] += draft.plan.requested_batch
    placed = []
    seconds: dict[PeerId, list[float]] = {peer: [] for peer in speeds}
    for index, draft in enumerate(drafts):
        instance, requested = draft.plan.instance, draft.plan.requested_batch
        parts = _first_shares({peer: speeds[peer] * (requested / loads[peer]) for peer in trainers[instance]}, starting)
        here = periods.among(parts)
        parts = {peer: part * here.of(peer).fraction for peer, part in parts.items()}
        all_hosts = _with_keepers([*hosts[instance], *receivers[instance]], turns.roster, index)
        plan = _shared(draft.plan, _records(draft.plan, all_hosts, parts, here, round), parts, limits, rules, round)
        placed.append(plan)
        for share in plan.hosts:
            if speeds.get(share.peer, 0.0) > 0.0 and (protocol < PROBATION_LIMITED or (share.samples and share.peer in full)):
                seconds[share.peer].append(min(share.samples / speeds[share.peer], MAX_SECONDS))
    return tuple(placed), _expected_seconds([fsum(times) for times in seconds.values() if times])


def _full(staying: Sequence[RosterEntry], protocol: int) -> frozenset[PeerId]:
    """Return the full members among these, or all where none is one."""
    full = frozenset(entry.peer for entry in staying if not entry.probation or protocol < PROBATION_LIMITED)
    return full or frozenset(entry.peer for entry in staying)


def _credible_speeds(staying: Sequence[RosterEntry], full: Container[PeerId]) -> dict[PeerId, float]:
    """Return the speed by which each member gets work. The claims of names on probation, of which there may be any number, move
    no limit, and a name counts for the median full member at most."""
    claimed = [entry.speed for entry in staying]
    among = [entry.speed for entry in staying if entry.peer in full]
    speeds = dict(zip([entry.peer for entry in staying], credible_speeds(claimed, among=among), strict=True))
    median = median_low([speed for peer, speed in speeds.items() if peer in full and speed > 0.0] or [0.0])
    return {peer: speed if peer in full or not median else min(speed, median) for peer, speed in speeds.items()}


def _allocated(
    drafts: Sequence[InstanceDraft], staying: Sequence[RosterEntry], full: Container[PeerId], max_hosts: int
) -> tuple[Mapping[InstanceId, Sequence[PeerId]], list[PeerId]]:
    """Return the hosts of each instance, and members that get none. Full members are distributed first, as if they were alone,
    so that no number of names on probation takes an instance for itself; then each member on probation, in the order of the
    seats, gets the instance that it has or that lacks most hosts, as far as a request has a sample for it."""
    requests = {draft.plan.instance: draft.plan.requested_batch for draft in drafts}
    holders = {draft.plan.instance: draft.holders for draft in drafts}
    first = {entry.peer: entry.capacity.max_instances for entry in staying if entry.peer in full}
    hosts = allocate_hosts(requests, first, holders, max_hosts=max_hosts)
    seated, unplaced = {instance: list(some) for instance, some in hosts.items()}, []
    on_probation = [entry for entry in staying if entry.peer not in full]
    for entry in sorted(on_probation, key=lambda entry: (entry.joined_round, entry.peer)):
        room = {i: min(max_hosts, max(MIN_HOSTS, requests[i])) - len(some) for i, some in seated.items()}
        open_ones = [instance for instance in sorted(room) if room[instance] > 0]
        held = [instance for instance in open_ones if entry.peer in holders[instance]]
        if open_ones:
            seated[max(held or open_ones, key=lambda instance: (room[instance], -instance))].append(entry.peer)
        else:
            unplaced.append(entry.peer)
    return {instance: tuple(sorted(some)) for instance, some in seated.items()}, unplaced


def _expected_seconds(times: Sequence[float]) -> float:
    """Return the expected duration of a round from the times of the hosts that count and have known speeds; 0 if there are
    none."""
    return min(max(times), LONGEST_FACTOR * median_high(times), MAX_SECONDS) if times else 0.0


def _trainers(
    drafts: Sequence[InstanceDraft],
    hosts: Mapping[InstanceId, Sequence[PeerId]],
    staying: Sequence[RosterEntry],
    starting: Collection[PeerId],
    round: int,
    rules: Rules,
    periods: LinkPeriods,
) -> dict[InstanceId, list[PeerId]]:
    """Return which hosts of each instance get work in this round. `starting`: newcomers that may fetch the state within it."""
    fetching = {entry.peer for entry in staying if _is_new(entry) and silent_rounds(entry, round) > 0}
    trainers = {}
    for draft in drafts:
        starts = starting if draft.plan.rewind is None else ()
        ready = _ready(draft, hosts[draft.plan.instance], starts, fetching, periods, round)
        candidates = backed_off(ready, draft.plan.hosts, round)
        trainers[draft.plan.instance] = outvoted(candidates, staying, round, is_open=rules.admission.kind != "tickets")
    return trainers


def _ready(
    draft: InstanceDraft,
    there: Sequence[PeerId],
    starting: Container[PeerId],
    fetching: Container[PeerId],
    periods: LinkPeriods,
    round: int,
) -> Sequence[PeerId]:
    """Return the hosts that can train the instance in this round; each condition applies only as long as it leaves a host.
    `starting` are newcomers that may fetch the state within the round, `fetching` those that have not reported since they
    joined."""
    holding = [peer for peer in there if peer in draft.ready]
    ready = [peer for peer in there if peer in holding or peer in starting] if holding else there
    resting = suspended(draft.plan.hosts, round)
    ready = [peer for peer in ready if peer not in resting] or ready
    ready = [peer for peer in ready if periods.of(peer).is_training(round)] or ready
    return [peer for peer in ready if peer not in fetching] or ready


def _receivers(
    hosts: Mapping[InstanceId, Sequence[PeerId]], drafts: Sequence[InstanceDraft], bench: Sequence[PeerId], max_hosts: int
) -> dict[InstanceId, list[PeerId]]:
    """Return the peers on the bench that follow each instance: one that they hold, or else the one with the fewest hosts."""
    receivers: dict[InstanceId, list[PeerId]] = {instance: [] for instance in hosts}
    for peer in bench:
        open_ones = [draft for draft in drafts if _num_hosts(draft, hosts, receivers) < max_hosts]
        if not open_ones:
            break
        held = [draft for draft in open_ones if peer in draft.holders]
        chosen = min(held or open_ones, key=lambda draft: _num_hosts(draft, hosts, receivers))
        receivers[chosen.plan.instance].append(peer)
    return receivers


def _num_hosts(draft: InstanceDraft, *hosts: Mapping[InstanceId, Sequence[PeerId]]) -> int:
    return sum(len(kind[draft.plan.instance]) for kind in hosts)


def outvoted(candidates: Sequence[PeerId], roster: Sequence[RosterEntry], round: int, *, is_open: bool = False) -> list[PeerId]:
    """Return the candidates without some of those whose reports are missing, the latest seats first, so that those that report
    are more than half. All train if no candidate has reported.

    A newcomer's first report is missing, except in the plan after that of its seat; in an open run, where identities may keep
    coming, in that plan, too. Reports of any other member are missing once it has been silent for SILENT_ROUNDS.

    An average counts with the votes of more than half of the hosts that train it, so seats that only exist must not be half of
    them. A peer without work reports, too, and trains again after that.
    """
    missing = [
        entry.peer
        for entry in sorted(roster, key=lambda entry: (entry.joined_round, entry.peer))
        if entry.peer in candidates and _lacks_report(entry, round, is_open=is_open)
    ]
    num_reporting = len(candidates) - len(missing)
    left_out = missing[num_reporting - 1 :] if num_reporting else []
    return [peer for peer in candidates if peer not in left_out]


def without_surplus(candidates: Sequence[PeerId], roster: Sequence[RosterEntry]) -> list[PeerId]:
    """Return the candidates without some of those on probation, the latest seats first, so that full members are more than
    half; beside a single full member one may train. All train if no candidate is a full member.

    Every host that trains has one commit vote, and its report names a state and who took part, whatever it weighs: names that
    have not served their probation must not decide these either.
    """
    seats = sorted(roster, key=lambda entry: (entry.joined_round, entry.peer))
    on_probation = [entry.peer for entry in seats if entry.probation and entry.peer in candidates]
    num_full = len(candidates) - len(on_probation)
    left_out = on_probation[max(1, num_full - 1) :] if num_full else []
    return [peer for peer in candidates if peer not in left_out]


def _is_new(entry: RosterEntry) -> bool:
    return entry.joined_round > 0 and entry.last_report is None


def _lacks_report(entry: RosterEntry, round: int, *, is_open: bool) -> bool:
    is_new = _is_new(entry)
    if is_new and (is_open or entry.joined_round == round):
        return True  # it may not have the state in time
    return silent_rounds(entry, round) >= (1 if is_new else SILENT_ROUNDS)


def _first_shares(speeds: Mapping[PeerId, float], starting: Container[PeerId]) -> dict[PeerId, float]:
    """Return the speeds by which a batch is cut. Newcomers among the hosts, whose own speed is unknown, count for FIRST_SHARE
    of a mean host."""
    known = [speed for speed in speeds.values() if speed > 0.0]
    first = FIRST_SHARE * fsum(known) / len(known) if known else 0.0
    return {peer: first if peer in starting and not speed else speed for peer, speed in speeds.items()}


def _with_keepers(hosts: Sequence[PeerId], roster: Sequence[RosterEntry], index: int) -> list[PeerId]:
    """Return the hosts of the instance at this index, sorted, with the keepers that hold so many instances, as far as there is
    room."""
    offers = {entry.peer: entry.capacity for entry in roster if entry.capacity.is_keeper and not entry.capacity.is_leaving}
    keepers = [peer for peer, capacity in offers.items() if peer not in hosts and index < capacity.max_instances]
    return sorted([*hosts, *keepers[: max(0, MAX_HOSTS - len(hosts))]])


def _records(
    plan: InstancePlan, hosts: Sequence[PeerId], working: Container[PeerId], periods: LinkPeriods, round: int
) -> list[HostShare]:
    """Return shares without work: what the plan before remembers of each host, its first round with work, and its period."""
    known = {share.peer: share for share in plan.hosts}
    places = {share.peer: place for place, share in enumerate(plan.hosts)}
    records = []
    for peer in hosts:
        before = known.get(peer)
        works_from = before.works_from if before else round
        records.append(
            HostShare(
                peer=peer,
                batch_samples=0,
                inner_steps=0,
                micro_batch_size=0,
                accumulation_steps=0,
                first_sample=0,
                missed_averages=before.missed_averages if before else 0,
                suspensions=before.suspensions if before else 0,
                suspended_until=before.suspended_until if before else 0,
                scores=before.scores if before else (),
                works_from=min(works_from, round) if peer in working else max(works_from, round + 1),
                place_before=places.get(peer),
                averages_every=periods.of(peer).every,
                every_before=before.averages_every if before else 1,
            )
        )
    return records


def _shared(
    plan: InstancePlan,
    records: Sequence[HostShare],
    speeds: Mapping[PeerId, float],
    limits: Mapping[PeerId, int],
    rules: Rules,
    round: int,
) -> InstancePlan:
    """Return the instance with its batch cut over the hosts that have a speed here, and each part cut into passes."""
    idle = idle_hosts({record.peer: record.scores for record in records if record.peer in speeds})
    fractions = [IDLE_FRACTION if peer in idle else 1.0 for peer in speeds]
    shared = share_batch(plan.requested_batch, list(speeds.values()), rules.work, fractions=fractions if idle else ())
    cuts = dict(zip(speeds, shared, strict=True))
    shares: list[HostShare] = []
    modes: dict[SwitchMode, str] = {}
    first_sample = plan.first_sample
    for record in records:
        share = replace(record, first_sample=first_sample)
        if record.peer in cuts:
            batch, steps = cuts[record.peer]
            passes, why = plan_batch(batch, micro_batch_limit=limits[record.peer], rules=rules.switch)
            modes.setdefault(passes.mode, f"{record.peer} {why}")
            share = replace(
                share,
                batch_samples=granted_batch(batch, passes, rules=rules.switch),
                inner_steps=steps,
                micro_batch_size=passes.micro_batch_size,
                accumulation_steps=passes.accumulation_steps,
            )
        first_sample += share.samples
        shares.append(share)
    mode = max(modes, key=_MODES.index)
    reasons = [
        describe_backoff(shares),
        describe_suspensions(shares, round),
        describe_idle(shares, idle),
        "" if mode == "single" else modes[mode],
        plan.reason,
    ]
    reason = "; ".join(text for text in reasons if text)
    effective = sum(share.effective_batch for share in shares)
    return replace(plan, effective_batch=effective, mode=mode, reason=shortened(reason), hosts=tuple(shares))
