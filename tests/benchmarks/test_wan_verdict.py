"""What is held against a swarm that was cut in two, from event files written by hand."""

from typing import Any

from adloco_p2p.core.model.branches import FIRST_BRANCH_ID
from benchmarks.wan.verdict import Cut, Event, Life, Verdict, judge

CUT = Cut(begun=10.0, healed=40.0, sides=(["a"], ["b"]))
MERGE = {"sources": [0, FIRST_BRANCH_ID + 1], "target": 0, "weights": [0.8, 0.2], "reason": "after a partition, merged ..."}


def plan(at: float, number: int, digest: str, roster: str = "ab", **more: Any) -> Event:
    hosts = [{"peer": peer, "batch_samples": 4, "inner_steps": 2} for peer in roster]
    roster_entries = [{"peer": peer} for peer in roster]
    planned = {"instances": [{"instance": 0, "hosts": hosts}], "roster": roster_entries, "merges": [], "reason": "", **more}
    return {"event": "plan", "time": at, "round": number, "digest": digest, **planned}


def done(at: float, number: int, digest: str, hosts: str = "ab") -> Event:
    fields = {"instance": 0, "digest": digest, "hosts": [*hosts], "samples": 8, "bytes_sent": 0, "seconds": {"training": 4.0}}
    return {"event": "round", "time": at, "round": number, **fields}


def begun(peer: str) -> Event:
    return {"event": "started", "time": 0.0, "peer": peer, "parameters": 10}


FINISHED = {"event": "finished", "time": 60.0}
WINNER = [
    begun("a"),
    plan(0.0, 0, "p0"),
    done(5.0, 0, "d0"),
    plan(6.0, 1, "p1", "a"),
    done(20.0, 1, "d1", "a"),
    plan(21.0, 2, "p2", "a"),
    done(39.0, 2, "d2", "a"),
]


def loser(*, heard_at: float) -> list[Event]:
    return [
        begun("b"),
        plan(0.0, 0, "p0"),
        done(5.0, 0, "d0"),
        plan(7.0, 1, "q1", "b"),
        done(25.0, 1, "e1", "b"),
        plan(heard_at, 1, "p1", "a"),
        plan(heard_at, 2, "p2", "a"),
    ]


def update_miss_counts(*, heard_at: float = 45.0, merges: tuple[Any, ...] = (MERGE,), reason: str = "") -> Verdict:
    last = plan(46.0, 3, "p3", merges=[*merges], reason=reason, is_last=True)
    ledger = [
        {"round": number, "digest": digest, "merges": [], "is_last": number == 3, "instances": [{"instance": 0}]}
        for number, digest in enumerate(("p0", "p1", "p2", "p3"))
    ]
    lives = [
        Life(name="a", events=[*WINNER, last, FINISHED]),
        Life(name="b", events=[*loser(heard_at=heard_at), last, FINISHED]),
    ]
    return judge(lives, {"a": ledger, "b": ledger}, [], rounds=3, partition=CUT)


def test_a_partition_that_ends_with_a_merge_breaks_nothing() -> None:
    verdict = update_miss_counts()
    assert verdict.broken == []
    assert verdict.one_history_seconds == 5.0 and verdict.rejoined_seconds == 6.0
    assert "b began and ended 1 rounds during the cut" in verdict.notes
    assert "instance 0: after a partition, merged ..." in verdict.notes


def test_training_that_is_thrown_away_needs_a_reason() -> None:
    assert update_miss_counts(merges=()).broken == ["1 rounds trained apart were neither merged nor dropped for a reason"]
    assert update_miss_counts(merges=(), reason="dropped what b trained apart: no peer that holds it is left").broken == []


def test_one_history_comes_in_time() -> None:
    assert update_miss_counts(heard_at=51.0).broken == ["one history only 11.0 s after the healing, not 10"]


def test_a_side_that_stood_still_is_noticed() -> None:
    lives = [Life(name="a", events=[*WINNER, FINISHED]), Life(name="b", events=[begun("b"), FINISHED])]
    ledger = [{"round": 0, "digest": "p0", "merges": [], "is_last": True, "instances": []}]
    assert "b began and ended 0 rounds during the cut" in judge(lives, {"a": ledger}, [], rounds=0, partition=CUT).broken
