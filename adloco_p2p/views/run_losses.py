"""Losses by round and by instance, and the fate of each instance. Pure."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

from adloco_p2p.core.model.once import once
from adloco_p2p.core.model.telemetry import TaskScores
from adloco_p2p.core.model.words import plural
from adloco_p2p.views import units
from adloco_p2p.views.records import RoundResult
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.status import Status

Point = tuple[float, float]
Each = TypeVar("Each")


def training_losses(status: Status) -> Sequence[Point]:
    """Return (round, mean training loss of the instances that this peer trained), by round."""
    return _training_losses(status.results)


@once
def _training_losses(results: RoundResults) -> Sequence[Point]:
    by_round: dict[int, list[float]] = defaultdict(list)
    for result in results.values():
        if result.loss is not None and math.isfinite(result.loss):
            by_round[result.round].append(result.loss)
    return [(float(number), sum(losses) / len(losses)) for number, losses in sorted(by_round.items())]


def heldout_losses(status: Status) -> Sequence[Point]:
    """Return (round, least held-out loss of the instances that this peer evaluated), by round."""
    return _heldout_losses(status.results)


@once
def _heldout_losses(results: RoundResults) -> Sequence[Point]:
    best: dict[int, float] = {}
    for result in results.values():
        if result.heldout_loss is not None and math.isfinite(result.heldout_loss):
            best[result.round] = min(result.heldout_loss, best.get(result.round, math.inf))
    return [(float(number), loss) for number, loss in sorted(best.items())]


def latest_result(status: Status, instance: int) -> RoundResult | None:
    return _latest(status.results).get(instance)


def final_heldout(status: Status) -> float | None:
    """Return the final held-out loss as the run reports it; before its end, the least of the newest losses of living
    instances."""
    if status.finish is not None and status.finish.heldout_loss is not None:
        return units.finite(status.finish.heldout_loss)
    newest = max(life.end for life in status.lives.values())
    alive = [instance for instance, life in status.lives.items() if life.end == newest]
    losses = [units.finite(latest_heldout(status, instance)) for instance in alive]
    return min((loss for loss in losses if loss is not None), default=None)


def fate(status: Status, instance: int) -> str:
    """Return the fate of an instance, in words."""
    for decision in status.decisions:
        if decision.kind == "merge" and instance in decision.sources and instance not in decision.targets:
            return f"merged into {decision.targets[0]} before round {decision.round}"
    return "lived to the end" if status.finish is not None else "alive"


def latest_heldout(status: Status, instance: int) -> float | None:
    """Return the newest held-out loss; not every round has one."""
    newest = _latest_evaluated(status, instance)
    return newest.heldout_loss if newest else None


def heldout_by_data(status: Status, instance: int | None = None) -> dict[str, float | None]:
    """Return the newest held-out loss of an instance, or of the model at the end of the run, on each data set by itself, where
    instances have data of their own."""
    newest = status.finish if instance is None else _latest_evaluated(status, instance)
    return dict(zip(status.data_sets, newest.heldout_losses, strict=False)) if newest else {}


def _latest_evaluated(status: Status, instance: int) -> RoundResult | None:
    return _latest_measured(status.results).get(instance)


@once
def _latest(results: RoundResults) -> Mapping[int, RoundResult]:
    """Return the result of the newest round of each instance."""
    return {result.instance: result for result in sorted(results.values(), key=lambda result: result.round)}


@once
def _latest_measured(results: RoundResults) -> Mapping[int, RoundResult]:
    """Return the result of the newest round of each instance that has a held-out loss."""
    measured = (result for result in results.values() if result.heldout_loss is not None)
    return {result.instance: result for result in sorted(measured, key=lambda result: result.round)}


def thinned(points: Sequence[Each], most: int) -> Sequence[Each]:
    """Return at most about `most` of the points of a curve: every n-th one, and always the last one."""
    stride = math.ceil(len(points) / most)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


def task_words(claim: TaskScores) -> list[str]:
    """Return `hellaswag acc 0.3125, 200 documents` for each task, without standard errors."""
    words = []
    for score in claim.scores:
        figures = [
            f"{units.one_line(metric.name)} {metric.value:.4f}" for metric in score.metrics if "_stderr" not in metric.name
        ]
        words.append(f"{units.one_line(score.name)} {', '.join([*figures, plural(score.num_documents, 'document')])}")
    return words
