"""How much of the time a peer computes, at a stated link: a calibrated simulation, nothing is sent.

python -m benchmarks.utilisation                                        150M parameters, 100 Mbit/s, four hosts; instant
python -m benchmarks.utilisation --megabits 20 --step-seconds 2 --hosts 8

Measured here: bytes per value of every codec of this node, there and back (it encodes a vector), and the part of a link's rate
that the averaging reaches (docs/measured.md). Stated by the user: link, hosts, inner steps, seconds per inner step. Derived:
bytes per round, 2 (n - 1) / n times the vector; a round's averaging, those bytes at that rate and three one-way delays (two
exchanges and the commit); and what the three ways to overlap leave of it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import get_args, get_type_hints

import torch

from adloco_p2p.config.run import AveragingConfig
from adloco_p2p.core.communications import round_bytes
from adloco_p2p.numerics.codecs import codec_named

PROBE_VALUES = 1 << 20
"""Values that are encoded to learn what one costs."""
TARGET = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One peer of a swarm of equal ones."""

    num_parameters: float
    num_hosts: int
    """Of one instance; each of them hosts all `num_instances`."""
    num_instances: int
    inner_steps: int
    step_seconds: float
    """Of one inner step of one instance."""
    bytes_per_value: float
    bits_per_second: float
    efficiency: float
    latency_seconds: float

    @property
    def computing_seconds(self) -> float:
        """Of one round of one instance."""
        return self.inner_steps * self.step_seconds

    @property
    def bytes_per_round(self) -> float:
        """Sent by a peer for one instance, and received."""
        return round_bytes(
            num_parameters=round(self.num_parameters), num_workers=self.num_hosts, bytes_per_value=self.bytes_per_value
        )

    @property
    def averaging_seconds(self) -> float:
        """Of one instance alone on the link."""
        return self.bytes_per_round * 8 / (self.bits_per_second * self.efficiency) + 3 * self.latency_seconds


def in_turn(plan: Plan) -> float:
    """Compute, average, compute: what one instance without overlap gives."""
    return plan.computing_seconds / (plan.computing_seconds + plan.averaging_seconds)


def pipelined(plan: Plan) -> float:
    """Several instances: one is averaged while the others compute. Device and link are each busy with one at a time."""
    computing = plan.num_instances * plan.computing_seconds
    alone = plan.computing_seconds + plan.averaging_seconds
    return computing / max(computing, plan.num_instances * plan.averaging_seconds, alone)


def delayed(plan: Plan) -> float:
    """One instance whose outer update comes one round late: averaging has a whole round of computing to hide behind."""
    return plan.computing_seconds / max(plan.computing_seconds, plan.averaging_seconds)


def fewest_steps(plan: Plan, *, target: float = TARGET) -> int:
    """Smallest H at which one instance without overlap computes so much of the time."""
    return max(1, ceil(plan.averaging_seconds * target / (1 - target) / plan.step_seconds))


def bytes_per_value(codec: str, num_hosts: int) -> float:
    """What the node's codec makes of a normally distributed vector on its way, and of the mean on the way back: their mean."""
    values = torch.randn(PROBE_VALUES, generator=torch.Generator().manual_seed(0))
    there = codec_named(codec)
    back = there.for_mean(num_hosts)
    return (len(there.encode(values)) + len(back.encode(values))) / (2 * PROBE_VALUES)


def table(plan: Plan, codecs: Sequence[tuple[str, float]], steps: Sequence[int]) -> list[str]:
    """Markdown, one line per codec and H."""
    lines = [
        "| codec | bytes a value | MB a round | averaging | H "
        f"| in turn | {plan.num_instances} instances in a pipeline | one round late |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, size in codecs:
        for inner_steps in steps:
            now = replace(plan, bytes_per_value=size, inner_steps=inner_steps)
            lines.append(
                f"| {name} | {size:.2f} | {now.bytes_per_round / 1e6:.0f} | {now.averaging_seconds:.0f} s | {inner_steps} "
                f"| {in_turn(now):.1%} | {pipelined(now):.1%} | {delayed(now):.1%} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utilisation", description=__doc__)
    parser.add_argument("--parameters", type=float, default=150e6)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--instances", type=int, default=3, help="of the pipelined column")
    parser.add_argument("--steps", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--step-seconds", type=float, default=0.5, help="of one inner step of one instance")
    parser.add_argument("--megabits", type=float, default=100.0, help="rate of a peer's link, each way")
    parser.add_argument("--latency", type=float, default=0.05, help="one way, seconds")
    parser.add_argument("--efficiency", type=float, default=0.8, help="goodput over rate; 12M parameters in docs/measured.md")
    arguments = parser.parse_args()
    plan = Plan(
        num_parameters=arguments.parameters,
        num_hosts=arguments.hosts,
        num_instances=arguments.instances,
        inner_steps=arguments.steps[0],
        step_seconds=arguments.step_seconds,
        bytes_per_value=4.0,
        bits_per_second=arguments.megabits * 1e6,
        efficiency=arguments.efficiency,
        latency_seconds=arguments.latency,
    )
    names = get_args(get_type_hints(AveragingConfig)["codec"])
    codecs = [(name, bytes_per_value(name, arguments.hosts)) for name in names]
    print(
        f"{plan.num_parameters / 1e6:.0f}M parameters, {plan.num_hosts} hosts, {arguments.megabits:g} Mbit/s at "
        f"{plan.efficiency:.0%}, {plan.latency_seconds:g} s one way, {plan.step_seconds:g} s an inner step\n"
    )
    print("\n".join(table(plan, codecs, arguments.steps)))
    print(f"\nH at which one instance without overlap computes {TARGET:.0%} of the time:")
    for name, size in codecs:
        print(f"  {name:10s} {fewest_steps(replace(plan, bytes_per_value=size))}")


if __name__ == "__main__":
    main()
