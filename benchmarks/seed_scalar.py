"""Fine-tuning by seeds and scalars (MeZO, FedKSeed, Just One Byte) beside averaged adapters: loss by forward passes, and bytes.

python -m benchmarks.seed_scalar run       train what the kept records and seed_scalar.jsonl lack; stop and go on at any time
python -m benchmarks.seed_scalar report    the table from both, into docs/results/seed_scalar.md; keeps the records of both

In a round every host measures the loss of one row at theta + eps z and at theta - eps z, forward only, and publishes the
difference divided by 2 eps, a float32. The signs z follow from the run's seed, the round and the host. All hosts subtract rate
times the mean of scalar times z: the list of scalars is the training, and a joiner replays it. Model, data, order of rows,
hosts and held-out rows are those of `benchmarks.finetune`.

The plan, written down before the first cell ran: in each space three rates on the tuning seed, 8 rounds each, and a second eps;
then the best on another seed, for 32 rounds. What changed while they ran: rates went up to where second differences of the loss
put the largest decrease of a step; the second of the whole model raised the loss, so its third was left out, and those of
adapters were moved down by a factor of 4. The last cells became 24 rounds, as many passes as the first round of LoRA. The best
rate of adapters diverged there, so lower ones are trained too. For a second eps, a lower rate of the whole model and its last
cell the machine had no time.
"""

import argparse
import math
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.feed import open_feed
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.layout import flatten
from adloco_p2p.training.device import is_bfloat16
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.model import build_model
from adloco_p2p.training.seeds import derived_seed, initial_seed
from adloco_p2p.training.shell import ModelShell
from benchmarks import finetune
from benchmarks.finetune import ME
from benchmarks.method.report import keep_tables
from benchmarks.method.store import RESULTS, Record, Store, command_line, digest_of, read_records

KEPT = RESULTS / "seed_scalar.jsonl.gz"
"""Records of earlier cells; a reader's own go beside them."""
HOSTS, TUNING_SEED, SEEDS = 4, 1, [2]
TUNING_ROUNDS, ROUNDS, MEASURED_EVERY = 8, 24, 12
EPS = 1e-3
SCALAR = struct.Struct("<f")
"""The form of what a host publishes in a round."""
LORA_ROUNDS, LORA_PASSES = 6, 3 * 64
"""Rounds of the LoRA run, and passes over rows in one of them: a forward, and a backward counted as two."""
LORA_FIRST = (3.607, 2.963)
"""Held-out loss before and after the first round of the swarm run of docs/finetune.md, one host at rate 1e-3, because its
records of averaged hosts have only the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The trained parameters, and the constants that are tried."""

    settings: tuple[str, ...]
    """Differences from configs/finetune.yaml."""
    rates: tuple[float, ...]


SPACES = {
    "whole model": Space(settings=("model.lora.rank=0",), rates=(1e-4, 3e-4)),
    "adapters": Space(settings=("model.lora.base_precision=float32",), rates=(1.25e-3, 5e-3, 2e-2)),
}

Loss = Callable[[torch.Tensor], float]
"""Parameters [P] -> loss in nats."""


# --- the method ------------------------------------------------------------------------------------------------------


