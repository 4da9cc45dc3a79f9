"""The files of a model or the text of a run as a blob: their root, what a download may hold, what is refused at the border."""

import asyncio
import bz2
import contextlib
import errno
import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from datasets.utils.extract import Extractor

from adloco_p2p.config.run_config import DataConfig
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.data.source import load_split
from adloco_p2p.errors import ConfigError, RemoteProtocolError
from adloco_p2p.numerics.digest import blob_index, blob_root, chunk_digest
from adloco_p2p.swarm.transfer import chunk_server, file_transfer, json_depth
from adloco_p2p.swarm.transfer.chunk_fetcher import ChunkFetcher
from adloco_p2p.swarm.transfer.chunk_protocol import (
    MAX_CHUNK_BYTES,
    Answer,
    ChunkIndex,
    decode_reply,
    encode_want,
    handler_name,
)
from adloco_p2p.swarm.transfer.chunk_server import Blob, ChunkServer
from adloco_p2p.swarm.transfer.download import Download
from adloco_p2p.swarm.transfer.file_transfer import (
    JSON,
    MODEL,
    PROTOCOL,
    TEXT,
    FileKind,
    NamedFiles,
    _blob,
    _Room,
    _unpack,
    check_text,
    file_server,
    files_root,
    model_files,
    text_files,
)
from adloco_p2p.swarm.transfer.json_depth import json_problem
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, StreamLost, open_stream
from tests.swarm.patience import PATIENCE_SECONDS
from tests.swarm.swarm_hosts import started_hosts

CONTENT = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 20000, "tokenizer.json": b"[1]"}


