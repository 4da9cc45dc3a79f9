"""The aggregation rules by name."""

from adloco_p2p.numerics.aggregation.centered_clip import CenteredClip
from adloco_p2p.numerics.aggregation.clip import Clip
from adloco_p2p.numerics.aggregation.geometric_median import GeometricMedian
from adloco_p2p.numerics.aggregation.mean import Mean
from adloco_p2p.numerics.aggregation.robust import Robust
from adloco_p2p.numerics.aggregation.rule import AggregationRule

RULES: tuple[AggregationRule, ...] = (Robust(), Clip(), Mean(), GeometricMedian(), CenteredClip())
"""By choice of a run."""

STRICT: AggregationRule = Robust("strict", least_agreement=0.5)
"""For the rounds after an alarm of the guard, whatever the run's rule. It leaves out honest hosts now and then, which costs
their share of two rounds, and most of what hides within the honest cosine."""


def rule_named(name: str) -> AggregationRule:
    """The rule of that name. Raises ValueError."""
    for rule in RULES:
        if rule.name == name:
            return rule
    raise ValueError(f"aggregation {name!r} is unknown; known: {', '.join(rule.name for rule in RULES)}")
