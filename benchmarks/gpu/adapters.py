"""Fine-tuning within 24 GB of the card: models of the shapes of SmolLM2-135M and Llama 3.2 1B, with adapters and whole."""

import gc
import tempfile
from dataclasses import replace
from typing import Any

import torch
import transformers

from adloco_p2p.config.run_config import InnerConfig, LoraConfig, ModelConfig
from adloco_p2p.errors import DeviceError
from benchmarks.gpu.card import LENGTH, describe, peer_of, random_rows, run_of, seconds_of, train, work

SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "Llama 3.2 1B": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
}
CAP_BYTES = 24e9
ROWS = 32


def save(shape: dict[str, Any], folder: str) -> None:
    """Save a model of this shape, with random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**shape, max_position_embeddings=LENGTH, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def measure(name: str, folder: str, *, rank: int = 0, kind: str = "adamw", **machine: Any) -> None:
    free, _ = torch.cuda.mem_get_info()
    model = ModelConfig(pretrained=folder, precision="bfloat16", lora=LoraConfig(rank=rank))
    run = replace(run_of({}), model=model, inner=InnerConfig(kind=kind, learning_rate=1e-4))  # type: ignore[arg-type]
    title = f"{name:14s}{f'adapters, rank {rank}' if rank else f'whole, {kind}':20s}{', '.join(machine):34s}"
    torch.cuda.reset_peak_memory_stats()
    try:
        feed = random_rows(vocab_size=SHAPES[name]["vocab_size"], count=ROWS)
        peer = peer_of(run, feed, memory_fraction=CAP_BYTES / free, max_micro_batch=ROWS, **machine)
        micro = peer.micro_batch_limit
        effect = work(batch=ROWS, micro=micro, steps=2)
        train(peer, effect)
        seconds = min(seconds_of(lambda: train(peer, effect)) for _ in range(2))
    except DeviceError as error:
        print(f"{title} {error}", flush=True)
        return
    peak = torch.cuda.max_memory_reserved() / 1e9
    rate = 2 * ROWS * LENGTH / seconds
    print(f"{title}{peer.num_parameters:12d}{micro:6d}{rate:10.0f}{peak:8.1f}", flush=True)


def main() -> None:
    print(f"{describe()}, capped at {CAP_BYTES / 1e9:.0f} GB; rows of {LENGTH} tokens, {ROWS} a step")
    print(f"{'model':14s}{'trained':20s}{'':34s}{'parameters':>12s}{'micro':>6s}{'tokens/s':>10s}{'GB':>8s}")
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            save(shape, folder)
            for settings in CASES:
                measure(name, folder, **settings)
                gc.collect()
                torch.cuda.empty_cache()
                torch._dynamo.reset()


CASES: tuple[dict[str, Any], ...] = (
    {"rank": 16},
    {"rank": 16, "compile": True},
    {"rank": 16, "activation_checkpointing": True},
    {"kind": "adamw"},
    {"kind": "adamw", "activation_checkpointing": True},
    {"kind": "adamw8bit", "activation_checkpointing": True},
)


if __name__ == "__main__":
    main()
