"""Indexed rows of local files: right side, right rows, cached on disk."""

import errno
import glob
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adloco_p2p.commands.evaluation import _over_file
from adloco_p2p.commands.train import _check_heldout
from adloco_p2p.config.run_config import DataConfig, RunConfig, TokenizerConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data import corpus, indexing
from adloco_p2p.data.corpus import Document
from adloco_p2p.data.feed import IndexedFeed, open_feed
from adloco_p2p.data.packing import Rows, TokenRows
from adloco_p2p.data.source import check_files, files_digest, heldout_overlap, is_heldout, load_split, other_embedded_text
from adloco_p2p.data.tokenizer import ByteTokenizer, TokenIds
from adloco_p2p.errors import ConfigError, StorageError
from tests.data.files import DOCUMENTS, numbers, run_over, write_json, write_parquet, write_text

WriteShards = Callable[..., str]


def opened(run: RunConfig, cache: Path | None) -> IndexedFeed:
    feed = open_feed(run, cache_dir=cache)
    assert isinstance(feed, IndexedFeed)
    return feed


def tokens(rows: Rows) -> TokenRows:
    assert isinstance(rows, TokenRows)
    return rows


def texts(rows: Rows) -> list[str]:
    """The documents in packed rows."""
    line = tokens(rows).ids.reshape(-1)[: tokens(rows).num_tokens].tolist()
    assert line[-1] == 256
    return "".join("\n\n" if token == 256 else chr(token) for token in line).split("\n\n")[:-1]


@pytest.mark.parametrize("kind", ["text", "json", "parquet", "arrow"])
@pytest.mark.parametrize("cached", [True, False])
def test_every_document_is_on_its_side_exactly_once(
    write_shards: WriteShards, private_cache: Path, kind: str, cached: bool
) -> None:
    feed = opened(run_over(source=kind, path=write_shards(kind)), private_cache if cached else None)
    training, heldout = texts(feed.rows.training), texts(feed.rows.heldout)
    assert sorted(training + heldout) == sorted(DOCUMENTS)
    assert not any(is_heldout(text, 0.2) for text in training) and all(is_heldout(text, 0.2) for text in heldout)
    assert 10 < len(heldout) < 40


@pytest.mark.parametrize("streaming", [False, True])
def test_a_document_of_a_text_file_is_a_paragraph(private_cache: Path, tmp_path: Path, streaming: bool) -> None:
    paragraphs = [f"the first line of {number}\nthe second line" for number in range(40)]
    write_text(tmp_path / "book.txt", paragraphs)
    run = run_over(source="text", path=str(tmp_path / "book.txt"), sequence_length=512, streaming=streaming)
    stream = open_feed(run, cache_dir=private_cache).open(instance=InstanceId(0), peer=PeerId("p"), round=0, first_sample=0)
    row = stream.take(1).input_ids[0].tolist()
    shown = "".join("\0" if token == 256 else chr(token) for token in row).split("\0")
    assert len(shown[1:-1]) > 5 and set(shown[1:-1]) <= set(paragraphs)


def test_no_training_row_shows_a_heldout_document(write_shards: WriteShards, private_cache: Path) -> None:
    copies = DOCUMENTS + DOCUMENTS[::-1]  # a copy must not slip onto the other side
    feed = opened(run_over(source="json", path=write_shards("json", copies)), private_cache)
    num_rows = feed.rows.training.num_rows
    training = feed.open(instance=InstanceId(2), peer=PeerId("p"), round=0, first_sample=0).take(num_rows)
    seen, held = (numbers(batch.input_ids.tolist()) for batch in (training, feed.heldout(10**6)))
    assert seen and held and not seen & held
    assert len(seen | held) == len(DOCUMENTS)


