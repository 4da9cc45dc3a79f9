"""Bytes per parameter on the card, by inner optimizer and number of instances, with 124 million parameters.

Resident: what stays between two inner steps: parameters, moments, and a gradient that all instances share. Peak: the most
during a round of one row at a time; activations of larger micro-batches add to it. Two rounds with an outer step come before.
"""

import gc
from dataclasses import replace
from typing import Literal

import torch

from adloco_p2p.core.model.rules import InstanceRules
from adloco_p2p.core.model.scalars import InstanceId
from benchmarks.gpu.card import GPT2, ONE, describe, peer_of, run_of, seconds_of, train, work

LIMIT = 16.0
Kind = Literal["adamw", "adamw8bit", "muon"]


def measure(kind: Kind, instances: int) -> None:
    base = run_of(GPT2)
    run = replace(
        base,
        inner=replace(base.inner, kind=kind),
        instances=InstanceRules(count=instances, start="same"),
    )
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    peer = peer_of(run, instances=instances, max_micro_batch=1)
    for number in range(2):
        for instance in range(instances):
            train(peer, work(batch=1, micro=1, steps=2, number=number, instance=InstanceId(instance)))
            peer.apply_outer(InstanceId(instance), peer.pseudo_gradient(InstanceId(instance)), round=number)
    per_parameter = (torch.cuda.memory_allocated() - before) / peer.num_parameters
    torch.cuda.reset_peak_memory_stats()
    step = seconds_of(lambda: train(peer, work(batch=1, micro=1, steps=8, number=2, instance=ONE))) / 8
    peak = (torch.cuda.max_memory_allocated() - before) / peer.num_parameters
    print(f"{kind:12s}{instances:10d}{per_parameter:10.1f}{peak:8.1f}{step * 1e3:14.1f}", flush=True)


def main() -> None:
    print(f"{describe()}: bytes per parameter; limit {LIMIT:.0f} for one instance")
    print(f"{'inner.kind':12s}{'instances':>10s}{'resident':>10s}{'peak':>8s}{'ms per step':>14s}")
    cases: tuple[tuple[Kind, int], ...] = (("adamw", 1), ("adamw", 4), ("muon", 1), ("adamw8bit", 1))
    for kind, instances in cases:
        measure(kind, instances)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
