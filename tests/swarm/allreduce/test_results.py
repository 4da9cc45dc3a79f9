"""Results that are held for repairs: those of the last rounds, the newest in memory, in bounded files the others."""

from pathlib import Path

import numpy as np
import pytest

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.swarm.allreduce.result_store import EncodedResult, ResultStore, in_file


def key_of(name: object) -> Digest:
    return canonical.digest(str(name))


def hold(
    store: ResultStore, name: object, *, round: int, num_bytes: int = 100, is_fetched: bool = False, codec_name: str = "float32"
) -> None:
    codec = codec_named(codec_name)
    encoded = np.empty(num_bytes, dtype=np.uint8)
    result = EncodedResult(digest=key_of(name), codec=codec, sent_codec=codec, size=25, encoded=encoded, parts=())
    store.keep(key_of(name), result, round=round, is_fetched=is_fetched)
    for key in store.outdated():
        store.forget(key, may_reuse=True)


def held(store: ResultStore, *names: object) -> list[object]:
    return [name for name in names if store.find(key_of(name)) is not None]


def test_only_the_last_rounds_are_held() -> None:
    store = ResultStore(kept_rounds=2, max_bytes=10_000)
    for number in range(9):
        hold(store, number, round=number)
    assert held(store, *range(9)) == [6, 7, 8]


def test_older_ones_go_first_where_room_is_short_and_the_newest_round_stays_whole() -> None:
    store = ResultStore(kept_rounds=2, max_bytes=150)
    for name, number in (("a", 1), ("b", 1), ("c", 2), ("d", 2)):
        hold(store, name, round=number)
    assert held(store, *"abcd") == ["a", "c", "d"]
    for name in "efgh":
        hold(store, name, round=3)
    assert held(store, *"abcdefgh") == ["c", "e", "f", "g", "h"]


def test_what_lies_in_a_file_is_the_same_leaves_no_name_and_gives_its_memory_to_the_next_average(tmp_path: Path) -> None:
    store = ResultStore(kept_rounds=2, max_bytes=10_000)
    hold(store, "first", round=1, codec_name="float16")
    assert store.earlier_in_memory() is None
    hold(store, "second", round=2)
    found = store.earlier_in_memory()
    assert found is not None
    key, encoded = found
    assert key == key_of("first")
    mapped = in_file(encoded, tmp_path)
    store.move(key, mapped, encoded, may_reuse=True)
    assert store.earlier_in_memory() is not None, "these were not its bytes"
    store.move(key, encoded, mapped, may_reuse=True)
    moved = store.find(key)
    assert moved is not None and moved.encoded.tobytes() == encoded.tobytes()
    assert [*tmp_path.iterdir()] == []
    assert store.new_buffer(100) is encoded and store.earlier_in_memory() is None


def test_rounds_that_begin_lower_again_take_the_place_of_the_others() -> None:
    store = ResultStore(kept_rounds=2, max_bytes=10_000)
    hold(store, "lost history", round=40)
    hold(store, "first", round=12)
    hold(store, "second", round=13)
    assert held(store, "lost history", "first", "second") == ["first", "second"]


def test_fetching_an_old_average_drops_no_newer_one() -> None:
    store = ResultStore(kept_rounds=2, max_bytes=10_000)
    for number in (11, 12, 13):
        hold(store, number, round=number)
    hold(store, "late", round=8, is_fetched=True)
    assert held(store, 11, 12, 13, "late") == [11, 12, 13]
    hold(store, "ahead", round=14, is_fetched=True)
    assert held(store, 11, 12, 13, "ahead") == [12, 13, "ahead"]


@pytest.mark.parametrize(("codec_name", "is_spare"), [("float16", True), ("float32", False)])
def test_the_memory_of_what_is_dropped_serves_the_next_average_unless_the_last_one_lies_in_it(
    codec_name: str, is_spare: bool
) -> None:
    store = ResultStore(kept_rounds=0, max_bytes=10_000)
    hold(store, "first", round=1, codec_name=codec_name)
    first = store.find(key_of("first"))
    hold(store, "second", round=2, codec_name=codec_name)
    assert first is not None and (store.new_buffer(100) is first.encoded) == is_spare


def test_to_find_a_part_does_not_take_longer_for_later_ones() -> None:
    class CountingTable(tuple):
        num_read = 0

        def __getitem__(self, index):
            found = super().__getitem__(index)
            CountingTable.num_read += len(found) if isinstance(index, slice) else 1
            return found

        def __iter__(self):
            CountingTable.num_read += len(self)
            return super().__iter__()

    lengths = [1 + index % 3 for index in range(500)]
    codec = codec_named("float32")
    encoded = np.arange(sum(lengths), dtype=np.uint16).astype(np.uint8)
    table = CountingTable((length, bytes(32)) for length in lengths)
    result = EncodedResult(digest=key_of("parts"), codec=codec, sent_codec=codec, size=25, encoded=encoded, parts=table)
    assert b"".join(result.part(index) for index in range(500)) == encoded.tobytes()
    assert CountingTable.num_read <= 4 * len(table)
