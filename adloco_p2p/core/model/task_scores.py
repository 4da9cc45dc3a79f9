"""Scores on tasks, as a peer that was drawn to measure them claims in its report. No other peer checks them."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen, MinLen, Predicate

from adloco_p2p.core.model.scalars import Count, Finite, HexDigest, PositiveCount

MAX_TASKS = 8
"""Most tasks of a run."""
MAX_METRICS = 4
"""Most metrics of one task."""
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.,+@")


def is_word(text: str) -> bool:
    """letters, digits and _ - . , + @, no path"""
    return bool(text) and text[0] not in "-." and frozenset(text) <= _LETTERS


def is_task(text: str) -> bool:
    """a task of lm-eval by its name, not a file"""
    return is_word(text) and "," not in text and not text.endswith((".yaml", ".yml", ".py"))


Word = Annotated[str, MinLen(1), MaxLen(80), Predicate(is_word)]
TaskName = Annotated[str, MinLen(1), MaxLen(80), Predicate(is_task)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: Word
    """Name of the metric in lm-eval: `acc`, `acc_stderr`, `exact_match,strict-match`."""
    value: Finite


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """The scores of a model on one task."""

    name: TaskName
    digest: HexDigest
    """Digest of the questions (every document, prompt and expected answer) and the metrics; scores with equal digests are
    comparable."""
    num_documents: PositiveCount
    metrics: Annotated[tuple[Metric, ...], MaxLen(MAX_METRICS)]
    """Metrics sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskClaim:
    """The scores of one model of the run."""

    round: Count
    """The model is that of the boundary before this round."""
    model: HexDigest
    """Digest of the outer parameters that were scored, merged if there were several instances."""
    scores: Annotated[tuple[TaskScore, ...], MinLen(1), MaxLen(MAX_TASKS)]
    """Scores in the order of the run's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTasks:
    """Effect: score the newest saved model on the run's tasks in the background."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksScored:
    """Event: the end of a `ScoreTasks`."""

    claim: TaskClaim | None
    """None if the scoring failed."""
    reason: str = ""
    """Why the scoring failed."""
