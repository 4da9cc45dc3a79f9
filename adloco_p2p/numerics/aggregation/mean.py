"""The weighted mean of the unchanged contributions (docs/mathematics.md, 2.2)."""

from collections.abc import Sequence

from adloco_p2p.numerics.aggregation.rule import Decision, Gram, shares


class Mean:
    """Coefficients c_i = w_i / sum of w. One host can move this mean anywhere, so it suits only runs of friends."""

    name = "mean"
    needs_gram = False

    def decide(self, gram: Gram | None, weights: Sequence[int], steps: Sequence[int]) -> Decision:  # noqa: ARG002
        return Decision(coefficients=shares(weights))
