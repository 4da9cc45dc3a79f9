"""The aggregation rules by name."""

from adloco_p2p.numerics.aggregation.centered_clip import CenteredClip
from adloco_p2p.numerics.aggregation.clip import Clip
from adloco_p2p.numerics.aggregation.geometric_median import GeometricMedian
from adloco_p2p.numerics.aggregation.mean import Mean
from adloco_p2p.numerics.aggregation.per_place import PerPlace
from adloco_p2p.numerics.aggregation.robust import Robust
from adloco_p2p.numerics.aggregation.rule import AggregationRule

RULES: tuple[AggregationRule, ...] = (Robust(), Clip(), Mean(), GeometricMedian(), CenteredClip())
"""The rules that a run may choose."""

STRICT: AggregationRule = Robust("strict", least_cosine=0.5)
"""The rule of the two rounds after an alarm of the guard, whatever the run's rule. It leaves out most lies within the honest
range of cosines, and now and then an honest host, which costs the host's share of two rounds."""


def rule_named(name: str, *, division: str = "all", is_strict: bool = False) -> AggregationRule:
    """Return the rule of that name, or `STRICT` in its place; `division`: the sum is divided by the weights of `all` hosts, or
    of those that `named` a place. Raises ValueError for an unknown name."""
    for rule in RULES:
        if rule.name == name:
            chosen = STRICT if is_strict else rule
            return PerPlace(chosen) if division == "named" else chosen
    raise ValueError(f"aggregation {name!r} is unknown; known: {', '.join(rule.name for rule in RULES)}")
