"""The contribution of each peer, by the signed reports in the ledger.

Every holder of the ledger computes the same numbers: entries carry the reports from which their plan was made, each signed by
its peer. A claim counts once, up to the work that the plan gave its peer, as in `proven_samples` of
`core/model/run_progress.py`: the rows add up to the samples that the ledger's head proves. A plan is made from the reports of
two rounds before, so the last two rounds have no credited samples yet; the last round of a run, and reports that came too late
for their plan, never get any.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.scalars import InstanceId, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedSamples:
    """One peer's report about one instance in one round, with the number of its samples that count."""

    peer: PeerId
    round: int
    item: InstanceReport
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One row of the leaderboard."""

    peer: PeerId
    samples: int
    tokens: int
    """The samples times the sequence length."""
    num_rounds: int
    """The number of rounds in which samples of the peer count."""
    last_round: int
    """The newest round in which samples of the peer count."""


def credited(genesis: RoundPlan, entries: Sequence[LedgerEntry]) -> list[CreditedSamples]:
    """Return the credited samples of every reported instance, by round, then in the order of the entry. `entries` are a checked
    ledger."""
    plans = [genesis, *(entry.plan for entry in entries)]
    return [
        credit
        for number, entry in enumerate(entries[REPORT_LAG - 1 :], start=REPORT_LAG)
        for credit in credited_in(plans[number - REPORT_LAG], entry)
    ]


def credited_in(reported: RoundPlan, entry: LedgerEntry) -> list[CreditedSamples]:
    """Return the samples that one entry's reports prove for `reported`, the plan two rounds before it."""
    given = {(plan.instance, share.peer): share.samples for plan in reported.instances for share in plan.hosts}
    found: dict[tuple[InstanceId, PeerId], CreditedSamples] = {}
    for signed in entry.reports:
        for item in signed.report.instances:
            key = item.instance, signed.report.peer
            if key not in found:
                samples = min(item.samples, given.get(key, 0))
                found[key] = CreditedSamples(peer=signed.report.peer, round=reported.round, item=item, samples=samples)
    return list(found.values())


def leaderboard(all_credited: Sequence[CreditedSamples], *, sequence_length: int) -> list[Contribution]:
    """Return one row per peer that ever contributed, the largest contribution first."""
    by_peer: dict[PeerId, list[CreditedSamples]] = {}
    for credit in all_credited:
        if credit.samples > 0:
            by_peer.setdefault(credit.peer, []).append(credit)
    rows = [
        Contribution(
            peer=peer,
            samples=(samples := sum(credit.samples for credit in own)),
            tokens=samples * sequence_length,
            num_rounds=len({credit.round for credit in own}),
            last_round=max(credit.round for credit in own),
        )
        for peer, own in by_peer.items()
    ]
    return sorted(rows, key=lambda row: (-row.samples, row.peer))
