"""The verb that estimates a run before it starts: rounds, bytes, transfer time and memory."""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adloco_p2p.commands.console import say, say_json
from adloco_p2p.config.fields import differences
from adloco_p2p.config.load import load_run
from adloco_p2p.config.local_files import check_sources, with_plain_paths
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.measurers import LEAST_FULL
from adloco_p2p.core.model.telemetry import Plan, Round
from adloco_p2p.core.model.words import plural
from adloco_p2p.errors import ConfigError
from adloco_p2p.views import units

if TYPE_CHECKING:
    from adloco_p2p.training.device import DeviceMemory
    from adloco_p2p.training.memory_need import MemoryNeed
    from adloco_p2p.views.cost_model import Estimate, Exchange, Link, LookPrice
    from adloco_p2p.views.device_share import DeviceShare

ADDED_BY_START = (
    "author:",
    "founders",
    "packages",
    "protocol:",
    "data.digest:",
    "data.files:",
    "model.digest:",
    "model.files:",
    "model.parent:",
    "tokenizer.digest:",
)
"""Beginnings of lines about settings that `start` or `swarm` adds to the run, so that its configuration may lack them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """The estimate that the verb shows of a run."""

    num_samples: int
    need: "MemoryNeed"
    devices: "Sequence[DeviceMemory]"
    """The devices of this machine."""
    emulated: str
    """The setting whose arithmetic these devices emulate; "" where there is none."""
    exchange: "Exchange"
    look: "LookPrice | None"
    """The price of a look; None where no contribution is looked at."""
    computing: "DeviceShare | None"
    """The share of the time that a device computes; None where its rate is not given."""
    by_method: "Sequence[Estimate]"
    happened: dict[str, int] | None
    """Totals of the named directory, if there is one."""
    differs: Sequence[str]
    """The differences between the planned settings (here) and those of that directory's run (there)."""


def plan(arguments: argparse.Namespace) -> int:
    """Print bounds of rounds, bytes and transfer time (docs/mathematics.md, 11, derived); for a named directory, also what
    happened in it and how its run continues."""
    _check_rates(arguments)
    run = _planned_run(arguments)
    estimate = _estimated(arguments, run)
    if arguments.json:
        say_json(_document(run, estimate))
        return 0
    say(
        f"{run.name}: {estimate.num_samples:,} samples, {estimate.need.num_parameters:,} parameters,"
        f" {plural(arguments.peers, 'host')} per instance, H {run.work.inner_steps},"
        f" first batch {run.batch.initial_batch}, {arguments.mbit:g} Mbit/s"
    )
    for line in _lines(run, estimate, shards=arguments.shards):
        say(line)
    return 0


def _estimated(arguments: argparse.Namespace, run: RunConfig) -> RunEstimate:
    from adloco_p2p.numerics.codecs import bytes_each_way, codec_named, wire_bytes
    from adloco_p2p.views.cost_model import Link, exchange_of, look_price

    num_samples = arguments.samples or run.work.samples or _constant_samples(run) or _final_samples(arguments.workdir)
    if num_samples is None:
        raise ConfigError("--samples N is required, because this run counts rounds (work.rounds)", code="E200")
    need, codec = memory_need_of(run), codec_named(run.averaging.codec)
    link = Link(
        num_parameters=need.num_parameters,
        num_workers=arguments.peers,
        bytes_per_value=wire_bytes(codec, arguments.peers) / run.averaging.fragments,
        megabits_per_second=arguments.mbit,
    )
    sent_bytes, _ = bytes_each_way(codec, arguments.peers)
    return RunEstimate(
        num_samples=num_samples,
        need=need,
        devices=_devices(),
        emulated=_emulated_setting(run),
        exchange=exchange_of(run, link),
        look=look_price(run, link, sent_bytes_per_value=sent_bytes),
        computing=_computing(arguments, run, link, num_frozen=need.num_frozen),
        by_method=_estimates(arguments, run, num_samples=num_samples, link=link),
        happened=None if arguments.workdir is None else _happened(arguments),
        differs=_differences(arguments, run),
    )


def _document(run: RunConfig, estimate: RunEstimate) -> dict[str, object]:
    """Return the estimate for a program."""
    look, computing = estimate.look, estimate.computing
    return {
        "samples": estimate.num_samples,
        "parameters": estimate.need.num_parameters,
        "admission": {"kind": run.admission.kind, "price_attempts": run.admission.price},
        "exchange": asdict(estimate.exchange),
        "look": None if look is None else asdict(look),
        "estimates": [asdict(item) for item in estimate.by_method],
        "memory": asdict(estimate.need),
        "devices": [asdict(item) for item in estimate.devices],
        "emulated": estimate.emulated or None,
        "happened": estimate.happened,
        "differs": estimate.differs,
        "device": None if computing is None else {**asdict(computing), "share": computing.share},
    }


