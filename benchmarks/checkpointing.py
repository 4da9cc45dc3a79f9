"""Savings and cost of activation checkpointing: a training step that keeps all activations, and one that computes those of a
block again.

python -m benchmarks.checkpointing                       a Llama of 12 layers, 384 wide, two rows of 512 tokens; minutes
python -m benchmarks.checkpointing --rows 4 --layers 24

A CPU, one thread, one process; the sides take turns, so that other work of the machine affects both. Memory: the most that the
process held resident in a step, above what it held before; and what the search for the micro-batch counts. Time: the
processor's, of the fastest step. The gradients are compared bit for bit.
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
from adloco_p2p.training.accumulation import accumulate_gradient
from adloco_p2p.training.device import configure_devices
from adloco_p2p.training.memory_search import step_bytes
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks.nodes import llama
from benchmarks.resident import peak_bytes, reset_peak, resident_bytes

VOCABULARY = 259
"""The vocabulary of the tokenizer `bytes`: logits are negligible here, and `benchmarks.chunked_loss` measures them."""
LEAST_SAVED, MOST_TIME = 0.55, 1.4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2, help="of a micro-batch")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3, help="of each side")
    arguments = parser.parse_args()
    device = configure_devices(PeerConfig(device="cpu", num_threads=1))["cpu"]
    model = ModelConfig(architecture=llama(width=384, layers=arguments.layers, heads=6, intermediate=1024))
    module = build_model(model, vocab_size=VOCABULARY, sequence_length=arguments.length, seed=1)
    shell = ModelShell(module, device=device, is_bfloat16=False)
    module.train()
    shell.gradient.zero_()  # resident from here on
    ids = torch.randint(VOCABULARY, (arguments.rows, arguments.length), generator=torch.Generator().manual_seed(1))
    rows = Batch(input_ids=ids, labels=ids)
    kept, recomputed = [], []
    own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    counted = step_bytes(shell, rows, own)
    shell.recompute_activations()
    for _ in range(1 + arguments.steps):  # the first ones also make buffers of libraries
        with shell.keeping_activations():
            kept.append(_step(shell, rows))
        expected = shell.gradient.clone()
        recomputed.append(_step(shell, rows))
        assert torch.equal(shell.gradient, expected), "another gradient"
        del expected
    sys.stdout.write(f"{shell.layout.num_parameters} parameters in {arguments.layers} blocks, rows of {list(ids.shape)}\n")
    seconds, peak = _show("kept", kept[1:])
    more_seconds, less_peak = _show("computed again", recomputed[1:])
    sys.stdout.write(
        f"saved {1 - less_peak / peak:.0%} (target {LEAST_SAVED:.0%}), {more_seconds / seconds:.2f} of the time"
        f" (target {MOST_TIME}); gradients equal bit for bit;"
        f" the search for the micro-batch counts {counted / 2**20:.0f} MiB, either way\n"
    )


def _step(shell: ModelShell, rows: Batch) -> tuple[float, int]:
    """Return the processor seconds of a step, and the most bytes above those before it."""
    ctypes.CDLL(None).malloc_trim(0)  # otherwise memory that another side freed would serve this one, uncounted
    reset_peak(os.getpid())
    before = sum(resident_bytes(os.getpid()))
    begun = time.process_time()
    accumulate_gradient(shell, rows, micro_batch=rows.num_samples, is_measured=False)
    return time.process_time() - begun, peak_bytes(os.getpid()) - before


def _show(name: str, steps: list[tuple[float, int]]) -> tuple[float, int]:
    """Print and return the processor seconds of the fastest step, and the bytes of the step that took most memory."""
    seconds, peak = min(spent for spent, _ in steps), max(most for _, most in steps)
    sys.stdout.write(f"{name:16s} {peak / 2**20:6.0f} MiB above the model, {seconds:6.2f} s a step\n")
    return seconds, peak


if __name__ == "__main__":
    main()
