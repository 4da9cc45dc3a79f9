"""A setting of the run that a later release adds: manifests of existing runs keep their bytes, and are read."""

from dataclasses import dataclass, field

from adloco_p2p.config.fields import differences, flatten
from adloco_p2p.config.run_config import InnerConfig, RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.canonical import ADDED
from adloco_p2p.decode import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    steps: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """As the first release knows it."""

    seed: int = 0
    work: Section = Section()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewerSection:
    steps: int = 4
    warmup: int = field(default=0, metadata=ADDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewerRun:
    """As the next one does."""

    seed: int = 0
    work: NewerSection = NewerSection()
    limit: int | None = field(default=None, metadata=ADDED)


def test_a_newer_version_reads_the_manifest_of_an_older_run_and_writes_the_same_bytes() -> None:
    stored = canonical.encode(Run(seed=7))
    read = decode(NewerRun, stored, max_bytes=1000)
    assert read == NewerRun(seed=7) and canonical.encode(read) == stored


def test_an_added_setting_is_listed_at_its_default_and_compared() -> None:
    assert flatten(NewerRun()) == {"seed": 0, "work.steps": 4, "work.warmup": 0, "limit": None}
    changed = NewerRun(work=NewerSection(warmup=2))
    assert differences(NewerRun(), changed) == ["work.warmup: 0 here, 2 there"]
    assert decode(NewerRun, canonical.encode(changed), max_bytes=1000) == changed


def test_runs_that_do_not_set_what_is_decayed_keep_their_bytes() -> None:
    usual, changed = RunConfig(), RunConfig(inner=InnerConfig(decayed="matrices"))
    assert b"decayed" not in canonical.encode(usual) and usual.digest != changed.digest
    for run in (usual, changed):
        assert decode(RunConfig, canonical.encode(run), max_bytes=100_000) == run
