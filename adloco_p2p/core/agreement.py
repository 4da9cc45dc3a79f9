"""How plans are agreed: what a peer needs of it, and the simplest way that gives it.

`Gathering` decides as soon as every peer of the roster has reported. It is right where the roster is fixed and nobody
leaves: a peer alone, or several peers in one process. Peers on a network use `core/consensus.py`, behind the same interface.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from adloco_p2p.core.events import Broadcast, Effect, PeerBack, PeerGone, ReportHeard
from adloco_p2p.core.histories import HistorySwitched
from adloco_p2p.core.types import Capacity, PeerId, Report, RoundPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A plan is final."""

    plan: RoundPlan
    reports: tuple[Report, ...] = ()
    """Those it was decided from, where they are known."""


Outcome = Decided | HistorySwitched | PeerGone | PeerBack | ReportHeard | Effect
"""What agreeing leads to: facts for the peer, and effects that keep their place among them."""


class Agreement(Protocol):
    """Called by `Peer` only, never blocks."""

    @property
    def next_deadline(self) -> float | None:
        """The instant at which `tick` wants to be called, or none."""

    def start(self, plans: Sequence[RoundPlan], reports: Sequence[Report], now: float) -> list[Outcome]:
        """Begin after `plans`, the last of which is the newest known; `reports` are those it has not used."""

    def submit(self, report: Report, now: float) -> list[Outcome]:
        """This peer's own report of a round."""

    def receive(self, sender: PeerId, message: object, now: float) -> list[Outcome]:
        """A message that is not about averaging."""

    def tick(self, now: float) -> list[Outcome]: ...

    def leave(self, now: float) -> list[Outcome]:
        """Say goodbye: nobody waits for this peer any more. It goes on following what others agree on, if it lives."""

    def rejoin(self, capacity: Capacity, now: float) -> list[Outcome]:
        """Take part again after a goodbye, with what this peer offers now."""


class Gathering:
    """plan(r + 1) follows from plan(r) when all reports of round r - 1 are there."""

    def __init__(self, *, decide: Callable[[RoundPlan, Sequence[Report]], RoundPlan]) -> None:
        self.next_deadline: float | None = None
        self._decide = decide
        self._head: RoundPlan | None = None
        self._reports: dict[tuple[int, PeerId], Report] = {}

    def start(self, plans: Sequence[RoundPlan], reports: Sequence[Report], now: float) -> list[Outcome]:
        del now
        self._head = plans[-1]
        for report in reports:
            self._reports[report.round, report.peer] = report
        return self._advance()

    def submit(self, report: Report, now: float) -> list[Outcome]:
        del now
        self._reports[report.round, report.peer] = report
        return [Broadcast(message=report), *self._advance()]

    def receive(self, sender: PeerId, message: object, now: float) -> list[Outcome]:
        del now
        if not isinstance(message, Report) or message.peer != sender:
            return []
        self._reports[message.round, message.peer] = message
        return [ReportHeard(report=message), *self._advance()]

    def tick(self, now: float) -> list[Outcome]:
        del now
        return []

    def leave(self, now: float) -> list[Outcome]:
        del now
        return []

    def rejoin(self, capacity: Capacity, now: float) -> list[Outcome]:
        del capacity, now
        return []

    def _advance(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while self._head is not None and not self._head.is_last:
            wanted = self._head.round - 1
            reports = [self._reports.get((wanted, seat.peer)) for seat in self._head.roster] if wanted >= 0 else []
            present = [report for report in reports if report is not None]
            if len(present) < len(reports):
                break
            self._head = self._decide(self._head, present)
            self._reports = {key: report for key, report in self._reports.items() if key[0] >= wanted}
            outcomes.append(Decided(plan=self._head, reports=tuple(present)))
        return outcomes
