"""Several runs side by side: bands of seeds by hand-worked numbers, the files, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.errors import ConfigError
from adloco_p2p.views.comparison import ComparedRun, bands, draw_comparison
from adloco_p2p.views.page import side_by_side
from adloco_p2p.views.round_results import RoundResults
from adloco_p2p.views.status import Status
from tests.views.synthetic import START, Made, events, replay


def run_of(label: str, *losses: float, seed: int = 0, samples: int = 10) -> ComparedRun:
    """Rounds of so many samples of one instance, each with a held-out loss."""
    made: list[Made] = [event for event in events() if event["event"] == "started"]
    (one, *_) = (event for event in events() if event["event"] == "round")
    made += [
        {**one, "round": round_, "samples": samples, "heldout_loss": loss, "time": START + 5 + round_}
        for round_, loss in enumerate(losses)
    ]
    status = replace(replay(made), run=f"{label} {seed}")
    return ComparedRun(label=label, seed=seed, own=status, of_all=status)


def test_seeds_of_one_label_are_a_mean_and_a_band() -> None:
    runs = [run_of("a", 4.0, 2.0, seed=1), run_of("b", 3.0), run_of("a", 6.0, 3.0, seed=2)]
    first, second = bands(runs, by_samples=True)
    assert (first.label, first.num_runs, second.label, second.num_runs) == ("a", 2, "b", 1)
    assert first.lowest == [(10.0, 4.0), (20.0, 2.0)]
    assert first.mean == [(10.0, 5.0), (20.0, 2.5)]
    assert first.highest == [(10.0, 6.0), (20.0, 3.0)]
    assert second.lowest == second.mean == second.highest == [(10.0, 3.0)]
    assert [x for x, _ in bands(runs, by_samples=False)[0].mean] == [1.0, 2.0]


def test_the_curve_of_a_finished_run_ends_where_its_table_does() -> None:
    """Two instances end with losses of 3.0 and 5.0, and the run with the model that they became."""
    made: list[Made] = [event for event in events() if event["event"] == "started"]
    (one, *_) = (event for event in events() if event["event"] == "round")
    made += [
        {**one, "round": 0, "instance": number, "samples": 10, "heldout_loss": loss} for number, loss in ((0, 3.0), (1, 5.0))
    ]
    going = replay(made)
    (end,) = (event for event in events() if event["event"] == "finished")
    over = replay([*made, {**end, "heldout_loss": 2.5}])
    assert ComparedRun(label="a", seed=0, own=going, of_all=going).curve(by_samples=True) == [(20.0, 4.0)]
    assert ComparedRun(label="a", seed=0, own=over, of_all=going).curve(by_samples=True) == [(20.0, 2.5)]


def test_the_page_has_the_curves_of_the_report() -> None:
    begun = ComparedRun(label="c", seed=3, own=Status(), of_all=Status())
    first, second, third = side_by_side([run_of("a\n\x1b[2J", 4.0, 2.0, seed=1), run_of("b", 3.0, samples=7), begun])
    assert [(point["round"], point["samples"], point["heldout"]) for point in first["points"]] == [(0, 10, 4.0), (1, 20, 2.0)]
    assert [point["seconds"] for point in first["points"]] == [pytest.approx(seconds) for seconds in (5.0, 6.0)]
    assert (first["label"], first["heldout_loss"], first["seed"]) == ("a ?[2J", 2.0, 1)
    assert [(point["samples"], point["heldout"]) for point in second["points"]] == [(7, 3.0)]
    assert third["points"] == [] and third["heldout_loss"] is None and not third["is_finished"], "a run that has only begun"


def test_seeds_with_other_batches_meet_between_their_points_and_only_where_all_have_a_loss() -> None:
    (band,) = bands([run_of("a", 4.0, 2.0, samples=10), run_of("a", 5.0, 3.0, samples=15)], by_samples=True)
    # 10 to 20 and 15 to 30 samples: 15 to 20 is common; at 15 the first lies half-way, at 20 the second a third of its way
    assert band.mean == [(15.0, (3.0 + 5.0) / 2), (20.0, pytest.approx((2.0 + 5.0 - 2 / 3) / 2))]


def test_the_files_name_every_run_with_its_seed(tmp_path: Path) -> None:
    runs = [run_of("a", 4.0, 2.0, seed=1), run_of("a", 6.0, 3.0, seed=2), run_of("b | c", 3.0, 2.75, seed=3)]
    files = draw_comparison(runs, tmp_path / "report", formats=("png", "svg"))
    assert [file.name for file in files] == [
        *(f"loss_by_{axis}.{kind}" for kind in ("png", "svg") for axis in ("samples", "rounds")),
        "report.json",
        "report.md",
    ]
    numbers = json.loads((tmp_path / "report" / "report.json").read_text())
    assert numbers["labels"][0] == {
        "label": "a",
        "runs": 2,
        "mean_heldout_loss": 2.5,
        "lowest_heldout_loss": 2.0,
        "highest_heldout_loss": 3.0,
    }
    assert [(row["seed"], row["samples"], row["heldout_loss"]) for row in numbers["runs"]] == [
        (1, 20, 2.0),
        (2, 20, 3.0),
        (3, 20, 2.75),
    ]
    page = (tmp_path / "report" / "report.md").read_text()
    assert "| a | 2 | 2.500 | 2.000 | 3.000 |" in page and "| b \\| c | 3 |" in page
    (page_file,) = draw_comparison(runs, tmp_path / "html", formats=("png",), as_html=True)
    assert page_file.read_text().count("<svg") == 2


def test_two_peers_of_one_run_are_no_two_seeds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a and a are the same run; name one peer of each"):
        draw_comparison([run_of("a", 4.0), run_of("b", 4.0), run_of("a", 4.0)], tmp_path / "report", formats=("png",))


def test_a_run_without_a_loss_is_named(tmp_path: Path) -> None:
    silent = run_of("quiet", 4.0)
    silent = replace(silent, of_all=replace(silent.of_all, results=RoundResults()))
    with pytest.raises(ConfigError, match=r"quiet \(seed 0\) has no held-out loss") as refused:
        draw_comparison([run_of("a", 4.0), silent], tmp_path / "report", formats=("png",))
    assert refused.value.code == "E212" and not (tmp_path / "report").exists()
