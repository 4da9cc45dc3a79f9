"""The journal: the records that must not be forgotten, such as votes. Append, sync, then act.

    file      magic (8 bytes), then records
    record    mark (2 bytes), length (4), CRC-32 of length and payload (4), payload; numbers little-endian

A crash can tear only the record that was being appended, because every earlier one was synced. So on opening, damage with no
readable record behind it is the torn tail and is cut off: that append never returned, hence nothing has acted on it. Damage
with a whole record behind it happened to synced bytes: then the journal is refused, because a forgotten vote is worse.
"""

import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES
from adloco_p2p.errors import StorageError
from adloco_p2p.storage.disk import RESTORE, replace_file, replace_file_by_pieces, reported, write_all

logger = logging.getLogger(__name__)

MAGIC = b"adlocoj1"
MAX_RECORD_BYTES = MAX_MESSAGE_BYTES
"""The most bytes of a record, more than the largest valid ledger entry."""
MAX_JOURNAL_BYTES = 16 << 30
"""The default limit of the file: a million rounds of eight peers."""

_HEADER = struct.Struct("<2sII")
_MARK = b"\xad\x1c"  # canonical records are ASCII, so they never contain it


@dataclass(slots=True, kw_only=True)
class Journal:
    """An open journal. One thread uses it."""

    path: Path
    max_bytes: int
    size_bytes: int
    """The length of the file, all of which is synced."""
    _file: FileIO
    _is_broken: bool = False

    @classmethod
    def open(cls, path: Path, *, max_bytes: int = MAX_JOURNAL_BYTES) -> "Journal":
        """Open or create a journal, and cut off a torn tail. Raises StorageError for damage elsewhere, or for another file."""
        with reported(path):
            path.with_name(path.name + ".tmp").unlink(missing_ok=True)
            if not path.exists() or not path.stat().st_size:
                replace_file(path, MAGIC)
            with _content(path) as content:
                size, end = len(content), _end_of_records(path, content)
            file = path.open("r+b", buffering=0)
            if end < size:
                logger.warning("journal tail cut", extra={"path": str(path), "bytes": size - end})
                file.truncate(end)
                os.fsync(file.fileno())
            file.seek(end)
        return cls(path=path, max_bytes=max_bytes, size_bytes=end, _file=file)

    def append(self, record: bytes) -> int:
        """Append a record, which is on the disk when this returns, and return its place. Raises StorageError, after which the
        journal takes no more records."""
        frame = _frame(record)
        if self._is_broken:
            raise StorageError(f"{self.path}: an earlier write failed; start again")
        if self.size_bytes + len(frame) > self.max_bytes:
            raise StorageError(f"{self.path}: would grow beyond {self.max_bytes} bytes")
        try:
            with reported(self.path):
                write_all(self._file, frame)
                os.fsync(self._file.fileno())
        except StorageError:
            # an unknown part of the record reached the disk; the next opening cuts it off
            self._is_broken = True
            raise
        self.size_bytes += len(frame)
        return self.size_bytes - len(frame)

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield the place and the content of every record, oldest first. Raises StorageError."""
        return read_records(self.path, size_bytes=self.size_bytes)

    def read_at(self, place: int) -> bytes:
        """Return the record at a place that `append`, `read` or `keep` returned. Raises StorageError."""
        with reported(self.path):
            header = os.pread(self._file.fileno(), _HEADER.size, place)
            length = _HEADER.unpack(header)[1] if len(header) == _HEADER.size else MAX_RECORD_BYTES
            content = header + os.pread(self._file.fileno(), min(length, MAX_RECORD_BYTES), place + _HEADER.size)
        if _record_end(content, 0) is None:
            raise StorageError(f"{self.path}: damaged at byte {place}; {RESTORE}", code="E405")
        return content[_HEADER.size :]

    def keep(self, places: Iterable[int]) -> dict[int, int]:
        """Drop all records but those at `places`, which are in order, and return their new places by the old ones. A crash
        leaves either all records or only these. Raises StorageError."""
        moved: dict[int, int] = {}
        end = len(MAGIC)

        def frames() -> Iterator[bytes]:
            nonlocal end
            yield MAGIC
            for place in places:
                frame = _frame(self.read_at(place))
                moved[place], end = end, end + len(frame)
                yield frame

        with reported(self.path):
            replace_file_by_pieces(self.path, frames())
            self._file.close()
            self._file = self.path.open("r+b", buffering=0)
            self._file.seek(end)
        self.size_bytes = end
        self._is_broken = False
        return moved

    def close(self) -> None:
        self._file.close()


def read_records(path: Path, *, size_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the place and the content of every record in the first `size_bytes` of a journal. Another process may be writing
    it: nothing is locked or repaired. Raises StorageError.
    """
    with reported(path), _content(path) as content:
        end_of_records = min(_end_of_records(path, content), size_bytes or len(content))
        for start, end in _records(content, len(MAGIC)):
            if end > end_of_records:
                return
            yield start, content[start + _HEADER.size : end]


def unread_bytes(path: Path) -> int:
    """Return the bytes behind the last whole record of a journal, which a node at work may be writing. Raises StorageError."""
    with reported(path), _content(path) as content:
        return len(content) - _end_of_records(path, content)


@contextmanager
def _content(path: Path) -> Iterator[mmap.mmap]:
    """Yield the file's bytes without a copy in memory, because a long run's journal is large."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise _no_journal(path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def _frame(record: bytes) -> bytes:
    assert len(record) <= MAX_RECORD_BYTES, f"a record of {len(record)} bytes"
    return _HEADER.pack(_MARK, len(record), _checksum(record)) + record


def _checksum(record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(len(record).to_bytes(4, "little")))


def _record_end(content: bytes | mmap.mmap, start: int) -> int | None:
    """Return where the record that begins at `start` ends; None if no whole record begins there."""
    payload = start + _HEADER.size
    if payload > len(content):
        return None
    mark, length, checksum = _HEADER.unpack_from(content, start)
    end: int = payload + length
    if mark != _MARK or length > MAX_RECORD_BYTES or end > len(content) or _checksum(content[payload:end]) != checksum:
        return None
    return end


def _records(content: mmap.mmap, start: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each whole record, up to the first damage."""
    while (end := _record_end(content, start)) is not None:
        yield start, end
        start = end


def _no_journal(path: Path) -> StorageError:
    return StorageError(f"{path}: not a journal of this version; {RESTORE}", code="E405")


def _end_of_records(path: Path, content: mmap.mmap) -> int:
    """Return where the whole records end. Raises StorageError if others follow behind the damage."""
    if content[: len(MAGIC)] != MAGIC:
        raise _no_journal(path)
    end = max((end for _, end in _records(content, len(MAGIC))), default=len(MAGIC))
    behind = content.find(_MARK, end + 1)
    while behind >= 0:
        if _record_end(content, behind) is not None:
            raise StorageError(
                f"{path}: damaged at byte {end}, with a whole record at byte {behind}; votes may be lost, so this peer must not"
                " go on: restore the file, or start with a new identity in another working directory",
                code="E405",
            )
        behind = content.find(_MARK, behind + 1)
    return end
