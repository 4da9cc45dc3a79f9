"""The parts of `python -m benchmarks.wan.islands`: who is on which island, what it makes of events, and its table."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.core.model.rules import InstanceRules, MergeRules, Rules
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.core.planning import round_plan
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.numerics import digest
from adloco_p2p.runtime.adapters import plan_rule
from benchmarks.method.store import records_by_key
from benchmarks.nodes import Event, began, write_document
from benchmarks.wan import islands
from benchmarks.wan.founders import LENGTH
from benchmarks.wan.islands import (
    HOSTS,
    WAYS,
    Way,
    average_seconds,
    curve_of,
    document_of,
    loss_at,
    merge_seconds,
    named_hosts,
    peer_record,
    table,
)
from benchmarks.wan.islands_peer import divide_chunks, plan_for_islands
from benchmarks.wan.lab import Border

DOCS = Path(__file__).parents[2] / "docs"
APART = next(way for way in WAYS if way.instances > 1)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_way_is_a_run(way: Way, tmp_path: Path) -> None:
    names = named_hosts(tmp_path, HOSTS * way.islands)
    author, *founders = names.values()
    run = load_run(write_document(tmp_path, document_of(way, founders, 7)), [f"author={author}"]).value
    assert (run.instances.count, run.work.inner_steps, run.seed) == (way.instances, way.inner_steps, 7)


def test_an_instance_is_on_the_island_whose_hosts_have_the_lowest_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all instances get their mean at every boundary that is due."""
    monkeypatch.setattr(plan_rule, "next_plan", round_plan.next_plan)
    monkeypatch.setattr(plan_rule, "UNKNOWN_CAPACITY", plan_rule.UNKNOWN_CAPACITY)
    plan_for_islands(2)
    names = [PeerId(name) for name in named_hosts(tmp_path, 4).values()]
    rules = Rules(instances=InstanceRules(count=2, start="same"), merge=MergeRules(policy="none"))
    plan = genesis(Digest("0" * 64), [(name, plan_rule.UNKNOWN_CAPACITY) for name in reversed(names)], rules)
    for number in range(5):
        assert [item.peers for item in plan.instances] == [tuple(names[:2]), tuple(names[2:])]
        merged = [merge.target for merge in plan.merges]
        assert merged == ([0, 1] if number in (2, 4) else [])
        assert all(merge.weights == (0.5, 0.5) for merge in plan.merges)
        plan = plan_rule.decide_by(rules)(plan, [], None)  # type: ignore[arg-type]


def test_the_state_of_a_small_model_has_as_many_chunks_as_that_of_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "CHUNK_BYTES", digest.CHUNK_BYTES)
    outer, momentum = torch.arange(500_000.0), torch.ones(500_000, dtype=torch.bfloat16)
    whole = digest.state_digest(outer, momentum)
    assert len(list(digest.state_chunks(outer, momentum))) == 3
    divide_chunks(20.0)
    chunks = list(digest.state_chunks(outer, momentum))
    assert len(chunks) == 39 + 20 and sum(map(len, chunks)) == 3_000_000
    assert digest.state_digest(outer, momentum) != whole


def test_a_border_needs_every_host_on_one_island() -> None:
    border = Border(islands=("ab", "c"), mbit=8, delay_ms=20, queue_kb=1)
    assert border.command("bca") == "islands 1000000 0.02 1024 0 1 0"
    for hosts in ("abcd", "ab", "abcc"):
        with pytest.raises(ValueError, match="every host is on one island"):
            border.command(hosts)
    with pytest.raises(ValueError, match="positive"):
        Border(islands=("ab",), mbit=0)


def event(number: int, ended: float, loss: float | None = None, *, instance: int = 0) -> Event:
    seconds = {"training": 2.0, "averaging": 1.0}
    done = {"round": number, "instance": instance, "tokens": 16 * islands.BATCH * LENGTH, "is_void": False}
    return {"event": "round", "time": ended, "heldout_loss": loss, "seconds": seconds, **done}


def test_what_a_peer_did_by_hand() -> None:
    rounds = [event(0, 103.0), event(1, 107.0, 3.0)]
    assert began(rounds[0]) == 100.0
    found = peer_record(rounds, 100.0)
    assert (found["rounds"], found["steps"], found["seconds"], found["instances"]) == (2, 32, 7.0, [0])
    assert found["phases"] == {"training": 4.0, "averaging": 2.0}
    assert found["ends"] == [[0, 0.0, 3.0], [1, 4.0, 7.0]]


