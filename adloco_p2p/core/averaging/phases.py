"""The phases of one instance's round on one host, and the allowed steps between them."""

from enum import StrEnum


class Phase(StrEnum):
    """A phase of one instance's round. `STEPS` has every allowed step from one phase to another."""

    TRAINING = "training"
    TRAINED = "trained"
    """The wait, with delayed updates only, for the outer step of the round before."""
    AVERAGING = "averaging"
    RETRYING = "retrying"
    COMMITTING = "committing"
    REPAIRING = "repairing"
    APPLYING = "applying"
    MEASURING = "measuring"
    """The measurement of the outer step, on the drawn hosts only."""
    EVALUATING = "evaluating"
    DONE = "done"


WAITING = "waiting"
"""The key of the time for which device work of a phase waited for other instances; it is no phase."""

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
