"""The batch as a schedule of the run's samples, for `batch.test: schedule`. It reads no report.

Ramps are the control for the batch test, and its rival if their length is known: they need no statistic and no window, and have
no lag. `seesaw` follows arXiv 2510.14717: where a schedule would divide the learning rate by a, multiply the batch by a and
divide the rate by the square root of a. The paper does so in stages; here a is the decay itself, the limit of small stages. The
inner optimizer sets the rate (`inner.batch_scaling: sqrt`).
"""

from math import ceil, log2, pi

from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.rules import BatchRules, Rules
from adloco_p2p.core.model.run_progress import progress_at, samples_after
from adloco_p2p.core.model.words import moved

ROUNDING = 1e-9
"""Tolerance for rounding errors, so that they never add a stage."""


def scheduled_request(requested: int, previous: RoundPlan, rules: Rules) -> tuple[int, str]:
    """Return the global batch of every instance in the round after `previous`, and why. It depends only on the samples that
    agreed plans have given out, so all peers compute the same. If signers make a run longer, the ramp is longer, too."""
    samples = samples_after(previous)
    length = rules.batch.ramp_samples
    part = min(1.0, samples / length) if length else progress_at(previous.round + 1, samples, rules.work)
    new = ramped_batch(rules.batch, part, final_fraction=rules.final_fraction)
    return new, f"{moved(requested, new)}: {rules.batch.ramp} schedule, {part:.1%} of it done"


def ramped_batch(rules: BatchRules, part: float, *, final_fraction: float) -> int:
    """Return the global batch when `part` (0 to 1) of the ramp is done, from `initial_batch` up to `max_batch`.
    `final_fraction` of the peak learning rate is left at the end of the decay that `seesaw` follows."""
    assert 0.0 <= part <= 1.0
    first, last = min(rules.initial_batch, rules.max_batch), rules.max_batch
    if rules.ramp == "linear":
        return round(first + (last - first) * part)
    if rules.ramp == "doubling":
        stages = num_doublings(rules) + 1  # the last one has the largest batch
        return min(last, first << min(int(part * stages + ROUNDING), stages - 1))
    decay = final_fraction + (1.0 - final_fraction) * half_cosine(part)
    return round(min(float(last), first / decay)) if decay > 0.0 else last


def ramp_batches(rules: BatchRules, *, samples: int, inner_steps: int, final_fraction: float) -> list[int]:
    """Return the batches of all rounds in a run of one instance that ends by `samples`."""
    batches, done = [], 0
    while done < samples:
        part = min(1.0, done / (rules.ramp_samples or samples))
        batches.append(ramped_batch(rules, part, final_fraction=final_fraction))
        done += inner_steps * batches[-1]
    return batches


def num_doublings(rules: BatchRules) -> int:
    """Return the number of doublings from the initial to the largest batch; the last one may be cut."""
    return max(0, ceil(log2(rules.max_batch / rules.initial_batch) - ROUNDING))


def half_cosine(part: float) -> float:
    """Return (1 + cos(pi part)) / 2, from 1 to 0 for `part` from 0 to 1, as the square of cos(pi part / 2) by its Taylor
    series. Peers must agree, and the C libraries of two machines may differ in the last bit of a cosine, but not in sums and
    products."""
    square = (0.5 * pi * part) * (0.5 * pi * part)
    cosine = 1.0
    for power in range(22, 0, -2):
        cosine = 1.0 - square / (power * (power - 1)) * cosine
    return cosine * cosine
