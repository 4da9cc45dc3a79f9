"""How far the run is and how fast it goes: rounds, durations, rates, the time left. Pure."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from statistics import fmean

from adloco_p2p.core.model.once import once
from adloco_p2p.core.planning.link_periods import PERIODS
from adloco_p2p.views import own_part, table_rows, traffic
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.status import Status

MAX_BINS = 12

MOST_BETWEEN = max(PERIODS)
"""The most rounds from one average to the next of a host with a slow link that is not on the bench."""
WINDOW_ROUNDS = 5
"""Rates and the time left are means over so many finished rounds, or over more in WINDOW_SECONDS."""

WINDOW_SECONDS = 30.0
"""All rounds that ended within so much running time count, since single rounds of a second differ widely."""


def phase(status: Status) -> str:
    """Return this peer's present phase in a word: that of its first instance that is not done."""
    if status.state == "starting":
        return status.starting or status.state
    if status.state in ("paused", "stopped", "finished"):
        return status.state
    if words := own_part.paused_by_signer(status):
        return words
    if words := own_part.joining(status):
        return ", ".join(part for part in (words, traffic.download_words(status)) if part)
    phases = [row.phase for row in table_rows.instance_rows(status) if row.phase != "by others"]
    return next((phase for phase in phases if phase not in ("done", "planned")), phases[0] if phases else "waiting")


def compute_utilisation(status: Status) -> float | None:
    """Return training seconds of the credited rounds over running time, of all devices; work that was lost and done again
    counts once."""
    elapsed = status.elapsed_seconds * _num_devices(status)
    return sum(_device_seconds_by_round(status.results).values()) / elapsed if elapsed > 0 and status.results else None


def _num_devices(status: Status) -> int:
    return status.device.count(", ") + 1


@once
def _device_seconds_by_round(results: RoundResults) -> Mapping[int, float]:
    """Return training seconds by round, summed over the instances and over the devices that shared each."""
    found: dict[int, float] = {}
    for result in results.values():
        seconds = result.seconds.get("training", 0.0) * max(1, len(result.devices))
        found[result.round] = found.get(result.round, 0.0) + seconds
    return found


def round_durations(status: Status) -> list[tuple[int, float]]:
    """Return (round, seconds of running time), by round: a round lasts from the end of the one before it to its own.

    Rounds whose predecessor this peer did not end are left out: their span contains the start, or the wait for a seat.
    """
    spans = pairwise(round_ends(status))
    return [(round_, end - begin) for (before, begin), (round_, end) in spans if round_ == before + 1 and end > begin]


def mean_duration(status: Status) -> float | None:
    durations = [duration for _, duration in round_durations(status)]
    return fmean(durations) if durations else None


def duration_histogram(status: Status) -> list[tuple[float, float, int]]:
    """Return (from, to, number of rounds) in seconds: at most MAX_BINS intervals of one width; empty before the first round
    ends."""
    seconds = [duration for _, duration in round_durations(status)]
    if not seconds:
        return []
    first, last = min(seconds), max(seconds)
    num_bins = min(MAX_BINS, len(seconds)) if last > first else 1
    width = (last - first) / num_bins or last
    counts = Counter(min(num_bins - 1, int((value - first) / width)) for value in seconds)
    return [(first + index * width, first + (index + 1) * width, counts[index]) for index in range(num_bins)]


def utilisation_by_round(status: Status) -> list[tuple[int, float]]:
    """Return (round, part of its time in which this peer's devices computed, in [0, 1]), by round."""
    num_devices, trained = _num_devices(status), _device_seconds_by_round(status.results)
    return [(round_, min(1.0, trained[round_] / (num_devices * duration))) for round_, duration in round_durations(status)]


def round_ends(status: Status) -> Sequence[tuple[int, float]]:
    """Return (round, running time at the end of its last instance) of the rounds that are over on this peer, by round."""
    is_over = all(row.phase in {"done", "by others"} for row in table_rows.instance_rows(status))
    ends = _ends(status.results)
    return ends if is_over else ends[: bisect_left(ends, (status.current_round,))]


@once
def _ends(results: RoundResults) -> Sequence[tuple[int, float]]:
    """Return (round, running time at the end of its last instance), by round."""
    ends: dict[int, float] = {}
    for result in results.values():
        ends[result.round] = max(ends.get(result.round, 0.0), result.elapsed_seconds)
    return sorted(ends.items())


def _last_rounds(status: Status) -> list[tuple[int, float]]:
    """Return the ends of the last rounds, after the beginning of the first of them. A peer that came later waited for a seat,
    so its first round has no beginning; nor has the first after rounds that went on while this peer did not run."""
    ends = round_ends(status)
    points = [*([(-1, 0.0)] if ends and ends[0][0] == 0 else []), *ends]
    gaps = [place for place, (one, next_) in enumerate(pairwise(points), start=1) if next_[0] - one[0] > MOST_BETWEEN]
    points = points[gaps[-1] :] if gaps else points
    recent = takewhile(lambda point: points[-1][1] - point[1] <= WINDOW_SECONDS, reversed(points))
    return points[-max(WINDOW_ROUNDS + 1, sum(1 for _ in recent)) :]


