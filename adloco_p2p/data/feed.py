"""The data of a run, as the training room reads it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.core.model.words import plural
from adloco_p2p.data.baseline import unigram_entropy
from adloco_p2p.data.indexing import IndexedRows, index_rows
from adloco_p2p.data.packing import ConcatenatedRows, Rows
from adloco_p2p.data.sampling import MixedOrder, SampleOrder, permute, round_keys
from adloco_p2p.data.source import bad_bytes_named, check_files, check_settings, columns_of
from adloco_p2p.data.streaming import StreamedFeed
from adloco_p2p.data.tokenizer import check_vocabulary, open_tokenizer
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.batch import Batch, Feed

BASELINE_ROWS = 2048
"""Training rows in which token frequencies are counted."""


def open_feed(run: RunConfig, *, cache_dir: Path | None) -> Feed:
    """Return the feed of a run. `cache_dir` keeps converted and tokenised data between starts; None: data stay in memory, and
    in the own cache of `datasets`.

    Raises ConfigError where data or tokenizer are missing, unreachable, empty or too small, and StorageError where the cache
    cannot be written.
    """
    check_settings(run.data)
    check_files(run.data)
    tokenizer = open_tokenizer(run.tokenizer)
    check_vocabulary(run, tokenizer)
    if run.data.streaming:
        return StreamedFeed(run.data, tokenizer, seed=run.seed, cache_dir=cache_dir)
    paths: list[str | None] = [*run.data.data_sets] or [run.data.path]
    setting, parts = "data.mixture" if run.data.mixture else "data.path", []
    for path in paths:
        data = replace(run.data, path=path, mixture={})
        with bad_bytes_named(run.data):
            parts.append(index_rows(data, tokenizer, cache_dir=cache_dir, setting=setting))
    for path, part in zip(paths, parts, strict=True):
        _check_rows(run, part, path)
    feed = feed_over(run, parts, vocab_size=tokenizer.vocab_size)
    _check_heldout(run, feed)
    return feed


def feed_over(run: RunConfig, parts: Sequence[IndexedRows], *, vocab_size: int) -> "IndexedFeed":
    """Return the feed over the rows of a run's data: of each data set (`DataConfig.data_sets`), or of the only one."""
    if not run.data.mixture:
        return IndexedFeed(parts[0], vocab_size=vocab_size, seed=run.seed, heldout_seed=run.evaluation.seed)
    names, weights = [*run.data.data_sets], [*run.data.data_sets.values()]
    heldout = parts[: 1 if run.data.heldout_path is not None else None]  # named files are one data set
    return MixedFeed(
        parts,
        weights,
        heldout=heldout,
        vocab_size=vocab_size,
        seed=run.seed,
        heldout_seed=run.evaluation.seed,
        own=tuple(names.index(name) for name in run.instances.data),
    )


class IndexedFeed:
    """A feed with random access to all rows. The plan's sample numbers determine the rows, so there is no cursor to save."""

    def __init__(
        self,
        rows: IndexedRows,
        *,
        vocab_size: int,
        seed: int | str,
        heldout_seed: int | str | None = None,
        order: MixedOrder | None = None,
    ) -> None:
        """`heldout_seed` draws the held-out rows; None: `seed`. `order`: the order of mixed training rows; None: a random order
        of all of them in each epoch."""
        assert rows.training.num_rows and rows.heldout.num_rows
        self.vocab_size = vocab_size
        self.sequence_length = rows.training.length
        self._order = order or SampleOrder(seed=seed, num_rows=rows.training.num_rows)
        self.rows = rows
        self._seed = seed
        self._heldout_seed = seed if heldout_seed is None else heldout_seed

    def open(self, *, instance: InstanceId, peer: PeerId, round: int, first_sample: int) -> "IndexedStream":  # noqa: ARG002
        """Return the samples of the instance's order from `first_sample` on; the plan gives every host its own range of
        them."""
        return IndexedStream(self.rows.training, self._order, instance=instance, first_sample=first_sample)

    def heldout(self, num_rows: int) -> Batch:
        """Return rows from all over the held-out documents, always the same ones; fewer where there are fewer."""
        heldout = self.rows.heldout
        places = np.arange(min(num_rows, heldout.num_rows), dtype=np.int64)
        return heldout.gather(permute(places, size=heldout.num_rows, keys=round_keys(self._heldout_seed, "heldout")))

    def drawn(self, lot: str, num_rows: int) -> Batch:
        """Return training rows drawn by `lot`. Nobody can train for them in advance, because too many rows may be drawn."""
        training = self.rows.training
        places = np.arange(min(num_rows, training.num_rows), dtype=np.int64)
        return training.gather(permute(places, size=training.num_rows, keys=round_keys(self._seed, "drawn", lot)))

    def unigram_entropy(self, num_rows: int) -> float:
        """Return the baseline of held-out losses over `num_rows` (`baseline.py`), from a sample of the training rows."""
        training = self.rows.training
        places = np.arange(min(BASELINE_ROWS, training.num_rows), dtype=np.int64)
        sample = training.gather(permute(places, size=training.num_rows, keys=round_keys(self._seed, "baseline")))
        return unigram_entropy(sample, self.heldout(num_rows), vocab_size=self.vocab_size)

    def of(self, reads: tuple[InstanceId, ...]) -> "IndexedFeed":
        """Return this feed, which has one data set."""
        assert not reads
        return self

    def state(self, instance: InstanceId) -> dict[str, object]:  # noqa: ARG002
        return {}

    def restore(self, instance: InstanceId, state: dict[str, object]) -> None:
        """Do nothing: sample numbers are absolute."""


