"""How much of the time a peer computes, at a stated link: a calibrated simulation, nothing is sent.

python -m benchmarks.utilisation                                        150M parameters, 100 Mbit/s, four hosts; instant
python -m benchmarks.utilisation --megabits 20 --step-seconds 2 --hosts 8
python -m benchmarks.utilisation --machines --codecs int8 --steps 64    and what the node's state machines make of it; a minute
python -m benchmarks.utilisation --fragments 1 2 4 8 --codecs int8 --steps 64      link and memory of streamed fragments

Measured here: bytes per value of every codec of this node, there and back (it encodes a vector), and the part of a link's rate
that the averaging reaches (docs/measured.md). Stated by the user: link, hosts, inner steps, seconds per inner step. Derived:
bytes per round, 2 (n - 1) / n times the vector; a round's averaging, those bytes at that rate and three one-way delays (two
exchanges and the commit); and what the three ways to overlap leave of it. With `--machines` whole peers, as they decide for
real, train a small model in virtual time, in which steps and averages take as long as those of the large one; and, as with
`--outer-step` alone, the outer step is timed here, on a part of the vector: between two rounds, or two inner steps, it takes
the device.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import get_args, get_type_hints

import torch

from adloco_p2p.config.run_config import AveragingConfig
from adloco_p2p.data.feed import open_feed
from adloco_p2p.numerics.codecs import codec_named, wire_bytes
from adloco_p2p.numerics.digest import StateHashing
from adloco_p2p.numerics.layout import Entry, Layout
from adloco_p2p.numerics.outer_optimizer import is_sound, outer_step_
from adloco_p2p.training.memory_need import memory_need
from adloco_p2p.views.cost_model import round_bytes
from benchmarks.method.clock import Link, Machine, Profile
from benchmarks.method.device import Setting
from benchmarks.method.run import CACHE, load_base
from benchmarks.method.world import World

TARGET = 0.95
NAMES = get_args(get_type_hints(AveragingConfig)["codec"])
ROUNDS, STEPS = 24, 2
"""Rounds and inner steps of the small model that the state machines train; its few inner steps take as long as the H of the
large one."""
OUTER_VALUES = 1 << 23
"""Values on which the outer step is timed."""
OUTER_TURNS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One peer of a swarm of equal ones."""

    num_parameters: float
    num_hosts: int
    """Hosts of one instance; each of them hosts all `num_instances`."""
    num_instances: int
    inner_steps: int
    step_seconds: float
    """Seconds of one inner step of one instance."""
    bytes_per_value: float
    bits_per_second: float
    efficiency: float
    latency_seconds: float

    @property
    def computing_seconds(self) -> float:
        """Seconds of one round of one instance."""
        return self.inner_steps * self.step_seconds

    @property
    def bytes_per_round(self) -> float:
        """Bytes that a peer sends for one instance, and receives."""
        return round_bytes(
            num_parameters=round(self.num_parameters), num_workers=self.num_hosts, bytes_per_value=self.bytes_per_value
        )

    @property
    def averaging_seconds(self) -> float:
        """Seconds of an average of one instance alone on the link."""
        return self.bytes_per_round * 8 / (self.bits_per_second * self.efficiency) + 3 * self.latency_seconds


def in_turn(plan: Plan) -> float:
    """Return the part of the time that one instance without overlap computes: compute, average, compute."""
    return plan.computing_seconds / (plan.computing_seconds + plan.averaging_seconds)


def pipelined(plan: Plan) -> float:
    """Return that part for several instances: one is averaged while the others compute. Device and link are each busy with one
    at a time."""
    computing = plan.num_instances * plan.computing_seconds
    alone = plan.computing_seconds + plan.averaging_seconds
    return computing / max(computing, plan.num_instances * plan.averaging_seconds, alone)


def delayed(plan: Plan) -> float:
    """Return that part for one instance whose outer update comes one round late: averaging can hide behind a whole round of
    computing."""
    return plan.computing_seconds / max(plan.computing_seconds, plan.averaging_seconds)


def fewest_steps(plan: Plan, *, target: float = TARGET) -> int:
    """Return the smallest H at which one instance without overlap computes so much of the time."""
    return max(1, ceil(plan.averaging_seconds * target / (1 - target) / plan.step_seconds))