def seconds_per_round(status: Status) -> float | None:
    """Return the mean over the last rounds; before the first one ends, the plan's expectation."""
    points = _last_rounds(status)
    if len(points) < 2:
        plan = status.current_plan
        return plan.expected_seconds if plan is not None and plan.expected_seconds > 0 else None
    first, last = points[0], points[-1]
    return max(0.0, last[1] - first[1]) / (last[0] - first[0])


def tokens_per_second(status: Status) -> float | None:
    """Return the tokens of this peer over the last rounds by their running time; before that, the rate of the inner steps."""
    points = _last_rounds(status)
    if len(points) < 2:
        rates = [activity.tokens_per_second for activity in status.activities.values() if activity.tokens_per_second]
        return rates[-1] if rates else None
    seconds = points[-1][1] - points[0][1]
    by_round = _tokens_by_round(status.results)
    tokens = sum(by_round[round_] for round_, _ in points[1:])
    return tokens / seconds if seconds > 0 else None


@once
def _tokens_by_round(results: RoundResults) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for result in results.values():
        found[result.round] = found.get(result.round, 0) + result.tokens
    return found


def swarm_tokens_per_second(status: Status) -> float | None:
    """Return the tokens that the plan of the round in progress gives to all peers, by the time that a round takes; None before
    this peer has finished one."""
    plan, seconds = status.current_plan, seconds_per_round(status)
    trained = traffic.totals(status)
    if plan is None or not seconds or not trained.samples:
        return None
    return plan.samples * (trained.tokens / trained.samples) / seconds


def round_fraction(status: Status) -> float:
    """Return the part of the current round's inner steps that this peer has done, in [0, 1]."""
    rows = [row for row in table_rows.instance_rows(status) if row.phase != "by others"]
    if not rows:
        return 0.0
    return sum(min(1.0, row.step / row.num_steps) for row in rows if row.num_steps) / len(rows)


def run_fraction(status: Status) -> float:
    """Return the part of the run that is done, in [0, 1]."""
    if status.finish is not None:
        return 1.0
    if status.samples is not None:
        plan = status.current_plan
        return (plan.samples_before + plan.samples * round_fraction(status)) / status.samples if plan is not None else 0.0
    return min(1.0, (status.current_round + round_fraction(status)) / status.rounds) if status.rounds else 0.0


def round_shown(status: Status) -> int:
    """Return the round in progress; for a run that is over, the number of its rounds."""
    if status.samples is not None:
        return status.plans[-1].round if status.finish is not None and status.plans else status.current_round
    rounds = status.rounds or 0
    return rounds if status.finish is not None else min(status.current_round, rounds)


def samples_given(status: Status) -> int:
    """Return the samples of the rounds that are over, by their plans."""
    return max((plan.samples_before for plan in status.plans if plan.round <= round_shown(status)), default=0)


def position(status: Status) -> str:
    """Return `round 12/40`; for a run that counts samples `round 12, 5,120/8,192 samples`."""
    if status.samples is None:
        return f"round {round_shown(status)}/{status.rounds}"
    return f"round {round_shown(status)}, {samples_given(status):,}/{status.samples:,} samples"


def rounds_left(status: Status) -> float:
    """Return the rounds to come, with the rest of the one in progress; for a run that counts samples, as if all were like the
    one in progress."""
    left = 1.0 - run_fraction(status)
    if status.samples is None:
        return (status.rounds or 0) * left
    plan = status.current_plan
    return left * status.samples / plan.samples if plan is not None and plan.samples else 0.0


def eta_seconds(status: Status) -> float | None:
    """Return the running time until the end of the run; None where no round has ended and the plan expects nothing, or nothing
    runs."""
    waits_for_others = own_part.paused_by_signer(status) or own_part.keeper_words(status).endswith("joins")
    if waits_for_others or status.state in ("paused", "stopped"):
        return None
    pace = seconds_per_round(status)
    return None if pace is None else pace * rounds_left(status)


def device_words(status: Status) -> str:
    """Return this peer's devices and, where there are several, the instances of its last round on each."""
    places = _places(status.results)
    return f"{status.device} ({'; '.join(places)})" if places and ", " in status.device else status.device


@once
def _places(results: RoundResults) -> Sequence[str]:
    """Return on which devices the instances of the last round were."""
    trained = [result for result in results.values() if result.devices]
    newest = max((result.round for result in trained), default=0)
    return [
        f"instance {result.instance} on {' and '.join(result.devices)}"
        for result in sorted(trained, key=lambda result: result.instance)
        if result.round == newest
    ]
