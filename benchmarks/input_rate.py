"""How fast rows are read, against how fast the device trains on them, and what reading beside it costs the device.

python -m benchmarks.input_rate                          the default model on one CPU thread; two minutes
python -m benchmarks.input_rate --tokenizer DIRECTORY    and with a tokenizer that `transformers` loads

Input: rows a second that the input's thread makes ready while nothing else happens, from indexed rows and from a stream of json
files that holds the embedded text. Device: rows a second of inner steps on rows that lie in memory, and on rows that are read
beside them; the sides take turns, and the fastest of each counts. Target: an input at least twice as fast as the device.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import DataConfig, RunConfig, TokenizerConfig
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.data.corpus import documents
from adloco_p2p.data.feed import open_feed
from adloco_p2p.numerics.batch import Feed
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.input_worker import InputWorker
from benchmarks.equal_hosts import ME, InMemory, round_of

ONE = InstanceId(0)
SAMPLES, BATCHES = 8, 12
"""Samples and batches of one turn."""
TURNS = 3
TARGET = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", metavar="DIRECTORY")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, run in _runs(folder, arguments.tokenizer):
            _measure(name, run, folder / "cache")


def _runs(folder: Path, tokenizer: str | None) -> Iterator[tuple[str, RunConfig]]:
    default = load_run(None).value
    yield "indexed, bytes", default
    for number in range(4):
        texts = [document.text for document in documents()][number::4]
        (folder / f"part{number}.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    streamed = replace(default, data=DataConfig(source="json", path=str(folder / "part*.json"), streaming=True))
    yield "streamed, bytes", streamed
    if tokenizer is not None:
        yield "streamed, tokenizer", replace(streamed, tokenizer=TokenizerConfig(source=tokenizer))


def _measure(name: str, run: RunConfig, cache: Path) -> None:
    feed = open_feed(run, cache_dir=cache)
    length = feed.sequence_length
    peer = PeerConfig(device="cpu", num_threads=1)
    rows = feed.open(instance=ONE, peer=ME, round=0, first_sample=0).take(SAMPLES)
    in_memory = InMemory(rows, vocab_size=feed.vocab_size)
    sides = {"in memory": Hosting(run, peer, ME, in_memory), "read beside": Hosting(run, peer, ME, feed)}
    for engine in sides.values():
        engine.start([ONE])
    fastest: dict[str, float] = {}
    for turn in range(TURNS + 1):  # the first one opens files and fills caches
        for side, engine in sides.items():
            _note(fastest, side, _timed(lambda engine=engine: _train(engine)), is_counted=turn > 0)  # type: ignore[misc]
        with _reading(feed) as read:
            _note(fastest, "input", _timed(read), is_counted=turn > 0)
    rates = {side: SAMPLES * BATCHES / seconds for side, seconds in fastest.items()}
    sys.stdout.write(
        f"{name:20s} input {rates['input']:9.0f} rows/s ({rates['input'] * length:11.0f} tokens/s),"
        f" device {rates['in memory']:6.1f} rows/s, {rates['input'] / rates['in memory']:7.1f} times (target {TARGET});"
        f" a round beside reading takes {rates['in memory'] / rates['read beside']:.3f} of one from memory\n"
    )


def _train(engine: Hosting) -> None:
    work = round_of(ONE)
    share = replace(work.share, batch_samples=SAMPLES, inner_steps=BATCHES, micro_batch_size=SAMPLES)
    work = replace(work, share=share, plan=replace(work.plan, hosts=(share,)))
    engine.run_inner(work, should_stop=lambda: False, on_progress=lambda *_: None)


@contextmanager
def _reading(feed: Feed) -> Iterator[Callable[[], None]]:
    worker = InputWorker(feed, is_pinned=False)
    with worker.open(instance=ONE, peer=ME, round=0, first_sample=0, num_samples=SAMPLES, num_batches=BATCHES) as batches:

        def read() -> None:
            for _ in range(BATCHES):
                batches.take()

        yield read


def _timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _note(fastest: dict[str, float], side: str, seconds: float, *, is_counted: bool) -> None:
    if is_counted:
        fastest[side] = min(seconds, fastest.get(side, seconds))


if __name__ == "__main__":
    main()
