"""Checks the space for a run's downloads from the hub beforehand, and logs it."""

import logging
import shutil
from pathlib import Path

from adloco_p2p.errors import ConfigError

MOST_OF_DISK = 0.9
"""The part of the free disk that one download may take."""
MOST_OF_MEMORY = 0.9
"""The part of the machine's memory that the weights of a model may take."""

logger = logging.getLogger(__name__)


def check_download(
    setting: str, name: str, num_bytes: int, directory: Path, *, code: str, memory_bytes: int | None = None
) -> None:
    """Log the size of the download and the room for it. `directory`: its place, which may hold a part of it already.
    `memory_bytes`: the machine's memory, where all of the download must fit into it. Raises ConfigError where it does not
    fit."""
    if num_bytes <= 0:
        return
    place = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    logger.warning("hub.download %s=%s size=%s free=%s directory=%s", setting, name, _size(num_bytes), _size(free), place)
    if num_bytes > MOST_OF_DISK * free and num_bytes > MOST_OF_DISK * (free + _held(directory)):
        raise ConfigError(
            f"{setting}: {name!r} is {_size(num_bytes)} to be downloaded; {_size(free)} are free in {place}, of which at most"
            f" {MOST_OF_DISK:.0%} are used; free some of it",
            code=code,
        )
    if memory_bytes is not None and num_bytes > MOST_OF_MEMORY * memory_bytes:
        raise ConfigError(
            f"{setting}: the weights of {name!r} have {_size(num_bytes)}; this machine has {_size(memory_bytes)} of memory, of"
            f" which they may take at most {MOST_OF_MEMORY:.0%}",
            code=code,
        )


def _held(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else 0


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"
