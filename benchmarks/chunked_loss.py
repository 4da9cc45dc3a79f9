"""Savings and cost of never holding all logits: a training step with whole logits and with chunks of several sizes.
The head is trained: each chunk adds a gradient as large as the head.

python -m benchmarks.chunked_loss                      vocabulary 50,257, width 768, two layers, 1,024 tokens; two minutes
python -m benchmarks.chunked_loss --chunks 32 64 128   tokens of a chunk

A CPU, one thread, one process; the sides take turns, so that other work of the machine affects all of them. Memory: the most
that the process held resident in a step, above what it held before. Time: the processor's, of the fastest step.
"""

import argparse
import ctypes
import os
import sys
import time

import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training import chunked_loss
from adloco_p2p.training.accumulation import accumulate_gradient
from adloco_p2p.training.device import configure_devices
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks.resident import peak_bytes, reset_peak, resident_bytes

VOCABULARY = 50_257
WHOLE = 0
"""Stands for all logits at once, in place of a chunk's tokens."""
ARCHITECTURE: dict[str, str | int | float | bool | None] = {
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "tie_word_embeddings": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[32, 64, 128, 512], metavar="TOKENS")
    parser.add_argument("--length", type=int, default=1024, help="tokens of the row")
    parser.add_argument("--steps", type=int, default=3, help="of each side")
    arguments = parser.parse_args()
    device = configure_devices(PeerConfig(device="cpu", num_threads=1))["cpu"]
    module = build_model(
        ModelConfig(architecture=ARCHITECTURE), vocab_size=VOCABULARY, sequence_length=arguments.length, seed=1
    )
    shell = ModelShell(module, device=device, is_bfloat16=False)
    head = shell._head
    assert head is not None
    shell.gradient.zero_()  # resident from here on
    ids = torch.randint(VOCABULARY, (1, arguments.length), generator=torch.Generator().manual_seed(1))
    rows = Batch(input_ids=ids, labels=ids)
    sides = [WHOLE, *arguments.chunks]
    seconds: dict[int, list[float]] = {side: [] for side in sides}
    peaks: dict[int, int] = dict.fromkeys(sides, 0)
    for side in sides * arguments.steps:
        shell._head = None if side == WHOLE else head
        chunked_loss.CHUNK_VALUES = side * VOCABULARY
        spent, peak = _step(shell, rows)
        seconds[side].append(spent)
        peaks[side] = max(peaks[side], peak)
    for side in sides:
        name = "whole" if side == WHOLE else f"{side} tokens"
        sys.stdout.write(f"{name:12s} {peaks[side] / 2**20:6.0f} MiB above the model, {min(seconds[side]):6.2f} s a step\n")


def _step(shell: ModelShell, rows: Batch) -> tuple[float, int]:
    """Return the processor seconds of a step, and the most bytes above those before it."""
    ctypes.CDLL(None).malloc_trim(0)  # otherwise memory that another side freed would serve this one, uncounted
    reset_peak(os.getpid())
    before = sum(resident_bytes(os.getpid()))
    begun = time.process_time()
    accumulate_gradient(shell, rows, micro_batch=1, is_measured=False)
    return time.process_time() - begun, peak_bytes(os.getpid()) - before


if __name__ == "__main__":
    main()
