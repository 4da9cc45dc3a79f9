"""The journal forgets only what was never acknowledged."""

import errno
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adloco_p2p.errors import StorageError
from adloco_p2p.storage.journal import MAGIC, MAX_RECORD_BYTES, Journal

RECORDS = [b'{"round":1}', b"", b'{"round":2,"why":"so"}', b"x" * 5000]


def written(path: Path, records: list[bytes]) -> list[int]:
    """Write the records; the length of the file after each."""
    journal = Journal.open(path)
    lengths = []
    for record in records:
        journal.append(record)
        lengths.append(path.stat().st_size)
        assert lengths[-1] == journal.size_bytes
    journal.close()
    return lengths


def records_in(path: Path) -> list[bytes]:
    journal = Journal.open(path)
    try:
        return [record for _, record in journal.read()]
    finally:
        journal.close()


def test_a_new_journal_is_empty(tmp_path: Path) -> None:
    assert records_in(tmp_path / "j") == []
    assert (tmp_path / "j").read_bytes() == MAGIC


def test_records_come_back_in_order_and_more_can_follow(tmp_path: Path) -> None:
    written(tmp_path / "j", RECORDS)
    assert records_in(tmp_path / "j") == RECORDS
    written(tmp_path / "j", [b"more"])
    assert records_in(tmp_path / "j") == [*RECORDS, b"more"]


def test_the_layout_on_disk_stays_as_it_is(tmp_path: Path) -> None:
    written(tmp_path / "j", [b"vote"])
    checksum = zlib.crc32(b"\x04\x00\x00\x00vote").to_bytes(4, "little")
    assert (tmp_path / "j").read_bytes() == b"adlocoj1" + b"\xad\x1c" + b"\x04\x00\x00\x00" + checksum + b"vote"


def test_a_record_is_synced_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.open(tmp_path / "j")
    sizes: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    journal.append(b"vote")
    assert sizes == [journal.size_bytes]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.data())
def test_any_truncation_leaves_a_prefix_and_a_usable_journal(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    lengths = written(path, records)
    length = data.draw(st.integers(len(MAGIC), lengths[-1]))
    os.truncate(path, length)
    whole = [record for record, end in zip(records, lengths, strict=True) if end <= length]
    assert records_in(path) == whole
    written(path, [b"after"])
    assert records_in(path) == [*whole, b"after"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=2, max_size=6), st.data())
def test_a_flipped_bit_in_front_of_a_whole_record_is_refused(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    lengths = written(path, records)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, lengths[-2] - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"damaged at byte|not a journal"):
        Journal.open(path)
    assert path.read_bytes() == content, "nothing is repaired behind the user's back"


@pytest.mark.parametrize(
    "tail",
    [bytes(100), b"\xad\x1c", b"torn\xad\x1c in the middle", b"\xad\x1c\x05\x00\x00\x00abcdhell", b"garbage" * 9],
    ids=repr,
)
def test_whatever_a_torn_append_left_is_cut_off(tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (length,) = written(tmp_path / "j", [b"whole"])
    with (tmp_path / "j").open("ab") as file:
        file.write(tail)
    assert records_in(tmp_path / "j") == [b"whole"]
    assert (tmp_path / "j").stat().st_size == length
    assert [(record.message, record.__dict__["bytes"]) for record in caplog.records] == [("journal tail cut", len(tail))]


def test_what_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"adlocoj2 from the future")
    with pytest.raises(StorageError, match="not a journal of this version"):
        Journal.open(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == b"adlocoj2 from the future"


def test_the_journal_does_not_outgrow_its_limit(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", max_bytes=100)
    journal.append(b"x" * 60)
    with pytest.raises(StorageError, match="would grow beyond 100 bytes"):
        journal.append(b"y" * 60)
    journal.append(b"z")
    journal.keep(())
    journal.append(b"y" * 60)
    assert records_in(tmp_path / "j") == [b"y" * 60]


def test_a_record_of_any_length_is_our_own_bug(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="a record of"):
        Journal.open(tmp_path / "j").append(bytes(MAX_RECORD_BYTES + 1))


def test_a_record_is_found_again_at_its_place(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    places = [journal.append(record) for record in RECORDS]
    assert list(journal.read()) == list(zip(places, RECORDS, strict=True))
    assert [journal.read_at(place) for place in reversed(places)] == RECORDS[::-1]
    for wrong in (places[1] + 1, journal.size_bytes, 10**9):
        with pytest.raises(StorageError, match=f"damaged at byte {wrong}"):
            journal.read_at(wrong)


def test_what_is_kept_moves_up_and_appending_goes_on(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    places = [journal.append(record) for record in RECORDS]
    moved = journal.keep(places[2:])
    assert list(moved) == places[2:]
    last = journal.append(b"next")
    assert [journal.read_at(place) for place in (*moved.values(), last)] == [*RECORDS[2:], b"next"]
    assert records_in(tmp_path / "j") == [*RECORDS[2:], b"next"]


class Crash(BaseException):
    """The power goes."""


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.data())
def test_a_crash_at_any_byte_of_dropping_records_leaves_all_of_them(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    """The new file is torn at a byte, or whole and not yet in the old one's place."""
    path = tmp_path_factory.mktemp("journal") / "j"
    journal = Journal.open(path)
    places = [journal.append(record) for record in records]
    kept = [place for place in places if data.draw(st.booleans())]

    def crash(source: Path, _: Path) -> None:
        content = source.read_bytes()
        source.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(Crash):
            journal.keep(kept)
    assert records_in(path) == records
    assert [found.name for found in path.parent.iterdir()] == ["j"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.data())
def test_after_records_were_dropped_a_torn_append_is_cut_as_ever(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    journal = Journal.open(path)
    places = [journal.append(record) for record in records]
    chosen = [data.draw(st.booleans()) for _ in records]
    journal.keep([place for place, is_kept in zip(places, chosen, strict=True) if is_kept])
    place = journal.append(b"the last one")
    os.truncate(path, data.draw(st.integers(place, journal.size_bytes - 1)))
    assert records_in(path) == [record for record, is_kept in zip(records, chosen, strict=True) if is_kept]


def test_after_a_failed_write_nothing_is_acknowledged_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.append(b"vote one")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="/j: the disk is full; free some space"):
            journal.append(b"vote two")
    with pytest.raises(StorageError, match="an earlier write failed"):
        journal.append(b"vote three")
    assert [record for _, record in journal.read()] == [b"vote one"]
    journal.keep([len(MAGIC)])  # a whole new file has no doubtful tail
    journal.append(b"vote four")
    assert records_in(tmp_path / "j") == [b"vote one", b"vote four"]


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    """A raw write may take less than it was given; the record must still be whole."""
    journal = Journal.open(tmp_path / "j")
    real = journal._file

    class Slow:
        def write(self, content: bytes) -> int:
            return real.write(content[:3])

        def fileno(self) -> int:
            return real.fileno()

    journal._file = Slow()  # type: ignore[assignment]
    journal.append(b"a record of some length")
    assert records_in(tmp_path / "j") == [b"a record of some length"]


def test_a_journal_in_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing/j"):
        Journal.open(tmp_path / "missing" / "j")