def test_a_curve_has_the_first_evaluation_of_each_round_and_ends_in_time() -> None:
    told = {
        "a": [event(0, 103.0, 4.0), event(1, 106.0, 3.5), event(2, 120.0, 1.0)],
        "b": [event(0, 104.0, 4.0), event(1, 108.0, 3.0, instance=1)],
    }
    curve = curve_of(told, begun=100.0, until=110.0)
    assert curve == [[3.0, 0, 0, 4.0], [6.0, 1, 0, 3.5], [8.0, 1, 1, 3.0]]
    record = {"curve": curve, "way": {"instances": 2}}
    assert loss_at(record, 7.0) is None
    assert loss_at(record, 8.0) == pytest.approx(3.25)


def record_of(way: Way, seed: int, loss: float) -> dict[str, Any]:
    ends = [[6, 0.0, 10.0], [7, 10.5, 20.0], [8, 50.0, 60.0], [15, 80.0, 90.0], [16, 110.0, 120.0]]
    peer = {"rounds": 5, "steps": 80, "phases": {"training": 32.0, "averaging": 6.0}, "ends": ends}
    curve = [[1.0, 0, instance, loss] for instance in range(way.instances)]
    shown = {"name": way.name, "instances": way.instances}
    stated = {"seconds": 40.0, "step_seconds": 0.4, "crossed": [2_000_000, 4_000_000], "merges": [8, 16, 24], "load": 9.6}
    return {"way": shown, "seed": seed, "peers": {"a": peer, "b": peer}, "curve": curve, **stated}


def test_the_table_compares_ways_of_one_seed() -> None:
    records = [record_of(WAYS[0], 1, 3.0), record_of(WAYS[0], 2, 3.2), record_of(APART, 2, 3.3)]
    first, second = table(records)[2:]
    assert first.startswith("| one instance, H 128 | 2 | 10 | 5 | 80 | 80% | 1.2 |  |  | 3.0 | 3.100 +- 1.271 |")
    assert second.endswith("| 80% | 1.2 | 3.0 | 25 | 3.0 | 3.300 | 3.300 | 3.300 | 0.100 |  |")
    kept = records_by_key(islands.KEPT, [])
    assert len(table(list(kept.values()))) == 2 + len({record["way"]["name"] for record in kept.values()})


def test_the_pages_have_the_figures_of_the_kept_records() -> None:
    kept = list(records_by_key(islands.KEPT, []).values())
    found = {way.name: {r["seed"]: r for r in kept if r["way"]["name"] == way.name} for way in WAYS}
    together, apart, fast, alone = (found[way.name] for way in WAYS[:4])
    seeds = sorted(together)
    assert all(sorted(records) == seeds for records in (apart, fast, alone))
    calm = min(seeds, key=lambda seed: together[seed]["load"])
    page, measured = (" ".join((DOCS / name).read_text().split()) for name in ("results/method.md", "measured.md"))
    state = 6 * together[calm]["parameters"]
    stated = 8 * HOSTS * state / (islands.BORDER_MBIT / together[calm]["scale"] * 1e6)
    crossed = sum(apart[calm]["crossed"]) / 2 / len(apart[calm]["merges"]) / 1e6
    loads = [record["load"] for records in found.values() for record in records.values()]
    for words in (
        f"a load of {min(loads):.0f} to {max(loads):.0f} on two cores",
        f"{average_seconds(together[calm]):.1f} s over the border and {average_seconds(alone[calm]):.1f} s inside an island",
        f"a merge takes {merge_seconds(apart[calm]):.0f} s, of which the states alone need {stated:.0f} s",
        f"{crossed:.1f} MB cross for each merge",
    ):
        assert words in measured
    steps = {
        name: f"{fmean(peer['steps'] for peer in records[calm]['peers'].values()):.0f}"
        for name, records in zip(("together", "apart", "alone"), (together, apart, alone), strict=True)
    }
    assert f"{steps['alone']} steps where both islands do {steps['together']}, and merged ones {steps['apart']}" in page
    for seed in seeds:
        losses = [loss for records in (fast, alone, together, apart) if (loss := loss_at(records[seed], 400)) is not None]
        assert len(losses) == 4 and losses == sorted(losses)
    assert "the same order on all three seeds" in page and len(seeds) == 3
