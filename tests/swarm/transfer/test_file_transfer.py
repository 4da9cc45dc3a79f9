"""The files of a model as a blob: their root, what a download may hold, and what is refused before anything is written."""

import asyncio
import contextlib
import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adloco_p2p.errors import ConfigError, RemoteProtocolError
from adloco_p2p.numerics.digest import blob_index, chunk_digest
from adloco_p2p.swarm.transfer import file_transfer
from adloco_p2p.swarm.transfer.chunk_protocol import MAX_CHUNK_BYTES, ChunkIndex
from adloco_p2p.swarm.transfer.chunk_server import Blob
from adloco_p2p.swarm.transfer.file_transfer import HEAD, _blob, _Room, _unpack, files_root, shared_files

CONTENT = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 20000, "tokenizer.json": b"[1]"}


def write(folder: Path, content: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return folder


def blob_of(listing: object, *content: bytes) -> list[memoryview]:
    return [memoryview(json.dumps({"files": listing}, separators=(",", ":")).encode()), *(memoryview(one) for one in content)]


def index_of(chunks: Sequence[memoryview], head: bytes = HEAD) -> ChunkIndex:
    return ChunkIndex.decode(blob_index(head, [(len(chunk), chunk_digest(chunk)) for chunk in chunks]))


def test_equal_files_have_one_root_wherever_they_lie_and_whatever_lies_beside_them(tmp_path: Path) -> None:
    first = write(tmp_path / "a", CONTENT)
    second = write(tmp_path / "b", {**CONTENT, "pytorch_model.bin": b"pickle", "modeling.py": b"code", "notes.txt": b"x"})
    assert files_root(first) == files_root(second)
    (second / "config.json").write_bytes(b"{ }")
    assert files_root(first) != files_root(second)
    assert [path.name for path in shared_files(second)] == sorted(CONTENT)
    with pytest.raises(ConfigError, match="no weights as safetensors"):
        shared_files(write(tmp_path / "c", {"pytorch_model.bin": b"pickle"}))


def test_a_download_becomes_the_same_files_and_keeps_what_it_had(tmp_path: Path) -> None:
    blob = _blob(write(tmp_path / "a", CONTENT))
    assert len(blob.chunks) == 5 and max(map(len, blob.chunks)) == MAX_CHUNK_BYTES
    index = ChunkIndex.decode(blob.index)
    room = _Room(tmp_path / "base.part", lambda _: None)
    room.make(index)
    room.chunks[1][:] = blob.chunks[1]
    again = _Room(tmp_path / "base.part", lambda _: None)
    again.make(index)
    assert bytes(again.chunks[1]) == bytes(blob.chunks[1]), "after a restart"
    for mine, theirs in zip(again.chunks, blob.chunks, strict=True):
        mine[:] = theirs
    _unpack(again.chunks, tmp_path / "base")
    assert {path.name: path.read_bytes() for path in (tmp_path / "base").iterdir()} == CONTENT
    assert files_root(tmp_path / "base") == files_root(tmp_path / "a")


def nested(depth: int) -> list[memoryview]:
    return [memoryview(b'{"files":' + b"[" * depth + b"]" * depth + b"}"), memoryview(b"{}")]


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        (blob_of([["../config.json", 2]], b"{}"), "that no model has"),
        (blob_of([["modeling.py", 2]], b"{}"), "that no model has"),
        (blob_of([["pytorch_model.bin", 2]], b"{}"), "that no model has"),
        (blob_of([["config.json", 2], ["config.json", 2]], b"{}", b"{}"), "does not fit"),
        (blob_of([["config.json", 3]], b"{}"), "does not fit"),
        (blob_of([["config.json", 1], ["tokenizer.json", 1]], b"{}"), "do not end with the file"),
        (blob_of([["config.json", 0], ["tokenizer.json", 2]], b"{}"), "no list of files"),
        (blob_of([], b"{}"), "that no model has"),
        (blob_of({"config.json": 2}, b"{}"), "no list of files"),
        ([memoryview(b"\xff\xfe"), memoryview(b"{}")], "no list of files"),
        (nested(5_000), "no list of files"),
        (nested(100_000), "no list of files: .* at most 65536 accepted"),
        (blob_of([["config.json", 2]] * 257, b"{}"), "no list of files"),
    ],
)
def test_lists_that_no_model_has_are_refused(chunks: list[memoryview], why: str, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        _unpack(chunks, tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_other_blobs_and_too_large_ones_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    room = _Room(tmp_path / "base.part", said.append)
    chunks = blob_of([["config.json", 2]], b"{}")
    with pytest.raises(RemoteProtocolError, match="something else"):
        room.make(index_of(chunks, b""))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=40))
    with pytest.raises(RemoteProtocolError, match="half of the free disk"):
        room.make(index_of(chunks))
    assert room.too_large and not said and not (tmp_path / "base.part").exists()


def test_the_files_are_read_once_however_many_ask_for_them_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write(tmp_path / "a", CONTENT)
    root, reads = files_root(directory), []
    everybody = threading.Barrier(4)

    def reading(folder: Path) -> Blob:
        with contextlib.suppress(threading.BrokenBarrierError):
            everybody.wait(0.5)
        reads.append(folder)
        return _blob(folder)

    monkeypatch.setattr(file_transfer, "_blob", reading)
    monkeypatch.setattr(file_transfer, "ChunkServer", lambda endpoint, kind, find: find)
    find: Any = file_transfer.file_server(SimpleNamespace(), root, directory)  # type: ignore[arg-type]

    async def all_ask() -> list[Blob | None]:
        return await asyncio.gather(*(find(root) for _ in range(4)))

    assert all(asyncio.run(all_ask())) and len(reads) == 1
