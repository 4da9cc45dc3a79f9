"""A cache of the planning rule, because every peer of a world asks for the same plans."""

from collections.abc import Sequence

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.plan import Decide, RosterChange, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.rules import Rules
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.core.planning.round_plan import next_plan


class CachedRule:
    """A `Decide` that computes each plan once; it lives as long as its world."""

    def __init__(self, rule: Decide) -> None:
        self._rule = rule
        self._plans: dict[tuple[Digest, tuple[Digest, ...], RosterChange], RoundPlan] = {}

    def __call__(self, parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
        key = (canonical.digest_once(parent), tuple(canonical.digest_once(report) for report in reports), change)
        if key not in self._plans:
            self._plans[key] = self._rule(parent, reports, change)
        return self._plans[key]


def production_rule(rules: Rules) -> Decide:
    return lambda parent, reports, change: next_plan(parent, reports, rules, roster=change)
