"""Events of a run, derived from its ledger: those that a peer writes, but not specific to any peer. Pure.

With them every holder of the ledger sees a run in the same views as a peer: the plans with their reasons, and the results in
the signed reports. The ledger has no clock and no peer's traffic, so these events have neither; a round without reports in the
ledger has no event yet.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from adloco_p2p.core.ledger.contributions import CreditedSamples, credited_in
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan
from adloco_p2p.core.model.plan_telemetry import fork_line, merge_line, plan_line, ruled_lines, task_lines
from adloco_p2p.core.model.report_form import named_by
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log, Plan, Round, Stamped, Started
from adloco_p2p.views.status import Status
from adloco_p2p.views.status_fold import apply


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """A plan, and how it was agreed."""

    plan: Plan
    num_votes: int | None = None
    """Votes for the plan; None for the first plan, and where there is no ledger."""
    joined: tuple[PeerId, ...] = ()
    departed: tuple[PeerId, ...] = ()


class LedgerEvents:
    """Folds the entries of a ledger into events and a status; every entry once."""

    def __init__(self, genesis: RoundPlan, *, started: Started, sequence_length: int) -> None:
        """`started` is the first event, as in `events.jsonl`."""
        self._genesis = genesis
        self._started = started
        self._sequence_length = sequence_length
        self._begin()

    def _begin(self) -> None:
        self.status = Status()
        self.credited: list[CreditedSamples] = []
        self.lines: list[LedgerLine] = []
        """Plans, oldest first."""
        self._plans = [self._genesis]
        self._apply(self._started)
        self._apply_plan(LedgerLine(plan=plan_line(self._genesis, canonical.digest_once(self._genesis))), self._genesis)

    def follow(self, entries: Sequence[LedgerEntry]) -> None:
        """Add the new entries. After a reorg everything is derived anew."""
        known = len(self._plans) - 1
        if len(entries) < known or (known and entries[known - 1].plan != self._plans[-1]):
            self._begin()
        for entry in entries[len(self._plans) - 1 :]:
            line = LedgerLine(
                plan=plan_line(entry.plan, canonical.digest_once(entry.plan)),
                num_votes=len(entry.certificate.votes),
                joined=tuple(join.peer for join in entry.value.joined),
                departed=tuple(entry.value.departed),
            )
            self._apply_plan(line, entry.plan)
            for ruled in ruled_lines(entry.value.statements, entry.plan.round):
                self._apply(ruled)
            if len(self._plans) >= REPORT_LAG:
                self._apply_reports(self._plans[-REPORT_LAG], entry)
            self._plans.append(entry.plan)

    def _apply_plan(self, line: LedgerLine, plan: RoundPlan) -> None:
        self.lines.append(line)
        self._apply(line.plan)
        for fork in plan.forks:
            self._apply(fork_line(fork, plan.round))
        for merge in plan.merges:
            self._apply(merge_line(merge, plan.round))

    def _apply_reports(self, reported: RoundPlan, entry: LedgerEntry) -> None:
        for claimed in task_lines([signed.report for signed in entry.reports]):
            self._apply(claimed)
        found = credited_in(reported, entry)
        self.credited += found
        by_instance: dict[InstanceId, list[CreditedSamples]] = {}
        for credit in found:
            by_instance.setdefault(credit.item.instance, []).append(credit)
        for instance, about in sorted(by_instance.items()):
            self._apply(_round(reported, instance, about, self._sequence_length))

    def _apply(self, event: Log) -> None:
        self.status = apply(self.status, Stamped(time=0.0, event=event))


def _round(plan: RoundPlan, instance: InstanceId, about: Sequence[CreditedSamples], sequence_length: int) -> Round:
    """Return the round of one instance over all its hosts: losses weighted by the credited samples, held-out losses by their
    median."""
    planned = next((item for item in plan.instances if item.instance == instance), None)
    counted = [(credit.samples, credit.item.loss) for credit in about if credit.samples and credit.item.loss is not None]
    samples = sum(credit.samples for credit in about)
    weight = sum(number for number, _ in counted)
    heldout = [credit.item.heldout_loss for credit in about if credit.item.heldout_loss is not None]
    by_data = [credit.item.heldout_losses for credit in about if credit.item.heldout_losses]
    contributors = Counter(credit.item.contributors for credit in about).most_common(1)
    return Round(
        round=plan.round,
        instance=instance,
        loss=sum(number * loss for number, loss in counted) / weight if weight else None,
        heldout_loss=median(heldout) if heldout else None,
        heldout_losses=tuple(map(median, zip(*by_data, strict=False))),
        requested_batch=planned.requested_batch if planned else 0,
        effective_batch=planned.effective_batch if planned else 0,
        accumulation_steps=max(credit.item.accumulation_steps for credit in about),
        mode=planned.mode if planned else "single",
        reason=planned.reason if planned else "",
        samples=samples,
        tokens=samples * sequence_length,
        hosts=named_by(contributors[0][0], planned) if planned else (),
        seconds={"training": sum(credit.item.train_seconds for credit in about)},
        bytes_sent=0,
        bytes_received=0,
    )
