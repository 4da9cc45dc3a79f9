"""Adapters averaged over hosts against one process at the same samples: held-out loss and bytes of a round.

python -m benchmarks.finetune run          train what the kept records and finetune.jsonl lack; stop and go on at any time
python -m benchmarks.finetune report       the table of docs/finetune.md from both; keeps the records of both
python -m benchmarks.finetune run --rows one all --rates 1e-3 --seeds 1          two cells of it

Everything is the run's own code in one process, without a network: every host is an instance on one frozen base, and what hosts
send is coded, averaged and carried over as the averager does. `one` is a single process with the whole batch and no outer
optimizer; `all` is the configuration over the hosts; `sign` is what docs/finetune.md names for slow links, one bit of
every value, and `small` another way to at most 1 MB a round.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.feed import open_feed
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.batch import Batch, Feed, SampleStream
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.training.hosting import Hosting
from benchmarks.equal_hosts import work_of
from benchmarks.method.figures import Estimate, estimate
from benchmarks.method.run import RULE
from benchmarks.method.store import Record, append_record, command_line, digest_of, pack, records_by_key

ROWS: dict[str, list[str]] = {
    "one": ["mode=localsgd", "averaging.codec=float32"],
    "all": [],
    "small": ["model.lora.rank=4", "model.lora.freeze_a=true", "model.lora.alpha=8"],
    "sign": ["averaging.codec=sign", "averaging.feedback=1.0"],
}
KEPT = Path(__file__).parents[1] / "docs/results/finetune.jsonl.gz"
"""Records of earlier cells; a reader's own go beside them."""
ME = PeerId("benchmark")