def _lines(run: RunConfig, estimate: RunEstimate, *, shards: int) -> Iterator[str]:
    """Yield the estimate in lines for a person. `shards`: the number of devices over which the user asks to divide the
    model."""
    yield from (f"  instance {instance} trains on {name}" for instance, name in enumerate(run.instances.data))
    yield _memory_line(estimate.need)
    yield _devices_line(estimate.devices, estimate.need)
    yield from _shards_lines(run, estimate.need, estimate.devices, asked=shards)
    yield from _arithmetic_lines(estimate.emulated)
    yield _exchange_line(estimate.exchange)
    yield from _look_lines(run, estimate.look)
    yield f"  admission: {run.admission.in_words}"
    if estimate.computing is not None:
        yield _computing_line(estimate.computing)
    yield from map(_estimate_line, estimate.by_method)
    if estimate.happened is not None:
        yield _happened_line(estimate.happened)
    if estimate.differs:
        yield f"  what happened there had other settings than are planned here: {'; '.join(estimate.differs)}"


def _planned_run(arguments: argparse.Namespace) -> RunConfig:
    """Return the planned run: that of the directory, where one is named and no configuration is. Raises ConfigError."""
    from adloco_p2p.storage.workdir import read_run

    if arguments.workdir is None or arguments.config is not None:
        return load_run(arguments.config, arguments.set).value
    run = read_run(arguments.workdir)
    if run is None:
        raise ConfigError(f"--workdir {arguments.workdir}: no run was begun there; name a directory of one", code="E200")
    if arguments.set:
        raise ConfigError("--set: the run of --workdir has its settings; name a CONFIG to plan with others", code="E200")
    return run


def _differences(arguments: argparse.Namespace, run: RunConfig) -> list[str]:
    """Return the differences between a configuration and a directory, where both are named, without what `start` adds."""
    from adloco_p2p.storage.workdir import read_run

    if arguments.workdir is None or arguments.config is None or (held := read_run(arguments.workdir)) is None:
        return []
    return [line for line in differences(with_plain_paths(run), held) if not line.startswith(ADDED_BY_START)]


def _final_samples(workdir: Path | None) -> int | None:
    """Return the samples of the run in this directory, where it is over."""
    return max((plan.samples_before for plan in _recorded_plans(workdir) if plan.is_last), default=None) if workdir else None


def _recorded_plans(workdir: Path) -> list[Plan]:
    from adloco_p2p.storage.event_log import recorded_events

    agreed = (stamped.event for stamped in recorded_events(workdir / "events.jsonl"))
    return [event for event in agreed if isinstance(event, Plan)]


def _constant_samples(run: RunConfig) -> int | None:
    """Return the samples of a run that counts rounds; None where its batches are not known beforehand."""
    if run.work.rounds is None or run.batch.test != "constant":
        return None
    return run.work.rounds * run.work.inner_steps * run.batch.initial_batch


def _check_rates(arguments: argparse.Namespace) -> None:
    for name in ("mbit", "teraflops"):
        rate = getattr(arguments, name)
        if rate is not None and not 0 < rate < math.inf:
            raise ConfigError(f"--{name} {rate}: a rate above 0 is accepted", code="E200")


def _computing(arguments: argparse.Namespace, run: RunConfig, link: "Link", *, num_frozen: int) -> "DeviceShare | None":
    """Return the share of computing; None where the device's rate is not given."""
    from adloco_p2p.views.device_share import device_share

    if arguments.teraflops is None:
        return None
    return device_share(
        link,
        batch_per_host=run.batch.initial_batch / arguments.peers,
        row_tokens=run.data.sequence_length,
        inner_steps=run.work.inner_steps,
        teraflops=arguments.teraflops,
        num_frozen=num_frozen,
    )


def _computing_line(item: "DeviceShare") -> str:
    return (
        f"  a device computes {item.share:.1%} of the time: a round of {item.computing_seconds:,.1f} s of inner steps,"
        f" {item.averaging_seconds:,.1f} s of averaging and {item.outer_step_seconds:,.1f} s between (derived; first batch)"
    )


def _estimates(arguments: argparse.Namespace, run: RunConfig, *, num_samples: int, link: "Link") -> "tuple[Estimate, ...]":
    """Return the estimates for the whole run, and from its present state where a directory is named."""
    from adloco_p2p.views.cost_model import Workload, bounds

    further = () if arguments.workdir is None else _extrapolated(arguments, run, num_samples=num_samples, link=link)
    if run.batch.test == "schedule":
        return _ramp_estimate(run, num_samples, link), *further
    work = Workload(
        num_samples=num_samples,
        num_workers=arguments.peers,
        inner_steps=run.work.inner_steps,
        initial_batch=run.batch.initial_batch / arguments.peers,
    )
    growth_cap = run.batch.growth_cap if run.batch.is_tested else 1.0
    return *bounds(work, link, growth_cap=growth_cap, max_batch=run.batch.max_batch), *further