def by_state_machines(plan: Plan, *settings: str, num_rounds: int) -> float:
    """Return that part for one instance by the node's own decisions, with the first round and the last."""
    machine = Machine(step_seconds=plan.computing_seconds / STEPS, sample_seconds=0.0)
    link = Link(bits_per_second=plan.bits_per_second, latency_seconds=plan.latency_seconds, efficiency=plan.efficiency)
    rounds = (f"work.inner_steps={STEPS}", f"work.rounds={num_rounds}", f"batch.initial_batch={plan.num_hosts}")
    run = load_base(["mode=diloco", *rounds, *settings])
    setting = Setting(
        run=run,
        speeds=(1.0,) * plan.num_hosts,
        profile=Profile(
            name="large",
            machine=machine,
            link=link,
            payload_bytes=plan.bytes_per_value * plan.num_parameters,
            state_bytes=8 * plan.num_parameters,
        ),
    )
    torch.set_num_threads(1)
    world = World(setting, open_feed(run, cache_dir=CACHE), on_applied=lambda *_: None)
    world.run()
    return world.utilisation


def outer_step_seconds(num_parameters: float) -> tuple[float, float, float]:
    """Time the device thread's work for an outer step, without evaluation and checkpoint: the step into new vectors, which are
    served to joiners, both digests, and the local parameters that follow. Returns seconds of the processor; seconds of the
    clock with the node's hashing during the writing; and with hashing afterwards. The fastest of several, in turns."""
    torch.set_num_threads(1)
    outer, momentum, averaged, local = (torch.randn(OUTER_VALUES) for _ in range(4))
    spent: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for is_beside in (True, False) * OUTER_TURNS:
        begun, processor = time.perf_counter(), time.process_time()
        following = torch.empty_like(outer), torch.empty_like(momentum)
        with StateHashing(*following) as hashing:
            outer_step_(
                outer,
                momentum,
                averaged,
                kind="nesterov",
                learning_rate=0.7,
                momentum_factor=0.7,
                into=following,
                on_written=hashing.written if is_beside else None,
            )
            is_sound(*following)
            hashing.written(OUTER_VALUES)
            hashing.digests()
        local.copy_(following[0])
        spent[is_beside].append((time.process_time() - processor, time.perf_counter() - begun))
    scale = num_parameters / OUTER_VALUES
    processor, beside, afterwards = min(spent[True])[0], *(min(wall for _, wall in spent[side]) for side in (True, False))
    return processor * scale, beside * scale, afterwards * scale


def machines_table(plan: Plan, codecs: Sequence[tuple[str, float]], steps: Sequence[int]) -> list[str]:
    """Return Markdown, one line per codec and H."""
    ways = {
        "one instance": (),
        "with outer.overlap": ("outer.overlap=forecast",),
        "4 fragments": ("averaging.fragments=4",),
        "4 streamed": ("averaging.fragments=4", "outer.overlap=streaming", "outer.delay_steps=1"),
    }
    lines = ["| codec | H | " + " | ".join(ways) + " |", "|---" * (2 + len(ways)) + "|"]
    for name, size in codecs:
        for inner_steps in steps:
            now = replace(plan, bytes_per_value=size, inner_steps=inner_steps)
            found = [f"{by_state_machines(now, *settings, num_rounds=ROUNDS):.1%}" for settings in ways.values()]
            lines.append(f"| {name} | {inner_steps} | " + " | ".join(found) + " |")
    return lines


def bytes_per_value(codec: str, num_hosts: int) -> float:
    """Return the mean bytes per value of a long vector on its way, and of the mean on the way back, by the node's codec."""
    return wire_bytes(codec_named(codec), num_hosts)


def table(plan: Plan, codecs: Sequence[tuple[str, float]], steps: Sequence[int]) -> list[str]:
    """Return Markdown, one line per codec and H."""
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


def hidden_megabits(plan: Plan) -> float:
    """Return the rate of the link at which the averaging takes as long as the inner steps behind which it hides."""
    return plan.bytes_per_round * 8 / plan.efficiency / (plan.computing_seconds - 3 * plan.latency_seconds) / 1e6


