"""Streams of local files: resumable, dealt by lane, endless, and without held-out documents."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.feed import open_feed
from adloco_p2p.data.source import is_heldout
from adloco_p2p.data.streaming import MAX_STRIDE, Lanes, StreamedFeed
from adloco_p2p.data.tokenizer import ByteTokenizer
from adloco_p2p.errors import ConfigError, StorageError
from adloco_p2p.numerics.batch import Batch
from tests.data.files import DOCUMENTS, numbers, run_over

WriteShards = Callable[..., str]
ONE, TWO = InstanceId(1), InstanceId(2)
ANNA, BERT = PeerId("anna"), PeerId("bert")


@pytest.fixture(params=["text", "json", "parquet", "arrow"])
def run(request: pytest.FixtureRequest, write_shards: WriteShards, private_cache: Path) -> RunConfig:
    assert private_cache
    return run_over(source=request.param, path=write_shards(request.param), streaming=True)


@pytest.fixture
def json_run(write_shards: WriteShards, private_cache: Path) -> RunConfig:
    assert private_cache
    return run_over(source="json", path=write_shards("json"), streaming=True)


def opened(run: RunConfig) -> StreamedFeed:
    feed = open_feed(run, cache_dir=None)
    assert isinstance(feed, StreamedFeed)
    return feed


def read(
    feed: StreamedFeed, num_rows: int, *, peer: PeerId = ANNA, instance: InstanceId = ONE, of_round: int = 0
) -> list[list[int]]:
    batch = feed.open(instance=instance, peer=peer, round=of_round, first_sample=of_round * 1000).take(num_rows)
    assert batch.input_ids.tolist() == batch.labels.tolist()
    assert batch.input_ids.shape == (num_rows, feed.sequence_length)
    return batch.input_ids.tolist()


def rows_of(batch: Batch) -> list[list[int]]:
    rows: list[list[int]] = batch.input_ids.tolist()
    return rows


def test_a_fresh_feed_goes_on_where_the_state_was_saved(run: RunConfig) -> None:
    feed = opened(run)
    for num_rows in (0, 1, 9, 40):  # before anything was read, inside a document, behind several lanes
        read(feed, num_rows)
        state = json.loads(json.dumps(feed.state(ONE)))
        again = opened(run)
        again.restore(ONE, state)
        assert again.state(ONE) == state
        assert read(again, 30, of_round=1) == read(feed, 30, of_round=1)


def test_a_place_is_kept_by_a_feed_that_reads_no_document(run: RunConfig) -> None:
    whole = read(opened(run), 60)
    feed = opened(run)
    rows = read(feed, 9)
    while len(rows) < len(whole):  # most of these feeds have enough tokens in the place itself
        state = json.loads(json.dumps(feed.state(ONE)))
        feed = opened(run)
        feed.restore(ONE, state)
        read(feed, 0)
        assert feed.state(ONE) == state
        rows += read(feed, 1)
    assert rows == whole


def test_rounds_go_on_without_a_gap(json_run: RunConfig) -> None:
    whole = read(opened(json_run), 24)
    feed = opened(json_run)
    assert [row for number in range(4) for row in read(feed, 6, of_round=number)] == whole


def test_state_lets_the_stream_go_on_unchanged(json_run: RunConfig) -> None:
    watched, alone = opened(json_run), opened(json_run)
    for _ in range(10):
        assert read(watched, 2) == read(alone, 2)
        watched.state(ONE)


def test_reading_ahead_changes_no_row_and_is_resumable(json_run: RunConfig) -> None:
    whole = read(opened(json_run), 24)
    feed = opened(json_run)
    rows = read(feed, 5)
    feed.open(instance=ONE, peer=ANNA, round=0, first_sample=0).read_ahead(40)
    again = opened(json_run)
    again.restore(ONE, json.loads(json.dumps(feed.state(ONE))))
    for other in (feed, again):
        assert [*rows, *read(other, 19)] == whole


def test_a_place_in_another_peers_order_is_not_used(json_run: RunConfig) -> None:
    feed = opened(json_run)
    read(feed, 5)
    other = opened(json_run)
    other.restore(ONE, feed.state(ONE))
    assert read(other, 5, peer=BERT) == read(opened(json_run), 5, peer=BERT)


def test_restoring_nothing_starts_anew(json_run: RunConfig) -> None:
    feed = opened(json_run)
    first = read(feed, 5)
    feed.restore(ONE, {})
    assert feed.state(ONE) == {} and read(feed, 5) == first


@pytest.mark.parametrize(
    "change",
    [{"epoch": -1}, {"turn": "0"}, {"leftover": [257]}, {"shard_state": 3}, {"peer": None}, {"more": 1}, {"leftover": None}],
    ids=str,
)
def test_a_damaged_state_is_refused(json_run: RunConfig, change: dict[str, object]) -> None:
    feed = opened(json_run)
    read(feed, 1)
    with pytest.raises(StorageError, match="damaged"):
        feed.restore(ONE, {**feed.state(ONE), **change})


def test_a_place_behind_the_last_lane_is_refused(json_run: RunConfig) -> None:
    feed = opened(json_run)
    read(feed, 1)
    feed.restore(ONE, {**feed.state(ONE), "turn": 3 * MAX_STRIDE})
    with pytest.raises(StorageError, match="data have changed"):
        read(feed, 1)


# --- dealing ---------------------------------------------------------------------------------------------------------


def first_lane_documents(run: RunConfig, peer: PeerId, instance: InstanceId) -> set[int]:
    feed = opened(run)
    stream = feed.open(instance=instance, peer=peer, round=0, first_sample=0)
    shown: set[int] = set()
    while feed.state(instance).get("turn") == 0:
        shown |= numbers(rows_of(stream.take(1)))
    return shown


def test_different_lanes_share_no_document(write_shards: WriteShards, private_cache: Path) -> None:
    assert private_cache
    path = write_shards("json", [f"[{number:04d}]" * 8 for number in range(600)])
    run = run_over(source="json", path=path, streaming=True)
    lanes = Lanes.over(3)
    hosts = [(peer, instance) for peer in (ANNA, BERT) for instance in (ONE, TWO)]
    firsts = [lanes.at(0, seed=run.seed, instance=instance, peer=peer, epoch=0) for peer, instance in hosts]
    assert len(set(firsts)) == 4
    for (peer, instance), (shard, residue) in zip(hosts, firsts, strict=True):
        # document d of shard s has the number s + 3 d
        lane = {shard + 3 * place for place in range(200) if place % lanes.stride == residue}
        following = lanes.at(1, seed=run.seed, instance=instance, peer=peer, epoch=0)
        next_lane = {following[0] + 3 * place for place in range(200) if place % lanes.stride == following[1]}
        shown = first_lane_documents(run, peer, instance)
        assert shown & lane and shown <= lane | next_lane  # the last row may show how the next lane begins


@pytest.mark.parametrize("num_shards", [1, 3, 100, 1100])
def test_a_host_reads_every_lane_once_in_an_epoch(num_shards: int) -> None:
    lanes = Lanes.over(num_shards)
    turns = [lanes.at(turn, seed=1, instance=ONE, peer=ANNA, epoch=0) for turn in range(len(lanes))]
    assert sorted(turns) == [(shard, residue) for shard in range(num_shards) for residue in range(lanes.stride)]
    assert turns != [lanes.at(turn, seed=1, instance=ONE, peer=ANNA, epoch=1) for turn in range(len(lanes))]


def test_an_epoch_shows_every_training_document_and_no_heldout_one(run: RunConfig) -> None:
    feed = opened(run)
    stream = feed.open(instance=ONE, peer=ANNA, round=0, first_sample=0)
    training = {number for number, text in enumerate(DOCUMENTS) if not is_heldout(text, 0.2)}
    tokens = sum(len(DOCUMENTS[number]) + 1 for number in training)
    line = [token for row in rows_of(stream.take(-(-2 * tokens // 32))) for token in row][: 2 * tokens]
    shown = [ByteTokenizer().decode(document) for document in split_at(line, ByteTokenizer.end_of_document)]
    assert Counter(shown) == {DOCUMENTS[number]: 2 for number in training}  # each document twice, and nothing else


def split_at(line: list[int], end: int) -> list[list[int]]:
    ends = [-1, *(place for place, token in enumerate(line) if token == end)]
    return [line[start + 1 : stop] for start, stop in itertools.pairwise(ends)]


def test_heldout_rows_are_fixed_and_only_of_heldout_documents(run: RunConfig) -> None:
    few, many = opened(run).heldout(3), opened(run).heldout(10**6)
    assert rows_of(many)[:3] == rows_of(few)
    held = {number for number, text in enumerate(DOCUMENTS) if is_heldout(text, 0.2)}
    assert numbers(rows_of(many)) <= held and len(numbers(rows_of(many))) > 10


def test_heldout_rows_do_not_depend_on_earlier_questions(json_run: RunConfig) -> None:
    feed = opened(json_run)
    feed.heldout(2)
    assert rows_of(feed.heldout(6)) == rows_of(opened(json_run).heldout(6))
    assert feed.heldout(2).num_samples == 2


# --- what the user got wrong -----------------------------------------------------------------------------------------


def test_data_without_text_do_not_hang(write_shards: WriteShards, private_cache: Path) -> None:
    assert private_cache
    feed = opened(run_over(source="json", path=write_shards("json", [""] * 9), streaming=True))
    with pytest.raises(ConfigError, match="holds no text to train on"):
        read(feed, 1)
    with pytest.raises(ConfigError, match=r"data\.heldout_fraction"):
        feed.heldout(1)


def test_numbers_are_no_text(json_run: RunConfig) -> None:
    feed = opened(replace(json_run, data=replace(json_run.data, text_column="number")))
    with pytest.raises(ConfigError, match=r"holds int .*, not text"):
        read(feed, 1)
