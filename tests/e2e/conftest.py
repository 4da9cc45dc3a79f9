"""What tests with whole swarms share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.swarm_processes import PeerProcess, processes_of, wait


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[list[PeerProcess]]:
    """For the processes that a test starts: none of them, and of their daemons, outlives it."""
    started: list[PeerProcess] = []
    yield started
    for peer in started:
        peer.kill()
    wait(lambda: not processes_of(tmp_path), f"nothing to be left of {processes_of(tmp_path)}")