class MixedFeed(IndexedFeed):
    """A feed over several data sets, from which rows are drawn in proportion to weights."""

    def __init__(
        self,
        parts: Sequence[IndexedRows],
        weights: Sequence[float],
        *,
        heldout: Sequence[IndexedRows],
        vocab_size: int,
        seed: int | str,
        heldout_seed: int | str | None,
        own: tuple[int, ...] = (),
    ) -> None:
        """`heldout`: the data sets of the held-out rows. `own`: for each instance the number of its own data set; empty: no
        instance has one."""
        sizes = [part.training.num_rows for part in parts]
        super().__init__(
            IndexedRows(
                training=ConcatenatedRows([part.training for part in parts]),
                heldout=ConcatenatedRows([part.heldout for part in heldout]),
            ),
            vocab_size=vocab_size,
            seed=seed,
            heldout_seed=heldout_seed,
            order=MixedOrder(seed=seed, sizes=sizes, weights=weights),
        )
        self._parts, self._weights, self._own = parts, weights, own
        self._feeds: dict[tuple[int, ...], IndexedFeed] = {tuple(range(len(parts))): self}

    def of(self, reads: tuple[InstanceId, ...]) -> IndexedFeed:
        """Return the mixture of those data sets alone, by the same weights. Its orders are its own, so a sample number names
        another row."""
        numbers = tuple(sorted({self._own[instance] for instance in reads})) or tuple(range(len(self._parts)))
        if numbers not in self._feeds:
            parts = [self._parts[number] for number in numbers]
            self._feeds[numbers] = MixedFeed(
                parts,
                [self._weights[number] for number in numbers],
                heldout=parts,
                vocab_size=self.vocab_size,
                seed=f"{self._seed}/{'+'.join(map(str, numbers))}",
                heldout_seed=self._heldout_seed,
            )
        return self._feeds[numbers]


class IndexedStream:
    """An endless stream of samples, epoch after epoch."""

    def __init__(self, rows: Rows, order: SampleOrder | MixedOrder, *, instance: InstanceId, first_sample: int) -> None:
        self._rows = rows
        self._order = order
        self._instance = instance
        self._next_sample = first_sample

    def take(self, num_samples: int) -> Batch:
        rows = self._order.rows(self._instance, first_sample=self._next_sample, num_samples=num_samples)
        self._next_sample += num_samples
        return self._rows.gather(rows)

    def read_ahead(self, num_samples: int) -> None:
        """Do nothing: each round's plan gives the place of the next rows, and reading them from memory or a file takes no
        time."""


def _check_rows(run: RunConfig, rows: IndexedRows, path: str | None) -> None:
    """Raise ConfigError unless there is text for one inner step without a repeated row, and something to evaluate on."""
    where = f"data.path: {path!r}" if path is not None else f"data.source: {run.data.source}"
    length = run.data.sequence_length
    if rows.training.num_rows + rows.heldout.num_rows == 0:
        columns = columns_of(run.data)
        what = (
            f"no text (data.text_column {columns[0]!r})"
            if columns == (run.data.text_column,)
            else f"nothing to learn within {length} tokens (columns {', '.join(columns)})"
        )
        answers = (
            " and have answers, which are messages of the role `assistant`" if run.data.messages_column is not None else ""
        )
        raise ConfigError(f"{where} holds {what}; give documents that are not empty{answers}", code="E207")
    problems: list[str] = []
    if rows.training.num_rows < run.batch.initial_batch:
        problems.append(
            f"{where} gives {plural(rows.training.num_rows, 'training row')} of {length} tokens, and batch.initial_batch is "
            f"{run.batch.initial_batch}; give more text, or lower data.sequence_length or batch.initial_batch"
        )
    named_heldout = (("path", run.data.heldout_path), ("split", run.data.heldout_split))
    if rows.heldout.num_rows == 0 and any(value is not None for _, value in named_heldout):
        problems += [
            f"data.heldout_{name}: {value!r} holds nothing to evaluate on; give documents that are not empty, or leave it out"
            for name, value in named_heldout
            if value is not None
        ]
    elif rows.heldout.num_rows == 0:
        unit = " (empty lines part those of a file)" if run.data.source == "text" else ""
        named = {"hub": ", or name a split in data.heldout_split", "python": "", "plugin": ""}
        problems.append(
            f"data.heldout_fraction: {run.data.heldout_fraction} draws no document of {where}; give more documents{unit},"
            " raise it" + named.get(run.data.source, ", or name files in data.heldout_path")
        )
    if problems:
        raise ConfigError(*problems, code="E207")


def _check_heldout(run: RunConfig, feed: IndexedFeed) -> None:
    """Raise ConfigError where held-out rows have nothing to predict: the last row of a line of tokens may hold a single one,
    and be the only row drawn."""
    readers: list[tuple[InstanceId, ...]] = [(first,) for first in run.readers.values()] or [()]
    num_rows = run.evaluation.rows // len(readers)
    for reads in readers:
        drawn = feed.of(reads)
        if not any(drawn.heldout(count).num_predicted_tokens for count in (1, num_rows)):  # mostly the first row suffices
            raise ConfigError(
                f"evaluation.rows: {run.evaluation.rows} draws held-out rows of one token, which predict nothing; raise it, or"
                " set another evaluation.seed",
                code="E207",
            )