class OneOrder:
    """A feed in which every host reads the one order of instance 0, as the hosts of a run do."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.vocab_size, self.sequence_length = feed.vocab_size, feed.sequence_length

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> SampleStream:  # noqa: ARG002
        return self._feed.open(instance=InstanceId(0), peer=peer, round=round, first_sample=first_sample)

    def heldout(self, num_rows: int) -> Batch:
        return self._feed.heldout(num_rows)

    def drawn(self, lot: str, num_rows: int) -> Batch:
        return self._feed.drawn(lot, num_rows)

    def of(self, reads: tuple[InstanceId, ...]) -> "OneOrder":  # noqa: ARG002
        return self

    def state(self, instance: InstanceId) -> dict[str, object]:  # noqa: ARG002
        return {}

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:  # noqa: ARG002
        raise AssertionError("nothing is restored here")


def round_of(run: RunConfig, host: InstanceId, number: int, num_hosts: int) -> RunInner:
    """Return the work of one of so many equal hosts; here every host is an instance of its own."""
    batch, rounds = run.batch.initial_batch, run.work.rounds
    assert rounds is not None and batch % num_hosts == 0, "the batch is dealt equally"
    peers = [PeerId(f"host {place}") for place in range(num_hosts)]
    return work_of(
        host, number, hosts=peers, instance=host, batch=batch // num_hosts, inner_steps=run.work.inner_steps, rounds=rounds
    )


def train(run: RunConfig, feed: Feed, num_hosts: int) -> Record:
    """Return held-out losses before and after the run, and the bytes that a host sends in a round, one way."""
    assert run.work.rounds is not None
    steps, own = run.work.inner_steps, run.batch.initial_batch // num_hosts
    engine = Hosting(run, PeerConfig(num_threads=1, max_micro_batch=own), ME, OneOrder(feed))
    hosts = [InstanceId(number) for number in range(num_hosts)]
    engine.start(hosts)
    averaging = run.averaging
    rule, codec = rule_named(averaging.aggregation, division=averaging.division), codec_named(averaging.codec)
    before = engine.evaluate(hosts[0])
    for number in range(run.work.rounds):
        for host in hosts:
            work = round_of(run, host, number, num_hosts)
            assert engine.run_inner(work, should_stop=lambda: False, on_progress=lambda *_: None) is not None
        vectors = [engine.pseudo_gradient(host) for host in hosts]
        made = aggregate(vectors, [own * steps] * num_hosts, [steps] * num_hosts, rule=rule, codec=codec)
        for host, residual in zip(hosts, made.residuals, strict=True):
            engine.apply_outer(host, made.vector, round=number, residual=residual)
        print(f"    round {number} is over", flush=True)
    assert len({engine.digests(host) for host in hosts}) == 1, "hosts have drifted apart"
    after = engine.evaluate(hosts[0])
    return {"before": round(before, 6), "after": round(after, 6), "num_bytes": codec.num_bytes(engine.num_parameters)}


def key_of(config: Path, settings: Sequence[str], num_hosts: int) -> str:
    """Return the key of a cell: a digest of all that its result depends on, except the code and the bytes of model and data,
    which count by their paths."""
    return digest_of([config.read_text("utf-8"), list(settings), num_hosts])


def train_cells(arguments: argparse.Namespace) -> None:
    """Train all rows of one seed before the next seed, so that an early end leaves whole tables."""
    torch.set_num_threads(1)
    done = set(records_by_key(KEPT, [arguments.output]))
    for seed, row, rate in (
        (seed, row, rate) for seed in arguments.seeds for row in arguments.rows for rate in arguments.rates
    ):
        settings = [*ROWS[row], *arguments.set, f"inner.learning_rate={float(rate)}", f"seed={seed}"]
        num_hosts = 1 if row == "one" else arguments.hosts
        key = key_of(arguments.config, settings, num_hosts)
        if key in done:
            continue
        run = load_run(arguments.config, [RULE, *settings]).value
        run = replace(run, instances=replace(run.instances, count=arguments.hosts))  # the same order of samples
        print(f"{row} seed {seed} rate {rate}", flush=True)
        started = time.monotonic()
        found = train(run, open_feed(run, cache_dir=None), num_hosts)
        named = {"key": key, "row": row, "seed": seed, "rate": float(rate), "hosts": num_hosts, "set": arguments.set}
        append_record(arguments.output, {**named, **found, "seconds": round(time.monotonic() - started)})
        done.add(key)


def best(records: Sequence[Record], row: str, settings: Sequence[str] = ()) -> dict[int, Record]:
    """Return for each seed the record of the rate with the lowest last loss. Records with other further settings are another
    experiment."""
    found: dict[int, Record] = {}
    for record in records:
        known = found.get(record["seed"])
        if record["row"] == row and record["set"] == list(settings) and (known is None or record["after"] < known["after"]):
            found[record["seed"]] = record
    return found


def gains(records: Sequence[Record], row: str, settings: Sequence[str] = ()) -> tuple[Estimate, Estimate] | None:
    """Return how much of the single process's drop the row reaches, and by how much it ends above it, both at their best rate,
    over the seeds that both have."""
    single, other = best(records, "one", settings), best(records, row, settings)
    common = sorted(single.keys() & other.keys())
    if not common:
        return None
    drops = estimate([_drop(other[seed]) / _drop(single[seed]) for seed in common])
    return drops, estimate([other[seed]["after"] - single[seed]["after"] for seed in common])


def beside(records: Sequence[Record], row: str, settings: Sequence[str]) -> Estimate | None:
    """Return by how much the row ends above itself without the further settings, in nats, both at their best rate, over the
    seeds that both have."""
    plain, other = best(records, row), best(records, row, settings)
    common = sorted(plain.keys() & other.keys())
    return estimate([other[seed]["after"] - plain[seed]["after"] for seed in common]) if common else None


def _drop(record: Record) -> float:
    return float(record["before"] - record["after"])


def tabulate(arguments: argparse.Namespace) -> None:
    found = records_by_key(KEPT, arguments.runs)
    records = sorted(found.values(), key=lambda record: (record["row"], record["seed"], record["rate"]))
    if records:
        pack(records, KEPT)
    print("| row | seed | rate | held-out loss before, after | best | MB a round, one way |\n|---|---|---|---|---|---|")
    for record in records:
        is_best = best(records, record["row"], record["set"]).get(record["seed"]) is record
        mark = " ".join([*record["set"], *["yes"] * is_best])
        print(
            f"| {record['row']} | {record['seed']} | {record['rate']:g} | {record['before']:.4f}, {record['after']:.4f} |"
            f" {mark} | {record['num_bytes'] / 1e6:.2f} |"
        )
    for settings in sorted({tuple(record["set"]) for record in records}):
        for row in ROWS:
            found_both = gains(records, row, settings)
            if found_both is not None and row != "one":
                gain, above = found_both
                half = f" +- {gain.half_width:.1%}" if gain.half_width else ""
                words = f"{gain.mean:.1%}{half} of the gain of one process, {above.shown(3)} nats above it"
                print(f"\n{' '.join((row, *settings))}: {words}")
            elif found_both is None and (over := beside(records, row, settings)) is not None:
                print(f"\n{' '.join((row, *settings))}: {over.shown(3)} nats above {row} without these settings")


def main() -> None:
    line = command_line("finetune", __doc__, seeds=[1, 2, 3], train=train_cells, tabulate=tabulate)
    line.run.add_argument("--config", type=Path, default=Path("configs/finetune.yaml"))
    line.run.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    line.run.add_argument("--rates", nargs="+", default=["5e-4", "1e-3", "2e-3"], help="inner.learning_rate")
    line.run.add_argument("--hosts", type=int, default=4)
    line.run.add_argument("--set", nargs="*", default=[], help="as of adloco-peer start")
    line.act()


if __name__ == "__main__":
    main()
