"""The parts of a status: events, parsed into typed values. `status.py` explains rounds and boundaries."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
"""One object of `events.jsonl`; `event` names it, `time` is in unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The work assigned to one peer for one instance in one round."""

    peer: str
    batch_samples: int
    inner_steps: int
    micro_batch_size: int
    accumulation_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstance:
    instance: int
    requested_batch: int
    effective_batch: int
    mode: str
    reason: str
    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterEntry:
    peer: str
    samples_per_second: float
    last_report: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    round: int
    digest: str
    reason: str
    expected_seconds: float
    roster: tuple[RosterEntry, ...]
    instances: tuple[PlannedInstance, ...]
    is_last: bool
    samples_before: int
    """Samples that the plans of the rounds before gave out."""
    samples: int
    """Samples that this plan assigns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The work of this peer for one instance now."""

    round: int
    phase: str
    step: int = 0
    num_steps: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The result of one finished round of one instance on this peer. Losses in nats per token."""

    round: int
    instance: int
    loss: float | None
    heldout_loss: float | None
    requested_batch: int
    effective_batch: int
    accumulation_steps: int
    mode: str
    reason: str
    samples: int
    tokens: int
    hosts: tuple[str, ...]
    seconds: Mapping[str, float]
    """By phase."""
    bytes_sent: int
    bytes_received: int
    elapsed_seconds: float
    """Running time of this peer at the end of the round; the time between sessions is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Boundaries between which an instance lived: it trained the rounds `start` to `end - 1`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A merge, fork, probe, or switch of mode, with its reason; before round `round` (a probe: after it)."""

    round: int
    kind: str
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    weights: tuple[float, ...] = ()
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that went wrong and is over: a failed average, memory that ran out, a peer that fell silent."""

    elapsed_seconds: float
    round: int
    instance: int | None
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    heldout_loss: float | None
    samples: int
    tokens: int
    seconds: float
    bytes_sent: int
    bytes_received: int


def warning_of_ours(key: str, message: str) -> dict[str, Any]:
    """A condition that the viewer sees and the node cannot report, as an event of now."""
    return {"event": "warning", "time": time.time(), "key": key, "message": message, "active": True}


def starting(phase: str) -> dict[str, Any]:
    """The phase of a node that cannot report it yet, as an event of now."""
    return {"event": "starting", "time": time.time(), "phase": phase}
