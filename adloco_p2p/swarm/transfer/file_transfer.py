"""The files of a pretrained model, or the text of a run, as a blob, so that peers without them get them from others.

The first chunk lists the files, whose names must be of known forms; the other chunks are their content, and none spans two
files. No file is code or compressed: weights are safetensors, everything else is text. A download lies in one file beside the
directory and continues after a restart; the directory appears when all files are there.
"""

import asyncio
import errno
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from annotated_types import MaxLen

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import Digest, PeerId, PositiveCount
from adloco_p2p.decode import decode
from adloco_p2p.errors import ConfigError, RemoteProtocolError, StateTransferFailed
from adloco_p2p.numerics.digest import blob_index, blob_root, chunk_digest
from adloco_p2p.swarm.transfer.chunk_fetcher import ChunkFetcher
from adloco_p2p.swarm.transfer.chunk_protocol import MAX_CHUNK_BYTES, ChunkIndex
from adloco_p2p.swarm.transfer.chunk_server import Blob, ChunkServer, FileChunk
from adloco_p2p.swarm.transfer.download import Download
from adloco_p2p.swarm.transfer.json_depth import json_problem
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.synced import sync_directory, write_synced

PROTOCOL = "files"
"""Name of the streams on which all kinds of files are served."""
MAX_CHUNKS = 1 << 16
"""The most chunks of a blob; whole ones hold 256 GiB."""
MAX_FILES = 1024
MAX_LIST_BYTES = 64 << 10
DISK_FRACTION = 0.5
"""The fraction of the free disk that files from others may take."""
FETCH_SECONDS = 24 * 3600.0
_COMPRESSED = (
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x07\x08",
    b"\xfd7zXZ",
    b"Rar!",
    b"(\xb5/\xfd",
    b"BZh",
    b"7z\xbc\xaf",
    b'\x04"M\x18',
)
"""First bytes of the archives that `datasets` unpacks, whatever their names: gzip, zip, xz, rar, zstd, bz2, 7z, lz4, ..."""
_TAR_MAGIC, _TAR_PLACE = b"ustar", 257
"""... and the place of the magic bytes of a tar archive."""

NamedFiles = Sequence[tuple[str, Path]]
"""Names in the blob, in their order, and the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """A kind of files that peers share."""

    noun: str
    """The word for them in messages."""
    head: bytes
    """The head of the index of a blob of this kind."""
    name: re.Pattern[str]
    """The form of the files' names."""
    too_large: str
    """The code of the error where they do not fit on the disk."""

    def held(self, directory: Path) -> NamedFiles:
        """Return the files of this kind in a directory, without empty ones."""
        paths = sorted(path for path in directory.iterdir() if self.name.fullmatch(path.name))
        return [(path.name, path) for path in paths if path.is_file() and path.stat().st_size]


MODEL = FileKind(
    noun="pretrained model",
    head=b"files 2",
    name=re.compile(
        r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt"
        r"|chat_template\.jinja|model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json"
    ),
    too_large="E217",
)
TEXT = FileKind(noun="text", head=b"text 1", name=re.compile(r"\d{4}-\d{5}\.txt"), too_large="E207")
"""A name holds the number of a path among `DataConfig.paths`, and that of the file among those of the path."""
JSON = FileKind(noun="text", head=b"json 1", name=re.compile(r"\d{4}-\d{5}\.json"), too_large="E207")
"""The text of a run that reads JSON: a kind of its own, so that the sender cannot choose whether nesting is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """The content of the first chunk: names and sizes in bytes, sorted by name."""

    files: Annotated[tuple[tuple[Annotated[str, MaxLen(80)], PositiveCount], ...], MaxLen(MAX_FILES)]


def model_files(directory: Path) -> NamedFiles:
    """Return the files of a model that may be shared. Raises ConfigError where there are no weights."""
    found = MODEL.held(directory)
    if not any(name.endswith(".safetensors") for name, _ in found) or len(found) > MAX_FILES:
        raise ConfigError(f"model.share: {directory} holds no weights as safetensors that could be shared", code="E209")
    return found


def text_files(kind: FileKind, paths: Sequence[Sequence[str]]) -> NamedFiles:
    """Return the files of each path of a run's data, by their names in the blob."""
    suffix = "json" if kind is JSON else "txt"
    return [
        (f"{number:04}-{place:05}.{suffix}", Path(name))
        for number, names in enumerate(paths)
        for place, name in enumerate(names)
    ]