def write(folder: Path, content: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return folder


def blob_of(listing: object, *content: bytes) -> list[memoryview]:
    return [memoryview(json.dumps({"files": listing}, separators=(",", ":")).encode()), *(memoryview(one) for one in content)]


def content_of(blob: Blob) -> list[memoryview]:
    return [asyncio.run(blob.read(chunk)) for chunk in range(len(blob.chunks))]


def index_of(chunks: Sequence[memoryview], head: bytes = MODEL.head) -> ChunkIndex:
    return ChunkIndex.decode(blob_index(head, [(len(chunk), chunk_digest(chunk)) for chunk in chunks]))


def root_of(directory: Path) -> Digest:
    return files_root(MODEL, model_files(directory))


def test_equal_files_have_one_root_wherever_they_lie_and_whatever_lies_beside_them(tmp_path: Path) -> None:
    first = write(tmp_path / "a", CONTENT)
    second = write(tmp_path / "b", {**CONTENT, "pytorch_model.bin": b"pickle", "modeling.py": b"code", "notes.txt": b"x"})
    assert root_of(first) == root_of(second)
    (second / "config.json").write_bytes(b"{ }")
    assert root_of(first) != root_of(second)
    assert [name for name, _ in model_files(second)] == sorted(CONTENT)
    with pytest.raises(ConfigError, match="no weights as safetensors"):
        model_files(write(tmp_path / "c", {"pytorch_model.bin": b"pickle"}))


def test_a_download_becomes_the_same_files_and_keeps_what_it_had(tmp_path: Path) -> None:
    blob = _blob(MODEL, model_files(write(tmp_path / "a", CONTENT)))
    assert len(blob.chunks) == 5 and max(map(len, blob.chunks)) == MAX_CHUNK_BYTES
    index = ChunkIndex.decode(blob.index)
    room = _Room(MODEL, tmp_path / "base.part", lambda _: None)
    room.make(index)
    content = content_of(blob)
    room.chunks[1][:] = content[1]
    again = _Room(MODEL, tmp_path / "base.part", lambda _: None)
    again.make(index)
    assert bytes(again.chunks[1]) == bytes(content[1]), "after a restart"
    for mine, theirs in zip(again.chunks, content, strict=True):
        mine[:] = theirs
    _unpack(MODEL, again.chunks, tmp_path / "base")
    assert {path.name: path.read_bytes() for path in (tmp_path / "base").iterdir()} == CONTENT
    assert root_of(tmp_path / "base") == root_of(tmp_path / "a")


def nested(depth: int) -> list[memoryview]:
    return [memoryview(b'{"files":' + b"[" * depth + b"]" * depth + b"}"), memoryview(b"{}")]


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        (blob_of([["../config.json", 2]], b"{}"), "that no pretrained model has"),
        (blob_of([["modeling.py", 2]], b"{}"), "that no pretrained model has"),
        (blob_of([["pytorch_model.bin", 2]], b"{}"), "that no pretrained model has"),
        (blob_of([["config.json", 2], ["config.json", 2]], b"{}", b"{}"), "does not fit"),
        (blob_of([["config.json", 3]], b"{}"), "does not fit"),
        (blob_of([["config.json", 1], ["tokenizer.json", 1]], b"{}"), "do not end with the file"),
        (blob_of([["config.json", 0], ["tokenizer.json", 2]], b"{}"), "no list of files"),
        (blob_of([], b"{}"), "that no pretrained model has"),
        (blob_of({"config.json": 2}, b"{}"), "no list of files"),
        ([memoryview(b"\xff\xfe"), memoryview(b"{}")], "no list of files"),
        (nested(5_000), "no list of files"),
        (nested(100_000), "no list of files: .* at most 65536 accepted"),
        (blob_of([["config.json", 2]] * 1025, b"{}"), "no list of files"),
    ],
)
def test_lists_that_no_model_has_are_refused(chunks: list[memoryview], why: str, tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        _unpack(MODEL, chunks, tmp_path / "base")
    assert not any(tmp_path.iterdir()), "files that were written before would keep the disk full"


def test_files_that_the_disk_does_not_take_are_an_error_with_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(
        ConfigError, match=r"base: the pretrained model of the run cannot be written: .*No space left"
    ) as raised:
        _unpack(MODEL, blob_of([["config.json", 2]], b"{}"), tmp_path / "base")
    assert raised.value.code == "E217"


def test_a_file_for_a_download_that_cannot_be_made_is_an_error_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system whose files are at most 4 GiB long."""
    chunks = blob_of([["config.json", 2]], b"{}")
    index = blob_index(MODEL.head, [(len(chunk), chunk_digest(chunk)) for chunk in chunks])
    (tmp_path / "base.part").mkdir()

    async def begin(_fetcher: ChunkFetcher, _donor: PeerId, fetch: Any) -> None:
        await fetch.download.begin(index)

    monkeypatch.setattr(ChunkFetcher, "_fetch_from", begin)
    root, donors, endpoint = blob_root(index), [PeerId("a"), PeerId("b")], cast(Any, None)
    with pytest.raises(
        ConfigError, match=r"base.part: the pretrained model of the run cannot be written: .*Is a directory"
    ) as raised:
        asyncio.run(file_transfer.fetch_files(endpoint, MODEL, root, tmp_path / "base", donors, say=lambda _: None))
    assert raised.value.code == "E217"


def test_other_blobs_and_too_large_ones_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    room = _Room(MODEL, tmp_path / "base.part", said.append)
    chunks = blob_of([["config.json", 2]], b"{}")
    with pytest.raises(RemoteProtocolError, match="something else"):
        room.make(index_of(chunks, b""))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=40))
    with pytest.raises(RemoteProtocolError, match="half of the free disk"):
        room.make(index_of(chunks))
    assert room.too_large and not said and not (tmp_path / "base.part").exists()


def test_the_space_of_a_download_is_taken_at_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to mapped memory would kill the process where others have filled the disk meanwhile."""
    index, part, said = index_of(blob_of([["config.json", 1 << 20]], bytes(1 << 20))), tmp_path / "base.part", list[str]()
    _Room(MODEL, part, said.append).make(index)
    assert part.stat().st_blocks * 512 >= part.stat().st_size == index.num_bytes and len(said) == 1

    def fail(number: int, _descriptor: int, _offset: int, _num_bytes: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", partial(fail, errno.EOPNOTSUPP))
    _Room(MODEL, part, said.append).make(index)
    monkeypatch.setattr(os, "posix_fallocate", partial(fail, errno.ENOSPC))
    for place, held in ((part, index.num_bytes), (tmp_path / "other.part", 0)):
        room = _Room(MODEL, place, said.append)
        with pytest.raises(RemoteProtocolError, match="the disk has no room"):
            room.make(index)
        assert "no room" in room.too_large and len(said) == 2
        assert place.stat().st_size == held, "an attempt that failed keeps no more of the disk than before"


def test_the_files_are_read_once_however_many_ask_for_them_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write(tmp_path / "a", CONTENT)
    root, reads = root_of(directory), []
    everybody = threading.Barrier(4)

    def reading(kind: FileKind, files: NamedFiles) -> Blob:
        with contextlib.suppress(threading.BrokenBarrierError):
            everybody.wait(0.5)
        reads.append(kind)
        return _blob(kind, files)

    monkeypatch.setattr(file_transfer, "_blob", reading)
    monkeypatch.setattr(file_transfer, "ChunkServer", lambda endpoint, kind, find: find)
    find: Any = file_transfer.file_server(SimpleNamespace(), {root: (MODEL, model_files(directory))})  # type: ignore[arg-type]

    async def all_ask() -> list[Blob | None]:
        return await asyncio.gather(*(find(root) for _ in range(4)))

    assert all(asyncio.run(all_ask())) and len(reads) == 1


def test_a_download_is_on_the_disk_before_its_part_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss of power the next start finds the directory, and fetches nothing."""
    blob, calls = _blob(MODEL, model_files(write(tmp_path / "a", CONTENT))), list[tuple[str, str]]()
    content = content_of(blob)

    def noted(call: str, function: Callable[..., None]) -> Callable[..., None]:
        def noting(path: int | Path, *others: Path) -> None:
            shown = Path(f"/proc/self/fd/{path}").readlink() if isinstance(path, int) else path
            calls.append((call, str(shown.relative_to(tmp_path))))
            function(path, *others)

        return noting

    async def fetch(_fetcher: ChunkFetcher, download: Download, _donors: object, **_: object) -> dict[PeerId, str]:
        await download.begin(blob.index)
        for number, chunk in enumerate(content):
            download._last_chunk[PeerId("a")] = 0.0
            download.put(PeerId("a"), number, bytearray(chunk))
        return {}

    monkeypatch.setattr(ChunkFetcher, "fetch", fetch)
    for call, function in (("fsync", os.fsync), ("rename", os.rename), ("unlink", os.unlink)):
        monkeypatch.setattr(os, call, noted(call, function))
    endpoint, root = cast(Any, None), blob_root(blob.index)
    asyncio.run(file_transfer.fetch_files(endpoint, MODEL, root, tmp_path / "base", [PeerId("a")], say=lambda _: None))
    files = [("fsync", f"base.new/{name}") for name in sorted(CONTENT)]
    assert calls == [*files, ("fsync", "base.new"), ("rename", "base.new"), ("fsync", "."), ("unlink", "base.part")]


# --- the text of a run -----------------------------------------------------------------------------------------------


def test_texts_of_several_paths_keep_their_order_and_content(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", {"b.txt": b"bee", "a.txt": b"a", "held.md": b"held out"})
    paths = [[str(folder / "a.txt"), str(folder / "b.txt")], [str(folder / "held.md")]]
    files = text_files(TEXT, paths)
    chunks = content_of(_blob(TEXT, files))
    _unpack(TEXT, chunks, tmp_path / "text")
    assert {path.name: path.read_bytes() for path in (tmp_path / "text").iterdir()} == {
        "0000-00000.txt": b"a",
        "0000-00001.txt": b"bee",
        "0001-00000.txt": b"held out",
    }
    assert files_root(TEXT, TEXT.held(tmp_path / "text")) == files_root(TEXT, files)
    with pytest.raises(RemoteProtocolError, match="that no pretrained model has"):
        _unpack(MODEL, chunks, tmp_path / "base")


def archives() -> dict[str, bytes]:
    """One of each form that `datasets` unpacks and Python writes, by its name."""
    tar, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as file:
        file.addfile(tarfile.TarInfo("a"), io.BytesIO())
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a", "text")
    forms = {"gzip": gzip.compress(b"text"), "bz2": bz2.compress(b"text"), "xz": lzma.compress(b"text")}
    return {**forms, "tar": tar.getvalue(), "zip": zipped.getvalue(), "zstd": b"(\xb5/\xfd text", "lz4": b'\x04"M\x18 text'}


@pytest.mark.parametrize("form", list(archives()))
def test_an_archive_is_neither_shared_nor_taken(form: str, tmp_path: Path) -> None:
    """Unpacked it could fill any disk."""
    (tmp_path / "rows.txt").write_bytes(archives()[form])
    assert Extractor.infer_extractor_format(str(tmp_path / "rows.txt")), "this is what `datasets` would unpack"
    with pytest.raises(ConfigError, match="is an archive"):
        check_text(TEXT, text_files(TEXT, [[str(tmp_path / "rows.txt")]]))
    with pytest.raises(RemoteProtocolError, match="is an archive"):
        _unpack(TEXT, content_of(_blob(TEXT, [("0000-00000.txt", tmp_path / "rows.txt")])), tmp_path / "text")
    assert not (tmp_path / "text").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"text": "' + b"[" * 1000 + b'"}\n', ""),
        (b'{"text": "a \\" ' + b"[" * 1000 + b'", "b": "\\\\"}\n', ""),
        (b"[\n" + b'  {"a": [1, {"b": 2}]},\n' * 1000 + b"]\n", ""),
        (b"[" * 64 + b"]" * 64, ""),
        (b"not JSON at all", ""),
        (b"[" * 65 + b"]" * 65, "deep"),
        (b'{"a":' * 65, "deep"),
        (b'{"b": "\\\\"' + b"[" * 100 + b"}", "deep"),
        (b"]\n" * 100 + b"[" * 100, "never opened"),
        (b'"\n' + b"[" * 100, "within a string"),
        (b"\\" * (3 << 20), "backslashes"),
    ],
)
def test_the_nesting_of_json_is_counted_outside_of_strings(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_bytes(content)
    found = json_problem(tmp_path / "rows.json")
    assert problem in found and bool(found) == bool(problem)


@pytest.mark.parametrize("block_bytes", [5, 6, 7, 64])
def test_the_nesting_of_json_does_not_depend_on_where_blocks_end(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_depth, "_BLOCK_BYTES", block_bytes)
    (tmp_path / "rows.json").write_bytes(b'{"a": "[\\\\\\"[", "b": ' + b"[" * 60 + b'"\\\\"' + b"]" * 60 + b"}\n")
    assert json_problem(tmp_path / "rows.json") == ""
    (tmp_path / "rows.json").write_bytes(b'{"a": "\\\\", "b": ' + b"[" * 70 + b"]" * 70 + b"}\n")
    assert "deep" in json_problem(tmp_path / "rows.json")


def test_deep_json_is_neither_shared_nor_taken_and_is_an_error_as_ones_own(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_bytes(b'{"text":' + b"[" * 1000 + b"]" * 1000 + b"}\n")
    with pytest.raises(ConfigError, match="is nested more than 64 deep"):
        check_text(JSON, text_files(JSON, [[str(tmp_path / "rows.json")]]))
    with pytest.raises(RemoteProtocolError, match="is nested more than 64 deep"):
        _unpack(JSON, content_of(_blob(JSON, [("0000-00000.json", tmp_path / "rows.json")])), tmp_path / "text")
    for kind, name in ((JSON, "0000-00000.txt"), (TEXT, "0000-00000.json")):  # by a name that asks for no check
        with pytest.raises(RemoteProtocolError, match="names of files that no text has"):
            _unpack(kind, content_of(_blob(kind, [(name, tmp_path / "rows.json")])), tmp_path / "text")
    with pytest.raises(ConfigError, match="cannot be read as json"):
        load_split(DataConfig(source="json", path=str(tmp_path / "rows.json")), split="train", cache_dir=tmp_path / "cache")


def test_empty_and_too_many_files_are_not_shared(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ConfigError, match=r"empty.txt is empty"):
        check_text(TEXT, text_files(TEXT, [[str(tmp_path / "empty.txt")]]))
    with pytest.raises(ConfigError, match="1025 files, and at most 1024"):
        check_text(TEXT, text_files(TEXT, [["any"] * 1025]))


def test_one_server_serves_the_model_and_the_text_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = model_files(write(tmp_path / "a", CONTENT)), text_files(TEXT, [[str(tmp_path / "a" / "config.json")]])
    roots = {files_root(MODEL, model): (MODEL, model), files_root(TEXT, text): (TEXT, text)}
    monkeypatch.setattr(file_transfer, "ChunkServer", lambda endpoint, kind, find: find)
    find: Any = file_transfer.file_server(SimpleNamespace(), roots)  # type: ignore[arg-type]
    heads = []
    for root in roots:
        blob = asyncio.run(find(root))
        heads.append(ChunkIndex.decode(blob.index).head)
    assert heads == [MODEL.head, TEXT.head]
    assert asyncio.run(find(Digest("0" * 64))) is None


def test_a_file_that_is_cut_off_or_missing_costs_its_author_nothing_but_a_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Mapped into memory, the part that was cut off would end the process of the author."""
    directory = write(tmp_path / "a", CONTENT)
    root, weights = root_of(directory), directory / "model.safetensors"

    async def scenario() -> None:
        async with started_hosts(tmp_path, 2) as (stranger, author):

            async def served() -> ChunkServer:
                server = file_server(Endpoint(author.p2p), {root: (MODEL, model_files(directory))})
                await server.start()
                return server

            async def asked() -> tuple[FramedStream, Answer]:
                stream = await open_stream(stranger.p2p, author.me, handler_name(PROTOCOL), timeout_seconds=PATIENCE_SECONDS)
                stream.send(FrameKind.HELLO, bytes.fromhex(root))
                return stream, decode_reply(await stream.receive(FrameKind.HELLO_REPLY))[0]

            server = await served()
            stream, answer = await asked()
            assert answer is Answer.GO and await stream.receive(FrameKind.TABLE) and await stream.receive(FrameKind.HELD)
            os.truncate(weights, 4096)
            stream.send(FrameKind.WANT, encode_want(2))
            with pytest.raises(StreamLost):
                await stream.receive(FrameKind.TABLE)
            assert server.num_served_now == 0
            await server.stop()

            server = await served()
            weights.unlink()
            for _ in range(2):
                stream, answer = await asked()
                assert answer is Answer.REFUSED
                stream.abort()

    asyncio.run(scenario())
    lines = [line.getMessage() for line in caplog.records if line.name == chunk_server.__name__]
    assert [("shorter than before" in line, "No such file" in line) for line in lines] == [(True, False), (False, True)]
