"""Who hosts what in the next plan, and how an instance's batch is cut over its hosts and into passes."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import median

from adloco_p2p.core.apportion import allocate_hosts, credible_speeds, share_batch
from adloco_p2p.core.left_out import rested, why_resting
from adloco_p2p.core.merge_policy import shortened
from adloco_p2p.core.rules import Rules
from adloco_p2p.core.switch_mode import granted_batch, plan_batch
from adloco_p2p.core.types import HostShare, InstancePlan, PeerId, Seat, SwitchMode

MAX_SECONDS = 1e30

_MODES: tuple[SwitchMode, ...] = ("single", "capped", "accumulate")
"""From the first region of the switch to the last: an instance's mode is that of its host that went furthest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An instance on its way into the next plan. `plan` still has the hosts of the previous plan."""

    plan: InstancePlan
    holders: tuple[PeerId, ...]
    """Who holds its state, or a part of what it is made from: preferred as hosts."""
    ready: tuple[PeerId, ...]
    """Who holds all of it and can train at once; empty: nobody, or everybody can make it from the run's seed."""


def seated(lines: Sequence[Line], roster: Sequence[Seat], round: int, rules: Rules) -> tuple[tuple[InstancePlan, ...], float]:
    """Hosts and their shares, and the seconds of the slowest host. Peers that leave get nothing, unless everybody leaves.

    A host that is new to an instance has to fetch its state first, so it only receives the first average, and so does a host
    that averages left out (`left_out.py`), as long as somebody else is there who can train. A peer's speed is split over its
    instances by their requests.
    """
    staying = [seat for seat in roster if not seat.capacity.is_leaving] or list(roster)
    limits = {seat.peer: seat.capacity.micro_batch_limit for seat in staying}
    claimed = [float(median(seat.speeds)) if seat.speeds else 0.0 for seat in staying]
    speeds = dict(zip([seat.peer for seat in staying], credible_speeds(claimed), strict=True))
    hosts = allocate_hosts(
        {line.plan.instance: line.plan.requested_batch for line in lines},
        {seat.peer: seat.capacity.max_instances for seat in staying},
        {line.plan.instance: line.holders for line in lines},
    )
    trainers = {}
    for line in lines:
        there = hosts[line.plan.instance]
        trainers[line.plan.instance] = rested([p for p in there if p in line.ready] or there, line.plan.hosts, round)
    loads = dict.fromkeys(speeds, 0)
    for line in lines:
        for peer in trainers[line.plan.instance]:
            loads[peer] += line.plan.requested_batch
    seated = []
    seconds: dict[PeerId, list[float]] = {peer: [] for peer in speeds}
    for line in lines:
        instance, requested = line.plan.instance, line.plan.requested_batch
        parts = {peer: speeds[peer] * (requested / loads[peer]) for peer in trainers[instance]}
        plan = _shared(line.plan, _records(line.plan, hosts[instance], parts, round), parts, limits, rules)
        seated.append(plan)
        for share in plan.hosts:
            if speeds[share.peer] > 0.0:
                seconds[share.peer].append(min(share.samples / speeds[share.peer], MAX_SECONDS))
    return tuple(seated), min(max(fsum(times) for times in seconds.values()), MAX_SECONDS)


def _records(plan: InstancePlan, hosts: Sequence[PeerId], working: Container[PeerId], round: int) -> list[HostShare]:
    """Empty shares: only what the plan before remembers of each host, and from when on it works."""
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
                left_out=before.left_out if before else 0,
                works_from=min(works_from, round) if peer in working else max(works_from, round + 1),
                place_before=places.get(peer),
            )
        )
    return records


def _shared(
    plan: InstancePlan,
    records: Sequence[HostShare],
    speeds: Mapping[PeerId, float],
    limits: Mapping[PeerId, int],
    rules: Rules,
) -> InstancePlan:
    """The instance with its batch cut over the hosts that have a speed here, and each part cut into passes."""
    cuts = dict(zip(speeds, share_batch(plan.requested_batch, list(speeds.values()), rules.work), strict=True))
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
    reasons = [why_resting(shares), "" if mode == "single" else modes[mode], plan.reason]
    reason = "; ".join(text for text in reasons if text)
    effective = sum(share.effective_batch for share in shares)
    return replace(plan, effective_batch=effective, mode=mode, reason=shortened(reason), hosts=tuple(shares))