def test_second_start_maps_the_rows_without_tokenising(
    write_shards: WriteShards, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_over(source="parquet", path=write_shards("parquet"))
    first = opened(run, private_cache)

    def refuse(*_: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(ByteTokenizer, "encode", refuse)
    second = opened(run, private_cache)
    assert isinstance(tokens(second.rows.training).ids.base, np.memmap)
    for side in ("training", "heldout"):
        assert np.array_equal(getattr(first.rows, side).ids, getattr(second.rows, side).ids)
    [entry] = [path for path in private_cache.iterdir() if path.name.startswith("rows-")]
    assert not list(private_cache.glob("making-*"))
    assert {path.name for path in entry.iterdir()} == {"training.bin", "heldout.bin", "meta.json"}


def test_a_second_start_of_digested_files_reads_their_rows_only(
    write_shards: WriteShards, private_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_over(source="text", path=write_shards("text"))
    run = replace(run, data=replace(run.data, digest=files_digest(run.data)))
    first = np.array(tokens(opened(run, private_cache).rows.training).ids)
    write_text(tmp_path / "other.txt", [f"other words, {number} of them. " * 3 for number in range(60)])
    other = run_over(source="text", path=str(tmp_path / "other.txt"))
    other = replace(other, data=replace(other.data, digest=files_digest(other.data)))
    assert "other words" in "".join(texts(opened(other, private_cache).rows.training))
    monkeypatch.setattr(indexing, "load_split", lambda *_, **__: pytest.fail("the files are read again"))
    assert np.array_equal(tokens(opened(run, private_cache).rows.training).ids, first)


def test_cached_and_uncached_rows_are_equal(write_shards: WriteShards, private_cache: Path) -> None:
    run = run_over(source="json", path=write_shards("json"))
    on_disk, in_memory = opened(run, private_cache), opened(run, None)
    for side in ("training", "heldout"):
        assert np.array_equal(getattr(on_disk.rows, side).ids, getattr(in_memory.rows, side).ids)
        assert getattr(on_disk.rows, side).num_tokens == getattr(in_memory.rows, side).num_tokens


def test_what_changes_the_rows_changes_their_name(write_shards: WriteShards, private_cache: Path, tmp_path: Path) -> None:
    run = run_over(source="json", path=write_shards("json"))
    ByteTokenizer().save(tmp_path / "tokenizer")
    variants = [
        run,
        run_over(source="json", path=run.data.path, sequence_length=16),
        run_over(source="json", path=run.data.path, heldout_fraction=0.3),
        replace(run, tokenizer=TokenizerConfig(source=str(tmp_path / "tokenizer"))),
    ]
    for variant in variants:
        opened(variant, private_cache)
    write_shards("json", DOCUMENTS[:60])
    assert len(texts(opened(run, private_cache).rows.training)) < 60
    assert len(list(private_cache.glob("rows-*"))) == 5


@pytest.mark.parametrize("damage", ["short", "meta"])
def test_a_torn_cache_entry_is_made_again(write_shards: WriteShards, private_cache: Path, damage: str) -> None:
    run = run_over(source="json", path=write_shards("json"))
    first = np.array(tokens(opened(run, private_cache).rows.training).ids)
    [entry] = private_cache.glob("rows-*")
    if damage == "short":
        (entry / "training.bin").unlink()
        (entry / "training.bin").write_bytes(b"short")
    else:
        (entry / "meta.json").write_text("{")
    assert np.array_equal(tokens(opened(run, private_cache).rows.training).ids, first)


def test_a_crash_while_writing_leaves_no_entry(
    write_shards: WriteShards, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_over(source="json", path=write_shards("json"))

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(StorageError, match="No space left"):
            opened(run, private_cache)
    assert not list(private_cache.glob("*rows-*"))
    assert opened(run, private_cache).rows.training.num_rows


def test_two_processes_that_make_the_same_rows_at_once(
    write_shards: WriteShards, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_over(source="json", path=write_shards("json"))
    flush = os.fsync
    faster: list[IndexedFeed] = []

    def overtaken(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", flush)
        faster.append(opened(run, private_cache))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", overtaken)
    slower = opened(run, private_cache)
    assert np.array_equal(tokens(slower.rows.training).ids, tokens(faster[0].rows.training).ids)
    assert len(list(private_cache.glob("*rows-*"))) == 1


@pytest.mark.parametrize("streaming", [False, True])
def test_a_split_of_its_own_for_evaluation(private_cache: Path, tmp_path: Path, streaming: bool) -> None:
    directory = tmp_path / "published"
    directory.mkdir()
    write_parquet(directory / "train.parquet", DOCUMENTS[:100])
    write_parquet(directory / "validation.parquet", DOCUMENTS[100:])
    run = run_over(source="hub", path=str(directory), heldout_split="validation", streaming=streaming)
    feed = open_feed(run, cache_dir=private_cache)
    trained = feed.open(instance=InstanceId(0), peer=PeerId("p"), round=0, first_sample=0).take(120)
    assert numbers(trained.input_ids.tolist()) == set(range(100))
    assert numbers(feed.heldout(10**6).input_ids.tolist()) == set(range(100, 120))


# --- what the user got wrong -----------------------------------------------------------------------------------------


def problem_of(run: RunConfig, cache: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        open_feed(run, cache_dir=cache)
    return str(caught.value)


@pytest.mark.parametrize("streaming", [False, True])
def test_names_with_signs_of_patterns(private_cache: Path, tmp_path: Path, streaming: bool) -> None:
    (tmp_path / "books [1]").mkdir()
    write_json(tmp_path / "books [1]" / "a[2].jsonl", [f"text {number} with some words" for number in range(200)])
    path = f"{glob.escape(str(tmp_path / 'books [1]'))}/*.jsonl"
    feed = open_feed(run_over(source="json", path=path, streaming=streaming), cache_dir=private_cache)
    assert feed.heldout(2).num_predicted_tokens


@pytest.mark.parametrize("streaming", [False, True])
def test_missing_files(private_cache: Path, tmp_path: Path, streaming: bool) -> None:
    problem = problem_of(run_over(source="json", path=str(tmp_path / "none*.json"), streaming=streaming), private_cache)
    assert "data.path: no file matches" in problem and "none*.json" in problem
    folder = problem_of(run_over(source="json", path=str(tmp_path), streaming=streaming), private_cache)
    assert "is a directory" in folder and f"{tmp_path}/*.jsonl" in folder


@pytest.mark.parametrize("streaming", [False, True])
def test_missing_column(write_shards: WriteShards, private_cache: Path, streaming: bool) -> None:
    run = run_over(source="parquet", path=write_shards("parquet"), text_column="content", streaming=streaming)
    assert "data.text_column: no column 'content'" in problem_of(run, private_cache)
    assert "it has text" in problem_of(run, private_cache)


def test_column_without_text(write_shards: WriteShards, private_cache: Path) -> None:
    run = run_over(source="json", path=write_shards("json"), text_column="number")
    assert "'number' holds int '7', not text" in problem_of(run, private_cache)


def test_rows_without_a_value_are_counted(private_cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [{"text": f"line {number}"} if number % 3 else {"text": None} for number in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    opened(run_over(source="json", path=str(tmp_path / "a.jsonl")), private_cache)
    assert "10 of 30 rows have no 'text' and are skipped" in caplog.text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"text": "cut off', "Unterminated string"),
        ('{"text": "a"},', "Extra data"),
        ("{'text': 1}", "Expecting property name"),
    ],
)
def test_a_damaged_line_of_json_is_named_with_its_file(private_cache: Path, tmp_path: Path, line: str, why: str) -> None:
    good = json.dumps({"text": "good"})
    (tmp_path / "a.jsonl").write_text(f"{good}\n" * 9)
    (tmp_path / "b.jsonl").write_text(f"{good}\n" * 4 + f"{line}\n{good}\n")
    problem = problem_of(run_over(source="json", path=str(tmp_path / "*.jsonl")), private_cache)
    assert f"cannot be read as json: {tmp_path / 'b.jsonl'}, line 5: {why}" in problem


def test_a_full_disk_has_its_code(write_shards: WriteShards, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="cannot write the tokenised rows: No space left on device") as caught:
        open_feed(run_over(source="json", path=write_shards("json")), cache_dir=private_cache)
    assert caught.value.code == "E402"


def test_files_of_another_kind(write_shards: WriteShards, private_cache: Path) -> None:
    run = run_over(source="parquet", path=write_shards("json"))
    assert "cannot be read as parquet" in problem_of(run, private_cache)


READS_JSON = """
import sys
from pathlib import Path
from adloco_p2p.commands.hub import settle
settle(is_offline=True)  # before the libraries are imported, as every command does
from adloco_p2p.data.feed import open_feed
from adloco_p2p.errors import ConfigError
from tests.data.files import run_over
try:
    open_feed(run_over(source="json", path=sys.argv[1]), cache_dir=Path(sys.argv[2]))
except ConfigError as error:
    print(error)
"""


def test_a_file_that_is_no_json_is_reported_once_and_not_by_the_library(tmp_path: Path, private_cache: Path) -> None:
    (tmp_path / "a.json").write_text("hello\n")
    command = [sys.executable, "-c", READS_JSON, str(tmp_path / "a.json"), str(private_cache)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert "cannot be read as json" in ended.stdout and not ended.stderr


@pytest.mark.parametrize("source", ["json", "text"])
def test_empty_files(source: str, tmp_path: Path, private_cache: Path) -> None:
    (tmp_path / "a.data").touch()
    run = run_over(source=source, path=str(tmp_path / "*.data"))
    assert f"cannot be read as {source}: its files are empty; give such files" in problem_of(run, private_cache)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("source", "line"), [("text", "hello"), ("json", '{"text": "hello"}')])
def test_a_byte_order_mark_is_no_text(source: str, line: str, streaming: bool, tmp_path: Path, private_cache: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + f"{line}\n".encode())
    data = run_over(source=source, path=str(tmp_path / "[ab]"), streaming=streaming).data
    assert [row["text"].strip() for row in load_split(data, split="train", cache_dir=None)] == ["hello", "hello"]


def test_files_that_are_not_utf8_are_named_with_the_line(tmp_path: Path, private_cache: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_bytes(b"plain\nna\xefve\n" if number else b"plain\n")
    said = problem_of(run_over(source="text", path=str(tmp_path / "*.txt")), private_cache)
    assert f"data.path: not UTF-8: {tmp_path}/1.txt, line 2; " in said and "and 1 more file;" in said
    assert "iconv -f LATIN1 -t UTF-8" in said


@pytest.mark.parametrize(("source", "line"), [("text", b"na\xefve\n"), ("json", b'{"text": "na\xefve"}\n')])
def test_a_data_set_of_a_mixture_is_named_as_one(source: str, line: bytes, tmp_path: Path, private_cache: Path) -> None:
    good, bad = (str(tmp_path / name) for name in ("good", "bad"))
    Path(good).write_bytes(line.replace(b"\xef", b"i") * 100)
    Path(bad).write_bytes(line)
    run = run_over(source=source, path=None, mixture={good: 1.0, bad: 1.0})
    assert f"data.mixture: not UTF-8: {bad}, line 1; " in problem_of(run, private_cache)
    Path(bad).unlink()
    assert f"data.mixture: no file matches '{bad}'" in problem_of(run, private_cache)


@pytest.mark.parametrize("streaming", [False, True])
def test_json_that_is_not_utf8_is_named_with_the_line(streaming: bool, tmp_path: Path, private_cache: Path) -> None:
    write_json(tmp_path / "a.json", DOCUMENTS)
    with (tmp_path / "a.json").open("ab") as file:
        file.write(b'{"text": "na\xefve", "number": 7}\n')
    run = run_over(source="json", path=str(tmp_path / "a.json"), streaming=streaming)

    def read() -> None:
        feed = open_feed(run, cache_dir=private_cache)
        feed.open(instance=InstanceId(0), peer=PeerId("p"), round=0, first_sample=0).take(300)

    with pytest.raises(ConfigError, match=rf"data\.path: not UTF-8: {tmp_path}/a\.json, line 121; ") as caught:
        read()
    assert caught.value.code == "E207"


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_empty_corpus(write_shards: WriteShards, private_cache: Path, kind: str) -> None:
    assert "holds no text" in problem_of(run_over(source=kind, path=write_shards(kind, [""] * 6)), private_cache)


def test_too_few_rows(write_shards: WriteShards, private_cache: Path) -> None:
    run = run_over(source="json", path=write_shards("json"), sequence_length=4096)
    problem = problem_of(replace(run, batch=replace(run.batch, initial_batch=3)), private_cache)
    assert "gives 1 training row of 4096 tokens, and batch.initial_batch is 3" in problem


def test_no_heldout_document(write_shards: WriteShards, private_cache: Path, tmp_path: Path) -> None:
    run = run_over(source="json", path=write_shards("json"), heldout_fraction=1e-6)
    assert "data.heldout_fraction: 1e-06" in problem_of(run, private_cache)
    (tmp_path / "book.txt").write_text("lines without an empty one between them\n" * 90)
    single = problem_of(run_over(source="text", path=str(tmp_path / "book.txt")), private_cache)
    assert "documents (empty lines part those of a file), raise it, or name files in data.heldout_path" in single


def test_problems_of_named_heldout_files_are_theirs(private_cache: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", DOCUMENTS)
    write_json(tmp_path / "empty.json", ["", ""])
    (tmp_path / "latin.json").write_bytes(b'{"text": "na\xefve", "number": 7}\n')
    for name, problem in (
        ("none.json", "data.heldout_path: no file matches"),
        ("", "data.heldout_path: .* is a directory"),
        ("empty.json", "data.heldout_path: .*empty.json' holds nothing to evaluate on; give documents that are not empty"),
        ("latin.json", "data.heldout_path: not UTF-8: .*/latin.json, line 1; "),
    ):
        run = run_over(source="json", path=str(tmp_path / "a.json"), heldout_path=str(tmp_path / name))
        said = problem_of(run, private_cache)
        assert re.match(problem, said) and "data.heldout_fraction" not in said, said
        if name in ("none.json", ""):
            with pytest.raises(ConfigError, match=problem):
                files_digest(run.data)
    data = replace(run_over(source="json").data, mixture={str(tmp_path / "a.json"): 1.0, str(tmp_path / "none.json"): 1.0})
    with pytest.raises(ConfigError, match=r"data\.mixture: no file matches"):
        files_digest(data)


def test_another_embedded_text_is_read_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_library(*texts: str) -> None:
        documents = [Document(identity=f"modules/{number}", text=text) for number, text in enumerate(texts)]
        monkeypatch.setattr(corpus, "documents", lambda: iter(documents))

    of_library("import this", "pass")
    begun = replace(DataConfig(), digest=files_digest(DataConfig()))
    assert re.fullmatch("[0-9a-f]{64}", begun.digest)
    assert other_embedded_text(begun) is None and other_embedded_text(DataConfig()) is None
    of_library("import thisp", "ass")
    warning = other_embedded_text(begun)
    assert warning is not None and platform.python_version() in warning
    check_files(begun)
    of_files = DataConfig(source="text", path="text.txt", digest="1" * 64)
    assert other_embedded_text(of_files) is None, "other files are refused"


@pytest.mark.parametrize("is_mixed", [False, True])
def test_files_for_evaluation_that_are_also_trained_on_are_named(
    is_mixed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("a.json", "b.json", "test.json")):
        write_json(tmp_path / name, DOCUMENTS[number:])
    (tmp_path / "copy.json").write_bytes((tmp_path / "b.json").read_bytes())
    every, alone, held, copy = (str(tmp_path / name) for name in ("*.json", "[ab].json", "test.json", "copy.json"))

    def run(path: str, heldout: str | None) -> RunConfig:
        named = run_over(source="json", path=None if is_mixed else path, heldout_path=heldout)
        return replace(named, data=replace(named.data, mixture={path: 1.0} if is_mixed else {}))

    for path, heldout in ((alone, held), (every, None)):
        assert heldout_overlap(run(path, heldout).data) is None
        _check_heldout(run(path, heldout), is_new=True)
    by = "data.mixture" if is_mixed else "data.path"
    for path, heldout in ((every, held), (alone, copy)):
        problem = rf"data\.heldout_path: {heldout} would also be trained on, by {by}; "
        with pytest.raises(ConfigError, match=problem) as caught:
            _check_heldout(run(path, heldout), is_new=True)
        assert caught.value.code == "E207"
        capsys.readouterr()
        _check_heldout(run(path, heldout), is_new=False)  # a run that exists goes on
        assert re.search(f"held-out losses of this run say little; {problem}", capsys.readouterr().out)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_empty_split_for_evaluation_is_named(private_cache: Path, tmp_path: Path, streaming: bool) -> None:
    directory = tmp_path / "published"
    directory.mkdir()
    write_parquet(directory / "train.parquet", DOCUMENTS)
    write_parquet(directory / "validation.parquet", ["", ""])
    run = run_over(source="hub", path=str(directory), heldout_split="validation", streaming=streaming)

    def read() -> None:
        open_feed(run, cache_dir=private_cache).heldout(1)

    with pytest.raises(ConfigError, match=r"data\.heldout_split: 'validation'") as caught:
        read()
    assert "heldout_fraction" not in str(caught.value)


@pytest.mark.parametrize("has_own_data", [False, True])
def test_drawn_heldout_rows_of_one_token(private_cache: Path, tmp_path: Path, has_own_data: bool) -> None:
    """Of two held-out rows, of all data or of each data set, the second has one token, and the seed draws one of them."""
    heldout = next(text for text in map("{:032d}".format, range(100)) if is_heldout(text, 0.2))
    write_text(tmp_path / "a.txt", [*(text for text in DOCUMENTS if not is_heldout(text, 0.2)), heldout])
    path = str(tmp_path / "a.txt")
    run = run_over(source="text", path=path)
    if has_own_data:
        write_text(tmp_path / "b.txt", DOCUMENTS)
        names = (str(tmp_path / "b.txt"), path)
        data = replace(run.data, path=None, mixture=dict.fromkeys(names, 1.0))
        run = replace(run, data=data, instances=replace(run.instances, count=2, data=names))

    def drawn(seed: int, *, rows: int) -> RunConfig:
        return replace(run, evaluation=replace(run.evaluation, seed=seed, rows=rows * (1 + has_own_data)))

    def predicted(seed: int) -> int:
        feed = opened(drawn(seed, rows=2), private_cache).of((InstanceId(1),) if has_own_data else ())
        assert feed.heldout(2).num_predicted_tokens == 31
        return feed.heldout(1).num_predicted_tokens

    short = next(seed for seed in range(100) if not predicted(seed))
    assert f"evaluation.rows: {1 + has_own_data} draws held-out rows of one token" in problem_of(
        drawn(short, rows=1), private_cache
    )
    opened(drawn(next(seed for seed in range(100) if predicted(seed)), rows=1), private_cache)


def test_a_run_that_draws_one_row_is_evaluated_on_a_file_whose_last_row_has_one_token(
    private_cache: Path, tmp_path: Path
) -> None:
    write_text(tmp_path / "a.txt", [f"{1:032d}"])
    run = run_over(source="python")
    for seed in range(8):
        evaluated = _over_file(replace(run, evaluation=replace(run.evaluation, rows=1, seed=seed)), tmp_path / "a.txt")
        assert opened(evaluated, private_cache).heldout(evaluated.evaluation.rows).num_predicted_tokens == 31


@pytest.mark.parametrize("streaming", [False, True])
def test_unreachable_hub(private_cache: Path, streaming: bool) -> None:
    run = run_over(source="hub", path="nobody/nothing", name="en", revision="v1", streaming=streaming)
    problem = problem_of(run, private_cache)
    assert "data.path: 'nobody/nothing' (name 'en', revision 'v1', split 'train') cannot be loaded from the hub" in problem


def test_settings_that_would_be_ignored(private_cache: Path) -> None:
    assert "data.streaming: true" in problem_of(run_over(source="python", streaming=True), private_cache)
    assert "data.split: test" in problem_of(run_over(source="json", path="x", split="test"), private_cache)


def test_what_a_killed_process_left_is_removed_once_it_is_old(write_shards: WriteShards, private_cache: Path) -> None:
    left, busy = (private_cache / f"{indexing.UNFINISHED}{name}" for name in ("old", "new"))
    for folder in (left, busy):
        folder.mkdir(parents=True)
        (folder / "training.bin").write_bytes(b"rows")
    for path in (left / "training.bin", left):
        os.utime(path, (0, 0))
    opened(run_over(source="json", path=write_shards("json")), private_cache)
    assert not left.exists() and busy.exists(), "another process may be at work in the younger one"


@pytest.mark.parametrize("sizes", [(), (3,), (3, 3, 3), (9,), (9, 1, 9), (1, 2, 3, 4, 5)])
def test_texts_are_tokenised_in_order_and_few_at_once(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    class Noted(ByteTokenizer):
        def encode(self, texts: Sequence[str]) -> list[TokenIds]:
            asked.append(list(texts))
            return super().encode(texts)

    monkeypatch.setattr(indexing, "CHARACTERS_AT_ONCE", 6)
    given = [chr(97 + place) * size for place, size in enumerate(sizes)]
    assert [bytes(ids).decode() for ids in indexing._encoded(given, Noted())] == given
    assert [text for some in asked for text in some] == given and all(asked)
    assert all(len(some) == 1 or sum(map(len, some)) <= 6 for some in asked)
