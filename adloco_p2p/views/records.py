"""The parts of a status that no event has in this form."""

from dataclasses import dataclass

from adloco_p2p.core.model import telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """This peer's present work for one instance."""

    round: int
    phase: str
    step: int = 0
    num_steps: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    since: float | None = None
    """Unix seconds at which the phase began; None while inner steps are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult(telemetry.Round):
    """The result of one finished round of one instance on this peer."""

    elapsed_seconds: float
    """Running time of this peer at the end of the round, without the time between sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The boundaries between which an instance lived: it trained the rounds `start` to `end - 1`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A merge, fork, probe, or switch of mode, with its reason; it happens before round `round`, a probe after it."""

    round: int
    kind: str
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    weights: tuple[float, ...] = ()
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A trouble that is over: a failed average, memory that ran out, a peer that fell silent."""

    elapsed_seconds: float
    round: int
    instance: int | None
    kind: str
    message: str
