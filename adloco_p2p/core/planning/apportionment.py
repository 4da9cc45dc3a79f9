"""Apportionment by largest remainder: hosts over instances, and a batch over the hosts of an instance
(docs/mathematics.md, 7)."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, fsum
from statistics import median_high, median_low

from adloco_p2p.core.model.rules import WorkRules
from adloco_p2p.core.model.scalars import MAX_HOSTS, InstanceId, PeerId

MIN_HOSTS = 2
"""Hosts that an instance gets however small its batch is: a single host has no second copy and no pseudo-gradient statistic."""
FASTEST_CLAIM = 16.0
"""A speed counts for at most this many times the median one. That bounds what a liar gains; a truly faster host waits."""
SLOWEST_CLAIM = 1 / 256
"""A speed counts for at least this fraction of the median one, so that no claim can make the swarm expect a round of years."""
LARGEST_PART = 0.25
"""Largest part of the whole that a host gets, with MIN_CAPPED hosts or more."""
MIN_CAPPED = 4
MEDIAN_FACTOR = 2.0
"""Largest multiple of the median part that a host gets."""


def largest_remainder(total: int, weights: Sequence[float], *, caps: Sequence[int] | None = None) -> list[int]:
    """Return whole numbers that sum to `total`, as proportional to `weights` as possible, each at least one and at most its
    cap.

    Ties go to the lower index. Weights that are all zero count as equal. `total` must lie between the number of weights and the
    sum of the caps.
    """
    limits = list(caps) if caps is not None else [total] * len(weights)
    assert len(weights) <= total <= sum(limits) and all(limit >= 1 for limit in limits)
    weight_sum = fsum(weights)
    quotas = [total * (weight / weight_sum) if weight_sum > 0.0 else total / len(weights) for weight in weights]
    shares = [min(max(1, floor(quota)), limit) for quota, limit in zip(quotas, limits, strict=True)]
    while sum(shares) < total:
        open_ones = [i for i, share in enumerate(shares) if share < limits[i]]
        shares[min(open_ones, key=lambda i: (shares[i] - quotas[i], i))] += 1
    while sum(shares) > total:
        rich = [i for i, share in enumerate(shares) if share > 1]
        shares[min(rich, key=lambda i: (quotas[i] - shares[i], i))] -= 1
    return shares


def allocate_hosts(
    requests: Mapping[InstanceId, int],
    max_instances: Mapping[PeerId, int],
    previous: Mapping[InstanceId, Sequence[PeerId]],
    *,
    max_hosts: int = MAX_HOSTS,
) -> dict[InstanceId, tuple[PeerId, ...]]:
    """Return which peers host which instance, by the requested global batches. Every instance gets a host and, as long as
    `max_hosts` per instance allows, every peer gets an instance.

    All peers host the same number of instances, as far as their memory holds them: as many as the requests can feed, since
    every host of an instance does at least one sample per step. If the memory of all peers together holds less than all
    instances, they host more than they offered, as a lone peer does, because an instance without a host is lost. A host keeps
    its instances if possible, because a move costs a state transfer.
    """
    assert requests and max_instances
    instances, peers = sorted(requests), sorted(max_instances)
    slots = [min(max_instances[peer], len(instances)) for peer in peers]
    if sum(slots) < len(instances):
        slots = [max(slot, ceil(len(instances) / len(peers))) for slot in slots]
    most = min(len(peers), max_hosts)
    caps = [min(most, max(MIN_HOSTS, requests[instance])) for instance in instances]
    load = _common_load(slots, num_instances=len(instances), fed=sum(caps))
    loads = dict(zip(peers, [min(load, slot) for slot in slots], strict=True))
    if sum(loads.values()) > sum(caps):
        caps = [most] * len(instances)
    roster_entries = min(sum(loads.values()), sum(caps))
    counts = largest_remainder(roster_entries, [float(requests[instance]) for instance in instances], caps=caps)
    return _fill(dict(zip(instances, counts, strict=True)), loads, previous)


def _common_load(slots: Sequence[int], *, num_instances: int, fed: int) -> int:
    """Return the number of instances per peer: the most that the requests feed, but enough that every instance and every peer
    gets one."""
    load = 1
    while sum(min(load, slot) for slot in slots) < num_instances:
        load += 1
    while load < num_instances and sum(min(load + 1, slot) for slot in slots) <= fed:
        load += 1
    return load


def _fill(
    counts: Mapping[InstanceId, int], loads: Mapping[PeerId, int], previous: Mapping[InstanceId, Sequence[PeerId]]
) -> dict[InstanceId, tuple[PeerId, ...]]:
    """Seat `counts[i]` peers at instance i, peer p at most `loads[p]` times. First the instances choose among the peers that
    have their state, those with the fewest such peers first; then the instance that lacks most hosts takes the peers that have
    most room."""
    room = dict(loads)
    hosts: dict[InstanceId, list[PeerId]] = {instance: [] for instance in counts}
    known = {instance: sorted({peer for peer in previous.get(instance, ()) if peer in loads}) for instance in counts}
    for instance in sorted(counts, key=lambda i: (len(known[i]), i)):
        for peer in known[instance]:
            if room[peer] > 0 and len(hosts[instance]) < counts[instance]:
                hosts[instance].append(peer)
                room[peer] -= 1
    for instance in sorted(counts, key=lambda i: (len(hosts[i]) - counts[i], i)):
        lacking = counts[instance] - len(hosts[instance])
        free = sorted((peer for peer in room if room[peer] > 0 and peer not in hosts[instance]), key=lambda p: (-room[p], p))
        for peer in free[:lacking]:
            hosts[instance].append(peer)
            room[peer] -= 1
    return {instance: tuple(sorted(hosts[instance])) for instance in sorted(counts)}


def credible_speeds(speeds: Sequence[float], *, among: Sequence[float] = ()) -> list[float]:
    """Return claimed samples per second, clamped to a plausible range; 0 (unknown) stays 0. The range follows from the known
    speeds `among` which they are judged, or from their own if none is known there.

    As long as most of the known speeds are honest, a claim moves a share by no more than the two factors. Of two claims it is
    unknown which one is false; even then the larger is at most FASTEST_CLAIM times the smaller.
    """
    known = [speed for speed in among if speed > 0.0] or [speed for speed in speeds if speed > 0.0]
    if not known:
        return list(speeds)
    slowest = SLOWEST_CLAIM * median_high(known)
    fastest = FASTEST_CLAIM * median_low([max(speed, slowest) for speed in known])
    return [min(max(speed, slowest), fastest) if speed > 0.0 else 0.0 for speed in speeds]


def capped_parts(amounts: Sequence[float]) -> list[float]:
    """Return the parts of the whole [n], which sum to one, for hosts of these amounts [n] > 0: proportional to the amounts, but
    at most twice the median part and, among four or more hosts, at most a quarter. With exactly four hosts all parts are equal.

    The excess of a host is spread over the others in proportion, and none overtakes another. So a false claim of speed gains at
    most twice the weight of the median host, for work that nobody checks.
    """
    assert amounts and min(amounts) > 0.0, amounts
    limit = MEDIAN_FACTOR * median_low(amounts)
    lowered = [min(amount, limit) for amount in amounts]
    most = LARGEST_PART if len(amounts) >= MIN_CAPPED else 1.0
    by_size = sorted(range(len(amounts)), key=lambda host: (-lowered[host], host))
    full, rest, free = 0, 1.0, fsum(lowered)
    while full < len(amounts) and rest * (lowered[by_size[full]] / free) > most:
        full += 1
        rest, free = 1.0 - full * most, fsum(lowered[host] for host in by_size[full:])
    capped = set(by_size[:full])
    return [most if host in capped else rest * (amount / free) for host, amount in enumerate(lowered)]


def share_batch(
    batch: int, speeds: Sequence[float], work: WorkRules, *, fractions: Sequence[float] = ()
) -> list[tuple[int, int]]:
    """Return (samples per inner step, inner steps) of every host of an instance, such that all end together.

    `speeds` [n] are samples per second, 0 for an unknown speed, which counts as the mean. Every host does at least one sample
    per step, so a batch smaller than the number of hosts is raised to it. The common duration is that of H steps of the whole
    batch. Every host does H steps, so that pseudo-gradients are comparable, unless its share is off by more than
    `step_tolerance`, because samples are whole; then it does fewer or more steps instead. If sharing is equal or all speeds are
    unknown, all hosts do H steps, except with `fractions`. Capped sharing follows `capped_parts` of the speeds, so that the
    fast hosts wait for the others rather than outweigh them. `fractions` [n], if given: each host gets this much of its part,
    and the others get the rest, as far as the cap permits; of four hosts none gets less than the others.
    """
    assert batch >= 1 and speeds
    total = max(batch, len(speeds))
    known = [speed for speed in speeds if speed > 0.0]
    is_equal = work.share == "equal" or not known
    if is_equal and not fractions:
        return [(samples, work.inner_steps) for samples in largest_remainder(total, [1.0] * len(speeds))]
    mean = fsum(known) / len(known) if known else 1.0
    filled = [1.0 if is_equal else speed or mean for speed in speeds]
    if work.share == "capped":
        filled = capped_parts(filled)
    if fractions:
        filled = [part * fraction for part, fraction in zip(filled, fractions, strict=True)]
    if fractions and work.share == "capped":
        filled = capped_parts(filled)  # the others' gain from it must raise none of them above the cap
    speed_sum = fsum(filled)
    most_steps = floor(work.max_step_ratio * work.inner_steps)
    shares = []
    for samples, speed in zip(largest_remainder(total, filled), filled, strict=True):
        ratio = total * (speed / speed_sum) / samples  # ideal samples of the round over samples of H steps
        is_close = abs(ratio - 1.0) <= work.step_tolerance
        steps = work.inner_steps if is_close else min(max(1, round(ratio * work.inner_steps)), most_steps)
        shares.append((samples, steps))
    return shares