def _ramp_estimate(run: RunConfig, num_samples: int, link: "Link") -> "Estimate":
    """Return the estimate of a run whose batches are known beforehand."""
    from adloco_p2p.core.planning.batch_ramp import ramp_batches
    from adloco_p2p.views.cost_model import estimate_of

    steps, fraction = run.work.inner_steps, run.inner.final_fraction
    batches = ramp_batches(run.batch, samples=num_samples, inner_steps=steps, final_fraction=fraction)
    quarters = [batches[(len(batches) - 1) * quarter // 4] for quarter in range(5)]
    return estimate_of(
        f"{run.batch.ramp} ramp: batch {', '.join(map(str, quarters))} by quarters of the rounds", len(batches), link
    )


def _emulated_setting(run: RunConfig) -> str:
    """Return the `emulated_setting` of the devices that a node uses by default."""
    from adloco_p2p.training.device import emulated_setting, select_devices

    return emulated_setting(run.model, select_devices(PeerConfig()).values())


def _arithmetic_lines(emulated: str) -> list[str]:
    """Describe where this machine emulates the arithmetic that a setting prescribes, with remedies."""
    remedies = {
        "model.precision": "auto lets each machine take what it has",
        "model.lora.base_precision": "float32 is fast here, for twice the memory of the base on every peer",
    }
    if not emulated:
        return []
    slow = "which this machine emulates, several times slower than float32"
    return [f"  {emulated}: bfloat16, {slow} (E524); {remedies[emulated]}"]


def _look_lines(run: RunConfig, look: "LookPrice | None") -> list[str]:
    if not run.averaging.assess_every:
        return []
    if look is None:
        return [f"  contributions looked at: none with fewer than {LEAST_FULL} peers"]
    one, each = look.subject_bytes / 1e6, look.bytes_per_peer_and_round / 1e6
    often = "round" if look.every == 1 else f"{look.every} rounds"
    return [
        f"  one contribution looked at every {often}: {one:,.2f} MB from its host;"
        f" {each:,.2f} MB a round per peer and direction, on average"
    ]


def _exchange_line(exchange: "Exchange") -> str:
    from adloco_p2p.views.cost_model import PRICED, in_words

    codec = f"codec {exchange.codec}" + (f" (averaging.preset {exchange.preset})" if exchange.preset else "")
    line = f"  a round, {codec}: {exchange.bytes_per_peer / 1e6:,.2f} MB per peer and direction"
    if exchange.price_nats is None or exchange.price_hosts is None:
        return line
    price = in_words((exchange.price_nats, exchange.price_half_width), hosts=exchange.price_hosts)
    return f"{line}; {PRICED}: {price} (docs/results/bytes.md)"


def _estimate_line(item: "Estimate") -> str:
    return (
        f"  {item.method}: {plural(item.rounds, 'round')}, {item.bytes_per_peer / 1e6:,.1f} MB per peer and direction,"
        f" {item.transfer_seconds:,.0f} s of transfer ({item.basis})"
    )


def _happened_line(happened: dict[str, int]) -> str:
    sent, samples, rounds = happened["bytes_sent"] / 1e6, happened["samples"], happened["rounds"]
    return f"  what happened: {plural(rounds, 'round')}, {sent:,.1f} MB sent by this peer for {plural(samples, 'sample')}"


def memory_need_of(run: RunConfig) -> "MemoryNeed":
    from adloco_p2p.data.tokenizer import open_tokenizer
    from adloco_p2p.numerics.layout import layout_of
    from adloco_p2p.training.adapters import check_targets
    from adloco_p2p.training.memory_need import memory_need
    from adloco_p2p.training.model import build_model
    from adloco_p2p.training.shards.division import undivided_bytes
    from adloco_p2p.training.shell import block_matrices, frozen_bytes, num_frozen

    check_sources(run)
    vocab_size = open_tokenizer(run.tokenizer).vocab_size
    model = build_model(run.model, vocab_size=vocab_size, sequence_length=run.data.sequence_length, seed=0)
    if run.model.lora.rank and not run.model.digest:  # a run that exists has a digest, and goes on
        check_targets(model, run.model.lora)
    return memory_need(
        run,
        layout_of(model),
        matrices=block_matrices(model),
        frozen_bytes=frozen_bytes(model),
        num_frozen=num_frozen(model),
        whole_bytes=undivided_bytes(run, model),
    )


def _memory_line(need: "MemoryNeed") -> str:
    sizes = (need.device, need.device_more, need.host, need.download, need.process, need.checkpoint, need.averages)
    device, more, host, download, process, checkpoint, averages = map(units.size, sizes)
    return (
        f"  memory, activations aside: {device} on the device ({more} per further instance), {host} of main memory ({download}"
        f" more while a joiner downloads a state) and {process} for the process; {checkpoint} of disk per checkpoint, and"
        f" {averages} for averages of earlier rounds"
    )


def _devices() -> "tuple[DeviceMemory, ...]":
    """Return the devices that a node uses by default."""
    from adloco_p2p.training.device import memory_of, select_devices

    return memory_of(select_devices(PeerConfig()))


def _shards_lines(run: RunConfig, need: "MemoryNeed", devices: "Sequence[DeviceMemory]", *, asked: int) -> list[str]:
    """Describe the memory of a model that is divided over the requested number of devices, or over as many as it needs where no
    GPU here holds it whole."""
    from adloco_p2p.training.shards.division import obstacles

    gpus = [item for item in devices if item.name.startswith("cuda")]
    free = max((item.free_bytes for item in gpus), default=0)
    if asked > 1:
        shards: int | None = asked
    elif gpus and free < need.device:
        shards = need.least_shards(free)
    else:
        return []
    if problems := obstacles(run):
        return [f"  this model cannot be divided over devices: {problem}; leave shards at 1" for problem in problems]
    if need.whole is None or shards is None:
        return ["  this model cannot be divided over devices so that they hold it (docs/volunteer.md)"]
    device, host = units.size(need.divided(shards)), units.size(need.divided_host(shards))
    remedy = "" if asked > 1 else f"no GPU here holds it; {shards} such ones hold it "
    return [
        f"  {remedy}divided (--peer-set shards={shards} max_instances=1): {device} on each of {shards} devices, activations"
        f" aside, and {host} more of main memory"
    ]


def _devices_line(devices: "Sequence[DeviceMemory]", need: "MemoryNeed") -> str:
    """Describe the devices of this machine, over which instances are spread. On a processor all memory is main memory."""
    each = [
        f"{item.name} ({item.model}), {units.size(item.free_bytes)} of {units.size(item.total_bytes)} free" for item in devices
    ]
    line = f"  this machine: {'; '.join(each)}"
    if devices[0].name != "cpu":
        return line
    whole = need.device + need.host + need.process
    excess = "" if whole <= devices[0].free_bytes else ", which is more than is free"
    return f"{line}; training here takes {units.size(whole)} in all{excess}"


def _extrapolated(arguments: argparse.Namespace, run: RunConfig, *, num_samples: int, link: "Link") -> "tuple[Estimate, ...]":
    """Return two estimates of the whole run: its rounds stay like the newest planned one of the directory, or go on to grow as
    they have grown since the first. Empty where no round is planned, or none is left."""
    from adloco_p2p.views.cost_model import estimate_of, growing_rounds

    agreed = _recorded_plans(arguments.workdir)
    plans = {plan.round: plan for plan in agreed if plan.samples > 0}  # the last plan and pauses have none
    if not plans or max(plan.samples_before for plan in agreed) >= num_samples:
        return ()
    first, newest = plans[min(plans)], plans[max(plans)]
    growth = max(0.0, (newest.samples - first.samples) / max(1, newest.round - first.round))
    most_per_round = run.batch.max_batch * run.work.inner_steps * len(newest.instances)
    left = num_samples - newest.samples_before

    def of(method: str, growth: float) -> "Estimate":
        rounds = growing_rounds(left, per_round=newest.samples, growth=growth, most_per_round=most_per_round)
        return estimate_of(method, newest.round + rounds, link, basis="extrapolated")

    constant = of(f"from round {newest.round} on as it is", 0.0)
    if growth == 0:
        return (constant,)
    return constant, of(f"from round {newest.round} on growing as so far", growth)


def _happened(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the totals of the rounds in the event file; a round that was done twice counts once."""
    from adloco_p2p.storage.event_log import recorded_events

    happened = (stamped.event for stamped in recorded_events(arguments.workdir / "events.jsonl"))
    rounds = {(event.round, event.instance): event for event in happened if isinstance(event, Round)}
    return {
        "rounds": len({number for number, _ in rounds}),
        "samples": sum(event.samples for event in rounds.values()),
        "tokens": sum(event.tokens for event in rounds.values()),
        "bytes_sent": sum(event.bytes_sent for event in rounds.values()),
        "bytes_received": sum(event.bytes_received for event in rounds.values()),
    }
