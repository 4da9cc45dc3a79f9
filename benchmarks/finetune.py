"""Adapters averaged over hosts against one process at the same samples: held-out loss and bytes of a round.

    python -m benchmarks.finetune [--config configs/finetune.yaml] [--rows one all small] [--rates 1e-3] [--seeds 42]

Everything is the run's own code in one process, without a network: every host is an instance on one frozen base, and what hosts
send is coded and averaged as the averager does. `one` is a single process with the whole batch and no outer optimizer; `all`
is the configuration over the hosts; `small` is the preset of docs/finetune.md for slow links. `gain` is how much of the drop of
the single process, with the same seed and its best rate, a row reaches. On SmolLM2-135M 2 to 4 minutes of one core a row.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.events import RunInner
from adloco_p2p.core.model.types import HostShare, InstanceId, InstancePlan, PeerId
from adloco_p2p.data.feed import open_feed
from adloco_p2p.numerics.batch import Batch, Feed, SampleStream
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.hosting import Hosting

ROWS: dict[str, list[str]] = {
    "one": ["mode=localsgd", "averaging.codec=float32"],
    "all": [],
    "small": ["model.lora.rank=4", "model.lora.freeze_a=true", "model.lora.alpha=8"],
}
ME = PeerId("benchmark")


class OneOrder:
    """A feed in which every host reads the one order of instance 0: the hosts of a run do."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.vocab_size, self.sequence_length = feed.vocab_size, feed.sequence_length

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> SampleStream:  # noqa: ARG002
        return self._feed.open(instance=InstanceId(0), peer=peer, round=round, first_sample=first_sample)

    def heldout(self, num_rows: int) -> Batch:
        return self._feed.heldout(num_rows)

    def drawn(self, lot: str, num_rows: int) -> Batch:
        return self._feed.drawn(lot, num_rows)

    def state(self, instance: InstanceId) -> dict[str, object]:  # noqa: ARG002
        return {}

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:  # noqa: ARG002
        raise AssertionError("nothing is restored here")


def work_of(run: RunConfig, host: InstanceId, number: int, num_hosts: int) -> RunInner:
    """Round `number` of one of so many equal hosts."""
    steps, batch, rounds = run.work.inner_steps, run.batch.initial_batch, run.work.rounds
    assert rounds is not None and batch % num_hosts == 0, "the batch is dealt equally"
    own = batch // num_hosts
    first = number * batch * steps + host * own * steps
    share = HostShare(
        peer=ME, batch_samples=own, inner_steps=steps, micro_batch_size=own, accumulation_steps=1, first_sample=first
    )
    plan = InstancePlan(
        instance=host,
        requested_batch=batch,
        effective_batch=batch,
        mode="single",
        reason="benchmark",
        hosts=(share,),
        first_sample=first,
        inner_steps_before=number * steps,
    )
    start, end = number / rounds, (number + 1) / rounds
    return RunInner(round=number, plan=plan, share=share, progress_start=start, progress_end=end)


def train(run: RunConfig, feed: Feed, num_hosts: int, micro_batch: int) -> tuple[float, float, int]:
    """Held-out losses before and after the run, and the bytes that a host sends in a round."""
    engine = Hosting(run, PeerConfig(num_threads=1, max_micro_batch=micro_batch), ME, OneOrder(feed))
    hosts = [InstanceId(number) for number in range(num_hosts)]
    engine.start(hosts)
    codec = codec_named(run.averaging.codec)
    before, num_bytes = engine.evaluate(hosts[0]), 0
    assert run.work.rounds is not None
    for number in range(run.work.rounds):
        sent = []
        for host in hosts:
            work = work_of(run, host, number, num_hosts)
            assert engine.run_inner(work, should_stop=lambda: False, on_progress=lambda *_: None) is not None
            sent.append(codec.encode(engine.pseudo_gradient(host)))
        num_bytes = len(sent[0])
        mean = weighted_average([codec.decode(data) for data in sent], [1 / num_hosts] * num_hosts)
        back = codec.for_mean(num_hosts)
        mean = back.decode(back.encode(mean))
        for host in hosts:
            engine.apply_outer(host, mean.clone(), round=number)
        print(f"    round {number} is over", flush=True)
    assert len({engine.digests(host) for host in hosts}) == 1, "hosts have drifted apart"
    return before, engine.evaluate(hosts[0]), num_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/finetune.yaml"))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rates", nargs="+", default=["1e-3"], help="inner.learning_rate")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], help="as of adloco-peer start")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in args.seeds:
        best = None
        for row in args.rows:
            for rate in args.rates:
                settings = [*args.set, *ROWS[row], f"inner.learning_rate={rate}", f"seed={seed}"]
                run = load_run(args.config, settings).value
                run = replace(run, instances=replace(run.instances, count=args.hosts))
                num_hosts = 1 if row == "one" else args.hosts
                feed, micro_batch = open_feed(run, cache_dir=None), run.batch.initial_batch // args.hosts
                before, after, num_bytes = train(run, feed, num_hosts, micro_batch)
                if row == "one":
                    best = min(after, best if best is not None else after)
                gain = f"{(before - after) / (before - best):.1%}" if best is not None else "-"
                print(
                    f"{row:<6} seed {seed}  rate {rate}  {before:.4f} -> {after:.4f}  gain {gain:<7}"
                    f" {num_bytes / 1e6:.2f} MB a round and way",
                    flush=True,
                )


if __name__ == "__main__":
    main()
