"""Rows of several documents: torch's kernel for sequences of different lengths beside masked attention.

The same model and rows are computed both ways. Shown are tokens per second, peak memory, and how far losses and gradients of
the kernel are from those of masked float32 arithmetic, beside the same for masks in bfloat16.
"""

import gc
import inspect
from typing import Any

import torch

from adloco_p2p.training.memory_search import synthetic_rows
from adloco_p2p.training.shell import ModelShell
from benchmarks.gpu.card import GPT2, LLAMA_30M, VOCAB_SIZE, describe, random_rows, seconds_of

CASES = (("llama 33M", LLAMA_30M, 1024, 8), ("llama 33M", LLAMA_30M, 4096, 16), ("gpt2 124M", GPT2, 1024, 8))
TOKENS, TURNS = 32768, 5


def shell_of(model: dict[str, Any], length: int, *, is_bfloat16: bool, has_kernel: bool = False) -> ModelShell:
    from adloco_p2p.config.run_config import ModelConfig
    from adloco_p2p.training.model import build_model

    module = build_model(ModelConfig(architecture=model), vocab_size=VOCAB_SIZE, sequence_length=length, seed=1)
    shell = ModelShell(module, device=torch.device("cuda"), is_bfloat16=is_bfloat16)
    shell.module.train()
    if has_kernel:
        print(f"kernel taken: {shell.try_document_kernel(synthetic_rows(2, 512, VOCAB_SIZE, num_documents=2))}", flush=True)
    return shell


def measure(name: str, model: dict[str, Any], length: int, documents: int) -> None:
    rows = random_rows(length=length, count=TOKENS // length, documents=documents).take(TOKENS // length).pinned()
    found = {}
    for side, options in {
        "float32, masks": {"is_bfloat16": False},
        "masks": {"is_bfloat16": True},
        "kernel": {"is_bfloat16": True, "has_kernel": True},
    }.items():
        shell = shell_of(model, length, **options)

        def step(shell: ModelShell = shell) -> torch.Tensor:
            shell.gradient.zero_()
            loss, losses = shell.weighted_loss(rows)
            torch.autograd.backward(loss)
            return losses

        losses = step()
        gradient = shell.gradient.clone()
        torch.cuda.reset_peak_memory_stats()
        seconds = min(seconds_of(step) for _ in range(TURNS))
        peak = torch.cuda.max_memory_allocated() / 2**30
        found[side] = (losses, gradient)
        of_losses, of_gradient = (
            float((own.double() - exact.double()).norm() / exact.double().norm())
            for own, exact in zip(found[side], found["float32, masks"], strict=True)
        )
        print(
            f"{name:10s}{length:6d}{documents:4d}  {side:16s}{TOKENS / seconds:10.0f} tokens/s{peak:7.2f} GiB"
            f"  losses {of_losses:.1e}, gradient {of_gradient:.1e} from float32",
            flush=True,
        )
        del shell, step
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    from torch.nn.attention.varlen import varlen_attn

    print(f"{describe()}; {inspect.signature(varlen_attn)}")
    torch.backends.cuda.matmul.allow_tf32 = False
    for case in CASES:
        measure(*case)


if __name__ == "__main__":
    main()
