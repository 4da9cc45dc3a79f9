"""The weighted mean: every contribution as it came (method section 2)."""

from collections.abc import Sequence

from adloco_p2p.numerics.aggregation.rule import Decision, Gram, shares


class Mean:
    """c_i = w_i / sum of w. One host can make it anything; for runs of friends."""

    name = "mean"
    needs_gram = False

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:  # noqa: ARG002
        return Decision(coefficients=shares(weights))
