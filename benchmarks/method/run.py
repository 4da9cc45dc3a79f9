"""Runs one row: trains it in the simulated swarm, measures it on the fixed held-out rows, and returns its record."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.run_progress import samples_after
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.feed import IndexedFeed, open_feed
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.training.device import select_device
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks.method.clock import PROFILES
from benchmarks.method.device import Setting
from benchmarks.method.rows import Row
from benchmarks.method.store import Record
from benchmarks.method.world import ALL_REACHED, CROWDED, PATIENT, World

BASE = Path(__file__).with_name("base.yaml")
HELDOUT_ROWS = 256
"""Held-out rows of 64 tokens; the same for every row and seed."""
HELDOUT_SEED = 0
EVALUATED_TOKENS = 4096
"""Tokens that are evaluated at a time; their logits are the memory that an evaluation takes."""
POINTS = 20
"""How often a run is measured, evenly over its samples."""
RULE = "averaging.aggregation=mean"
"""The aggregation rule of every kept record that names no other; `docs/results/robustness.md` has the cost of the default
beside it."""
DECAYED = "inner.decayed=all"
"""The parameters that decay in every kept record that states no others; `docs/results/tuned.md` has the gain of what the modes
set now."""
CACHE = Path.home() / ".cache" / "adloco-method"


def load_base(settings: Iterable[str] = ()) -> RunConfig:
    """Return base.yaml as the kept records have it, and these differences."""
    return load_run(BASE, [RULE, DECAYED, *settings]).value


def settings_of(row: Row, seed: int, *, samples: int) -> list[str]:
    """Return everything that `--set` needs to repeat the row with real processes."""
    counts_rounds = any(setting.startswith("work.rounds=") for setting in row.settings)
    return [*row.settings, *([] if counts_rounds else [f"work.samples={samples}"]), f"seed={seed}"]


def run_row(
    row: Row,
    seed: int,
    *,
    samples: int,
    text: tuple[IndexedRows, int] | None = None,
    points: int = POINTS,
    device: str = "cpu",
) -> Record:
    """Train `samples` samples, times the length of the row, and return the record. Takes seconds to a minute. `text`: rows and
    the size of their vocabulary; None: the embedded text. `device`: the device of all hosts."""
    torch.set_num_threads(1)
    samples *= row.length
    run = load_base(settings_of(row, seed, samples=samples))
    rows, vocab_size = text or indexed()
    feed = IndexedFeed(rows, vocab_size=vocab_size, seed=run.seed)
    watch = _Watch(run=run, rows=rows, vocab_size=vocab_size, every=samples / points, device=device)
    setting = Setting(
        run=run,
        speeds=row.speeds,
        profile=PROFILES[row.clock],
        micro_batch_limit=row.micro_batch_limit,
        steps_exponent=row.steps_exponent,
        most_steps=row.most_steps,
        decay_rounds=row.decay_rounds,
        is_last_gradient=row.is_last_gradient,
        max_instances=row.max_instances,
        merged_every=row.merged_every,
        device=device,
    )
    started = time.process_time()
    timing = PATIENT if len(row.speeds) <= ALL_REACHED else CROWDED
    world = World(setting, feed, on_applied=watch.applied, timing=timing)
    world.run()
    return {
        "row": row.name,
        "seed": seed,
        "samples": samples,
        "settings": list(row.settings),
        "parameters": watch.num_parameters,
        "loss": round(watch.final_loss, 5),
        "rounds": len(watch.log),
        "inner_steps": watch.inner_steps,
        "bytes_per_peer": round(world.bytes_per_peer),
        "seconds": round(world.seconds, 2),
        "utilisation": round(world.utilisation, 4),
        "curve": watch.curve,
        "log": watch.log,
        "merges": [merge.reason for plan in world.plans.values() for merge in plan.merges],
        "processor_seconds": round(time.process_time() - started, 1),
    }


@cache
def indexed() -> tuple[IndexedRows, int]:
    """Return the rows of the embedded text, and the size of its vocabulary."""
    feed = open_feed(load_base(), cache_dir=CACHE)
    assert isinstance(feed, IndexedFeed)
    return feed.rows, feed.vocab_size


@dataclass(slots=True)
class _Watch:
    """Measures and counts while the world runs."""

    run: RunConfig
    rows: IndexedRows
    vocab_size: int
    every: float
    """Samples between two measurements."""
    device: str
    final_loss: float = float("nan")
    inner_steps: int = 0
    curve: list[list[float]] = field(default_factory=list)
    """Points [samples, rounds, inner steps, bytes sent per peer, seconds of the clock, held-out loss (mean of the
    instances)]."""
    log: list[list[list[int]]] = field(default_factory=list)
    """Per round, per instance: requested batch, largest batch of a host, most inner steps of a host, hosts."""
    _outers: dict[InstanceId, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        module = build_model(self.run.model, vocab_size=self.vocab_size, sequence_length=self.run.data.sequence_length, seed=0)
        self._shell = ModelShell(module, device=select_device(PeerConfig(device=self.device)), is_bfloat16=False)
        feed = IndexedFeed(self.rows, vocab_size=self.vocab_size, seed=HELDOUT_SEED)
        self._heldout = feed.heldout(HELDOUT_ROWS)
        self._next_point = 0.0

    _shell: ModelShell = field(init=False)
    _heldout: Any = field(init=False)
    _next_point: float = field(init=False)

    @property
    def num_parameters(self) -> int:
        return self._shell.layout.num_parameters

    def applied(self, world: World, plan: RoundPlan, instance: InstanceId, outer: torch.Tensor) -> None:
        """Note that an instance has ended the round, or the run."""
        if plan.is_last:
            self.final_loss = self._loss(outer)
            return
        self._outers[instance] = outer
        if len(self._outers) < len(plan.instances):
            return
        self._round_ended(world, plan)
        self._outers.clear()

    def _round_ended(self, world: World, plan: RoundPlan) -> None:
        trained = [[share for share in item.hosts if share.samples > 0] for item in plan.instances]
        most = [max(share.inner_steps for share in shares) for shares in trained]
        self.inner_steps += max(most)
        self.log.append(
            [
                [item.requested_batch, max(share.effective_batch for share in shares), steps, len(shares)]
                for item, shares, steps in zip(plan.instances, trained, most, strict=True)
            ]
        )
        done = samples_after(plan)
        if done < self._next_point:
            return
        self._next_point = done + self.every
        losses = [self._loss(outer) for outer in self._outers.values()]
        seconds, num_bytes = world.averaged(plan.round)
        point = [done, len(self.log), self.inner_steps, round(num_bytes), round(seconds, 2)]
        self.curve.append([*point, round(sum(losses) / len(losses), 5)])

    def _loss(self, outer: torch.Tensor) -> float:
        return heldout_loss(self._shell, outer, self._heldout, micro_batch=EVALUATED_TOKENS // self.run.data.sequence_length)
