"""How much memory a run takes, before anything starts: bytes that follow from its settings, activations aside.

| per trainable parameter | where | bytes |
|---|---|---|
| gradient, shared by all instances | device | 4 |
| of adapters: the frozen base, once | device | all of it; on a CPU as pages of its file where the types are equal |
| local parameters; state of the inner optimizer, of each instance | device | 4; 8 with AdamW |
| outer parameters and momentum at the newest two boundaries: trained, served to joiners, and saved without a copy | host | 16; 8 as bfloat16 |
| with `guard.enabled`, outer parameters and momentum one boundary further back | host | 8; 4 as bfloat16 |
| pseudo-gradient and average, and as encoded what other hosts send and what is kept for repairs; or, at another time, the copy of the inner optimizer's state that a checkpoint writes | host | 8 and twice the codec's; or 8 |
| what a coarse codec lost in earlier rounds, and in the average under way; where a round began that did not wait | host | 4, 4; 4 |

`benchmarks/memory.py` holds this against tensors and processes.
"""  # noqa: E501 - a table

from dataclasses import dataclass

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.layout import Layout

PROCESS_BYTES = 650 << 20
"""Python, torch and the other libraries of a peer before its model, and its rows (`benchmarks/peer_memory.py`)."""
_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes for one instance of a peer on a network."""

    num_parameters: int
    """Trainable ones."""
    process: int
    """Whatever is trained."""
    device: int
    device_more: int
    """For each further instance."""
    host: int
    checkpoint: int
    """On the disk."""


def memory_need(run: RunConfig, layout: Layout, *, matrices: frozenset[str], frozen_bytes: int) -> MemoryNeed:
    """Of a model with this layout; `matrices` as in `inner_optimizer`; `frozen_bytes` of parameters that are not trained."""
    size = layout.num_parameters
    optimizer = _optimizer_bytes(run, layout, matrices)
    averaging = 2 * _FLOAT + 2 * run.averaging.bytes_per_value * run.averaging.fragments
    state = 2 * (2 if run.outer.state == "bfloat16" else _FLOAT)  # outer parameters and momentum
    lasting = (3 if run.guard.enabled else 2) * state
    if codec_named(run.averaging.codec).needs_feedback:
        averaging += _FLOAT
        lasting += _FLOAT if run.averaging.feedback else 0
    if run.outer.overlap != "none":
        lasting += _FLOAT
    return MemoryNeed(
        num_parameters=size,
        process=PROCESS_BYTES,
        device=frozen_bytes + 2 * _FLOAT * size + optimizer,
        device_more=_FLOAT * size + optimizer,
        host=lasting * size + max(round(averaging * size), optimizer),
        checkpoint=state * size + optimizer,
    )


def _optimizer_bytes(run: RunConfig, layout: Layout, matrices: frozenset[str]) -> int:
    size = layout.num_parameters
    match run.inner.kind:
        case "adamw":
            return 2 * _FLOAT * size
        case "adamw8bit":
            return 2 * size + 2 * _FLOAT * size // 256
        case "muon":
            in_matrices = sum(entry.size for entry in layout.entries if entry.name in matrices)
            return 2 * _FLOAT * size - _FLOAT * in_matrices
