"""The promise to newcomers: one that stays gets a seat and a state, and its work counts. It is checked on the final ledger.

A newcomer of an open run is judged from when it is steady: it runs, has no command to follow and no longer stands still, and
the faults of the world are over. Its seat is due within `SEAT_PLANS` plans. A state is due, for its first process, within
`STATE_PLANS` plans that give it an instance, not counting those during one transfer of a state. Its work is due within
`WORK_PLANS` plans from when it has its seat and a state, not counting plans that rightly give it none, as a keeper or on the
bench. Nothing is promised if seats cost invitations, or if an adversary may ask for any number of seats.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.plan import RoundPlan, roster_of
from adloco_p2p.core.model.scalars import PeerId

SEAT_PLANS = 4
STATE_PLANS = 8
WORK_PLANS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """The world's record of one newcomer. Instants are world time, in seconds."""

    peer: PeerId
    steady_since: float
    state_since: float | None
    """When it first got a state from others."""
    fetch_seconds: float | None
    """The longest expected duration of its fetches; None if it may have a state from before a restart."""


def broken(newcomer: Newcomer, plans: Sequence[tuple[float, LedgerEntry]]) -> str:
    """Return the broken promise to a newcomer; empty if there is none. `plans` are the entries of the run, each with the world
    time, in seconds, at which the first peer had it."""
    peer, state_since = newcomer.peer, newcomer.state_since
    since = [(at, entry) for at, entry in plans if at >= newcomer.steady_since]
    seated = [(at, entry) for at, entry in since if peer in roster_of(entry.plan)]
    if len(since) >= SEAT_PLANS and not any(peer in roster_of(entry.plan) for _, entry in since[:SEAT_PLANS]):
        return f"{peer} got no seat in the {SEAT_PLANS} plans from round {since[0][1].plan.round} on"
    if newcomer.fetch_seconds is not None:
        hosting = [(at, entry) for at, entry in seated if _is_host(entry.plan, peer)]
        awaited = [(at, entry) for at, entry in hosting if at >= hosting[0][0] + newcomer.fetch_seconds][:STATE_PLANS]
        if len(awaited) == STATE_PLANS and (state_since is None or state_since > awaited[-1][0]):
            return f"{peer} got no state in the {STATE_PLANS} plans from round {awaited[0][1].plan.round} on"
    due = [entry for at, entry in seated if state_since is not None and at >= state_since and _may_work(entry.plan, peer)]
    if len(due) >= WORK_PLANS and not any(_counts(entry, peer) for entry in due[:WORK_PLANS]):
        return f"no work of {peer} counts in the {WORK_PLANS} plans from round {due[0].plan.round} on"
    return ""


def _is_host(plan: RoundPlan, peer: PeerId) -> bool:
    return any(share.peer == peer for item in plan.instances for share in item.hosts)


def _may_work(plan: RoundPlan, peer: PeerId) -> bool:
    return any(seat.peer == peer and not (seat.capacity.is_keeper or seat.is_waiting) for seat in plan.roster)


def _counts(entry: LedgerEntry, peer: PeerId) -> bool:
    reports = [signed.report for signed in entry.reports if signed.report.peer == peer]
    return any(item.samples for report in reports for item in report.instances)
