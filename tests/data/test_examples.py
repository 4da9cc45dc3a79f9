"""Rows of whole documents, and mixtures of data sets: what is learned, where positions restart, who reads what."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adloco_p2p.config.load import load_run
from adloco_p2p.config.run_config import RunConfig, TokenizerConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.chat_template import Example
from adloco_p2p.data.examples import pack_examples
from adloco_p2p.data.feed import IndexedFeed, open_feed
from adloco_p2p.data.packing import Rows
from adloco_p2p.data.sampling import MixedOrder, SampleOrder
from adloco_p2p.data.source import files_digest
from adloco_p2p.data.tokenizer import ByteTokenizer
from adloco_p2p.decode import decode
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from tests.data.files import run_over, write_json
from tests.data.test_chat_template import save_tokenizer

ONE = InstanceId(0)


def example(size: int, *, first_learned: int, value: int = 7) -> Example:
    return Example(ids=np.full(size, value), is_learned=np.arange(size) >= first_learned)


def test_rows_hold_whole_documents_and_padding_is_not_learned() -> None:
    rows = pack_examples(
        [
            example(5, first_learned=2),
            example(3, first_learned=1),
            example(1, first_learned=0, value=9),
            example(8, first_learned=7),
        ],
        sequence_length=8,
        vocab_size=10,
        padding=0,
    )
    assert rows.ids.tolist() == [[7] * 8, [9, *[0] * 7], [7] * 8]
    batch = rows.gather(np.array([0, 1, 2]))
    assert batch.positions is not None
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2], [0, *range(7)], list(range(8))]
    learned = (batch.labels != IGNORED_LABEL).tolist()
    assert learned == [[0, 0, 1, 1, 1, 0, 1, 1], [0] * 8, [0] * 7 + [1]], "a document's first token is predicted by nothing"


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def feed_of(run: RunConfig) -> IndexedFeed:
    feed = open_feed(run, cache_dir=None)
    assert isinstance(feed, IndexedFeed)
    return feed


def learned_texts(rows: Rows) -> list[str]:
    """Of each row, the learned bytes."""
    batch = rows.gather(np.arange(rows.num_rows))
    labels = [row[row != IGNORED_LABEL].tolist() for row in batch.labels]
    return [bytes(token for token in row if token < 256).decode() for row in labels]


def test_of_prompts_and_completions_the_completion_is_learned(tmp_path: Path, private_cache: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"ask": f"why {n:02d}?", "say": f"so {n:02d}."} for n in range(40)])
    run = run_over(source="json", path=path, prompt_column="ask", completion_column="say", heldout_fraction=0.1)
    learned = "".join(learned_texts(feed_of(run).rows.training))
    assert "so 1" in learned and "why" not in learned


def test_conversations_are_learned_by_answers_and_long_ones_lose_their_end(
    tmp_path: Path, private_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def talk(number: int, answer: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": answer}]}

    rows = (
        [talk(n, f"answer {n:03d}") for n in range(30)]
        + [talk(90 + n, "long " * 50) for n in range(6)]
        + [{"messages": talk(98, "")["messages"][:1]}]
    )
    rows += [{"messages": [{"role": "user", "content": "long " * 50}, {"role": "assistant", "content": "never"}]}]
    path = write_rows(tmp_path / "talks.jsonl", rows)
    run = run_over(source="json", path=path, messages_column="messages", sequence_length=64)
    run = replace(run, tokenizer=TokenizerConfig(source=str(save_tokenizer(tmp_path / "tokenizer"))))
    feed = feed_of(run)
    learned = "".join(learned_texts(feed.rows.training))
    assert "answer 0" in learned and "long long" in learned and "q" not in learned and "never" not in learned
    assert all(text for text in learned_texts(feed.rows.training)), "every row has something to learn"
    assert "2 of 38 rows have nothing to learn within 64 tokens" in caplog.text


def test_a_cell_of_another_kind_is_named_by_its_row(tmp_path: Path, private_cache: Path) -> None:
    good = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    bad = {"messages": [{"role": "user", "content": None}, {"role": "assistant", "content": "a"}]}
    run = run_over(source="json", path=write_rows(tmp_path / "a.jsonl", [good, good, bad]), messages_column="messages")
    run = replace(run, tokenizer=TokenizerConfig(source=str(save_tokenizer(tmp_path / "tokenizer"))))
    with pytest.raises(ConfigError, match=r"'content': None.* both texts \(row 3\)") as refused:
        feed_of(run)
    assert refused.value.code == "E207"


def test_other_keys_of_a_message_may_hold_anything(tmp_path: Path, private_cache: Path) -> None:
    """pyarrow reads texts of this form as times, which JSON does not have."""
    talks = [
        [{"role": role, "content": f"{role} {n}", "at": f"2024-05-01 12:00:{n:02d}"} for role in ("user", "assistant")]
        for n in range(40)
    ]
    path = write_rows(tmp_path / "a.jsonl", [{"messages": talk} for talk in talks])
    run = run_over(source="json", path=path, messages_column="messages", sequence_length=64)
    run = replace(run, tokenizer=TokenizerConfig(source=str(save_tokenizer(tmp_path / "tokenizer"))))
    assert "assistant 1" in "".join(learned_texts(feed_of(run).rows.training))


def test_copies_of_a_conversation_with_other_ids_lie_on_one_side(tmp_path: Path, private_cache: Path) -> None:
    def talk(number: int, copy: int) -> dict[str, Any]:
        return {"messages": [{"role": role, "content": f"{role} {number}", "id": copy} for role in ("user", "assistant")]}

    path = write_rows(tmp_path / "a.jsonl", [talk(number, copy) for copy in range(3) for number in range(60)])
    run = run_over(source="json", path=path, messages_column="messages", sequence_length=64)
    run = replace(run, tokenizer=TokenizerConfig(source=str(save_tokenizer(tmp_path / "tokenizer"))))
    sides = feed_of(run).rows
    training, heldout = (
        set(re.findall(r"assistant \d+", "".join(learned_texts(side)))) for side in (sides.training, sides.heldout)
    )
    assert training and heldout and not training & heldout


def test_nothing_to_learn_is_refused(tmp_path: Path, private_cache: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"ask": "long " * 50, "say": "x"}])
    with pytest.raises(ConfigError, match="nothing to learn within 32 tokens"):
        feed_of(run_over(source="json", path=path, prompt_column="ask", completion_column="say"))


def test_answers_of_another_role_are_named(tmp_path: Path, private_cache: Path) -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "gpt", "content": "b"}]
    path = write_rows(tmp_path / "a.jsonl", [{"messages": talk}] * 40)
    run = run_over(source="json", path=path, messages_column="messages", sequence_length=64)
    run = replace(run, tokenizer=TokenizerConfig(source=str(save_tokenizer(tmp_path / "tokenizer"))))
    with pytest.raises(ConfigError, match="answers, which are messages of the role `assistant`"):
        feed_of(run)


def test_a_completion_without_text_is_skipped(tmp_path: Path, private_cache: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"ask": "a", "say": " \n"}, {"ask": "a", "say": None}])
    with pytest.raises(ConfigError, match="nothing to learn within 32 tokens"):
        feed_of(run_over(source="json", path=path, prompt_column="ask", completion_column="say"))


def test_a_missing_column_is_named_by_its_setting(tmp_path: Path, private_cache: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"ask": "a", "say": "b"}])
    with pytest.raises(ConfigError, match=r"data\.completion_column: no column 'tell'"):
        feed_of(run_over(source="json", path=path, prompt_column="ask", completion_column="tell"))


def test_a_column_without_texts_is_named_by_its_setting(tmp_path: Path, private_cache: Path) -> None:
    for ask, say, named in (
        (5, "b", r"data\.prompt_column: 'ask' holds int"),
        ("a", 5, r"data\.completion_column: 'say' holds int"),
    ):
        path = write_rows(tmp_path / "a.jsonl", [{"ask": ask, "say": say}])
        with pytest.raises(ConfigError, match=named):
            feed_of(run_over(source="json", path=path, prompt_column="ask", completion_column="say"))


@pytest.mark.parametrize("streaming", [False, True])
def test_attention_inside_documents_restarts_positions_at_each(streaming: bool, tmp_path: Path, private_cache: Path) -> None:
    write_json(tmp_path / "a.json", [f"{n:03d} " * 4 for n in range(200)])
    run = run_over(source="json", path=str(tmp_path / "a.json"), attention="document", streaming=streaming)
    feed = open_feed(run, cache_dir=None)
    for batch in (feed.heldout(8), feed.open(instance=ONE, peer=PeerId("p"), round=0, first_sample=0).take(16)):
        assert batch.positions is not None
        for ids, positions, labels in zip(batch.input_ids, batch.positions, batch.labels, strict=True):
            place = 0
            for index in range(len(ids)):
                place = 0 if index == 0 or ids[index - 1] == ByteTokenizer.end_of_document else place + 1
                assert positions[index] == place
                assert (labels[index] == IGNORED_LABEL) == (place == 0) or int(labels[index]) == IGNORED_LABEL


def test_evaluation_on_a_named_file(tmp_path: Path, private_cache: Path) -> None:
    write_json(tmp_path / "train.json", ["train " * 9] * 50)
    write_json(tmp_path / "test.json", ["other " * 9] * 10)
    run = run_over(source="json", path=str(tmp_path / "train.json"), heldout_path=str(tmp_path / "test.json"))
    feed = feed_of(run)
    heldout = bytes(token for token in feed.heldout(99).input_ids.flatten().tolist() if token < 256).decode()
    assert "other" in heldout and "train" not in heldout
    assert "other" not in "".join(learned_texts(feed.rows.training))


# --- mixtures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 0.7), (1.0, 2.0, 5.0), (0.01, 0.99), (3.0,)])
def test_a_mixture_keeps_its_proportions_at_every_point(weights: tuple[float, ...]) -> None:
    sizes = [11, 1000, 37][: len(weights)]
    order = MixedOrder(seed=3, sizes=sizes, weights=weights)
    rows = order.rows(ONE, first_sample=0, num_samples=3000)
    first_rows = np.cumsum([0, *sizes])
    which = np.searchsorted(first_rows, rows, side="right") - 1
    for upto in (10, 100, 1000, 3000):
        counts = np.bincount(which[:upto], minlength=len(weights))
        assert np.abs(counts - upto * np.array(weights) / sum(weights)).max() <= len(weights)


def test_each_data_set_of_a_mixture_is_read_as_if_alone() -> None:
    """Whole epochs, in an order of its own."""
    sizes = [7, 20]
    rows = MixedOrder(seed=3, sizes=sizes, weights=[1.0, 3.0]).rows(ONE, first_sample=0, num_samples=400)
    for number, (first, size) in enumerate(zip([0, 7], sizes, strict=True)):
        ours = rows[(rows >= first) & (rows < first + size)] - first
        alone = SampleOrder(seed=f"3/{number}", num_rows=size).rows(ONE, first_sample=0, num_samples=len(ours))
        assert np.array_equal(ours, alone)


def test_a_mixture_resumes_anywhere_and_hosts_part_it() -> None:
    order = MixedOrder(seed=5, sizes=[13, 29, 5], weights=[0.2, 0.5, 0.3])
    whole = order.rows(ONE, first_sample=0, num_samples=500)
    cuts = [0, 1, 17, 18, 200, 203, 500]
    parts = [order.rows(ONE, first_sample=a, num_samples=b - a) for a, b in itertools.pairwise(cuts)]
    assert np.array_equal(np.concatenate(parts), whole)
    far = 1 << 40
    assert np.array_equal(
        order.rows(ONE, first_sample=far, num_samples=64)[9:], order.rows(ONE, first_sample=far + 9, num_samples=55)
    )


def test_a_run_over_a_mixture_reads_all_of_it(tmp_path: Path, private_cache: Path) -> None:
    for name in ("aaa", "bbb"):
        write_json(tmp_path / f"{name}.json", [f"{name} {n:03d} " * 3 for n in range(60)])
    run = run_over(source="json", mixture={str(tmp_path / "aaa.json"): 1.0, str(tmp_path / "bbb.json"): 3.0})
    feed = feed_of(run)
    batch = feed.open(instance=ONE, peer=PeerId("p"), round=0, first_sample=0).take(40)
    texts = [bytes(token for token in row if token < 256).decode() for row in batch.input_ids.tolist()]
    assert sum("aa" in text for text in texts) == 10
    stream = feed.open(instance=ONE, peer=PeerId("p"), round=0, first_sample=30)
    assert stream.take(10).input_ids.tolist() == batch.input_ids[30:].tolist()
    heldout = bytes(token for token in feed.heldout(99).input_ids.flatten().tolist() if token < 256).decode()
    assert "aaa" in heldout and "bbb" in heldout


def test_the_order_in_which_an_author_lists_a_mixture_does_not_matter(tmp_path: Path) -> None:
    """The manifest, which joiners and later starts read, sorts it."""
    for name in ("aaa", "bbb"):
        write_json(tmp_path / f"{name}.json", [f"{name} {n:03d} " * 3 for n in range(60)])
    mixture = {str(tmp_path / "bbb.json"): 1.0, str(tmp_path / "aaa.json"): 3.0}
    run = run_over(source="json", mixture=mixture)
    known = decode(RunConfig, canonical.encode(run), max_bytes=1 << 20)
    assert [*known.data.mixture] != [*mixture]
    assert files_digest(known.data) == files_digest(run.data)
    rows = [feed_of(one).open(instance=ONE, peer=PeerId("p"), round=0, first_sample=0).take(40) for one in (run, known)]
    assert rows[0].input_ids.tolist() == rows[1].input_ids.tolist()


def test_instances_with_data_of_their_own_read_evaluate_and_draw_it_alone(tmp_path: Path) -> None:
    names = ("aaa", "bbb", "ccc")
    for name in names:
        write_json(tmp_path / f"{name}.json", [f"{n:03d}{name * 7}" for n in range(60)])
    paths = [str(tmp_path / f"{name}.json") for name in names]
    run = run_over(source="json", mixture=dict(zip(paths, (1.0, 3.0, 1.0), strict=True)))
    run = replace(run, instances=replace(run.instances, data=(paths[2], paths[0], paths[1])))  # not in the mixture's order
    feed = feed_of(run)

    def shown(batch: Batch) -> list[str]:
        """Which data set each row is of."""
        texts = [bytes(token for token in row if token < 256).decode() for row in batch.input_ids.tolist()]
        return [next(name for name in names if name[0] in text) for text in texts]

    def read(*reads: int, first: int = 0, count: int = 40) -> list[str]:
        part = feed.of(tuple(map(InstanceId, reads)))
        return shown(part.open(instance=ONE, peer=PeerId("p"), round=0, first_sample=first).take(count))

    for instance, name in enumerate(("ccc", "aaa", "bbb")):
        own = feed.of((InstanceId(instance),))
        assert {*read(instance), *shown(own.heldout(9)), *shown(own.drawn("lot", 9))} == {name}
    assert (read(1, 2).count("aaa"), read(1, 2).count("bbb")) == (10, 30)
    assert read(1, 2, first=30, count=10) == read(1, 2)[30:]
    assert feed.of(()) is feed.of((ONE, InstanceId(1), InstanceId(2))) is feed
    together = feed.of((InstanceId(1), InstanceId(2)))
    assert together is feed.of((InstanceId(1), InstanceId(2))), "the rows are not gathered again every round"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["data.source=json", "data.path=a.jsonl", "data.prompt_column=q"], r"data\.prompt_column, data\.completion_column"),
        (["data.source=text", "data.path=a.txt", "data.messages_column=m"], r"data\.messages_column, .*has no columns"),
        (["data.source=json", "data.path=a", "data.messages_column=m", "data.streaming=true"], r"data\.streaming"),
        (["data.source=json", "data.path=a", "data.mixture={b: 1.0}"], r"data\.path: a would be ignored"),
        (["data.mixture={b: 1.0}"], r"data\.mixture: only local files"),
        (["data.heldout_path=a"], r"data\.heldout_path: only local files"),
        (["data.source=json", "data.mixture={b: 0}"], r"data\.mixture"),
        (["model.lora.rank=8"], r"model\.lora\.rank: 8, but there are no pretrained weights"),
        (["model.pretrained=a/b", "model.lora.freeze_a=true"], r"model\.lora\.freeze_a: nothing without"),
        (["model.pretrained=a/b", "model.lora.rank=2", "model.lora.targets=[]"], r"model\.lora\.targets: empty"),
    ],
)
def test_settings_that_do_not_go_together(settings: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_run(None, settings)
