"""The files of a pretrained model as a blob, so that peers without them get them from others.

The first chunk lists the files, whose names must be of known forms; the other chunks are their content, and none spans two
files. No file is code: weights are safetensors, everything else is text. A download lies in one file beside the directory and
continues after a restart; the directory appears when all files are there.
"""

import asyncio
import mmap
import re
import shutil
from collections.abc import Callable, Sequence
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
from adloco_p2p.swarm.transfer.chunk_server import Blob, ChunkServer
from adloco_p2p.swarm.transfer.download import Download
from adloco_p2p.swarm.transport.endpoint import Endpoint

KIND = "files"
HEAD = b"files 2"
MAX_CHUNKS = 1 << 16
"""The most chunks of a model; whole ones hold 256 GiB."""
MAX_FILES = 256
MAX_LIST_BYTES = 64 << 10
DISK_FRACTION = 0.5
"""The fraction of the free disk that files from others may take."""
FETCH_SECONDS = 24 * 3600.0
_NAME = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|merges\.txt"
    r"|chat_template\.jinja|model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """The content of the first chunk: names and sizes in bytes, sorted by name."""

    files: Annotated[tuple[tuple[Annotated[str, MaxLen(80)], PositiveCount], ...], MaxLen(MAX_FILES)]


def shared_files(directory: Path) -> list[Path]:
    """Return the files of a model that may be shared, sorted. Raises ConfigError where there are no weights."""
    found = sorted(
        path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.is_file() and path.stat().st_size
    )
    if not any(path.suffix == ".safetensors" for path in found) or len(found) > MAX_FILES:
        raise ConfigError(f"model.share: {directory} holds no weights as safetensors that could be shared", code="E209")
    return found


def _chunks(files: Sequence[Path]) -> list[memoryview]:
    """Return the chunks of the blob; the files are mapped into memory, not read."""
    listing = _Listing(files=tuple((path.name, path.stat().st_size) for path in files))
    chunks = [memoryview(canonical.encode(listing))]
    for path in files:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        chunks += [content[start : start + MAX_CHUNK_BYTES] for start in range(0, len(content), MAX_CHUNK_BYTES)]
    return chunks


def _blob(directory: Path) -> Blob:
    chunks = _chunks(shared_files(directory))
    return Blob(blob_index(HEAD, ((len(chunk), chunk_digest(chunk)) for chunk in chunks)), tuple(chunks))


def files_root(directory: Path) -> Digest:
    """Return the root by which a run names the files. Reads all of them. Raises ConfigError."""
    return blob_root(_blob(directory).index)


def file_server(endpoint: Endpoint, root: Digest, directory: Path) -> ChunkServer:
    """Return a server of the directory's files, as long as these have the root. They are hashed at the first request."""
    blob, reading = cache(lambda: _blob(directory)), asyncio.Lock()

    async def find(asked: Digest) -> Blob | None:
        if asked != root:
            return None
        async with reading:  # requests that come meanwhile wait, instead of reading the files again
            held = await asyncio.to_thread(blob)
        return held if blob_root(held.index) == root else None

    return ChunkServer(endpoint, KIND, find)


class _Room:
    """The file that a download is written to, which stays if the download breaks off."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self.chunks: list[memoryview] = []
        self.too_large = ""

    def make(self, index: ChunkIndex) -> Sequence[memoryview]:
        """Return the memory for the chunks. Raises RemoteProtocolError for another kind of blob, or one too large for this
        disk."""
        if index.head != HEAD or not 2 <= len(index.chunks) <= MAX_CHUNKS:
            raise RemoteProtocolError("offers something else than the files of a model")
        held = self._path.stat().st_size if self._path.exists() else 0
        room = int(DISK_FRACTION * (shutil.disk_usage(self._path.parent).free + held))
        if index.num_bytes > room:
            self.too_large = f"{index.num_bytes:,} bytes, more than the {room:,} that half of the free disk is"
            raise RemoteProtocolError(self.too_large)
        self._say(f"the pretrained model comes from other peers: {index.num_bytes:,} bytes")
        with self._path.open("r+b" if held else "w+b") as file:
            file.truncate(index.num_bytes)
            whole, start = memoryview(mmap.mmap(file.fileno(), index.num_bytes)), 0
        for num_bytes, _ in index.chunks:
            self.chunks.append(whole[start : start + num_bytes])
            start += num_bytes
        return self.chunks


def _listed(chunks: Sequence[memoryview]) -> list[tuple[str, int]]:
    """Return the listed names and sizes. The root covers the list, but its author may have written anything into it. Raises
    RemoteProtocolError."""
    try:
        listing = list(decode(_Listing, bytes(chunks[0][: MAX_LIST_BYTES + 1]), max_bytes=MAX_LIST_BYTES).files)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"no list of files: {error}") from None
    names, content = [name for name, _ in listing], sum(len(chunk) for chunk in chunks[1:])
    if not names or not all(map(_NAME.fullmatch, names)):
        raise RemoteProtocolError(f"names of files that no model has: {' '.join(names)[:200]!r}")
    if names != sorted(set(names)) or sum(size for _, size in listing) != content:
        raise RemoteProtocolError(f"a list of files that does not fit {content} bytes")
    return listing


def _unpack(chunks: Sequence[memoryview], directory: Path) -> None:
    """Write the files; the directory appears when all are there."""
    aside = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    content = iter(chunks[1:])
    for name, size in _listed(chunks):
        with (aside / name).open("wb") as file:
            while size > file.tell():
                file.write(next(content))
        if (aside / name).stat().st_size != size:
            raise RemoteProtocolError(f"{name}: chunks that do not end with the file")
    aside.rename(directory)


async def fetch_files(
    endpoint: Endpoint, root: Digest, directory: Path, donors: Sequence[PeerId], *, say: Callable[[str], None]
) -> None:
    """Fetch the files of the root to a new `directory`. After a failure it may be called again; chunks that have come are kept.

    Raises ConfigError if the files are too large for the disk, RemoteProtocolError if the root is not that of a model's files,
    and StateTransferFailed if no donor is left.
    """
    part = directory.with_name(f"{directory.name}.part")
    room = _Room(part, say)
    download = Download(root, room.make, max_chunks=MAX_CHUNKS, name="pretrained model", may_hold_chunks=True)
    problems = await ChunkFetcher(endpoint, KIND).fetch(download, donors, timeout_seconds=FETCH_SECONDS)
    if room.too_large:
        raise ConfigError(f"the pretrained model of the run takes {room.too_large}; free some of it", code="E217")
    if not download.is_complete:
        lines = [f"  {donor}: {why}" for donor, why in problems.items()] or ["  no peer is known"]
        raise StateTransferFailed("\n".join(("the pretrained model did not come from any peer:", *lines)))
    await asyncio.to_thread(_unpack, room.chunks, directory)
    part.unlink()