def host_bytes(codec: str, count: int, num_parameters: float) -> float:
    """Return the bytes per parameter of a peer with AdamW, by count (`training/memory_need.py`): whole vectors with `forecast`,
    fragments streamed."""
    streamed = [f"averaging.fragments={count}", "outer.overlap=streaming"] if count > 1 else ["outer.overlap=forecast"]
    run = load_base(["mode=diloco", f"averaging.codec={codec}", *streamed])
    size = round(num_parameters)
    layout = Layout(entries=(Entry(name="weight", shape=(size,), offset=0, size=size),))
    return memory_need(run, layout, matrices=frozenset(), frozen_bytes=0).host / size


def fragments_table(plan: Plan, codecs: Sequence[tuple[str, float]], counts: Sequence[int]) -> list[str]:
    """Return Markdown, one line per codec and number of fragments. Each is averaged once in `inner_steps`; or a round has so
    many."""
    lines = [
        f"| codec | fragments | MB a round | Mbit/s, each once in H {plan.inner_steps} | rounds of H {plan.inner_steps}"
        " | host, bytes a parameter |",
        "|---" * 6 + "|",
    ]
    for name, size in codecs:
        for count in counts:
            long = replace(plan, bytes_per_value=size, num_parameters=plan.num_parameters / count)
            short = replace(long, inner_steps=plan.inner_steps // count)
            rates = f"{hidden_megabits(short):.0f} | {hidden_megabits(long):.0f}"
            host = host_bytes(name, count, plan.num_parameters)
            lines.append(f"| {name} | {count} | {long.bytes_per_round / 1e6:.0f} | {rates} | {host:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utilisation", description=__doc__)
    parser.add_argument("--machines", action="store_true", help="also by the node's state machines")
    parser.add_argument(
        "--outer-step", action="store_true", help="the time of the outer step alone; with --machines it is shown, too"
    )
    parser.add_argument("--fragments", nargs="+", type=int, default=[], help="numbers of fragments that are streamed")
    parser.add_argument("--codecs", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--parameters", type=float, default=150e6)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--instances", type=int, default=3, help="of the pipelined column")
    parser.add_argument("--steps", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--step-seconds", type=float, default=0.5, help="of one inner step of one instance")
    parser.add_argument("--megabits", type=float, default=100.0, help="rate of a peer's link, each way")
    parser.add_argument("--latency", type=float, default=0.05, help="one way, seconds")
    parser.add_argument("--efficiency", type=float, default=0.8, help="goodput over rate, three one-way delays aside")
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
    codecs = [(name, bytes_per_value(name, arguments.hosts)) for name in arguments.codecs]
    print(
        f"{plan.num_parameters / 1e6:.0f}M parameters, {plan.num_hosts} hosts, {arguments.megabits:g} Mbit/s at "
        f"{plan.efficiency:.0%}, {plan.latency_seconds:g} s one way, {plan.step_seconds:g} s an inner step\n"
    )
    print("\n".join(table(plan, codecs, arguments.steps)))
    print(f"\nH at which one instance without overlap computes {TARGET:.0%} of the time:")
    for name, size in codecs:
        print(f"  {name:10s} {fewest_steps(replace(plan, bytes_per_value=size))}")
    if arguments.fragments:
        print("\nStreamed fragments, 1 being the whole vector with forecast: the link that hides their averages, and memory\n")
        print("\n".join(fragments_table(plan, codecs, arguments.fragments)))
    if arguments.machines:
        print(f"\nThe node's state machines, {ROUNDS} rounds with the first and the last:\n", flush=True)
        print("\n".join(machines_table(plan, codecs, arguments.steps)))
    if arguments.outer_step or arguments.machines:
        _print_outer_step(plan.num_parameters)


def _print_outer_step(num_parameters: float) -> None:
    processor, beside, afterwards = outer_step_seconds(num_parameters)
    print(
        f"\nAn outer step, not counted above: {processor:.2f} s of processors, {beside:.2f} s of the clock,"
        f" {afterwards:.2f} s if it were hashed afterwards"
    )


if __name__ == "__main__":
    main()
