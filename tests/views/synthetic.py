"""Events of a made-up run that looks like a real one: one instance warms up, is forked into three before round 4, two merge
before round 12 and the rest before round 20; the batch grows until it is capped and then accumulated; one average fails, a
peer falls silent and comes back. Pure arithmetic, so the same events every time."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from adloco_p2p.core.model.telemetry import Stamped, Started
from adloco_p2p.decode import decode_event
from adloco_p2p.views import status_fold
from adloco_p2p.views.ledger_events import LedgerLine
from adloco_p2p.views.page import ShownRun
from adloco_p2p.views.status import Status

THIS = "QmPeerThisOneIsUs1Kx7"
OTHERS = ("QmPeerFastGpuInOslo9c", "QmPeerLaptopBehindNat", "QmPeerSlowButSteady42")
SPEEDS = {THIS: 41.5, OTHERS[0]: 96.0, OTHERS[1]: 12.25, OTHERS[2]: 20.0}
LIMIT = 64
STEPS = 32
TOKENS_PER_SAMPLE = 128
FORK_ROUND, MERGE_ROUND, LAST_MERGE_ROUND = 4, 12, 20
START = 1_760_000_000.0

Made = dict[str, Any]
"""An event as a line of the event file has it."""


def stamped(made: Made) -> Stamped:
    """As the views get it: read from its line."""
    event = decode_event(json.dumps(made))
    assert event is not None, made
    return event


def started() -> Started:
    """How the run begins."""
    event = stamped(events(1)[0]).event
    assert isinstance(event, Started)
    return event


def apply(status: Status, made: Made) -> Status:
    return status_fold.apply(status, stamped(made))


def replay(made: Iterable[Made]) -> Status:
    return status_fold.replay(map(stamped, made))


def shown_run(status: Status, plans: Sequence[LedgerLine], **changes: Any) -> ShownRun:
    facts = {"contributions": [], "is_signed": False, "sequence_length": 128, "parameters": 1000, "bytes_per_value": 4.0}
    return ShownRun(status=status, plans=plans, **{**facts, "source": "here", **changes})


def live(round_: int) -> tuple[int, ...]:
    if round_ < FORK_ROUND or round_ >= LAST_MERGE_ROUND:
        return (0,)
    return (0, 1, 2) if round_ < MERGE_ROUND else (0, 2)


def batch(round_: int, instance: int) -> tuple[int, int, str, int, str]:
    """Requested batch, effective batch, mode, accumulation steps, reason."""
    requested = min(1024, round(4 * 1.25 ** min(round_, 100) * (1 + 0.07 * instance)))
    if requested <= LIMIT:
        return requested, requested, "single", 1, f"norm test over 5 rounds asks {requested}, it fits one pass"
    if requested <= 2 * LIMIT:
        return (
            requested,
            LIMIT,
            "capped",
            1,
            f"norm test asks {requested}, below twice the limit of {LIMIT}: one pass of what fits",
        )
    passes = math.ceil(requested / LIMIT)
    return (
        requested,
        passes * math.ceil(requested / passes),
        "accumulate",
        passes,
        f"norm test asks {requested}: {passes} passes",
    )


def hosts(round_: int, instance: int) -> tuple[str, ...]:
    if len(live(round_)) == 1:
        return (THIS, *OTHERS)
    return {0: (THIS, OTHERS[0]), 1: (THIS, OTHERS[1]), 2: (THIS, OTHERS[2])}[instance]


def made_loss(round_: int, instance: int, *, heldout: bool) -> float:
    wobble = 0.04 * math.sin(1.7 * round_ + instance)
    spread = 0.06 * instance * (round_ >= FORK_ROUND)
    return 1.35 + 4.2 * math.exp(-round_ / 6) + spread + (0.05 if heldout else wobble)


@cache
def samples_of(round_: int) -> int:
    """Given out by the plan of the round."""
    return sum(batch(round_, instance)[1] * STEPS for instance in live(round_))


def samples_before(round_: int) -> int:
    return sum(map(samples_of, range(round_)))


def events(rounds: int = 24, *, with_heldout: bool = True, samples: int | None = None) -> list[Made]:
    """Of a run that counts samples, where they are given."""
    return list(_events(rounds, with_heldout, samples))


def _events(rounds: int, with_heldout: bool, samples: int | None) -> Iterator[Made]:
    clock = START
    yield {
        "event": "started",
        "time": clock,
        "run": "3fa9c1d2" * 8,
        "name": "python-library-small",
        "peer": THIS,
        "mode": "adloco",
        "rounds": None if samples else rounds,
        "samples": samples,
        "inner_steps": STEPS,
        "parameters": 1_245_184,
        "device": "cpu",
        "micro_batch_limit": LIMIT,
        "unigram_entropy": 3.28,
        "resumed_round": None,
    }
    clock += 2.0
    for peer in OTHERS:
        yield {"event": "joined", "time": clock, "peer": peer, "round": 0}
    for peer, nickname, reach, seconds in ((THIS, "ann", "direct", None), (OTHERS[0], "lab-7", "relay", 0.0834)):
        card = {"nickname": nickname, "version": "0.2.0", "reach": reach, "round_trip_seconds": seconds}
        yield {"event": "peer_card", "time": clock, "peer": peer, **card}
    yield _plan(0, clock)
    for round_ in range(rounds):
        yield from _boundary(round_, clock)
        for instance in live(round_):
            for event in _round(round_, instance, clock, heldout=with_heldout and round_ % 2 == 1, rounds=rounds):
                clock = max(clock, event["time"])
                yield event
        if round_ == 0:
            yield {"event": "first_contribution", "time": clock, "round": 0, "seconds": 21.5}
        yield {"event": "checkpoint", "time": clock, "round": round_ + 1}
    # The last plan has no round after it.
    yield {
        "event": "finished",
        "time": clock + 1.0,
        "round": rounds,
        "heldout_loss": made_loss(rounds - 1, 0, heldout=True) if with_heldout else None,
        "samples": 51_200,
        "tokens": 6_553_600,
        "seconds": clock + 1.0 - START,
        "bytes_sent": 612_000_000,
        "bytes_received": 598_000_000,
    }


def _plan(round_: int, clock: float, *, is_last: bool = False) -> Made:
    return {
        "event": "plan",
        "time": clock,
        "round": round_,
        "digest": f"{round_:064x}",
        "reason": f"reports of 4 peers for round {max(round_ - 2, 0)}",
        "expected_seconds": 9.0,
        "roster": [
            {"peer": peer, "samples_per_second": speed if round_ else 0.0, "last_report": round_ - 2 if round_ > 1 else None}
            for peer, speed in sorted(SPEEDS.items())
        ],
        "instances": [_planned(round_, instance) for instance in live(round_)],
        "is_last": is_last,
        "samples_before": samples_before(round_),
        "samples": 0 if is_last else samples_before(round_ + 1) - samples_before(round_),
        "forks": [],
        "merges": [],
        "probe": None,
    }


def _planned(round_: int, instance: int) -> Made:
    requested, effective, mode, passes, reason = batch(round_, instance)
    members = hosts(round_, instance)
    share = max(1, effective // len(members))
    return {
        "instance": instance,
        "requested_batch": requested,
        "effective_batch": effective,
        "mode": mode,
        "reason": reason,
        "hosts": [
            {
                "peer": peer,
                "batch_samples": share,
                "inner_steps": STEPS,
                "micro_batch_size": math.ceil(share / passes),
                "accumulation_steps": passes,
                "first_sample": 0,
            }
            for peer in members
        ],
    }


def _boundary(round_: int, clock: float) -> Iterator[Made]:
    if round_ == FORK_ROUND:
        yield {"event": "fork", "time": clock, "round": round_, "source": 0, "targets": [1, 2]}
    if round_ == MERGE_ROUND:
        yield _merge(round_, clock, [0, 1], 0, [0.52, 0.48], "the two smallest requests, 52 and 55")
    if round_ == LAST_MERGE_ROUND:
        yield _merge(round_, clock, [0, 2], 0, [0.47, 0.53], "worst with worst: requests 347 and 396; the probe passed")
    if round_ == 9:
        yield {"event": "suspected", "time": clock, "peer": OTHERS[1]}
    if round_ == 10:
        yield {"event": "returned", "time": clock, "peer": OTHERS[1]}
    if round_ == 14:
        message = "the laptop's uplink is slow: averaging takes longer than training"
        yield {"event": "warning", "time": clock, "key": "slow_link", "message": message, "active": True}
    if round_ == 22:
        yield {"event": "warning", "time": clock, "key": "slow_link", "message": "the uplink recovered", "active": False}


def _merge(round_: int, clock: float, sources: list[int], target: int, weights: list[float], reason: str) -> Made:
    return {
        "event": "merge",
        "time": clock,
        "round": round_,
        "sources": sources,
        "target": target,
        "weights": weights,
        "reason": reason,
    }


def _round(round_: int, instance: int, clock: float, *, heldout: bool, rounds: int) -> Iterator[Made]:
    requested, effective, mode, passes, reason = batch(round_, instance)
    members = hosts(round_, instance)
    samples = max(1, effective // len(members)) * STEPS
    seconds = {"training": 2.0 + samples / 400, "averaging": 0.8 + 0.1 * instance, "committing": 0.1, "applying": 0.05}
    if instance == 0:
        seconds["waiting"] = 0.3 + 0.2 * math.sin(round_) ** 2
    where = {"round": round_, "instance": instance}
    loss = made_loss(round_, instance, heldout=False)
    yield {"event": "phase", "time": clock, **where, "phase": "training"}
    for step in (8, 16, 24, 32):
        yield {
            "event": "progress",
            "time": clock + seconds["training"] * step / STEPS,
            **where,
            "step": step,
            "num_steps": STEPS,
            "loss": loss + 0.02 * (4 - step / 8),
            "tokens_per_second": samples * TOKENS_PER_SAMPLE / seconds["training"],
        }
    if instance == 0:  # decided while the round computes
        yield _plan(round_ + 1, clock + seconds["training"], is_last=round_ + 1 == rounds)
    clock += seconds["training"]
    yield {"event": "phase", "time": clock, **where, "phase": "averaging"}
    if (round_, instance) == (9, 1):
        clock += 5.0
        reason_of_failure = f"no answer from {OTHERS[1]} within 5 s"
        yield {"event": "average_failed", "time": clock, **where, "attempt": 0, "reason": reason_of_failure}
        members = (THIS,)
        seconds["averaging"] += 5.0
    clock += seconds["averaging"]
    yield {"event": "phase", "time": clock, **where, "phase": "committing"}
    yield {"event": "phase", "time": clock + 0.1, **where, "phase": "applying"}
    yield {
        "event": "round",
        "time": clock + 0.15,
        **where,
        "loss": loss,
        "heldout_loss": made_loss(round_, instance, heldout=True) if heldout else None,
        "requested_batch": requested,
        "effective_batch": effective,
        "accumulation_steps": passes,
        "mode": mode,
        "reason": reason,
        "samples": samples,
        "tokens": samples * TOKENS_PER_SAMPLE,
        "hosts": list(members),
        "digest": "ab" * 32,
        "seconds": seconds,
        "bytes_sent": 5_000_000 * (len(members) - 1) // len(members) * 2,
        "bytes_received": 4_900_000 * (len(members) - 1) // len(members) * 2,
    }
    yield {"event": "phase", "time": clock + 0.15, **where, "phase": "done"}
