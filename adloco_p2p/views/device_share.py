"""The share of the time in which a device computes, from a given device and link, for `adloco-peer plan --teraflops`.

A round computes, then averages, then takes the outer step, and nothing overlaps. The batch is the first one; a growing batch
makes rounds longer and the share larger. This is arithmetic, not a measurement.
"""

from dataclasses import dataclass

from adloco_p2p.views.cost_model import Link, round_bytes

OPERATIONS = 6
"""Floating-point operations per trained parameter and token, forward and backward (arXiv 2001.08361), without attention."""
FROZEN_OPERATIONS = 4
"""The same per frozen parameter, the base of adapters: gradients pass through it, and it has none of its own."""
LINK_EFFICIENCY = 0.8
"""The part of a link's rate that averaging 12M parameters reached at best (0.75 by the newest row of docs/measured.md)."""
LATENCY_SECONDS = 0.05
"""The latency one way; an averaging takes three of them: two exchanges and the commit."""
OUTER_STEP_SECONDS = 4.0 / 150e6
"""Seconds per parameter, on one core, for the outer step, digests and the copy for joiners (docs/results.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """The seconds of one round of one host."""

    computing_seconds: float
    averaging_seconds: float
    outer_step_seconds: float

    @property
    def share(self) -> float:
        return self.computing_seconds / (self.computing_seconds + self.averaging_seconds + self.outer_step_seconds)


def device_share(
    link: Link, *, batch_per_host: float, row_tokens: int, inner_steps: int, teraflops: float, num_frozen: int = 0
) -> DeviceShare:
    """Return the seconds of a round of equal hosts. `teraflops`: what the device achieves in training, in 10^12 operations a
    second, not its nominal rate. `num_frozen`: parameters beside the trained ones, which are those of the link."""
    per_token = OPERATIONS * link.num_parameters + FROZEN_OPERATIONS * num_frozen
    operations = per_token * batch_per_host * row_tokens * inner_steps
    sent = round_bytes(num_parameters=link.num_parameters, num_workers=link.num_workers, bytes_per_value=link.bytes_per_value)
    return DeviceShare(
        computing_seconds=operations / (teraflops * 1e12),
        averaging_seconds=sent * 8 / (link.megabits_per_second * 1e6 * LINK_EFFICIENCY) + 3 * LATENCY_SECONDS,
        outer_step_seconds=OUTER_STEP_SECONDS * link.num_parameters,
    )