def check_text(kind: FileKind, files: NamedFiles) -> None:
    """Raise ConfigError where the author's files cannot be shared. Reads them all."""
    if len(files) > MAX_FILES:
        raise ConfigError(f"data.share: {len(files)} files, and at most {MAX_FILES} are shared; join some of them", code="E207")
    for _, path in files:
        if not path.stat().st_size:
            raise ConfigError(f"data.share: {path} is empty; leave it out", code="E207")
        if problem := text_problem(kind, path):
            raise ConfigError(f"data.share: {path} {problem}; give plain text, or leave data.share out", code="E207")


def text_problem(kind: FileKind, path: Path) -> str:
    """Return why no peer takes the file from another, or "". An archive, which `datasets` would unpack, could be of any size;
    JSON could be nested so deep that reading it ends the process."""
    with path.open("rb") as file:
        begin = file.read(_TAR_PLACE + len(_TAR_MAGIC))
    if begin.startswith(_COMPRESSED) or begin[_TAR_PLACE:] == _TAR_MAGIC:
        return "is an archive"
    return json_problem(path) if kind is JSON else ""


def _chunks(files: NamedFiles) -> list[memoryview | FileChunk]:
    """Return the chunks of the blob; the files are not read."""
    sizes = [path.stat().st_size for _, path in files]
    listing = _Listing(files=tuple((name, size) for (name, _), size in zip(files, sizes, strict=True)))
    chunks: list[memoryview | FileChunk] = [memoryview(canonical.encode(listing))]
    for (_, path), size in zip(files, sizes, strict=True):
        starts = range(0, size, MAX_CHUNK_BYTES)
        chunks += [FileChunk(path, start, min(MAX_CHUNK_BYTES, size - start)) for start in starts]
    return chunks


def _blob(kind: FileKind, files: NamedFiles) -> Blob:
    """Return the blob of the files, which are read once. Raises OSError."""
    chunks = _chunks(files)
    contents = (chunk if isinstance(chunk, memoryview) else chunk.read() for chunk in chunks)
    return Blob(blob_index(kind.head, ((len(content), chunk_digest(content)) for content in contents)), tuple(chunks))


def files_root(kind: FileKind, files: NamedFiles) -> Digest:
    """Return the root by which a run names the files. Reads all of them."""
    return blob_root(_blob(kind, files).index)


def file_server(endpoint: Endpoint, shared: Mapping[Digest, tuple[FileKind, NamedFiles]]) -> ChunkServer:
    """Serve files by their roots, as long as their content still has that root. They are read when they are first requested."""
    blob, reading = cache(lambda root: _blob(*shared[root])), asyncio.Lock()

    async def find(asked: Digest) -> Blob | None:
        if asked not in shared:
            return None
        async with reading:  # else each that asks before the first has its answer has them read
            held = await asyncio.to_thread(blob, asked)
        return held if blob_root(held.index) == asked else None

    return ChunkServer(endpoint, PROTOCOL, find)


class _Room:
    """The file that a download is written to, which stays if the download breaks off."""

    def __init__(self, kind: FileKind, path: Path, say: Callable[[str], None]) -> None:
        self._kind, self._path, self._say = kind, path, say
        self.chunks: list[memoryview] = []
        self.too_large = ""
        self.unwritable = ""
        """The system's reason why the file cannot be written."""

    def make(self, index: ChunkIndex) -> Sequence[memoryview]:
        """Raises RemoteProtocolError for another kind of blob, and for one that this disk does not take."""
        if index.head != self._kind.head or not 2 <= len(index.chunks) <= MAX_CHUNKS:
            raise RemoteProtocolError(f"offers something else than the files of a {self._kind.noun}")
        try:
            whole, start = self._mapped(index.num_bytes), 0
        except OSError as error:
            self.unwritable = str(error)
            raise RemoteProtocolError(self.unwritable) from error
        for num_bytes, _ in index.chunks:
            self.chunks.append(whole[start : start + num_bytes])
            start += num_bytes
        self._say(f"the {self._kind.noun} comes from other peers: {index.num_bytes:,} bytes")
        return self.chunks

    def _mapped(self, num_bytes: int) -> memoryview:
        """Return so many bytes of the file, which are its own from now on. Raises OSError, and RemoteProtocolError where there
        is no room."""
        held = self._path.stat().st_size if self._path.exists() else 0
        room = int(DISK_FRACTION * (shutil.disk_usage(self._path.parent).free + held))
        if num_bytes > room:
            self.too_large = f"{num_bytes:,} bytes, more than the {room:,} that half of the free disk is"
            raise RemoteProtocolError(self.too_large)
        with self._path.open("r+b" if held else "w+b") as file:
            file.truncate(num_bytes)
            if not _reserved(file.fileno(), num_bytes):
                file.truncate(held)  # or what was reserved so far would keep the disk full
                self.too_large = f"{num_bytes:,} bytes, for which the disk has no room"
                raise RemoteProtocolError(self.too_large)
            return memoryview(mmap.mmap(file.fileno(), num_bytes))


