"""The cost of the node: whole rounds through the event loop, plans, gradient statistics, averaging alone, outer step, digests,
events and a checkpoint, against a bare PyTorch loop that does the same inner steps on the same rows. The sides take turns.

python -m benchmarks.node_overhead            the embedded default on one CPU thread; a minute or two

Counted as the node's: the checkpoint after each round, and another one and the last evaluation (of a single row) at the end.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import EvaluationConfig, RunConfig
from adloco_p2p.core.agreement.fixed_roster import FixedRosterAgreement
from adloco_p2p.core.model.events import Durable, Started
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.core.planning.round_plan import genesis, next_plan
from adloco_p2p.data.feed import open_feed
from adloco_p2p.numerics.batch import Feed
from adloco_p2p.runtime.node.event_sink import Sink
from adloco_p2p.runtime.node.loop import Node, Ports
from adloco_p2p.runtime.offline_node import NothingToJournal
from adloco_p2p.storage.checkpoint import CheckpointStore
from adloco_p2p.storage.event_log import EventLog
from adloco_p2p.swarm.in_memory import MemorySwarm
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.model import build_model

ME = PeerId("peer")
ONE = InstanceId(0)
ROUNDS = 8
"""Rounds of a turn: starting and ending a node costs a tenth of a second, whatever lies between."""
TURNS = 3
"""Turns of each side. The fastest are compared, since other processes only ever slow one down."""
TARGET = 1.02


@dataclass(frozen=True)
class Seconds:
    wall: float
    processor: float


class Unseen:
    """A view that shows nothing."""

    def start(self) -> None: ...

    def recall(self, events: object) -> None: ...

    def update(self, stamped: object) -> None: ...

    def stop(self) -> None: ...


def main() -> None:
    torch.set_num_threads(1)
    default = load_run(None).value
    run = replace(
        default,
        work=replace(default.work, rounds=ROUNDS),
        instances=InstanceRules(count=1, start="same"),
        batch=replace(default.batch, test="constant"),  # the statistics are taken nevertheless
        evaluation=EvaluationConfig(period_rounds=0, rows=1),  # the bare loop does not evaluate
    )
    with tempfile.TemporaryDirectory() as folder:
        feed = open_feed(run, cache_dir=Path(folder))
        engine = Hosting(run, PeerConfig(device="cpu", num_threads=1), ME, feed)
        sys.stdout.write(
            f"{engine.num_parameters} parameters, {run.data.sequence_length} tokens, batch {run.batch.initial_batch},"
            f" {ROUNDS} rounds of {run.work.inner_steps} inner steps a turn, {TURNS} turns each\n"
        )
        bare, node = _take_turns(run, feed, engine, Path(folder))
    sys.stdout.write("             bare loop      node     ratio\n")
    for name, low, high in (("wall", bare.wall, node.wall), ("processor", bare.processor, node.processor)):
        sys.stdout.write(f"{name:<10} {low:9.2f} s {high:7.2f} s  {high / low:8.3f}\n")
    sys.stdout.write(f"target: at most {TARGET}\n")


def _take_turns(run: RunConfig, feed: Feed, engine: Hosting, folder: Path) -> tuple[Seconds, Seconds]:
    """Return the fastest turn of the bare loop, and of the node."""
    bare, node = [], []
    for turn in range(TURNS):
        bare.append(_timed(_bare_turn(run, feed)))
        node.append(_timed(whole_run(run, engine, folder / f"turn-{turn}")))
    return _fastest(bare), _fastest(node)


def _fastest(turns: list[Seconds]) -> Seconds:
    return Seconds(wall=min(turn.wall for turn in turns), processor=min(turn.processor for turn in turns))


def _timed(work: Callable[[], object]) -> Seconds:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return Seconds(wall=time.perf_counter() - wall, processor=time.process_time() - processor)


def _bare_turn(run: RunConfig, feed: Feed) -> Callable[[], object]:
    """Return the usual loop: zero gradients, forward, backward, clip, step."""
    module = build_model(run.model, vocab_size=feed.vocab_size, sequence_length=feed.sequence_length, seed=1)
    module.train()
    inner = run.inner
    adamw = torch.optim.AdamW(
        module.parameters(), lr=1e-4, betas=inner.betas, eps=inner.eps, weight_decay=inner.weight_decay, fused=True
    )
    stream = feed.open(instance=ONE, peer=ME, round=0, first_sample=0)

    def work() -> None:
        for _ in range(run.work.inner_steps * ROUNDS):
            rows = stream.take(run.batch.initial_batch)
            adamw.zero_grad()
            module(input_ids=rows.input_ids, labels=rows.labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), inner.clip_norm)
            adamw.step()

    return work


def whole_run(run: RunConfig, engine: Hosting, folder: Path, *, checkpoint_period: int = 1) -> Callable[[], object]:
    """Return a whole run of the node, from the genesis plan to the last checkpoint."""
    folder.mkdir()
    capacity = Capacity(samples_per_second=0.0, micro_batch_limit=engine.micro_batch_limit, max_instances=1)
    plan = genesis(run.digest, [(ME, capacity)], run.rules)
    engine.start([ONE])
    port = MemorySwarm().port(ME)
    ports = Ports(
        engine=engine,
        checkpoints=CheckpointStore.open(folder / "checkpoints", run=run.digest, kept=2),
        averaging=port,
        messenger=port,
        states=port,
        journal=NothingToJournal(),
        events=Sink(log=EventLog.open(folder / "events.jsonl"), view=Unseen()),
    )
    durable = Durable(round=0, plans=(plan,), held=(ONE,))

    def work() -> None:
        agreement = FixedRosterAgreement(decide=lambda before, reports: next_plan(before, reports, run.rules))
        cadence = Cadence(work=run.work, evaluation_period=0, checkpoint_period=checkpoint_period)
        peer = Peer(me=ME, cadence=cadence, agreement=agreement)
        stop = asyncio.run(Node(peer=peer, ports=ports).run(Started(durable=durable, capacity=capacity)))
        assert stop.is_finished

    return work


if __name__ == "__main__":
    main()
