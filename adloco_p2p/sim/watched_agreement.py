"""An agreement whose outcomes are marked, so that the world sees their places among the effects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.model.ledger_entry import Reorg
from adloco_p2p.core.model.outcomes import Decided, Outcome
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.model.telemetry import Log


@dataclass(frozen=True, slots=True)
class Agreed(Log):
    """The mark of an agreement's outcome among the effects of a peer."""

    outcome: Decided | Reorg


class WatchedAgreement:
    """The port `core/peer/agreement_port.py` around the agreement of production, with marked outcomes."""

    def __init__(
        self, agreement: GossipAgreement, on_submit: Callable[[Report], Report], on_repeat: Callable[[Report], None]
    ) -> None:
        """`on_submit` may alter a report; `on_repeat` gets the reports of the checkpoint, which are submitted again."""
        self.inner = agreement
        self._on_submit = on_submit
        self._on_repeat = on_repeat
        self.sign, self.verify = agreement.sign, agreement.verify
        self.keep_vote, self.kept_vote = agreement.keep_vote, agreement.kept_vote
        self.note_work, self.note_data = agreement.note_work, agreement.note_data
        self.may_be_apart = agreement.may_be_apart
        self.reports_of = agreement.reports_of

    @property
    def next_deadline(self) -> float | None:
        return self.inner.next_deadline

    @property
    def last_contact(self) -> float:
        return self.inner.last_contact

    def start(self, plans: Sequence[RoundPlan], reports: Sequence[Report], now: float) -> list[Outcome]:
        for report in reports:
            self._on_repeat(report)
        return _marked(self.inner.start(plans, reports, now))

    def submit(self, report: Report, now: float) -> list[Outcome]:
        return _marked(self.inner.submit(self._on_submit(report), now))

    def receive(self, sender: PeerId, message: object, now: float) -> list[Outcome]:
        return _marked(self.inner.receive(sender, message, now))

    def tick(self, now: float) -> list[Outcome]:
        return _marked(self.inner.tick(now))

    def leave(self, now: float) -> list[Outcome]:
        return _marked(self.inner.leave(now))

    def rejoin(self, capacity: Capacity, now: float) -> list[Outcome]:
        return _marked(self.inner.rejoin(capacity, now))


def _marked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    marked: list[Outcome] = []
    for outcome in outcomes:
        marked.append(outcome)
        if isinstance(outcome, Decided | Reorg):
            marked.append(Agreed(outcome))
    return marked
