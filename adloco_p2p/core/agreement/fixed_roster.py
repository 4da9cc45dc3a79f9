"""Agreement without a network: the simplest implementation of the port in `core/peer/agreement_port.py`.

`FixedRosterAgreement` decides as soon as every peer of the roster has reported. It fits a roster that never changes: one peer
alone, or several peers in one process. Peers on a network use `core/agreement/gossip_agreement.py` behind the same port.
"""

from collections.abc import Callable, Collection, Sequence

from adloco_p2p.core.model.effects import Broadcast, Persist
from adloco_p2p.core.model.events import ReportHeard
from adloco_p2p.core.model.messages import AverageDigest
from adloco_p2p.core.model.outcomes import Decided, Outcome
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId

UNPROVEN = "-"
"""The placeholder for a signature."""


class FixedRosterAgreement:
    """Agreement among peers that never change: plan(r + 1) follows from plan(r) and all reports of round r - 1."""

    def __init__(self, *, decide: Callable[[RoundPlan, Sequence[Report]], RoundPlan]) -> None:
        self.next_deadline: float | None = None
        self.last_contact = 0.0
        """When a peer of the run was last heard; unused, because nobody waits to join a fixed roster."""
        self._decide = decide
        self._head: RoundPlan | None = None
        self._reports: dict[tuple[int, PeerId], Report] = {}

    def start(self, plans: Sequence[RoundPlan], reports: Sequence[Report], now: float) -> list[Outcome]:
        del now
        self._head = plans[-1]
        for report in reports:
            self._reports[report.round, report.peer] = report
        return self._advance()

    def reports_of(self, plan: Digest) -> Sequence[Report]:
        """Return none: all peers are in one process and keep their states together."""
        del plan
        return ()

    def note_work(self, rounds: Collection[int]) -> None:
        """Do nothing: every plan waits for all reports anyway."""

    def note_data(self, peers: Collection[PeerId], now: float) -> None:
        """Do nothing: no lease runs."""

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

    def sign(self, payload: bytes) -> str:
        """Return a placeholder: all peers are in one process, so nothing needs a proof."""
        del payload
        return UNPROVEN

    def verify(self, peer: PeerId, payload: bytes, signature: str) -> bool:
        del peer, payload
        return signature == UNPROVEN

    def keep_vote(self, plan: Digest, vote: AverageDigest) -> list[Persist]:
        """Keep nothing: all hosts are in one process and forget their votes together."""
        del plan, vote
        return []

    def kept_vote(self, plan: Digest, instance: InstanceId) -> AverageDigest | None:
        del plan, instance
        return None

    def may_be_apart(self, *, is_alone: bool) -> bool:
        """Return false: a fixed roster cannot part."""
        del is_alone
        return False

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
            reports = (
                [self._reports.get((wanted, roster_entry.peer)) for roster_entry in self._head.roster] if wanted >= 0 else []
            )
            present = [report for report in reports if report is not None]
            if len(present) < len(reports):
                break
            self._head = self._decide(self._head, present)
            self._reports = {key: report for key, report in self._reports.items() if key[0] >= wanted}
            outcomes.append(Decided(plan=self._head, reports=tuple(present)))
        return outcomes
