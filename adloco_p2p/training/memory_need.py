"""How much memory a run takes, before anything starts: bytes that follow from its settings, activations aside.

| per trainable parameter | where | bytes |
|---|---|---|
| gradient, shared by all instances | device | 4 |
| of adapters: the frozen base, once | device | all of it; on a CPU as pages of its file where the types are equal |
| local parameters; state of the inner optimizer, of each instance | device | 4; 8 with AdamW |
| outer parameters and momentum at the newest two boundaries: trained, served to joiners, and saved without a copy | host | 16; 12 mixed; 8 as bfloat16 |
| with `guard.enabled`, outer parameters and momentum one boundary further back | host | 8; 6 mixed; 4 as bfloat16 |
| as encoded, the last average, kept for repairs, and with `averaging.recheck` or `assess_every` what this peer sent into it | host | twice the codec's |
| with `averaging.assess_every`, of two looks that wait or arrive: another host's contribution and the mean of the others; without the guard outer parameters further back | host | 16; 8, or 4 as bfloat16 |
| as encoded, those of `work.rounds_kept` + 2 rounds before it, as many as fit into 12 (or 64 MiB) | disk | each the codec's |
| what a coarse codec lost in earlier rounds, saved without a copy; where a round began that did not wait | host | 4; 4 |
| with `outer.overlap: streaming`, in place of the latter the next fragment's pseudo-gradient | host | 4 / fragments |

And for some time, of these only the largest. The older of the two boundaries goes when averaging begins, unless the guard may go
back to it; the outer step makes the newer one. A joiner's download keeps the boundary that it reads to its end, then one more than
these: `MemoryNeed.download`.

| moment | where | bytes |
|---|---|---|
| averaging: pseudo-gradient and average | host | 8 |
| and unless they travel as float32 what this peer sends and the average as encoded; what a coarse codec loses | host | twice the codec's; 4 |
| and what other hosts send, as encoded; at most 256 MiB unless parts wait for a decision | host | the codec's |
| and in a retry by the same members the averaged parts that had come back, as encoded | host | the codec's |
| outer step: unless it is kept above the average; what a coarse codec lost, in place of the above | host | 4; 4 |
| checkpoint: a copy of the inner optimizer's state; with fragments of the local parameters | host | 8; 4 |

Between two averages the memory of an encoded average is kept, too, unless it was float32. The last round of a run with fragments
averages everything; not where they are streamed, so there what is averaged, encoded or lost is that of one fragment in the rows
above, but for what a coarse codec lost in earlier rounds, which an outer step copies.

Where a model is divided over devices (`shards`): each device has an equal part of what is listed above for the device, and whole, with
their gradients, the parameters outside of blocks (12 bytes: a copy of their gradient is summed) and those of two blocks (8); local parameters come back to the host at the end of a round,
4 bytes, and as many are set aside while the outer parameters are evaluated between inner steps (`outer.overlap`). Each device has a
process; vectors pass through 64 MiB that all of them share.

`benchmarks/memory.py` holds this against tensors and processes.
"""  # noqa: E501 - a table

from dataclasses import dataclass

from adloco_p2p.config.peer_config import MOST_SHARDS
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.assessments import MAX_WAITING_LOOKS
from adloco_p2p.core.model.averages import HELD_BYTES, kept_bytes, results_kept
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.layout import Layout

