"""Four instances on one card: in turn in one process, as a node trains them, and at the same time in four processes."""

import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import InstanceId
from benchmarks.gpu.card import GPT2, LENGTH, LLAMA_30M, describe, peer_of, random_rows, run_of, seconds_of, train, work

INSTANCES = 4
MODELS = {"33M": LLAMA_30M, "124M": GPT2}


def in_turn(model: dict[str, Any], *, batch: int, steps: int) -> float:
    """Return the tokens per second of all instances."""
    run = run_of(model, instances=InstanceRules(count=INSTANCES, start="same"))
    peer = peer_of(run, random_rows(), instances=INSTANCES, max_micro_batch=batch)

    def rounds() -> None:
        for instance in range(INSTANCES):
            train(peer, work(batch=batch, micro=batch, steps=steps, instance=InstanceId(instance)))

    rounds()
    return INSTANCES * batch * LENGTH * steps / min(seconds_of(rounds) for _ in range(2))


def at_once(model: dict[str, Any], *, batch: int, steps: int) -> float:
    context = multiprocessing.get_context("spawn")
    barrier, spans = context.Barrier(INSTANCES), context.Queue()
    processes = [context.Process(target=_alone, args=(model, batch, steps, barrier, spans)) for _ in range(INSTANCES)]
    for process in processes:
        process.start()
    found = [spans.get(timeout=100) for _ in processes]
    for process in processes:
        process.join()
    seconds = max(end for _, end in found) - min(start for start, _ in found)
    return INSTANCES * batch * LENGTH * steps / seconds


def _alone(model: dict[str, Any], batch: int, steps: int, barrier: Barrier, spans: Any) -> None:
    peer = peer_of(run_of(model), random_rows(), max_micro_batch=batch, memory_fraction=0.2, num_threads=2)
    effect = work(batch=batch, micro=batch, steps=steps)
    train(peer, effect)
    torch.cuda.synchronize()
    barrier.wait(90)
    started = time.monotonic()  # one clock for all processes of the machine
    train(peer, effect)
    torch.cuda.synchronize()
    spans.put((started, time.monotonic()))


def main() -> None:
    print(f"{describe()}: tokens per second of four instances together, rows of {LENGTH} tokens")
    print(f"{'model':8s}{'batch':>6s}{'in turn':>10s}{'at once':>10s}{'ratio':>7s}")
    for name, model in MODELS.items():
        for batch in (2, 16):
            turn = in_turn(model, batch=batch, steps=20)
            torch.cuda.empty_cache()
            once = at_once(model, batch=batch, steps=60)
            print(f"{name:8s}{batch:6d}{turn:10.0f}{once:10.0f}{once / turn:7.2f}", flush=True)


if __name__ == "__main__":
    main()
