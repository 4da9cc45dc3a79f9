"""One peer of a run for the web page, as a JSON document: its rounds, losses, speeds, uplink and failures. Pure; every list in
it has a limit.

All of it follows from the ledger, so every holder of the ledger shows the same; a node adds its own newest rounds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from adloco_p2p.core.ledger.contributions import CreditedSamples
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.plan import REPORT_LAG
from adloco_p2p.core.model.telemetry import InstanceLine, Plan, RosterLine
from adloco_p2p.views import units
from adloco_p2p.views.ledger_events import LedgerLine
from adloco_p2p.views.page import Document, rounded, text
from adloco_p2p.views.status import Status

MAX_ROUNDS = 300
"""The most rounds of a peer that are shown, the newest ones."""
MAX_EVENTS = 50
"""The most arrivals, departures and troubles, the newest ones."""

PeerDocuments = Callable[[str], Document | None]
"""Peer id -> the peer's document; None where the run never had that peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one peer for one instance in one round."""

    samples: int
    seconds: float
    loss: float | None
    heldout_loss: float | None
    trouble: str = ""


def peer_documents(lines: Sequence[LedgerLine], credited: Sequence[CreditedSamples], own: Status | None) -> PeerDocuments:
    """Return what makes the documents. `lines`: the plans, oldest first. `credited`: of a checked ledger; empty without one.
    `own`: this machine's node."""
    plans, claims = tuple(lines), tuple(credited)  # both lists keep growing while browsers ask
    return lambda peer: _document(peer, plans, claims, own)


def _document(
    peer: str, lines: Sequence[LedgerLine], credited: Sequence[CreditedSamples], own: Status | None
) -> Document | None:
    if all(line.plan.seat(peer) is None for line in lines):
        return None
    work = _claimed(peer, credited, {line.plan.round: line.plan for line in lines})
    if own is not None and own.peer == peer:
        work = _recorded(own) | work
    last_settled = lines[-1].plan.round - REPORT_LAG if credited else -1
    rows = [
        _row(line.plan.round, entry, planned, share, work.get((line.plan.round, planned.instance)), last_settled)
        for line in lines
        if not line.plan.is_last
        for entry, planned, share in _shares(line.plan, peer)
    ]
    return {
        "peer": text(peer),
        "rounds": rows[-MAX_ROUNDS:],
        "num_rounds": len(rows),
        "events": [*_events(peer, lines, own)][-MAX_EVENTS:],
    }


def _shares(plan: Plan, peer: str) -> Iterator[tuple[RosterLine, InstanceLine, HostShare]]:
    if (entry := plan.seat(peer)) is not None:
        for planned in plan.instances:
            yield from ((entry, planned, share) for share in planned.hosts if share.peer == peer)


def _claimed(peer: str, credited: Sequence[CreditedSamples], plans: Mapping[int, Plan]) -> dict[tuple[int, int], Work]:
    """Return the peer's work by its signed reports."""
    found: dict[tuple[int, int], Work] = {}
    left_out: dict[tuple[int, int], list[bool]] = {}
    for credit in credited:
        key = credit.round, credit.item.instance
        place = _place(plans.get(credit.round), credit.item.instance, peer)
        if place is not None and credit.item.samples:
            left_out.setdefault(key, []).append(bool(credit.item.left_out >> place & 1))
        if credit.peer == peer:
            found[key] = Work(
                samples=credit.samples,
                seconds=credit.item.train_seconds,
                loss=credit.item.loss,
                heldout_loss=credit.item.heldout_loss,
                trouble=_trouble(credit),
            )
    for about, verdicts in left_out.items():
        if about in found and not found[about].trouble and sum(verdicts) * 2 > len(verdicts):
            found[about] = replace(found[about], trouble="the rule of averaging left its work out")
    return found


def _place(plan: Plan | None, instance: int, peer: str) -> int | None:
    """Return the place of the peer among the planned hosts of the instance, as reports count them."""
    for planned in plan.instances if plan is not None else ():
        if planned.instance == instance:
            return next((place for place, share in enumerate(planned.hosts) if share.peer == peer), None)
    return None


def _trouble(credit: CreditedSamples) -> str:
    if credit.item.has_diverged:
        return "its values were not finite or far too large"
    return "no average got a majority" if credit.item.is_void else ""


def _recorded(own: Status) -> dict[tuple[int, int], Work]:
    """Return this peer's work by the events of this machine's node."""
    return {
        key: Work(
            samples=result.samples,
            seconds=result.seconds.get("training", 0.0),
            loss=result.loss,
            heldout_loss=result.heldout_loss,
            trouble="no average got a majority" if result.is_void else "",
        )
        for key, result in own.results.items()
    }


def _row(
    round_: int, entry: RosterLine, planned: InstanceLine, share: HostShare, work: Work | None, last_settled: int
) -> Document:
    return {
        "round": round_,
        "instance": planned.instance,
        "planned": share.samples,
        "samples": None if work is None else work.samples,
        "loss": None if work is None else rounded(work.loss),
        "heldout": None if work is None else rounded(work.heldout_loss),
        "samples_per_second": rounded(work.samples / work.seconds) if work is not None and work.seconds else None,
        "upload_bytes_per_second": rounded(entry.upload_bytes_per_second or None),
        "words": _words(share, work, is_settled=round_ <= last_settled),
    }


def _words(share: HostShare, work: Work | None, *, is_settled: bool) -> str:
    if share.samples == 0:
        return "no work planned: it only receives the state"
    if work is None:
        return "its report did not arrive in time" if is_settled else ""
    if work.trouble:
        return work.trouble
    return "" if work.samples else "its work is not in the average"


def _events(peer: str, lines: Sequence[LedgerLine], own: Status | None) -> Iterator[Document]:
    """Yield the peer's events, by round."""
    found = [(line.plan.round, "joined") for line in lines if peer in line.joined]
    found += [(line.plan.round, "left, or fell silent") for line in lines if peer in line.departed]
    if own is not None and own.peer == peer:
        found += [(incident.round, units.one_line(incident.message)) for incident in own.incidents]
    for round_, words in sorted(found):
        yield {"round": round_, "words": text(words)}
