"""One run of one cell: real training in a simulated swarm, with the production rules, codecs, reduction and outer step."""

import time
from dataclasses import asdict
from functools import cache
from math import isfinite

import numpy as np
import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.median import upper_weighted_median
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.data.indexing import IndexedRows
from adloco_p2p.data.packing import Rows, TokenRows
from adloco_p2p.numerics.aggregate import Aggregate, aggregate
from adloco_p2p.numerics.aggregation.gram import partial_gram, summed_gram
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.aggregation.robust import cosines, distances_beside_usual, median_cosines
from adloco_p2p.numerics.aggregation.rule import Decision
from adloco_p2p.numerics.batch import Batch
from adloco_p2p.numerics.codecs import codec_named
from benchmarks.method.run import BASE, indexed, load_base
from benchmarks.method.store import Record, digest_of
from benchmarks.robustness.attacks import ATTACKS, Scene
from benchmarks.robustness.cells import Cell
from benchmarks.robustness.training import Trainees, apply_, measure_of, rows_of_host, schedule_of

INNER_STEPS = 32
SETTINGS = ("work.inner_steps=32", "batch.test=constant", "inner.batch_scaling=none")
"""Beside base.yaml, for all codecs but `topk2`: the outer optimizer is Nesterov's, with a rate of 0.7."""
SPARSE_SETTINGS = ("outer.kind=sgd", "outer.learning_rate=1.0", "averaging.feedback=0.95")
DIVERGED = 1e6
"""A larger outer parameter is the end of a run."""


def key_of(cell: Cell, seed: int) -> str:
    """Names a run by everything that its result depends on, beside the code."""
    differences = {name: value for name, value in asdict(cell).items() if value != asdict(Cell())[name]}
    plain = {**differences, "seed": seed, "settings": _settings(cell), "rounds": cell.rounds, "base": BASE.read_text("utf-8")}
    return digest_of(plain)


def _settings(cell: Cell) -> list[str]:
    """Return the settings beside base.yaml, but the outer momentum, which is a field of the cell."""
    return [f"work.rounds={cell.rounds}", *SETTINGS, *(SPARSE_SETTINGS if cell.codec == "topk2" else ())]


def run_cell(cell: Cell, seed: int) -> Record:
    """Train a cell's honest hosts, and its liars which have contributions of their own. Takes seconds on one core."""
    torch.set_num_threads(1)
    started = time.process_time()
    swarm = Swarm(cell, seed)
    for number in range(cell.rounds):
        swarm.round(number)
        if swarm.has_diverged:
            break
    return {
        "cell": asdict(cell),
        "seed": seed,
        "loss": swarm.loss(),
        "left_out": swarm.left_out,
        "least_ratio": swarm.least_ratio,
        "nearest": swarm.nearest,
        "liars_part": swarm.liars_part,
        "processor_seconds": round(time.process_time() - started, 1),
    }


