"""Whole data sets as packed rows, in memory or on disk; the name on disk changes with everything that the rows depend on.

Layout of a cache entry, `rows-<digest>/`: `training.bin` and `heldout.bin`, rows in the machine's byte order; `meta.json`, the
number of tokens of each. Entries are written aside, flushed and renamed, so an unfinished one never has the final name.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adloco_p2p.config.run_config import DataConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.data import corpus
from adloco_p2p.data.chat_template import Example
from adloco_p2p.data.corpus import Document
from adloco_p2p.data.examples import ExampleReader, examples_of, pack_examples
from adloco_p2p.data.packing import Rows, TokenRows, pack, padding_of, smallest_dtype, terminated
from adloco_p2p.data.source import anonymous, columns_of, is_heldout, load_split, plugin_texts, texts_of
from adloco_p2p.data.tokenizer import TokenIds, Tokenizer
from adloco_p2p.errors import StorageError, storage_code

CACHE_FORMAT = 1
"""The number of the cache's format, raised whenever the same data would give other rows or another layout."""

SIDES = ("training", "heldout")
UNFINISHED = "making-rows-"
"""The beginning of the name of a directory that is being written."""
ABANDONED_SECONDS = 3600.0
"""A directory without a change for so long is that of a killed process."""
CHARACTERS_AT_ONCE = 4_000_000
"""The most text that is tokenised in one call, unless a single document is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedRows:
    """The rows on both sides of the held-out split."""

    training: Rows
    heldout: Rows


def index_rows(data: DataConfig, tokenizer: Tokenizer, *, cache_dir: Path | None, setting: str = "data.path") -> IndexedRows:
    """Return all rows of one data set. They are made in memory every time where there is no `cache_dir`, where only a part of a
    row is learned, and for the embedded text or a plugin. `setting`: the name that errors give to `data.path`.

    Raises ConfigError where the data cannot be loaded and StorageError where the cache cannot be written.
    """
    if data.source == "python":
        return _in_memory(_split_by_identity([list(corpus.documents())], data.heldout_fraction), data, tokenizer)
    if data.source == "plugin":
        return _in_memory(_split_by_identity([anonymous(plugin_texts(data))], data.heldout_fraction), data, tokenizer)
    if cache_dir is not None and data.digest:  # another start need not load `datasets`, which takes half a second
        cached = _load(_entry(cache_dir, data, tokenizer, []), data, tokenizer)
        if cached is not None:
            return cached
    dataset = load_split(data, split=data.split, cache_dir=cache_dir, setting=setting)
    datasets = [dataset]
    if data.heldout_split is not None:
        datasets.append(load_split(data, split=data.heldout_split, cache_dir=cache_dir))
    elif data.heldout_path is not None:
        named = replace(data, path=data.heldout_path)
        datasets.append(load_split(named, split=data.split, cache_dir=cache_dir, setting="data.heldout_path"))
    if columns_of(data) != (data.text_column,):
        return _example_rows(datasets, data, tokenizer)
    if len(datasets) > 1:
        documents = _split_by_dataset(dataset, datasets[1], data.text_column)
    else:
        documents = _split_by_identity(map(anonymous, texts_of(dataset, data.text_column)), data.heldout_fraction)
    # The digest of local files names the entry, or else the files of datasets' own cache, whose names contain a digest of the
    # data. A data set that is held in memory has neither.
    files = [[str(file["filename"]) for file in dataset.cache_files] for dataset in datasets if not data.digest]
    if cache_dir is None or not all(files):
        return _in_memory(documents, data, tokenizer)
    entry = _entry(cache_dir, data, tokenizer, files)
    cached = _load(entry, data, tokenizer)
    if cached is None:
        _store(entry, documents, data, tokenizer)
        cached = _load(entry, data, tokenizer)
    if cached is None:
        raise StorageError(f"{entry}: the rows just written cannot be read back")
    return cached


def _example_rows(datasets: list[Any], data: DataConfig, tokenizer: Tokenizer) -> IndexedRows:
    """Return conversations or completions as rows, split by their identity, or by the data set where there are two."""
    sides: tuple[list[Example], list[Example]] = ([], [])
    with closing(ExampleReader(data, tokenizer)) as reader:
        for number, dataset in enumerate(datasets):
            for identity, example in examples_of(dataset, reader):
                is_held = number == 1 or (len(datasets) == 1 and is_heldout(identity, data.heldout_fraction))
                sides[is_held].append(example)
    training, heldout = (
        pack_examples(
            side,
            sequence_length=data.sequence_length,
            vocab_size=tokenizer.vocab_size,
            padding=tokenizer.end_of_document,
        )
        for side in sides
    )
    return IndexedRows(training=training, heldout=heldout)


SplitDocuments = Iterator[tuple[bool, list[str]]]
"""Pieces of the data: whether they are held out, and their texts."""


def _split_by_identity(batches: Iterable[list[Document]], fraction: float) -> SplitDocuments:
    for batch in batches:
        sides: tuple[list[str], list[str]] = ([], [])
        for document in batch:
            sides[is_heldout(document.identity, fraction)].append(document.text)
        yield False, sides[False]
        yield True, sides[True]


def _split_by_dataset(training: Any, heldout: Any, column: str) -> SplitDocuments:
    for texts in texts_of(training, column):
        yield False, texts
    for texts in texts_of(heldout, column):
        yield True, texts


def _in_memory(documents: SplitDocuments, data: DataConfig, tokenizer: Tokenizer) -> IndexedRows:
    sides: tuple[list[TokenIds], list[TokenIds]] = ([], [])
    for is_held, texts in documents:
        sides[is_held].extend(_encoded(texts, tokenizer))
    training, heldout = (
        pack(
            tokens,
            sequence_length=data.sequence_length,
            end_of_document=tokenizer.end_of_document,
            dtype=smallest_dtype(tokenizer.vocab_size),
            is_cut=data.attention == "document",
        )
        for tokens in sides
    )
    return IndexedRows(training=training, heldout=heldout)


def _encoded(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[TokenIds]:
    """Yield the tokens of each text. A tokenizer takes over a hundred bytes for each token of one call, so long documents are
    not all given at once."""
    first = size = 0
    for place, text in enumerate(texts):
        if size + len(text) > CHARACTERS_AT_ONCE and place > first:
            yield from tokenizer.encode(texts[first:place])
            first, size = place, 0
        size += len(text)
    if first < len(texts):
        yield from tokenizer.encode(texts[first:])


# --- on disk ---------------------------------------------------------------------------------------------------------


def _entry(cache_dir: Path, data: DataConfig, tokenizer: Tokenizer, files: list[list[str]]) -> Path:
    """Return the path of the cache entry. `files`: the files from which the data are read, where `data` has no digest of
    them."""
    key = {
        "format": CACHE_FORMAT,
        "byte_order": sys.byteorder,
        "data": data,
        "tokenizer": tokenizer.fingerprint(),
        "files": files,
    }
    return cache_dir / f"rows-{hashlib.sha256(canonical.encode(key)).hexdigest()[:32]}"


def _store(entry: Path, documents: SplitDocuments, data: DataConfig, tokenizer: Tokenizer) -> None:
    """Tokenise piece by piece into files beside the entry, then give them its name."""
    dtype = smallest_dtype(tokenizer.vocab_size)
    end = tokenizer.end_of_document
    num_tokens = [0, 0]
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=entry.parent))
        _remove_abandoned(entry.parent, now=aside.stat().st_mtime)
        try:
            with (aside / "training.bin").open("wb") as training, (aside / "heldout.bin").open("wb") as heldout:
                outputs = (training, heldout)
                for is_held, texts in documents:
                    for line in terminated(_encoded(texts, tokenizer), end_of_document=end, dtype=dtype):
                        outputs[is_held].write(line.tobytes())
                        num_tokens[is_held] += len(line)
                for output, count in zip(outputs, num_tokens, strict=True):
                    padding = padding_of(count, sequence_length=data.sequence_length)
                    output.write(np.full(padding, end, dtype=dtype).tobytes())
                    output.flush()
                    os.fsync(output.fileno())
            (aside / "meta.json").write_text(json.dumps(dict(zip(SIDES, num_tokens, strict=True))), encoding="ascii")
            _put(aside, entry, is_sound=_load(entry, data, tokenizer) is not None)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        problem = f"{entry}: cannot write the tokenised rows: {error.strerror or error}"
        raise StorageError(problem, code=storage_code(error.errno)) from error


def _remove_abandoned(directory: Path, *, now: float) -> None:
    """Remove what killed processes left unfinished. Another process may be at work beside this one: its files change. `now`, in
    seconds, is by the clock of the file system."""
    for left in directory.glob(f"{UNFINISHED}*"):
        with suppress(OSError):
            newest = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if now - newest > ABANDONED_SECONDS:
                shutil.rmtree(left)


def _put(aside: Path, entry: Path, *, is_sound: bool) -> None:
    """Give a finished directory its name. Where another process was faster, its rows are the same and stay."""
    if not is_sound:
        shutil.rmtree(entry, ignore_errors=True)
    try:
        aside.rename(entry)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _load(entry: Path, data: DataConfig, tokenizer: Tokenizer) -> IndexedRows | None:
    """Return the rows of an entry, mapped from its files; None where it is absent or does not have the size that it states."""
    try:
        meta = json.loads((entry / "meta.json").read_text(encoding="ascii"))
        training, heldout = (_map_rows(entry / f"{side}.bin", meta[side], data, tokenizer) for side in SIDES)
    except (OSError, ValueError, KeyError):
        return None
    return IndexedRows(training=training, heldout=heldout)


def _map_rows(path: Path, num_tokens: int, data: DataConfig, tokenizer: Tokenizer) -> TokenRows:
    """Return the rows of a file, mapped. Raises ValueError for a file of another size."""
    dtype = smallest_dtype(tokenizer.vocab_size)
    stored = num_tokens + padding_of(num_tokens, sequence_length=data.sequence_length)
    if path.stat().st_size != stored * dtype.itemsize:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, {stored * dtype.itemsize} expected")
    # an empty file cannot be mapped
    ids = np.memmap(path, dtype=dtype, mode="r") if stored else np.empty(0, dtype=dtype)
    end = tokenizer.end_of_document if data.attention == "document" else None
    return TokenRows(ids=ids.reshape(-1, data.sequence_length), num_tokens=num_tokens, end_of_document=end)
