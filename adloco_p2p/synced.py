"""Writes that survive a loss of power, for every room that keeps files."""

import os
from collections.abc import Iterable
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Sync a directory, so that renames and new names inside it survive a loss of power. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file and sync it; a crash may leave a part of it. Raises OSError."""
    with path.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
