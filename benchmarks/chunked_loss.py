"""What never holding all logits saves, and costs: a training step with whole logits and with chunked ones, side by side.

python -m benchmarks.chunked_loss              vocabulary 50,257, width 768, two layers, a row of 1,024 tokens; half a minute

A CPU, one thread; each side in a process of its own, in turns. Memory: the most that the process held resident in the steps,
above what it held before them. Time: the processor's, of the fastest step.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import psutil
import torch

from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.training import chunked_loss
from adloco_p2p.training.inner_loop import accumulate_gradient
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell

VOCABULARY, LENGTH, SAMPLES, STEPS = 50_257, 1024, 1, 2
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
    parser.add_argument("--side", choices=["whole", "chunked"], help="this process measures that one")
    side = parser.parse_args().side
    if side is not None:
        _measure(side)
        return
    for name in ("whole", "chunked"):
        command = [sys.executable, "-m", "benchmarks.chunked_loss", "--side", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found = json.loads(output.stdout)
        sys.stdout.write(f"{name:8s} {found['mib']:6.0f} MiB above the model, {found['seconds']:6.2f} s a step\n")


def _measure(side: str) -> None:
    torch.set_num_threads(1)
    if side == "whole":
        chunked_loss.LARGE_VOCABULARY = VOCABULARY + 1
    module = build_model(ModelConfig(architecture=ARCHITECTURE), vocab_size=VOCABULARY, sequence_length=LENGTH, seed=1)
    shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
    assert shell.is_loss_chunked == (side == "chunked")
    shell.gradient.zero_()  # resident from here on
    ids = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))
    rows = Batch(input_ids=ids, labels=ids)
    before = psutil.Process().memory_info().rss
    seconds = []
    for _ in range(STEPS):
        begun = time.process_time()
        accumulate_gradient(shell, rows, micro_batch=SAMPLES, is_measured=False)
        seconds.append(time.process_time() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(json.dumps({"mib": (peak - before) / 2**20, "seconds": min(seconds)}))


if __name__ == "__main__":
    main()
