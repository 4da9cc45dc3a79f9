"""The cost of each codec and its effect on the loss: two hosts of one instance in one process, all else the run's own code.

    python -m benchmarks.codecs [--rounds 24] [--seeds 1 2 3] [--codecs float32 int4 ...]

`bytes` is per value of the vector: the mean of what a host sends and what comes back; `error` is the part of a
pseudo-gradient that one encoding loses, by norm. `loss` is the held-out loss after all rounds, nats per token, and its
difference to float32 with the same seed. `MB/s` is of float32, one thread. Each codec adds what it lost to the next round
(`averaging.feedback`); rows marked `0` do not. About two minutes a codec and seed on one core.
"""

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.feed import open_feed
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import CODECS, codec_named, wire_bytes
from adloco_p2p.training.hosting import Hosting
from benchmarks.equal_hosts import work_of
from benchmarks.method.run import RULE

ROOT = Path(__file__).parents[1]
HOSTS = (PeerId("host-a"), PeerId("host-b"))
ONE = InstanceId(0)
BATCH = 8
SPEED_VALUES = 4 << 20


def run_of(args: argparse.Namespace, *, codec: str, feedback: float, seed: int) -> RunConfig:
    settings = [
        f"work.inner_steps={args.inner_steps}",
        f"work.rounds={args.rounds}",
        f"averaging.codec={codec}",
        f"averaging.feedback={feedback}",
        f"seed={seed}",
        "data.sequence_length=128",
    ]
    return load_run(ROOT / "configs/diloco.yaml", [RULE, *settings]).value


def train(run: RunConfig, cache: Path) -> tuple[float, float]:
    """Return the held-out loss at the end, and the mean loss of one encoding by norm."""
    feed = open_feed(run, cache_dir=cache)
    peers = [Hosting(run, PeerConfig(num_threads=1, max_micro_batch=BATCH), host, feed) for host in HOSTS]
    for peer in peers:
        peer.start([ONE])
    codec = codec_named(run.averaging.codec)
    errors: list[float] = []
    rule = rule_named(run.averaging.aggregation, division=run.averaging.division)
    steps, rounds = run.work.inner_steps, run.work.rounds
    assert rounds is not None
    for number in range(rounds):
        vectors = []
        for index, peer in enumerate(peers):
            work = work_of(index, number, hosts=HOSTS, instance=ONE, batch=BATCH, inner_steps=steps, rounds=rounds)
            peer.run_inner(work, should_stop=lambda: False, on_progress=lambda *_: None)
            vector = peer.pseudo_gradient(ONE)
            vectors.append(vector)
            errors.append(float((codec.decode(codec.encode(vector)) - vector).norm() / vector.norm()))
        result = aggregate(vectors, [1] * len(peers), [steps] * len(peers), rule=rule, codec=codec)
        for peer, residual in zip(peers, result.residuals, strict=True):
            peer.apply_outer(ONE, result.vector, round=number, residual=residual)
    assert peers[0].digests(ONE) == peers[1].digests(ONE)
    return peers[0].evaluate(ONE), statistics.mean(errors)


def speed(name: str) -> tuple[float, float]:
    """Return the MB of float32 per second of processor time, encoding and decoding."""
    codec, values = codec_named(name), torch.randn(SPEED_VALUES)
    figures = []
    data = codec.encode(values)
    for work in (lambda: codec.encode(values), lambda: codec.decode(data)):
        begun, count = time.thread_time(), 0
        while time.thread_time() - begun < 0.5:
            work()
            count += 1
        figures.append(4e-6 * SPEED_VALUES * count / (time.thread_time() - begun))
    return figures[0], figures[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--inner-steps", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--codecs", nargs="+", default=[codec.name for codec in CODECS], choices=[c.name for c in CODECS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("codec    feedback  bytes  encode  decode MB/s  error    loss  to float32", flush=True)
    exact: dict[int, float] = {}
    with TemporaryDirectory() as cache:
        for name in sorted(args.codecs, key=lambda name: name != "float32"):
            codec, (encoding, decoding) = codec_named(name), speed(name)
            size = wire_bytes(codec, 2)
            for feedback in (1.0, 0.0) if codec.needs_feedback else (1.0,):
                results = {
                    seed: train(run_of(args, codec=name, feedback=feedback, seed=seed), Path(cache)) for seed in args.seeds
                }
                loss = statistics.mean(loss for loss, _ in results.values())
                error = statistics.mean(error for _, error in results.values())
                if name == "float32":
                    exact = {seed: loss for seed, (loss, _) in results.items()}
                apart = statistics.mean(results[seed][0] - exact[seed] for seed in results) if exact else float("nan")
                figures = f"{size:6.3f} {encoding:7.0f} {decoding:12.0f} {error:6.3f} {loss:7.4f} {apart:+11.4f}"
                print(f"{name:8} {feedback:8.1f} {figures}", flush=True)


if __name__ == "__main__":
    main()
