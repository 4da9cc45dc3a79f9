"""Finds the peer whose uplink the rounds wait for, by the speeds in the agreed plan. Pure."""

from collections.abc import Mapping
from typing import Literal

from adloco_p2p.config.run_config import AveragingConfig
from adloco_p2p.core.model.telemetry import Plan
from adloco_p2p.core.planning.link_periods import TRIAL_ROUNDS, is_benched_by
from adloco_p2p.views import units

LEAST_SECONDS = 2.0
"""The shortest wait that is reported."""
LEAST_FRACTION = 0.2
"""The least part of a round's computing time that is reported; a smaller one hurts little."""
COARSE: Literal["int8"] = "int8"
"""The codec that the remedy names."""


def slow_peer(plan: Plan, sent: Mapping[int, int], *, codec: str, me: str) -> str:
    """Describe the peer for which the rounds wait, how long, why, and a remedy; or the peers that are in few averages, so that
    rounds need not wait for them. Empty where neither applies.

    `sent`: the bytes that this peer sent for each instance in its newest round of it with others. Another peer sends about as
    much. The wait is the time that the slowest uplink takes longer than the second slowest.
    """
    if words := _left_out(plan, me):
        return words
    seconds = sorted(_seconds(plan, sent).items(), key=lambda item: (-item[1], item[0]))
    if len(seconds) < 2:
        return ""
    (slowest, longest), (_, next_longest) = seconds[:2]
    wait = longest - next_longest
    if wait < max(LEAST_SECONDS, LEAST_FRACTION * plan.expected_seconds):
        return ""
    rate = next(entry.upload_bytes_per_second for entry in plan.roster if entry.peer == slowest)
    name = "this peer" if slowest == me else slowest
    words = f"rounds wait {units.duration(wait)} for {name}, {rate * 8 / 1e6:.3g} Mbit/s up"
    shrinks = _shrinks_to(codec)
    if shrinks < 1.0:
        return f"{words}; in a new run averaging.codec={COARSE} would need {units.duration(longest * shrinks)}"
    return f"{words}; in a new run longer rounds (work.inner_steps) wait for it less often"


def waits_for_its_link(plan: Plan, peer: str) -> bool:
    """Return whether its link keeps the peer on the bench without an instance; shortly before its link is tried it has one."""
    return is_benched_by(plan.reason, peer) and all(share.peer != peer for planned in plan.instances for share in planned.hosts)


def link_words(plan: Plan, peer: str) -> str:
    """Explain why the peer waits for its link, and for how long at most."""
    rate = next(entry.upload_bytes_per_second for entry in plan.roster if entry.peer == peer)
    return f"{rate * 8 / 1e6:.3g} Mbit/s up would hold the others up; its link is tried every {TRIAL_ROUNDS} rounds"


def _left_out(plan: Plan, me: str) -> str:
    """Describe the peers that are left out by `core/planning/link_periods.py`."""
    rates = {entry.peer: entry.upload_bytes_per_second for entry in plan.roster}
    every = {share.peer: share.averages_every for planned in plan.instances for share in planned.hosts}
    found = []
    for peer in sorted(rates, key=lambda peer: (peer != me, peer)):
        is_benched = is_benched_by(plan.reason, peer)
        if is_benched or every.get(peer, 1) > 1:
            what = "waits on the bench" if is_benched else f"is in one of {every[peer]} averages"
            name = "this peer" if peer == me else peer
            found.append(f"{name} {what}: {rates[peer] * 8 / 1e6:.3g} Mbit/s up would hold the others up")
    return "; ".join(found)


def _seconds(plan: Plan, sent: Mapping[int, int]) -> dict[str, float]:
    """Return the uplink time of each peer per round, where its uplink was measured."""
    rates = {entry.peer: entry.upload_bytes_per_second for entry in plan.roster}
    num_bytes = dict.fromkeys(rates, 0)
    for planned in plan.instances:
        for share in planned.hosts if len(planned.hosts) > 1 else ():
            if share.peer in rates:
                num_bytes[share.peer] += sent.get(planned.instance, 0)
    return {peer: count / rates[peer] for peer, count in num_bytes.items() if count and rates[peer] > 0.0}


def _shrinks_to(codec: str) -> float:
    """Return the part of the present bytes that COARSE would take; 1 where the codec is not known."""
    exact: tuple[Literal["float32", "float16", "bfloat16"], ...] = ("float32", "float16", "bfloat16")
    known = {name: AveragingConfig(codec=name).bytes_per_value for name in exact}
    return AveragingConfig(codec=COARSE).bytes_per_value / known[codec] if codec in exact else 1.0
