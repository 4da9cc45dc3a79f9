"""Where a round of one instance stands on one host, and the steps from one phase to another."""

from enum import StrEnum


class Phase(StrEnum):
    """Where a round of one instance stands. The table below names every step from one phase to another."""

    TRAINING = "training"
    TRAINED = "trained"
    """Only with delayed updates: the outer step of the round before is still to come."""
    AVERAGING = "averaging"
    RETRYING = "retrying"
    COMMITTING = "committing"
    REPAIRING = "repairing"
    APPLYING = "applying"
    MEASURING = "measuring"
    """Only on the hosts that are drawn to."""
    EVALUATING = "evaluating"
    DONE = "done"


WAITING = "waiting"
"""No phase, but a part of those of the device: the time until it began, because other instances had it."""

STEPS: dict[Phase, frozenset[Phase]] = {
    Phase.TRAINING: frozenset({Phase.TRAINED, Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING, Phase.REPAIRING}),
    Phase.TRAINED: frozenset({Phase.AVERAGING, Phase.RETRYING, Phase.COMMITTING, Phase.REPAIRING}),
    Phase.AVERAGING: frozenset({Phase.AVERAGING, Phase.COMMITTING, Phase.RETRYING, Phase.REPAIRING, Phase.APPLYING}),
    Phase.RETRYING: frozenset({Phase.AVERAGING, Phase.COMMITTING, Phase.REPAIRING, Phase.APPLYING}),
    Phase.COMMITTING: frozenset({Phase.APPLYING, Phase.REPAIRING}),
    Phase.REPAIRING: frozenset({Phase.COMMITTING, Phase.RETRYING}),
    Phase.APPLYING: frozenset({Phase.MEASURING, Phase.EVALUATING, Phase.DONE}),
    Phase.MEASURING: frozenset({Phase.EVALUATING, Phase.DONE}),
    Phase.EVALUATING: frozenset({Phase.DONE}),
    Phase.DONE: frozenset(),
}
