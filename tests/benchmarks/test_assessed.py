"""The parts of `python -m benchmarks.assessed`: scores against another way to compute them, senders by their names."""

import numpy as np
import pytest
import torch

from adloco_p2p.numerics.assessment import assessment_score
from adloco_p2p.numerics.batch import Batch
from benchmarks.assessed.kinds import KINDS, of_all_kinds, woven
from benchmarks.assessed.report import CELLS, assessments, below_part, rounds_until, tables
from benchmarks.assessed.run import ASSESSED, Cell, key_of, run_cell
from benchmarks.assessed.score import plain_score

IS_GIVEN = np.arange(20) < 8


def drawn(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=len(IS_GIVEN))


def test_the_plain_score_is_welchs_t() -> None:
    drops = np.array([3.0, 5.0, 1.0, 2.0, 3.0])
    expected = (4.0 - 2.0) / (2.0 / 2 + 1.0 / 3) ** 0.5
    assert plain_score(drops, np.array([True, True, False, False, False])) == pytest.approx(expected)


def test_the_adjusted_score_is_students_t_of_the_mark_in_a_regression_on_all_three() -> None:
    common = drawn(1)
    drops = 0.3 + 2 * common + 0.5 * IS_GIVEN + 0.2 * drawn(2)
    columns = np.stack([np.ones(len(drops)), common, IS_GIVEN], axis=1)
    found = np.linalg.inv(columns.T @ columns) @ columns.T @ drops
    rest = drops - columns @ found
    error = (rest @ rest / (len(drops) - 3) * np.linalg.inv(columns.T @ columns)[2, 2]) ** 0.5
    assert assessment_score(drops, common, IS_GIVEN) == pytest.approx(found[2] / error)
    assert assessment_score(drops, common, IS_GIVEN) > 2 * plain_score(drops, IS_GIVEN), (
        "rows that are easy for all are no noise"
    )


def test_scores_have_no_unit_and_are_nothing_where_no_loss_moves() -> None:
    drops, common = drawn(1) + IS_GIVEN, drawn(2)
    assert assessment_score(1e-3 * drops, common, IS_GIVEN) == pytest.approx(assessment_score(drops, common, IS_GIVEN))
    assert plain_score(1e-3 * drops, IS_GIVEN) == pytest.approx(plain_score(drops, IS_GIVEN))
    assert assessment_score(0 * drops, common, IS_GIVEN) == plain_score(0 * drops, IS_GIVEN) == 0.0


def test_twins_train_on_every_other_row_of_both() -> None:
    ours, theirs = (Batch(input_ids=ids, labels=ids) for ids in (torch.arange(8).view(4, 2), 100 + torch.arange(8).view(4, 2)))
    assert woven(ours, theirs).input_ids.tolist() == [[0, 1], [100, 101], [4, 5], [104, 105]]


def test_who_trains_less_or_not_sends_what_its_name_says() -> None:
    trained = {how: torch.randn(4, 50, generator=torch.Generator().manual_seed(i)) for i, how in enumerate(KINDS)}
    before = torch.ones(50)
    sent = of_all_kinds(3, trained, before, torch.Generator().manual_seed(5))
    assert sent.keys() == set(KINDS)
    norm = float(trained["honest"][3].norm())
    for kind in ("quarter", "replayed", "random", "flipped"):
        assert float(sent[kind].norm()) == pytest.approx(norm, rel=1e-5)
    assert float(sent["tiny"].norm()) == pytest.approx(norm / 100, rel=1e-5)
    assert torch.equal(sent["copied"], trained["honest"][0])
    assert torch.equal(sent["slow"], trained["quarter"][3])
    assert float(torch.cosine_similarity(sent["replayed"], before, dim=0)) == pytest.approx(1.0, rel=1e-5)


def test_a_run_scores_every_kind_from_the_second_round_on() -> None:
    record = run_cell(Cell(hosts=4, inner_steps=8, rounds=2), 1)
    assert record["rounds"] == [1] * ASSESSED
    assert all(len(record[kind]) == ASSESSED for kind in KINDS)
    assert all(score == [0.0, 0.0, 0.0] for score in record["zero"]), "nothing moves, and `robust` leaves it out"
    plain, flipped = (record[kind][0][0] for kind in ("honest", "flipped"))
    assert plain * flipped < 0


def test_so_many_scores_and_rounds_tell_hosts_apart() -> None:
    assert assessments([3.0, 4.0, 5.0], [-1.0, 0.0, 1.0]) == 2  # ((3.09 + 1.645) / 4)^2 = 1.4
    assert assessments([3.0, 4.0, 5.0], [3.0, 4.0, 5.0]) is None
    assert below_part([5.0, 6.0, 7.0], [5.0, 6.0, 7.0]) < 1e-12  # 8 standard errors above
    assert below_part([5.0, 6.0, 7.0], [-1.0, 0.0, 1.0]) == pytest.approx(0.99997, abs=1e-5)  # 4 below
    assert rounds_until(1, 2) == 5  # 1 - 2^-5 = 0.97
    assert rounds_until(2, 1) == 2


def test_no_two_swarms_have_one_record_and_a_table_has_only_what_was_run() -> None:
    keys = [key_of(cell, seed) for cell in CELLS.values() for seed in (1, 2)]
    assert len(set(keys)) == len(keys)
    assert [len(lines) for lines in tables([]).values()] == [2 + len(KINDS), len(KINDS), 2 + len(KINDS), 2, 2]
