"""Outcomes of the agreement, which the peer acts upon or passes on to its shell."""

from dataclasses import dataclass

from adloco_p2p.core.model.effects import Effect
from adloco_p2p.core.model.events import PeerBack, PeerGone, ReportHeard
from adloco_p2p.core.model.ledger_entry import Decree, Reorg
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A plan is final."""

    plan: RoundPlan
    reports: tuple[Report, ...] = ()
    """The reports from which it was made, if they are known."""
    decrees: tuple[Decree, ...] = ()
    """Statements of signers and evidence that the plan carries."""


Outcome = Decided | Reorg | PeerGone | PeerBack | ReportHeard | Effect
"""Outcomes of the agreement: facts for the peer, interleaved in order with effects."""
