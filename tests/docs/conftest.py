"""One server of warm processes for all pages."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import warm
from tests.docs.pages import ENVIRONMENT


@pytest.fixture(scope="session")
def warm_server() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="warm-") as folder,
        warm.server(Path(folder), {**os.environ, **ENVIRONMENT}) as address,
    ):
        yield address
