import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adloco_p2p.config.run_config import EvaluationConfig, RunConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.baseline import unigram_entropy
from adloco_p2p.data.corpus import MAX_CORPUS_BYTES, documents
from adloco_p2p.data.feed import IndexedFeed, open_feed
from adloco_p2p.data.packing import TokenRows
from adloco_p2p.data.source import is_heldout
from adloco_p2p.data.tokenizer import ByteTokenizer

INSTANCE, PEER = InstanceId(0), PeerId("peer")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A standard library of six files, of which two are text to train on."""
    files = {
        "b.py": "print('b')\n",
        "json/decoder.py": "print('decoder')\n",
        "copy_of_b.py": "print('b')\n",
        "empty.py": "",
        "test/test_b.py": "print('test')\n",
        "site-packages/torch.py": "print('torch')\n",
        "_sysconfigdata_linux.py": "print('built here')\n",
        "notes.txt": "no source\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    return tmp_path


def test_modules_are_chosen_sorted_and_read_once(library: Path) -> None:
    modules = {d.identity: d.text for d in documents(library=library) if d.identity.startswith("modules/")}
    assert list(modules.items()) == [("modules/b.py", "print('b')\n"), ("modules/json/decoder.py", "print('decoder')\n")]


def test_corpus_ends_before_its_cap(library: Path) -> None:
    everything = list(documents(library=library))
    cap = sum(len(d.text.encode()) for d in everything[:5]) + 1
    assert list(documents(library=library, max_bytes=cap)) == everything[:5]


def test_embedded_corpus_is_real_text_of_a_useful_size() -> None:
    corpus = list(documents())
    names = [d.identity for d in corpus]
    assert {"modules/argparse.py", "modules/asyncio/events.py", "topics/execmodel"} <= set(names)
    assert len(set(names)) == len(names) and len({d.text for d in corpus}) == len(corpus)
    assert not any(re.search(r"/(test|tests|idle_test|site-packages|encodings)/", name) for name in names)
    assert 4 << 20 < sum(len(d.text.encode()) for d in corpus) <= MAX_CORPUS_BYTES


@pytest.fixture(scope="module")
def feed() -> IndexedFeed:
    feed = open_feed(RunConfig(), cache_dir=None)
    assert isinstance(feed, IndexedFeed)
    return feed


def test_embedded_documents_lie_on_one_side_of_the_split(feed: IndexedFeed) -> None:
    fraction = RunConfig().data.heldout_fraction
    for side, rows in ((False, feed.rows.training), (True, feed.rows.heldout)):
        assert isinstance(rows, TokenRows)
        text = ByteTokenizer().decode(rows.ids.reshape(-1)[: rows.num_tokens].tolist())
        expected = [d.text for d in documents() if is_heldout(d.identity, fraction) is side]
        assert text == "".join(expected)
        assert np.count_nonzero(rows.ids.reshape(-1)[: rows.num_tokens] == 256) == len(expected) > 10


def test_heldout_rows_are_a_fixed_set_from_many_documents(feed: IndexedFeed) -> None:
    few, many = feed.heldout(16), feed.heldout(64)
    assert many.input_ids.shape == (64, 256)
    assert few.input_ids.tolist() == many.input_ids[:16].tolist()
    again = open_feed(RunConfig(), cache_dir=None).heldout(16)
    assert again.input_ids.tolist() == few.input_ids.tolist()
    assert feed.heldout(10**6).num_samples == feed.rows.heldout.num_rows


def test_held_out_rows_follow_the_evaluations_seed_where_there_is_one() -> None:
    def drawn(seed: int, heldout_seed: int | None) -> bytes:
        run = replace(RunConfig(), seed=seed, evaluation=EvaluationConfig(seed=heldout_seed))
        return open_feed(run, cache_dir=None).heldout(16).input_ids.numpy().tobytes()

    assert drawn(1, 7) == drawn(2, 7) == drawn(7, None)
    assert drawn(1, None) != drawn(2, None)


def test_streams_follow_the_plan_not_the_peer(feed: IndexedFeed) -> None:
    whole = feed.open(instance=INSTANCE, peer=PEER, round=0, first_sample=0).take(30).input_ids
    later = feed.open(instance=INSTANCE, peer=PeerId("other"), round=3, first_sample=10)
    assert [*later.take(5).input_ids.tolist(), *later.take(15).input_ids.tolist()] == whole[10:].tolist()
    assert feed.state(INSTANCE) == {}


def test_unigram_entropy_of_the_embedded_text(feed: IndexedFeed) -> None:
    training = feed.open(instance=INSTANCE, peer=PEER, round=0, first_sample=0).take(1000)
    entropy = unigram_entropy(training, feed.heldout(64), vocab_size=feed.vocab_size)
    assert 2.5 < entropy < 3.5  # English text has about 3 nats per byte, source code somewhat more
