"""Held-out loss of the same run in float32, in TF32 and in bfloat16: 10.6 million parameters on real text, the same rows.

The text is that of the default run, in bytes; three seeds. Differences are to float32.
"""

import gc
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Literal

import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.data.feed import open_feed
from adloco_p2p.training.hosting import Hosting
from benchmarks.equal_hosts import ME
from benchmarks.gpu.card import ONE, describe, seconds_of, train, work
from benchmarks.nodes import llama

MODEL = llama(width=384, layers=6, heads=6, intermediate=1024)
ROUNDS, STEPS, BATCH, SEEDS = 6, 64, 32, (1, 2, 3)
Precision = Literal["float32", "bfloat16"]
SIDES: dict[str, tuple[Precision, bool]] = {
    "float32": ("float32", False),
    "TF32": ("float32", True),
    "bfloat16": ("bfloat16", True),
}


def loss_of(precision: Precision, *, tf32: bool, seed: int, folder: Path) -> tuple[float, float]:
    """Return held-out loss and seconds of all rounds."""
    default = load_run(None).value
    model = replace(default.model, architecture=MODEL, precision=precision)
    run = replace(
        default,
        seed=seed,
        model=model,
        data=replace(default.data, sequence_length=256),
        inner=replace(default.inner, learning_rate=1e-3),
        evaluation=replace(default.evaluation, rows=256),
    )
    peer = Hosting(run, PeerConfig(device="cuda", tf32=tf32, max_micro_batch=BATCH), ME, open_feed(run, cache_dir=folder))
    peer.start([ONE])

    def rounds() -> None:
        for number in range(ROUNDS):
            train(peer, work(batch=BATCH, micro=BATCH, steps=STEPS, number=number))
            peer.apply_outer(ONE, peer.pseudo_gradient(ONE), round=number)

    seconds = seconds_of(rounds)
    return peer.evaluate(ONE), seconds


def main() -> None:
    print(f"{describe()}: {ROUNDS} rounds of {STEPS} steps of {BATCH} rows of 256 bytes")
    losses: dict[str, list[float]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            for name, (precision, tf32) in SIDES.items():
                loss, seconds = loss_of(precision, tf32=tf32, seed=seed, folder=Path(folder))
                losses[name].append(loss)
                print(f"seed {seed}  {name:10s} loss {loss:.4f}  {seconds:5.1f} s", flush=True)
                gc.collect()
                torch.cuda.empty_cache()
    for name in SIDES:
        differences = [own - base for own, base in zip(losses[name], losses["float32"], strict=True)]
        print(f"{name:10s} {mean(differences):+.4f} beside float32 ({', '.join(f'{each:+.4f}' for each in differences)})")


if __name__ == "__main__":
    main()