def signs(seed: int, size: int) -> torch.Tensor:
    """Return random -1 and 1, [size], fp32: the bits of a generator in whole numbers, which every machine draws alike."""
    words = np.random.PCG64(seed).random_raw(-(-size // 64)).astype("<u8", copy=False)
    bits = np.unpackbits(words.view(np.uint8), count=size)
    return torch.from_numpy(bits).float().mul_(2).sub_(1)


def probed(
    theta: torch.Tensor, losses: Sequence[Loss], seeds: Sequence[int], *, eps: float, rate: float
) -> tuple[torch.Tensor, bytes]:
    """Do one round. Returns the parameters after it [P], and what the hosts published, in their order."""
    after, published = theta.clone(), b""
    for loss, seed in zip(losses, seeds, strict=True):
        z = signs(seed, len(theta))
        difference = loss(torch.add(theta, z, alpha=eps)) - loss(torch.add(theta, z, alpha=-eps))
        scalar = SCALAR.pack(difference / (2 * eps))
        _step_(after, z, scalar, rate / len(seeds))
        published += scalar
    return after, published


def replay_(theta: torch.Tensor, published: bytes, seeds: Sequence[int], *, rate: float) -> None:
    """Do the round on a host, or a joiner, that has only what was published, with the same bytes as the result: a product with
    a sign is exact, so fused or not, each value is rounded once."""
    for place, seed in enumerate(seeds):
        scalar = published[place * SCALAR.size : (place + 1) * SCALAR.size]
        _step_(theta, signs(seed, len(theta)), scalar, rate / len(seeds))


def _step_(theta: torch.Tensor, z: torch.Tensor, scalar: bytes, rate: float) -> None:
    theta.add_(z, alpha=-rate * SCALAR.unpack(scalar)[0])


# --- the cells -------------------------------------------------------------------------------------------------------


class Task:
    """A space's model, data and held-out rows, for one seed."""

    def __init__(self, config: Path, space: str, seed: int) -> None:
        run = load_run(config, [*SPACES[space].settings, f"seed={seed}"]).value
        run = replace(run, instances=replace(run.instances, count=HOSTS))  # the order of samples of `benchmarks.finetune`
        self._seed, self._feed = run.seed, open_feed(run, cache_dir=None)
        self._heldout = self._feed.heldout(run.evaluation.rows)
        sizes = {"vocab_size": self._feed.vocab_size, "sequence_length": self._feed.sequence_length}
        module = build_model(run.model, **sizes, seed=initial_seed(run, InstanceId(0)))
        device = torch.device("cpu")
        self._shell = ModelShell(module, device=device, is_bfloat16=is_bfloat16(run.model.precision, device))
        self.start = flatten(module)

    def measure(self, theta: torch.Tensor) -> float:
        return round(heldout_loss(self._shell, theta, self._heldout, micro_batch=2), 6)

    @cached_property
    def before(self) -> float:
        return self.measure(self.start)

    def train(self, *, rate: float, eps: float, rounds: int) -> Record:
        """Return rounds and held-out losses, from round 0 on, and processor seconds of a row's forward pass with all that
        belongs to it. Ends early where the loss is not a number."""
        theta, curve, seconds = self.start, [[0, self.before]], 0.0
        for number in range(rounds):
            begun = time.process_time()
            stream = self._feed.open(instance=InstanceId(0), peer=ME, round=number, first_sample=number * HOSTS)
            rows = stream.take(HOSTS)
            losses = [self._loss_of(rows.rows(host, host + 1)) for host in range(HOSTS)]
            seeds = [derived_seed(self._seed, "probe", number, host) for host in range(HOSTS)]
            theta, published = probed(theta, losses, seeds, eps=eps, rate=rate)
            seconds += time.process_time() - begun
            is_sound = all(math.isfinite(scalar) for (scalar,) in SCALAR.iter_unpack(published))
            if not is_sound or (number + 1) % MEASURED_EVERY == 0 or number + 1 == rounds:
                curve.append([number + 1, self.measure(theta)])
                print(f"    {number + 1} rounds: {curve[-1][1]}", flush=True)
            if not is_sound:
                break
        return {"curve": curve, "pass_seconds": round(seconds / (2 * HOSTS * curve[-1][0]), 3), "parameters": len(theta)}

    def _loss_of(self, row: Batch) -> Loss:
        def loss(theta: torch.Tensor) -> float:
            with torch.no_grad(), self._shell.evaluating(theta):
                return float(self._shell.token_losses(row).sum(dtype=torch.float64)) / row.num_predicted_tokens

        return loss


def tried(records: Iterable[Record], space: str) -> list[Record]:
    """Return the records of the tuning seed, the best first."""
    known = [each for each in records if each["space"] == space and each["seed"] == TUNING_SEED]
    return sorted(known, key=lambda each: (each["curve"][-1][1], each["rate"]))


class Cells(Store):
    """Records of cells, which are trained where they are missing."""

    def __init__(self, config: Path, *files: Path) -> None:
        super().__init__(KEPT, *files)
        self._config = config
        self._tasks: dict[tuple[str, int], Task] = {}

    def train(self, space: str, seed: int, *, rate: float, eps: float, rounds: int) -> None:
        key = self._key(space, seed, rate, eps, rounds)
        if key in self.records:
            return
        if (space, seed) not in self._tasks:
            self._tasks = {(space, seed): Task(self._config, space, seed)}  # one model at a time
        print(f"{space} seed {seed} rate {rate:g}, {rounds} rounds", flush=True)
        found = self._tasks[space, seed].train(rate=rate, eps=eps, rounds=rounds)
        self.keep(key, {"space": space, "seed": seed, "rate": rate, "eps": eps, "rounds": rounds, **found})

    def _key(self, space: str, seed: int, rate: float, eps: float, rounds: int) -> str:
        return digest_of([self._config.read_text("utf-8"), list(SPACES[space].settings), seed, rate, eps, rounds, HOSTS])


def train_cells(arguments: argparse.Namespace) -> None:
    """Train the tuning first, in both spaces."""
    torch.set_num_threads(1)
    cells = Cells(arguments.config, arguments.output)
    for space in arguments.spaces:
        for rate in SPACES[space].rates:
            cells.train(space, TUNING_SEED, rate=rate, eps=EPS, rounds=TUNING_ROUNDS)
    for seed in arguments.seeds:
        for space in arguments.spaces:
            best = tried(cells.records.values(), space)[0]["rate"]
            for rate in sorted((rate for rate in SPACES[space].rates if rate <= best), reverse=True):
                cells.train(space, seed, rate=rate, eps=EPS, rounds=ROUNDS)


# --- the tables ------------------------------------------------------------------------------------------------------


def table(records: Sequence[Record]) -> list[str]:
    """Return the seeds one after the other, each under the averaged adapters of that seed at their best rate."""
    lines = [
        "| trained | seed | rate | passes of a row | held-out loss before, after | drop in 100 passes | bytes a host sends "
        "| seconds a pass | times LoRA's passes | pays below |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    reference = finetune.best(read_records(finetune.KEPT), "all")
    for seed in sorted({each["seed"] for each in records}):
        lora = averaged(reference[seed])
        lines.append(f"{_line('LoRA, averaged', seed, lora)} | | | |")
        own = [each for each in records if each["seed"] == seed]
        for each in sorted(own, key=lambda each: (each["space"], each["rate"])):
            cost, seconds = published(each), each["pass_seconds"]
            times, shown = times_passes(cost), " | "
            if 1 < times < math.inf:
                shown = f"{times:.1f} | {pays_below_kbit(lora, times, pass_seconds=seconds):,.0f} kbit/s"
            lines.append(f"{_line(each['space'] + ', scalars', seed, cost)} | {seconds:.2f} | {shown} |")
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a training: forward passes of a row over all hosts, and bytes that one of them sends."""

    rate: float
    before: float
    after: float
    passes: int
    sent: int

    @property
    def drop(self) -> float:
        return self.before - self.after


def averaged(lora: Record) -> Cost:
    """Return the cost of a cell of `benchmarks.finetune`."""
    sent = LORA_ROUNDS * lora["num_bytes"] * 2 * (HOSTS - 1) // HOSTS
    return Cost(rate=lora["rate"], before=lora["before"], after=lora["after"], passes=LORA_ROUNDS * LORA_PASSES, sent=sent)


def published(record: Record) -> Cost:
    (_, before), *_, (rounds, after) = record["curve"]
    sent = rounds * SCALAR.size * (HOSTS - 1)
    return Cost(rate=record["rate"], before=before, after=after, passes=rounds * 2 * HOSTS, sent=sent)


def times_passes(scalars: Cost) -> float:
    """Return the forward passes for the drop over those that LoRA needs for it at its beginning; infinite where there is no
    drop."""
    return (LORA_FIRST[0] - LORA_FIRST[1]) / LORA_PASSES * scalars.passes / scalars.drop if scalars.drop > 0 else math.inf


def pays_below_kbit(lora: Cost, times: float, *, pass_seconds: float) -> float:
    """Return the speed of a host's uplink below which scalars reach the end of the LoRA run earlier, if they need so many times
    its passes to the end, and sending takes time for LoRA alone."""
    seconds = (times - 1) * lora.passes / HOSTS * pass_seconds
    return 8e-3 * lora.sent / seconds


def _line(name: str, seed: int, cost: Cost) -> str:
    speed = 100 * cost.drop / cost.passes
    losses = f"{cost.before:.4f}, {cost.after:.4f}"
    return f"| {name} | {seed} | {cost.rate:g} | {cost.passes:,} | {losses} | {speed:.4f} | {cost.sent:,}"


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "seed_scalar.md", {"seed scalar": table})


def main() -> None:
    line = command_line("seed_scalar", __doc__, seeds=SEEDS, train=train_cells, tabulate=tabulate)
    line.run.add_argument("--config", type=Path, default=Path("configs/finetune.yaml"))
    line.run.add_argument("--spaces", nargs="+", choices=SPACES, default=list(SPACES))
    line.act()


if __name__ == "__main__":
    main()
