"""124 million parameters: tokens per second of this node's inner steps, and of a loop that one would write oneself.

The loop is that of nanoGPT: a GPT of its own with flash attention, bfloat16 autocast, fused AdamW, clipping, gradient
accumulation, compiled or not. The sides take turns with the same sizes; the fastest of three turns counts.
"""

import gc
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpu.card import GPT2, LENGTH, VOCAB_SIZE, describe, mfu, peer_of, random_rows, run_of, seconds_of, train, work

BATCH, STEPS, TURNS = 128, 4, 3
MICRO = (32,)
WIDTH, LAYERS, HEADS = 768, 12, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, length, _ = hidden.shape
        parts = self.queries_keys_values(self.before_attention(hidden)).split(WIDTH, dim=2)
        query, key, value = (part.view(rows, length, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(rows, length, WIDTH))
        return hidden + self.down(functional.gelu(self.up(self.before_mlp(hidden)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2's architecture, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB_SIZE, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB_SIZE, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.last(hidden))
        return functional.cross_entropy(logits.view(-1, VOCAB_SIZE), targets.view(-1), ignore_index=-1)


def own_loop(*, micro: int, is_compiled: bool) -> Callable[[], None]:
    """Return a turn of STEPS inner steps."""
    torch.backends.cuda.matmul.allow_tf32 = True
    module: nn.Module = Gpt().cuda()
    parameters = list(module.parameters())
    adamw = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    compute = torch.compile(module) if is_compiled else module
    ids = random_rows().take(BATCH).input_ids.pin_memory()

    def turn() -> None:
        for _ in range(STEPS):
            adamw.zero_grad(set_to_none=True)
            for first in range(0, BATCH, micro):
                rows = ids[first : first + micro].cuda(non_blocking=True)
                targets = torch.cat([rows[:, 1:], rows.new_full((micro, 1), -1)], dim=1)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = compute(rows, targets)
                (loss * micro / BATCH).backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            adamw.step()

    return turn


def node(*, micro: int, is_compiled: bool, is_alone: bool = False) -> Callable[[], None]:
    peer = peer_of(run_of(GPT2), compile=is_compiled, max_micro_batch=micro)
    assert peer.micro_batch_limit == micro, peer.micro_batch_limit
    if is_alone:
        torch._dynamo.reset()
    effect = work(batch=BATCH, micro=micro, steps=STEPS)

    def turn() -> None:
        train(peer, effect)

    return turn


def main() -> None:
    parameters = sum(parameter.numel() for parameter in Gpt().parameters())
    print(f"{describe()}: {parameters} parameters, rows of {LENGTH} tokens, {BATCH} of them a step")
    print(f"{'micro-batch':>11s}  {'side':34s}{'tokens/s':>10s}{'MFU':>7s}{'of own, compiled':>18s}{'GiB':>7s}", flush=True)
    for micro in MICRO:
        compare(micro, parameters)


def compare(micro: int, parameters: int) -> None:
    makers: dict[str, Callable[[], Callable[[], None]]] = {
        "own loop, compiled": lambda: own_loop(micro=micro, is_compiled=True),
        "this node, compiled": lambda: node(micro=micro, is_compiled=True),
        "this node": lambda: node(micro=micro, is_compiled=False),
        "this node, compiled for one size": lambda: node(micro=micro, is_compiled=True, is_alone=True),
        "own loop": lambda: own_loop(micro=micro, is_compiled=False),
    }
    best = 0.0
    for name, make in makers.items():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        turn = make()
        turn()
        fastest = min(seconds_of(turn) for _ in range(TURNS))
        rate = BATCH * LENGTH * STEPS / fastest
        best = best or rate
        share = mfu(rate, parameters=parameters, layers=LAYERS, width=WIDTH)
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"{micro:11d}  {name:34s}{rate:10.0f}{share:7.1%}{rate / best:18.2f}{peak:7.1f}", flush=True)
        del turn
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
