"""Compares the search for the micro-batch with the truth: the largest one that trains without running out of memory.

The model has 124 million parameters, under caps on the card's memory. Rounds are trained with micro-batches beyond the limit
that the search found, until one runs out of memory (and is halved).
"""

import gc
from typing import Any

import torch

from benchmarks.gpu.card import GPT2, describe, peer_of, random_rows, run_of, seconds_of, train, work

GIBIBYTES = (8, 16, 24)
BEYOND = (1, 2, 4, 8, 16)


def measure(gibibytes: int, **machine: Any) -> None:
    free, _ = torch.cuda.mem_get_info()
    peer = peer_of(run_of(GPT2), random_rows(), memory_fraction=gibibytes * 2**30 / free, **machine)
    found = 0

    def search() -> None:
        nonlocal found
        found = peer.micro_batch_limit

    seconds = seconds_of(search)
    train(peer, work(batch=found, micro=found, steps=2))
    most = found
    for more in BEYOND:
        one = peer._shells[0]
        assert one.limit is not None
        one.limit.samples = found + more
        result = train(peer, work(batch=found + more, micro=found + more, steps=2))
        if result.micro_batch_limit < found + more:
            break
        most = found + more
    name = "checkpointing" if machine else ""
    print(f"{gibibytes:8d}{found:8d} in {seconds:5.1f} s{most:22d}  {name}", flush=True)


def main() -> None:
    print(f"{describe()}: rows of 1,024 tokens\n{'GiB cap':>8s}{'found':>8s}{'':11s}{'trains at the most':>22s}")
    for gibibytes in GIBIBYTES:
        measure(gibibytes)
        gc.collect()
        torch.cuda.empty_cache()
    measure(GIBIBYTES[0], activation_checkpointing=True)


if __name__ == "__main__":
    main()
