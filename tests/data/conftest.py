"""Fixtures of the data room. Nothing here touches the network."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once

from tests.data.files import DOCUMENTS, WRITERS


@pytest.fixture
def write_shards(tmp_path: Path) -> Callable[..., str]:
    """Write documents into files of a kind, and return the glob that names them."""

    def write(kind: str, texts: list[str] = DOCUMENTS, *, num_shards: int = 3) -> str:
        for shard in range(num_shards):
            WRITERS[kind](tmp_path / f"part{shard}.{kind}", texts[shard::num_shards])
        return str(tmp_path / f"part*.{kind}")

    return write


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for the node's cache; what `datasets` caches by itself goes below the test's directory, too."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-own")
    datasets.disable_progress_bars()
    return tmp_path / "cache"
