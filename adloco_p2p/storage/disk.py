"""The few durable operations on files on which the rest of this package builds, and the errors of a failing disk."""

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from adloco_p2p import decode
from adloco_p2p.errors import RemoteProtocolError, StorageError, storage_code
from adloco_p2p.synced import sync_directory, write_synced

T = TypeVar("T")

RESTORE = "restore it, or choose another working directory"
"""The remedy for a damaged file of a working directory."""

_WHAT_TO_DO = {
    errno.ENOSPC: "the disk is full; free some space and start again, nothing was overwritten",
    errno.EDQUOT: "the disk quota is used up; free some space and start again, nothing was overwritten",
    errno.EFBIG: "larger than a file may be here; raise the limit (ulimit -f) or use another disk",
    errno.EACCES: "permission denied; give this user write access, or choose another directory",
    errno.EPERM: "not permitted; give this user write access, or choose another directory",
    errno.EROFS: "the disk is read-only; choose another directory",
    errno.ENOENT: "not found, and it cannot be made; choose another directory, or name the new place of one that was moved",
    errno.ENOTDIR: "not a directory; choose another directory",
    errno.EEXIST: "a file is in the way; choose another directory",
    errno.EIO: "the disk reports an input/output error; check the hardware before going on",
}


_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""The end of safetensors' text for an error of the operating system."""


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn an OSError inside into a StorageError that names the path and a remedy."""
    try:
        yield
    except OSError as error:
        raise _problem(path, error.errno or 0, error.strerror or str(error)) from error
    except SafetensorError as error:
        if (found := _OS_ERROR.search(str(error))) is None:
            raise
        raise _problem(path, int(found[1]), str(error)) from error


def _problem(path: Path, number: int, words: str) -> StorageError:
    return StorageError(f"{path}: {_WHAT_TO_DO.get(number, words)}", code=storage_code(number))


def read_text(path: Path) -> str:
    """Return the text of a file in ASCII, empty if there is no file. Raises StorageError, also if the file holds no text."""
    try:
        with reported(path):
            return path.read_text("ascii") if path.exists() else ""
    except UnicodeDecodeError:
        raise StorageError(f"{path}: damaged; {RESTORE}", code="E405") from None


def read_value(kind: type[T], path: Path, *, max_bytes: int, remedy: str) -> T | None:
    """Return the value of this kind in a file, None if there is no file. Raises StorageError, with the remedy if the file holds
    anything else."""
    try:
        with reported(path):
            return decode.decode(kind, path.read_bytes(), max_bytes=max_bytes) if path.exists() else None
    except RemoteProtocolError as error:
        raise StorageError(f"{path}: damaged, or written by another version ({error}); {remedy}", code="E405") from None


@contextmanager
def filling(directory: Path) -> Iterator[None]:
    """Make a directory, new or empty, for the files that are written inside. If that fails, these files are removed, so that
    the same command can write them later. Raises StorageError."""
    with reported(directory):
        directory.mkdir(parents=True, exist_ok=True)
        before = set(directory.iterdir())  # another command may have begun meanwhile
        try:
            yield
        except BaseException:
            for path in set(directory.iterdir()) - before:
                with suppress(OSError):
                    remove(path)
            raise


def remove(path: Path) -> None:
    """Remove a file or a directory with all in it; of a symbolic link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def share_mode(directory: Path) -> None:
    """Give weight files the mode of a configuration beside them: safetensors writes them for their owner alone, but files that
    a container wrote must be readable outside of it."""
    for path in directory.rglob("*.safetensors"):
        with suppress(OSError):  # a mounted file system may know no modes
            shutil.copymode(next(path.parent.glob("*config.json"), path), path)


def check_room(directory: Path, num_bytes: int, *, what: str) -> None:
    """Raise StorageError if `what` is larger than the free space on the disk of `directory` and its present content, which it
    replaces."""
    place = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    held = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else 0
    free = shutil.disk_usage(place).free
    if num_bytes > free + held:
        raise StorageError(
            f"{directory}: {what} take {num_bytes / 1e6:,.1f} MB; {free / 1e6:,.1f} MB are free there; free some space, or"
            " choose a --workdir on a larger disk",
            code="E420",
        )


def write_all(file: FileIO, content: bytes) -> None:
    """Write all of the content: one unbuffered write may stop early, as on a full disk. Raises OSError."""
    while content:
        content = content[file.write(content) :]


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file, so that after a loss of power it has all of the old or of the new one. Raises OSError."""
    replace_file_by_pieces(path, [content])


def keep_file(path: Path, content: bytes) -> None:
    """Replace the content of a file like `replace_file`. Raises StorageError."""
    with reported(path):
        replace_file(path, content)


def replace_file_by_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace the content of a file by pieces that are made while they are written. On a full disk nothing of them stays.
    Raises OSError."""
    aside = path.with_name(path.name + ".tmp")
    try:
        write_synced(aside, pieces)
        os.replace(aside, path)  # noqa: PTH105 (one name for the operation that tests cut)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
    sync_directory(path.parent)