class Swarm:
    """The hosts of one instance; the last `liars` of them lie."""

    def __init__(self, cell: Cell, seed: int) -> None:
        outer = [] if cell.codec == "topk2" else [f"outer.momentum={cell.momentum}"]
        self.run: RunConfig = load_base([*_settings(cell), *outer, f"seed={seed}"])
        self.rows, self.vocab_size = indexed()
        self._cell = cell
        self._num_honest = cell.hosts - cell.liars
        self._num_hosts = cell.hosts if cell.attack else self._num_honest
        self.rule = rule_named(cell.rule, division=cell.division)
        self._codec = codec_named(cell.codec)
        self._trainees = Trainees(self.run, vocab_size=self.vocab_size, num_hosts=self._num_hosts)
        self.outer = self._trainees.start.clone()
        self.momentum = torch.zeros_like(self.outer)
        self._residual = torch.zeros(self._num_hosts, len(self.outer))
        self._before = torch.zeros_like(self.outer)
        self._generator = torch.Generator().manual_seed(seed)
        self._feeds = [self._feed(host, seed) for host in range(self._num_hosts)]
        self.left_out: list[tuple[int, ...]] = []
        """Per round, the hosts that the rule left out."""
        self.least_ratio: list[float] = []
        """Per round, the least median cosine of an honest host, over that of the median host."""
        self.nearest: list[float] = []
        """Per round, the least distance of two honest hosts, over the one to most others."""
        self.liars_part: list[float] = []
        """Per round, what part of the coefficients the liars got."""

    @property
    def has_diverged(self) -> bool:
        return not float(self.outer.abs().max()) <= DIVERGED

    def loss(self) -> float | None:
        """Held-out, of the outer parameters; none where they diverged."""
        loss = measure_of(self.run, self.rows, self.vocab_size)(self.outer)
        return round(loss, 5) if isfinite(loss) else None

    def round(self, number: int) -> None:
        rows = [self._take(host, number) for host in range(self._num_hosts)]
        sent = self.outer - self._trainees.inner_round(self.outer, rows, schedule_of(self.run, number))
        sent += self.run.averaging.feedback * self._residual
        if self._cell.attack:
            scene = Scene(
                honest=sent[: self._num_honest],
                own=sent[self._num_honest :],
                homewards=self.outer - self._trainees.start,
                before=self._before,
                generator=self._generator,
                averaged=lambda liars: self._average(torch.cat([sent[: self._num_honest], liars])).vector,
            )
            sent[self._num_honest :] = ATTACKS[self._cell.attack](scene)
        if not bool(torch.isfinite(sent).all()):
            self.outer.fill_(torch.nan)
            return
        found = self._average(sent)
        for host, residual in enumerate(found.residuals[: self._num_honest]):
            if residual is not None:
                self._residual[host] = residual
        self._before = found.vector
        self._note(found.decision, sent)
        apply_(self.run, self.outer, self.momentum, found.vector)

    def _average(self, sent: torch.Tensor) -> Aggregate:
        ones = [1] * self._num_hosts
        return aggregate(list(sent), ones, [INNER_STEPS] * self._num_hosts, rule=self.rule, codec=self._codec)

    def _note(self, decision: Decision, sent: torch.Tensor) -> None:
        hosts, ones = range(self._num_hosts), [1] * self._num_hosts
        decoded = [self._codec.decode(self._codec.encode(vector)).numpy() for vector in sent]
        between = cosines(summed_gram([partial_gram(decoded)], self._num_hosts))
        found = median_cosines(between, ones, hosts)
        middle = upper_weighted_median(found, ones)
        self.left_out.append(decision.left_out)
        self.least_ratio.append(round(min(found[: self._num_honest]) / middle, 3) if middle > 0 else 0.0)
        distances = distances_beside_usual(
            [row[: self._num_honest] for row in between[: self._num_honest]], ones[: self._num_honest]
        )
        self.nearest.append(round(min(distance / usual for distance, usual in distances.values()), 3))
        total = sum(decision.coefficients)
        self.liars_part.append(round(sum(decision.coefficients[self._num_honest :]) / total, 4) if total > 0 else 0.0)

    def _take(self, host: int, number: int) -> Batch:
        """The rows of a host in a round, one a step."""
        turn = number if self._cell.data == "uneven" else number * self._cell.hosts + host
        return rows_of_host(self.run, self._feeds[host], host, number, turn=turn)

    def _feed(self, host: int, seed: int) -> IndexedFeed:
        rows = self.rows
        if self._cell.data == "uneven":
            order = _order_by_content()
            piece = order[host * len(order) // self._cell.hosts : (host + 1) * len(order) // self._cell.hosts]
            rows = IndexedRows(training=_picked(_packed(rows.training), piece), heldout=rows.heldout)
        return IndexedFeed(rows, vocab_size=self.vocab_size, seed=seed)


def _packed(rows: Rows) -> TokenRows:
    assert isinstance(rows, TokenRows)
    return rows


def _picked(rows: TokenRows, places: np.ndarray) -> TokenRows:
    ids = rows.ids[places]
    return TokenRows(ids=ids, num_tokens=ids.size)


@cache
def _order_by_content() -> np.ndarray:
    """Whole training rows by the first principal component of how often each token stands in them."""
    rows, vocab_size = indexed()
    ids = _packed(rows.training).ids[:-1]  # the last one may be padded
    counts = np.zeros((len(ids), vocab_size), dtype=np.float32)
    for column in ids.T:
        counts[np.arange(len(ids)), column] += 1
    counts -= counts.mean(axis=0)
    _, components = np.linalg.eigh(counts.T @ counts)
    return np.argsort(counts @ components[:, -1], kind="stable")
