"""The parts of `python -m benchmarks.wan.shipped`, and its kept record."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adloco_p2p.config.load import load_run
from benchmarks.method.store import RESULTS, read_records
from benchmarks.nodes import write_document
from benchmarks.wan import shipped
from tests.config.test_shipped_configs import parameters


def test_the_run_has_what_decides_about_time_from_the_file(tmp_path: Path) -> None:
    ours, theirs = (
        load_run(path).value for path in (write_document(tmp_path, shipped.document_of(tmp_path)), Path(shipped.NAME))
    )
    assert (ours.averaging, ours.outer, ours.switch) == (theirs.averaging, theirs.outer, theirs.switch)
    assert ours.work.inner_steps == theirs.work.inner_steps
    assert ours.batch.initial_batch == ours.batch.max_batch == theirs.batch.initial_batch
    assert parameters(theirs) == pytest.approx(shipped.PARAMETERS, rel=1e-3)


def record_of(**more: Any) -> dict[str, Any]:
    peer = {"wall_seconds": 500.0, "steps": 768, "phases": {"averaging": 20.0}, "void": 0}
    peer["sent"] = {"averaging": 1_000_000}
    return {"name": "c4-150m", "step_seconds": 0.5, "rounds": 2, "load": 1.5, "peers": [peer] * 8, **more}


def test_the_table_by_hand() -> None:
    """768 steps of half a second in 500 s; a megabyte in two rounds at a twentieth of the values."""
    assert shipped.measured_share(record_of()) == pytest.approx(0.768)
    line = shipped.table([record_of()])[-1]
    assert line == "| `configs/c4-150m.yaml` | measured | 250 s | 20.0 s | 76.8% | 10 | 0 | 1.5 |"


def test_the_kept_run_had_all_values_and_the_stated_steps() -> None:
    (record,) = read_records(shipped.KEPT)
    assert record["parameters"] * shipped.SCALE == pytest.approx(shipped.PARAMETERS, rel=5e-3)
    assert record["step_seconds"] == pytest.approx(shipped.step_seconds())
    assert all(peer["steps"] == record["rounds"] * 384 for peer in record["peers"])
    page = " ".join((RESULTS / "time.md").read_text().split())
    assert f"eight real nodes compute {shipped.measured_share(record):.1%} of the time" in page
    whole = shipped.calculated()
    part = replace(whole, outer_step_seconds=whole.outer_step_seconds / shipped.SCALE)
    assert 100 * (part.share - shipped.measured_share(record)) == pytest.approx(1.0, abs=0.1)
    assert "too high by one point (below)" in page