def _reserved(descriptor: int, num_bytes: int) -> bool:
    """Take the space of a file on the disk now, since a write to its mapped memory kills the process where the disk is full by
    then. Return whether there was room; where the system cannot reserve space, that shows later."""
    if not hasattr(os, "posix_fallocate"):
        return True
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True


def _listed(kind: FileKind, chunks: Sequence[memoryview]) -> list[tuple[str, int]]:
    """Names and sizes. The run names the digest of the list, but its author may have written anything there. Raises
    RemoteProtocolError."""
    try:
        listing = list(decode(_Listing, bytes(chunks[0][: MAX_LIST_BYTES + 1]), max_bytes=MAX_LIST_BYTES).files)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"no list of files: {error}") from None
    names, content = [name for name, _ in listing], sum(len(chunk) for chunk in chunks[1:])
    if not names or not all(map(kind.name.fullmatch, names)):
        raise RemoteProtocolError(f"names of files that no {kind.noun} has: {' '.join(names)[:200]!r}")
    if names != sorted(set(names)) or sum(size for _, size in listing) != content:
        raise RemoteProtocolError(f"a list of files that does not fit {content} bytes")
    return listing


def _unpack(kind: FileKind, chunks: Sequence[memoryview], directory: Path) -> None:
    """Write the files; the directory appears when all are there, and otherwise none of them stays on the disk. That holds after
    a loss of power, too, because the next start takes the directory as it is. Raises ConfigError where the disk does not take
    them, and RemoteProtocolError where the chunks are not those of files of this kind."""
    aside = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        _write(kind, chunks, aside)
        sync_directory(aside)
        aside.rename(directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise ConfigError(f"{directory}: the {kind.noun} of the run cannot be written: {error}", code=kind.too_large) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(kind: FileKind, chunks: Sequence[memoryview], aside: Path) -> None:
    content = iter(chunks[1:])
    for name, size in _listed(kind, chunks):
        write_synced(aside / name, _begin(content, size))
        if (aside / name).stat().st_size != size:
            raise RemoteProtocolError(f"{name}: chunks that do not end with the file")
        if kind is not MODEL and (problem := text_problem(kind, aside / name)):
            raise RemoteProtocolError(f"{name} {problem}")


def _begin(chunks: Iterator[memoryview], num_bytes: int) -> Iterator[memoryview]:
    """Take chunks until they hold so many bytes, or more."""
    while num_bytes > 0:
        chunk = next(chunks)
        num_bytes -= len(chunk)
        yield chunk


async def fetch_files(
    endpoint: Endpoint, kind: FileKind, root: Digest, directory: Path, donors: Sequence[PeerId], *, say: Callable[[str], None]
) -> None:
    """Fetch the files of the root to a new `directory`. After a failure it may be called again; chunks that have come are kept.

    Raises ConfigError where they are too large for the disk or cannot be written, RemoteProtocolError where the root is not
    that of files of this kind, and StateTransferFailed where no donor is left.
    """
    part = directory.with_name(f"{directory.name}.part")
    room = _Room(kind, part, say)
    download = Download(root, room.make, max_chunks=MAX_CHUNKS, name=kind.noun, may_hold_chunks=True)
    problems = await ChunkFetcher(endpoint, PROTOCOL).fetch(download, donors, timeout_seconds=FETCH_SECONDS)
    if room.too_large:
        raise ConfigError(f"the {kind.noun} of the run takes {room.too_large}; free some of it", code=kind.too_large)
    if room.unwritable:
        raise ConfigError(f"{part}: the {kind.noun} of the run cannot be written: {room.unwritable}", code=kind.too_large)
    if not download.is_complete:
        lines = [f"  {donor}: {why}" for donor, why in problems.items()] or ["  no peer is known"]
        raise StateTransferFailed("\n".join((f"the {kind.noun} did not come from any peer:", *lines)))
    await asyncio.to_thread(_unpack, kind, room.chunks, directory)
    part.unlink()
