"""The switch mode: cuts one host's share of a batch into micro-batches that its device holds (docs/mathematics.md, 5)."""

from dataclasses import dataclass
from math import ceil

from adloco_p2p.core.model.instance_plan import SwitchMode
from adloco_p2p.core.model.rules import SwitchRules


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How one inner step is cut into passes. Sizes are in samples."""

    micro_batch_size: int
    accumulation_steps: int
    mode: SwitchMode


def plan_batch(requested: int, *, micro_batch_limit: int, rules: SwitchRules) -> tuple[BatchPlan, str]:
    """Return the passes of one inner step and, in one phrase, why. `micro_batch_limit` is the samples that one pass on this
    device holds.

    A small excess is not worth halving the update frequency, so between the limit and `rules.multiple` times the limit the
    request is deliberately not honoured. With `exact`, the last pass is trimmed so that the effective batch is the request; for
    what `paper` and `always` really use see `granted_batch`.
    """
    assert requested >= 1 and micro_batch_limit >= 1
    if requested <= micro_batch_limit:
        return BatchPlan(micro_batch_size=requested, accumulation_steps=1, mode="single"), "fits one pass"
    never = rules.policy == "never"
    below_switch = rules.policy in ("paper", "exact") and requested <= rules.multiple * micro_batch_limit
    if never or below_switch:
        plan = BatchPlan(micro_batch_size=micro_batch_limit, accumulation_steps=1, mode="capped")
        return plan, f"trains {micro_batch_limit} of {requested} samples, what one pass holds"
    steps = ceil(requested / micro_batch_limit)
    size = ceil(requested / steps) if rules.policy == "exact" else micro_batch_limit
    plan = BatchPlan(micro_batch_size=size, accumulation_steps=steps, mode="accumulate")
    return plan, f"trains {requested} samples in {steps} passes"


def granted_batch(requested: int, plan: BatchPlan, *, rules: SwitchRules) -> int:
    """Return `HostShare.batch_samples` for this plan. A share uses at most its `batch_samples`, so whole passes (`paper`,
    `always`) raise it to all that they hold; `exact` and a capped device leave the request."""
    if plan.mode == "accumulate" and rules.policy != "exact":
        return plan.micro_batch_size * plan.accumulation_steps
    return requested
