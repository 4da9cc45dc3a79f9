"""This peer's part in the run, in words: its seat, what it waits for, orders of signers, bans. Pure."""

from math import log

from adloco_p2p.core.model.course import is_paused_at
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.telemetry import InstanceLine, Plan, Proving
from adloco_p2p.core.model.words import plural
from adloco_p2p.views import units
from adloco_p2p.views.slow_peer import link_words, waits_for_its_link
from adloco_p2p.views.status import Status


def keeper_words(status: Status) -> str:
    """Describe a keeper's part in the run; empty for any other peer."""
    plan = status.current_plan
    if plan is None or status.state != "running" or not is_keeper(plan, status.peer):
        return ""
    others = [seat.peer for seat in plan.roster if not seat.is_keeper and status.peer_states.get(seat.peer) not in _ABSENT]
    return "keeps the states, trains nothing" if others else "keeps the states; nobody trains until a peer joins"


_ABSENT = frozenset({"left", "suspected"})


def is_keeper(plan: Plan, peer: str) -> bool:
    """Return whether the peer holds states and trains nothing."""
    seat = plan.seat(peer)
    return seat is not None and seat.is_keeper


def waiting_kind(status: Status) -> str:
    """Return in a word what `joining` describes."""
    if status.peer in status.bans:
        return "ban"
    return "keeper" if keeper_words(status) else "bench" if bench_words(status) else "joining"


def ended_by_signer(status: Status) -> str:
    """Describe the signer's order that ended the run: after which round, and why; otherwise empty."""
    last = status.plans[-1] if status.plans else None
    if status.finish is None or last is None or last.course.last_round is None or last.round <= last.course.last_round:
        return ""
    if _is_at_its_own_end(status, last):
        return ""
    reason = status.reasons.get("stop", "")
    return f"a signer ended the run after round {last.course.last_round}{f': {units.one_line(reason)}' if reason else ''}"


def _is_at_its_own_end(status: Status, last: Plan) -> bool:
    """Return whether the last plan would have been the last one without an order to end sooner."""
    if status.samples is not None:  # the last round is cut to whole steps
        return status.samples - last.samples_before < max(1, sum(planned.effective_batch for planned in last.instances))
    return status.rounds_unstopped is not None and last.round >= status.rounds_unstopped


def paused_by_signer(status: Status) -> str:
    """Describe a signer's pause, from its order until the pause is over here; otherwise empty."""
    newest = status.plans[-1] if status.plans else None
    if newest is None or status.finish is not None or not is_paused_at(newest.course, newest.round + 1):
        return ""
    mine = [planned.instance for planned in newest.instances if own_share(status, planned) is not None]
    if not all((newest.round, instance) in status.results for instance in mine):
        return ""
    return "paused by a signer" if status.is_seated else "paused by a signer; nobody is let in until the run goes on"


def protocol_words(status: Status) -> str:
    """Describe the protocol that the run follows, and a coming one; empty before the first plan."""
    if status.current_plan is None:
        return ""
    coming = upgrade_words(status.plans[-1])
    return f"protocol {status.current_plan.protocol}{f'; {coming}' if coming else ''}"


def upgrade_words(plan: Plan) -> str:
    """Describe the next protocol, and the round from which the run follows it; empty where none is planned."""
    return "" if plan.upgrade_round is None else f"protocol {plan.protocol + 1} from round {plan.upgrade_round} on"


def bench_words(status: Status) -> str:
    """Explain why this peer is on the bench, and since when it waits for its turn; empty where it is not on the bench."""
    plan = status.current_plan
    if plan is None or not status.peer or status.state != "running":
        return ""
    if waits_for_its_link(plan, status.peer):
        return f"on the bench: {link_words(plan, status.peer)}"
    seat = plan.seat(status.peer)
    if seat is None or (since := seat.waits_from) is None:
        return ""
    if since > plan.round:
        return f"on the bench, without work until round {since}"
    requested = sum(item.requested_batch for item in plan.instances)
    num_hosts = len({share.peer for item in plan.instances for share in item.hosts if share.batch_samples})
    hosts = plural(num_hosts, "host")
    why = f"{plural(requested, 'sample')} per step feed {hosts}" if requested <= num_hosts else f"the run allows {hosts}"
    ahead = sum(other.waits_from is not None and other.waits_from < since for other in plan.roster)
    return f"on the bench since round {since}: {why}, {plural(ahead, 'peer')} waited longer"


def joining(status: Status) -> str:
    """Explain why this peer has no work in the run yet, or no longer; empty where it has work, or none is planned for it."""
    plan = status.current_plan
    if plan is None or plan.is_last or not status.peer or status.state != "running":
        return ""
    if words := ban_words(status).get(status.peer):
        return words
    ahead = [known for known in status.plans if known.round >= plan.round]
    seat = plan.seat(status.peer)
    if seat is None:
        admitted = [known.round for known in ahead if known.seat(status.peer) is not None]
        if admitted:
            return f"joins in round {admitted[0]}"
        others = {*(roster_entry.peer for roster_entry in ahead[-1].roster), *status.peer_states} - {status.peer}
        if all(status.peer_states.get(peer) == "left" for peer in others):
            return "waiting to join; no other peer takes part: the run is paused or over, or this machine is cut off"
        if status.proving is not None:
            return proving_words(status.proving)
        return f"waiting to join; plans read up to round {ahead[-1].round}"
    if words := keeper_words(status) or bench_words(status):
        return words
    working = [known.round for known in ahead if _has_work(status, known)]
    until = f"; training from round {working[0]} on" if working else ""
    if working[:1] != [plan.round] and seat.is_leaving:
        return f"back after a leave: no work in this round{until}"
    shares = {item.instance: share for item in plan.instances if (share := own_share(status, item)) is not None}
    if not shares or any(share.inner_steps for share in shares.values()):
        return ""
    if status.results and seat.probation:
        return f"on probation for {plural(seat.probation, 'more report')}: receives the averages, no place to train yet{until}"
    if status.results:
        return ""
    what = "the state is here" if status.fetched >= shares.keys() else "fetching the state"
    return what + until


def proving_words(event: Proving) -> str:
    """Describe the search of a peer that computes for its seat. Its attempts are no progress: the expected rest stays the
    same."""
    here = event.seconds / max(1, event.attempts) * event.price
    return (
        f"computing for a seat: {units.count(event.attempts)} attempts in {units.duration(event.seconds)}; it takes"
        f" {units.duration(here)} here on average, by a lottery: half of all need less than {units.duration(here * log(2))}"
    )


def _has_work(status: Status, plan: Plan) -> bool:
    return any((share := own_share(status, planned)) is not None and share.inner_steps > 0 for planned in plan.instances)


def own_share(status: Status, planned: InstanceLine | None) -> HostShare | None:
    """Return this peer's share of the instance, by the plan."""
    hosts = planned.hosts if planned is not None else ()
    return next((host for host in hosts if host.peer == status.peer), None)


def ban_words(status: Status) -> dict[str, str]:
    """Describe for each banned peer when, by whom and why it was banned."""
    return {
        peer: f"banned in round {ban.round} by {ban.by}{f': {units.one_line(ban.reason)}' if ban.reason else ''}"
        for peer, ban in sorted(status.bans.items())
    }
