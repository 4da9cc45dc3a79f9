"""The pure parts of `benchmarks.carried_over`, `critical_batch` and `unequal_machines`, and branches of a tiny run."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
import torch

from adloco_p2p.config.load import load_run
from adloco_p2p.core.planning.batch_ramp import ramp_batches
from adloco_p2p.data.packing import TokenRows
from benchmarks import carried_over, critical_batch
from benchmarks.carried_over import (
    CAP,
    HOME,
    HOME_END,
    NOISY,
    PRICE,
    QUIET,
    START,
    TASKS,
    TEST,
    H,
    at_price,
    found_of,
    interior,
    ramp,
    regret_table,
    regrets,
    rows,
    run_key,
    text_of,
    with_noise,
)
from benchmarks.critical_batch import Trunk, critical, rank_correlation
from benchmarks.method.run import BASE, settings_of
from benchmarks.method.store import RESULTS, read_records, records_by_key
from benchmarks.unequal_machines import KEPT, SECONDS, SEEDS


def test_the_ramp_carried_over_takes_the_rounds_at_home_that_it_is_said_to_take() -> None:
    rules = load_run(BASE, settings_of(rows(HOME)[ramp(HOME_END)], 1, samples=HOME.samples)).value.rules
    batches = ramp_batches(rules.batch, samples=HOME.samples, inner_steps=H, final_fraction=rules.final_fraction)
    assert len(batches) == 84


def test_rows_of_a_task_differ_in_nothing_but_their_batch() -> None:
    for task in TASKS:
        runs = [load_run(BASE, settings_of(row, 1, samples=task.samples)).value for row in rows(task).values()]
        for run in runs:
            assert (run.model, run.data, run.work, run.outer) == (runs[0].model, runs[0].data, runs[0].work, runs[0].outer)
            assert run.inner.warmup_steps == runs[0].inner.warmup_steps
            assert run.inner.learning_rate == pytest.approx(task.rate * sqrt(run.batch.initial_batch / START), rel=1e-3)
            assert run.batch.initial_batch == START or not run.rules.batch.is_tested


def test_noise_replaces_its_share_of_the_training_tokens_and_nothing_held_out() -> None:
    ids = np.arange(4000, dtype=np.uint16).reshape(400, 10)
    noisy = with_noise(TokenRows(ids=ids, num_tokens=4000), 0.5)
    assert 0.45 < (noisy.ids != ids).mean() < 0.55
    assert (noisy.ids == with_noise(TokenRows(ids=ids, num_tokens=4000), 0.5).ids).all()
    assert (with_noise(TokenRows(ids=ids, num_tokens=4000), 0.0).ids == ids).all()
    assert (
        text_of(NOISY)[0].heldout.gather(np.arange(4)).input_ids == text_of(HOME)[0].heldout.gather(np.arange(4)).input_ids
    ).all()


def test_a_run_of_another_text_has_another_key() -> None:
    row = rows(HOME)[TEST]
    assert run_key(HOME, row, 1) != run_key(replace(HOME, noise=0.5), row, 1)


def test_the_price_counts_doublings_of_the_rounds() -> None:
    few, many = ({1: {"loss": 2.0, "rounds": rounds}} for rounds in (32, 128))
    assert at_price(many)[1] - at_price(few)[1] == pytest.approx(2 * PRICE)


def test_the_regret_of_a_row_is_its_distance_from_the_lowest_at_the_price() -> None:
    """Losses 2.0 in 64 rounds and 2.1 in 16: at the price 2.3 and 2.3, then the second seed of the second is 0.2 lower."""
    few, many = ({"loss": 2.1, "rounds": 16}, {"loss": 2.0, "rounds": 64})
    found = {"many": {1: many, 2: many}, "few": {1: few, 2: {"loss": 1.9, "rounds": 16}}}
    assert regrets(found) == {"many": pytest.approx(0.1), "few": 0.0}


def test_the_table_of_regrets_has_what_all_tasks_have_in_common() -> None:
    def record(loss: float) -> dict[str, float]:
        return {"loss": loss, "rounds": 1}

    runs = {
        HOME: {TEST: {1: record(9.0)}},  # nothing is left to tune there
        NOISY: {TEST: {1: record(1.0)}, "other": {1: record(1.5)}, "of noisy": {1: record(0.5)}},
        QUIET: {TEST: {1: record(1.0)}, "other": {1: record(1.1)}},
    }
    _, _, test, other = regret_table(runs)
    assert test == f"| {TEST} | 0.500 | 0.000 | 0.250 |  |  |  |", "it is the nearest, too"
    assert other == "| other | 1.000 | 0.100 | 0.550 | 0.300 +- 2.541 | 0.300 +- 2.541 | 0.300 +- 58.569 |"


def test_a_request_is_interior_where_nothing_binds_it() -> None:
    requests = [START, 12, 13, 13, 19, CAP]  # the start; its bound; free, twice; the bound; the cap
    assert interior({"log": [[[request, 0, 0, 0]] for request in requests]}) == pytest.approx(26 / sum(requests))


def test_the_critical_batch_is_where_the_branches_cross_the_tolerance() -> None:
    losses = {"8": 2.0, "16": 2.0, "32": 2.04, "64": 2.3}
    assert log(critical(losses, 0.02)) == pytest.approx(log(16) + 0.5 * log(2))
    assert critical(losses, 1.0) == 64.0


def test_the_rank_correlation_by_hand() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]) == pytest.approx(0.5)
    assert rank_correlation([1.0, 2.0, 2.0], [1.0, 5.0, 5.0]) == pytest.approx(1.0)


def test_a_branch_leaves_its_run_as_it_was_and_repeats() -> None:
    torch.set_num_threads(1)
    trunk = Trunk(replace(HOME, samples=256, length=16), 1)
    trunk.round(START)
    outer, draws, counts = trunk.outer.clone(), trunk.task.chance.getstate(), [host.count for host in trunk.hosts]
    first, other = trunk.branch(START, 2 * H * START), trunk.branch(2 * START, 2 * H * START)
    assert first != other
    assert first == trunk.branch(START, 2 * H * START)
    assert torch.equal(outer, trunk.outer)
    assert draws == trunk.task.chance.getstate()
    assert counts == [host.count for host in trunk.hosts]


def test_the_kept_runs_of_unequal_machines_end_in_time() -> None:
    records = read_records(KEPT)
    assert records
    assert all(0.9 * SECONDS < record["seconds"] <= SECONDS for record in records)


def test_the_guard_refused_every_merge_of_unequal_machines() -> None:
    merges = [record["merges"] for record in read_records(KEPT) if record["row"] == "one for each kind, guarded"]
    assert len(merges) == len(SEEDS)
    assert all(reason.startswith("refused") for (reason,) in merges)


def test_the_page_says_what_the_requests_were() -> None:
    records = records_by_key(carried_over.KEPT, [])
    page = " ".join((RESULTS / "carried_over.md").read_text().split())
    runs = {task.name: [*found_of(task, records)[TEST].values()] for task in TASKS}
    shares = {name: [f"{100 * interior(record):.0f}" for record in some] for name, some in runs.items()}
    noisy, home, quiet = (f"{min(shares[name])} to {max(shares[name])} %" for name in ("noisy", "home", "quiet"))
    assert f"interior for {noisy} of the samples on the noisy task, {home} at home, and {quiet} on the quiet one" in page
    requests = [[instance[0] for (instance,) in record["log"]] for record in runs["noisy"]]
    left = [100 * next(i for i, now in enumerate(some) if now > START) * H * START / NOISY.samples for some in requests]
    rest = [some[-1] for some in requests]
    assert f"left the start after {min(left):.0f} to {max(left):.0f} % of the samples" in page
    assert f"came to rest at {min(rest)} to {max(rest)};" in page
    rounds = [record["rounds"] for record in runs["noisy"]]
    assert f"took {', '.join(map(str, rounds[:-1]))} and {rounds[-1]} rounds, with schedules of 75 and 84" in page
    assert f"{len(rows(NOISY)) - 1} and {len(rows(QUIET)) - 1} schedules" in page


def test_the_pages_say_what_the_rank_correlation_is() -> None:
    *_, line, _ = critical_batch.table(records_by_key(critical_batch.KEPT, []))
    found = line.split("|")[4].strip()
    for page in (RESULTS / "carried_over.md", RESULTS.parent / "results.md"):
        assert f"rank correlation {found}" in " ".join(page.read_text().split())


def test_the_page_says_how_far_the_critical_batch_is_from_the_request() -> None:
    page = " ".join((RESULTS / "carried_over.md").read_text().split())
    cells = [line.split("|") for line in critical_batch.table(records_by_key(critical_batch.KEPT, []))]
    ratios = [(row[2].strip(), float(row[4]) / float(row[3])) for row in cells if row[2].strip().endswith("%")]
    early, late = ([ratio for place, ratio in ratios if (place == "25%") is is_early] for is_early in (True, False))
    first, then = (f"{min(some):.0f} to {max(some):.0f} times" for some in (early, late))
    assert f"The critical batch is {first} the request at a quarter of the samples and {then} later" in page
    assert f"follows it as well**, {cells[-1][4].strip()}," in page
