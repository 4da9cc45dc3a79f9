"""Nothing here fails because an honest peer is slow."""

from collections.abc import Iterator

import pytest

from tests.swarm.patience import patience


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    with patience():
        yield
