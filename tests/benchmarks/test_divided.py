"""The pure parts of `python -m benchmarks.divided`, and its kept records."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.data.corpus import Document
from benchmarks import divided, package_kinds
from benchmarks.divided import ALL, ALONE, BOTH, BRIDGED, EACH, GROUPS, KEPT, NO_BORDER, PLANNED, WAYS, runs_of
from benchmarks.method.run import load_base, settings_of
from benchmarks.method.store import Record, records_by_key
from benchmarks.small_vocabulary import PARAMETERS

TIMED = {"islands": divided.ISLAND_SECONDS, "border": divided.ISLAND_SECONDS, "machines": divided.MACHINE_SECONDS}


def test_every_row_is_a_run_with_a_key_of_its_own() -> None:
    assert len({way.key(seed, "text") for way in WAYS for seed in (1, 2)}) == 2 * len(WAYS)
    assert {name for names in PLANNED for name in names} == {way.name for way in WAYS}
    for way in WAYS:
        run = load_base(settings_of(way.row, 1, samples=way.samples))
        assert run.instances.count == 1 or run.merge.guard


def test_rates_follow_the_root_of_the_batch_of_an_instance() -> None:
    """By hand from 0.02 with 16."""
    rates = {way.name: load_base(way.row.settings).inner.learning_rate for way in WAYS}
    expected = {BOTH: 0.02, NO_BORDER: 0.02, ALONE: 0.0141, BRIDGED: 0.0141, ALL: 0.0173, EACH: 0.0122}
    assert {name: rates[name] for name in expected} == pytest.approx(expected)


def test_one_instance_over_both_islands_reads_twenty_tokens_per_parameter() -> None:
    samples = {way.name: way.samples for way in WAYS}
    assert samples[BOTH] * 256 / PARAMETERS == pytest.approx(20, rel=0.05)
    assert samples[ALL] * 256 / PARAMETERS == pytest.approx(20, rel=0.05)


def test_the_kept_runs_of_a_group_lasted_no_longer_than_each_other() -> None:
    runs = runs_of(records_by_key(KEPT, ()))
    for group, seconds in TIMED.items():
        for way in GROUPS[group]:
            for record in runs[way.name].values():
                assert 0.95 * seconds < record["seconds"] <= seconds


def test_a_kind_takes_only_its_files_and_no_source_is_in_two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = [f"module{number}.py" for number in range(20)]
    for name in sources:
        (tmp_path / name).write_text(f'"""About {name}."""\nvalue = 1\n')
    for name in ("table.csv", "read.md", "other.bin", "broken.py"):
        (tmp_path / name).write_bytes(b"\xff\xfe" if name == "broken.py" else name.encode())
    names = [*sources, "table.csv", "read.md", "other.bin", "broken.py"]

    def files() -> Iterator[tuple[str, Path, str]]:
        return iter([("package", tmp_path / name, f"package/{name}") for name in names])

    monkeypatch.setattr(package_kinds, "named_files", files)
    monkeypatch.setattr(package_kinds, "documents", lambda: iter([Document(identity="topics/x", text="a topic")]))
    found = {kind: {document.identity: document.text for document in package_kinds.texts(kind)} for kind in package_kinds.KINDS}
    assert found["tables"] == {"package/table.csv": "table.csv"}
    assert found["prose"]["topics/x"] == "a topic" and found["prose"]["package/read.md"] == "read.md"
    told = found["prose"].keys() & {f"package/{name}" for name in sources}
    assert told and told.isdisjoint(found["code"])
    assert told | found["code"].keys() == {f"package/{name}" for name in sources}
    assert {found["prose"][name] for name in told} == {f"About {name.removeprefix('package/')}." for name in told}


def test_a_kind_and_a_package_have_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("x" * 10)
    files = [("package", tmp_path / f"{number}.csv", f"package/{number}.csv") for number in range(3)]
    monkeypatch.setattr(package_kinds, "named_files", lambda: iter(files))
    monkeypatch.setattr(package_kinds, "PACKAGE_CHARACTERS", 15)
    monkeypatch.setattr(package_kinds, "FILE_CHARACTERS", 8)
    assert [len(document.text) for document in package_kinds.texts("tables")] == [8, 7]


def test_the_points_between_two_instances_are_shown_in_order() -> None:
    record = {"seed": 1, "alone": [[1.0], [5.0]], "between": [[2.0], [3.0], [4.0]], "merges": ["refused: by hand"], "loss": 1.0}
    runs: dict[str, dict[int, Record]] = {way.name: {} for way in WAYS} | {EACH: {1: record}}
    assert divided.between_table(runs)[-1] == f"| {EACH} | 1 | 1.000 | 2.000 | 3.000 | 4.000 | 5.000 | 1 of 1 |"


def test_a_row_with_another_text_is_another_run() -> None:
    way = WAYS[0]
    assert way.key(1, "a") != way.key(1, "b") and way.key(1, "a") != replace(way, samples=way.samples + 1).key(1, "a")
