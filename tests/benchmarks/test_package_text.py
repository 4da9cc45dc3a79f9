"""The packages whose text some benchmarks train on."""

from pathlib import Path

import pytest

from benchmarks import package_text
from benchmarks.package_text import PACKAGES, unlike_kept


def test_a_package_that_is_missing_or_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = tmp_path / "packages.txt"
    named.write_text(f"# a comment\npytest=={pytest.__version__}\nnumpy==0.1\nno_such.package==1.0\n")
    monkeypatch.setattr(package_text, "PACKAGES", named)
    assert unlike_kept() == ["no-such-package==1.0", "numpy==0.1"]


def test_every_line_names_one_package_and_its_version() -> None:
    lines = [line for line in PACKAGES.read_text("utf-8").splitlines() if not line.startswith("#")]
    names = [line.partition("==")[0].lower() for line in lines]
    assert all(name and version for name, _, version in (line.partition("==") for line in lines))
    assert len(set(names)) == len(names) > 100
