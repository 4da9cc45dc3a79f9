"""Checks whether a run on the card repeats: digests of two runs of three rounds, with `deterministic` and without, and its
price."""

import gc
import os
from dataclasses import replace
from itertools import product
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from benchmarks.gpu.card import GPT2, LLAMA_30M, ONE, describe, peer_of, random_rows, run_of, seconds_of, train, work

BATCH, STEPS = 16, 8
MODELS: dict[str, dict[str, Any]] = {"llama 33M": LLAMA_30M, "gpt2 124M": GPT2}


def history(model: dict[str, Any], *, precision: str, deterministic: bool, documents: int) -> tuple[tuple[str, ...], float]:
    run = run_of(model, precision=precision)  # type: ignore[arg-type]
    run = replace(run, batch=replace(run.batch, test="norm"))
    if documents > 1:
        run = replace(run, data=replace(run.data, attention="document"))
    peer = peer_of(run, random_rows(documents=documents), deterministic=deterministic, max_micro_batch=8)
    digests = []

    def rounds() -> None:
        for number in range(3):
            train(peer, work(batch=BATCH, micro=8, steps=STEPS, number=number))
            peer.apply_outer(ONE, peer.pseudo_gradient(ONE), round=number)
            digests.append(str(peer.digests(ONE)))

    seconds = seconds_of(rounds)
    return tuple(digests), seconds


def main() -> None:
    print(describe())
    for (name, model), precision, documents in product(MODELS.items(), ("float32", "bfloat16"), (1, 4)):
        for deterministic in (False, True):
            case = f"{name} {precision:8s} documents {documents} deterministic {deterministic!s:5s}"
            try:
                found = [
                    history(model, precision=precision, deterministic=deterministic, documents=documents) for _ in range(2)
                ]
            except RuntimeError as error:
                print(f"{case} {error}", flush=True)
                continue
            gc.collect()
            torch.cuda.empty_cache()
            (one, _), (two, seconds) = found
            same = sum(x == y for x, y in zip(one, two, strict=True))
            print(f"{case} equal digests {same} of {len(one)}, {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
