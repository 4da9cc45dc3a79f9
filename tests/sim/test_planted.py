"""Planted faults are caught: those that were mended in this project's history, and the textbook mistakes of a consensus.

The simulator is only as good as its faults. Each planted one is named with an everyday seed that catches it;
`adloco-peer simulate --everyday --seeds N` plays that seed without it.
"""

import pytest

from adloco_p2p.sim.checkers import Violation
from adloco_p2p.sim.device import HashDevice
from adloco_p2p.sim.identities import short
from adloco_p2p.sim.simulate import everyday_seed, everyday_world, summary
from adloco_p2p.sim.world import Parts
from tests.sim.faulty_agreements import AGREEMENTS
from tests.sim.planted import BUGS, SLOW_JOB_SECONDS

ENOUGH_SEEDS = 150
"""Within so many everyday seeds each one must be caught."""


def check_caught(bug: str, named: int, parts: Parts | None = None) -> None:
    """The named seed is tried first: a change of the rules moves the story of every seed, and then another one catches it."""
    for seed in dict.fromkeys([named, *range(ENOUGH_SEEDS)]):
        try:
            everyday_world(seed, parts=parts)().run()
        except Violation as violation:
            print(f"{bug}: seed {seed}: {short(str(violation))}")
            return
    pytest.fail(f"{bug}: not caught in {ENOUGH_SEEDS} seeds")


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, named = BUGS[bug]
    plant(monkeypatch)
    check_caught(bug, named)


@pytest.mark.parametrize("seed", range(2))
def test_slow_jobs_of_a_device_alone_break_no_promise(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HashDevice, "short_job_seconds", SLOW_JOB_SECONDS)
    assert everyday_seed(seed).violation is None


@pytest.mark.parametrize("bug", sorted(AGREEMENTS))
def test_a_planted_fault_of_the_agreement_is_caught(bug: str) -> None:
    agreement, named = AGREEMENTS[bug]
    check_caught(bug, named, Parts(agreement=agreement))


def test_a_failing_run_shows_its_seed_and_trace() -> None:
    agreement, _ = AGREEMENTS["reply before persisting"]
    failed = [everyday_seed(seed, parts=Parts(agreement=agreement)) for seed in range(2)]
    assert all(result.violation is not None for result in failed)
    results = [everyday_seed(0), *failed]
    lines = summary(results).splitlines()
    assert lines[0] == "1 of 3 runs kept every promise"
    start = lines.index(f"seed 0 with {failed[0].peers} peers FAILED: {failed[0].violation}")
    assert tuple(lines[start + 1 : -2]) == failed[0].trace != ()
    assert lines[-2:] == [f"repeat it with: {failed[0].command}", "seeds that failed too: 1"]