PROCESS_BYTES = 650 << 20
"""Python, torch and the other libraries of a peer before its model, and its rows (`benchmarks/peer_memory.py`)."""
SHARD_PROCESS_BYTES = 430 << 20
"""A process that holds a part of a model, before it has one (`benchmarks/shards.py`)."""
EXCHANGE_BYTES = 64 << 20
"""The shared memory through which vectors pass between a peer and the processes of a divided model."""
_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """The bytes that one peer needs for one instance, on devices, host and disk."""

    num_parameters: int
    """The number of trainable parameters."""
    num_frozen: int
    """The number of the others: the base of adapters."""
    process: int
    """Bytes on the host, whatever is trained."""
    device: int
    device_more: int
    """Bytes on the device for each further instance."""
    whole: int | None
    """Bytes on each device that holds a part of the model (`shards`), whatever their number; None where the model cannot be
    divided."""
    host: int
    local_host: int
    """Bytes on the host of a divided model: local parameters, and with `outer.overlap` those set aside in an evaluation."""
    checkpoint: int
    """Bytes on the disk for one checkpoint."""
    averages: int
    """Bytes on the disk for the averages that are kept in the course of a run."""
    download: int
    """More bytes on the host while a joiner downloads a state that would otherwise be freed."""

    def divided(self, shards: int) -> int:
        """Return the bytes on each of so many devices, for a model that can be divided."""
        assert self.whole is not None
        return -(-self.device // shards) + self.whole

    def divided_host(self, shards: int) -> int:
        """Return the bytes on the host beside `host` and `process`, where the devices have memory of their own."""
        return self.local_host + EXCHANGE_BYTES + shards * SHARD_PROCESS_BYTES

    def least_shards(self, free_bytes: int) -> int | None:
        """Return the smallest number of devices with so much memory over which the model fits; None where division does not
        help."""
        if self.whole is None:
            return None
        return next((shards for shards in range(2, MOST_SHARDS + 1) if self.divided(shards) <= free_bytes), None)


def memory_need(
    run: RunConfig,
    layout: Layout,
    *,
    matrices: frozenset[str],
    frozen_bytes: int,
    num_frozen: int = 0,
    whole_bytes: int | None = None,
) -> MemoryNeed:
    """Return the need of a model with this layout. `matrices`: see `inner_optimizer`; `frozen_bytes`, `num_frozen`: of the
    parameters that are not trained; `whole_bytes`: see `MemoryNeed.whole`."""
    size = layout.num_parameters
    optimizer = _optimizer_bytes(run, layout, matrices)
    state = run.outer.state_bytes_per_parameter
    copied = optimizer + size * _FLOAT * (run.averaging.fragments > 1)
    return MemoryNeed(
        num_parameters=size,
        num_frozen=num_frozen,
        process=PROCESS_BYTES,
        device=frozen_bytes + 2 * _FLOAT * size + optimizer,
        device_more=_FLOAT * size + optimizer,
        whole=whole_bytes,
        host=round(_lasting(run, state) * size) + max(_moment_bytes(run, state, size), copied),
        local_host=_FLOAT * size * (1 + (run.outer.overlap != "none")),
        checkpoint=(state + _FLOAT * _has_residual(run)) * size + copied,
        averages=_earlier_bytes(run, size),
        download=state * size,
    )


def _has_residual(run: RunConfig) -> bool:
    return codec_named(run.averaging.codec).needs_feedback and run.averaging.feedback > 0


def _part(run: RunConfig) -> float:
    """Return the largest part of the vector that a round averages."""
    return 1 / run.averaging.fragments if run.outer.overlap == "streaming" else 1.0


def _coded(run: RunConfig) -> float:
    """Return the bytes per parameter of a vector as encoded."""
    return run.averaging.bytes_per_value * run.averaging.fragments * _part(run)


def _lasting(run: RunConfig, state: int) -> float:
    """Return the bytes per parameter that are on the host at all times. `state`: those of outer parameters and momentum."""
    averaging, is_assessed = run.averaging, run.averaging.assess_every > 0
    kept = 1 + (averaging.recheck > 0 or is_assessed) + (not codec_named(averaging.codec).is_verbatim)
    states = 3 if run.guard.enabled else 2
    looked_at = is_assessed * MAX_WAITING_LOOKS * (2 * _FLOAT + (0 if run.guard.enabled else _outer_bytes(run)))
    ahead = _part(run) * (run.outer.overlap != "none")
    return states * state + kept * _coded(run) + looked_at + _FLOAT * (_has_residual(run) + ahead)


def _outer_bytes(run: RunConfig) -> int:
    return 2 if run.outer.state == "bfloat16" else _FLOAT


def _earlier_bytes(run: RunConfig, size: int) -> int:
    """Return the bytes of the averages before the last one."""
    each = max(1, round(_coded(run) * size))
    return each * min(results_kept(run.work.rounds_kept), kept_bytes(size) // each)


def _moment_bytes(run: RunConfig, state: int, size: int) -> int:
    """Return the bytes that come on top on the host during an averaging or an outer step."""
    codec, rule = codec_named(run.averaging.codec), rule_named(run.averaging.aggregation)
    part, sent = _part(run), round(_coded(run) * size)
    lost = _FLOAT * codec.needs_feedback * part
    held = sent if rule.needs_gram or not codec.returns_mean else min(sent, HELD_BYTES)
    returned = sent
    freed = 0 if run.guard.enabled else state
    averaging = (2 * _FLOAT * part + lost - freed) * size + held + returned + sent * (not codec.is_verbatim)
    given_up = _FLOAT * _has_residual(run) * (1 if part == 1 else -1)  # the residual, or a copy of all fragments' is made
    outer_step = state - freed + _FLOAT * (not codec.is_verbatim) * part + lost - given_up
    return round(max(averaging, outer_step * size))


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
