"""One run of one cell: real training of honest hosts, and the scores that each kind of contribution would have had."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.gram import partial_gram, summed_gram
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.assessment import Floats, assessment_score
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from benchmarks.assessed.kinds import KINDS, QUARTER, Senders, joined, of_all_kinds, picked
from benchmarks.assessed.score import plain_score
from benchmarks.method.run import BASE, indexed, load_base
from benchmarks.method.store import digest_of
from benchmarks.robustness.training import apply_

Record = dict[str, Any]
ASSESSED = 4
"""Hosts that are scored per round, in turn, as every kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A swarm of honest hosts."""

    hosts: int = 8
    inner_steps: int = 32
    batch: int = 1
    """Rows of a host per inner step."""
    hidden: int = 32
    """Width of the one layer."""
    codec: str = "float32"
    rounds: int = 16
    rows: int = 64
    """The most given rows that are drawn, and exactly the number of other rows."""


def settings_of(cell: Cell) -> list[str]:
    """Return the settings beside base.yaml."""
    settings = [f"work.rounds={cell.rounds}", f"work.inner_steps={cell.inner_steps}", f"averaging.codec={cell.codec}"]
    settings += ["batch.test=constant", "inner.batch_scaling=none"]
    if cell.hidden != Cell().hidden:
        sizes = {"hidden_size": cell.hidden, "intermediate_size": cell.hidden * 11 // 4}
        heads = {"num_attention_heads": cell.hidden // 16, "num_key_value_heads": cell.hidden // 16}
        settings += [f"model.architecture.{name}={value}" for name, value in {**sizes, **heads}.items()]
        settings += ["inner.learning_rate=3e-3"]
    return settings


def key_of(cell: Cell, seed: int) -> str:
    """Return the key of a run: a digest of everything that its result depends on, except the code."""
    return digest_of({"cell": asdict(cell), "settings": settings_of(cell), "seed": seed, "base": BASE.read_text("utf-8")})


def run_cell(cell: Cell, seed: int) -> Record:
    """Train a cell, and score its hosts as every kind from the second round on. Takes half a minute to minutes on one core."""
    torch.set_num_threads(1)
    started = time.process_time()
    swarm, rounds = Swarm(cell, seed), list[int]()
    scores: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for number in range(cell.rounds):
        for found in swarm.round(number):
            rounds.append(number)
            for kind, score in found.items():
                scores[kind].append(score)
    seconds = round(time.process_time() - started, 1)
    return {"cell": asdict(cell), "seed": seed, "rounds": rounds, **scores, "processor_seconds": seconds}


class Swarm:
    """The hosts of one instance under the plain mean."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.run: RunConfig = load_base([*settings_of(cell), f"seed={seed}"])
        rows, vocab_size = indexed()
        self._cell, self._feed = cell, IndexedFeed(rows, vocab_size=vocab_size, seed=seed)
        self._senders = Senders(self.run, vocab_size=vocab_size, num_hosts=cell.hosts, batch=cell.batch)
        module = build_model(self.run.model, vocab_size=vocab_size, sequence_length=self.run.data.sequence_length, seed=0)
        self._shell = ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)
        self._codec = codec_named(cell.codec)
        self._outer, self._momentum = self._senders.start.clone(), torch.zeros_like(self._senders.start)
        self._residuals = torch.zeros(cell.hosts, len(self._outer))
        self._averaged = torch.zeros_like(self._outer)
        self._generator = torch.Generator().manual_seed(seed)

    def round(self, number: int) -> list[dict[str, list[float]]]:
        """Do one round. Returns for every scored host and every kind: plain score, adjusted score, and the host's weight under
        `robust` over the mean weight of the others. Empty in the first round, before which there is no average."""
        hosts, count, rows = self._cell.hosts, self._cell.inner_steps * self._cell.batch, self._cell.rows
        all_given = hosts * count * self._cell.rounds
        places = [(number * hosts + host) * count for host in range(hosts)]
        given = [self._take(place, count) for place in places]
        trained = self._senders.trained(self._outer, given, [self._take(all_given + place, count) for place in places], number)
        trained = {how: vectors + self.run.averaging.feedback * self._residuals for how, vectors in trained.items()}
        outer, before = self._outer.clone(), self._averaged
        sent = torch.stack([self._decoded(vector) for vector in trained["honest"]])
        self._step(trained["honest"])
        assessed = [(number * ASSESSED + turn) % hosts for turn in range(ASSESSED)] if number else []
        found = []
        for turn, host in enumerate(assessed):
            kinds = of_all_kinds(host, trained, before, self._generator)
            kinds = {kind: self._decoded(vector) for kind, vector in kinds.items()}
            others = (sent.sum(dim=0) - sent[host]) / (hosts - 1)
            unseen = self._take(2 * all_given + (number * ASSESSED + turn) * rows, rows)
            drawn = torch.randperm(count, generator=self._generator)[:rows].sort().values
            scores = self._scores(outer, kinds, others, joined(picked(given[host], drawn), unseen))
            fewer = given[host].rows(0, min(rows, count // QUARTER))
            scores |= self._scores(outer, {"slow": kinds["slow"]}, others, joined(fewer, unseen))
            found.append({kind: [*scores[kind], self._weight(host, kinds[kind], sent)] for kind in KINDS})
        return found

    def _step(self, contributions: torch.Tensor) -> None:
        """Average contributions [n, P] and apply the average."""
        ones, steps = [1] * len(contributions), [self._cell.inner_steps] * len(contributions)
        averaged = aggregate(list(contributions), ones, steps, rule=rule_named("mean"), codec=self._codec)
        for host, residual in enumerate(averaged.residuals):
            if residual is not None:
                self._residuals[host] = residual
        self._averaged = averaged.vector
        apply_(self.run, self._outer, self._momentum, averaged.vector)

    def _weight(self, host: int, vector: torch.Tensor, sent: torch.Tensor) -> float:
        """Return the weight that `robust` gives to `vector` [P] in the host's place, over the mean weight of the others."""
        decoded = [(vector if other == host else one).numpy() for other, one in enumerate(sent)]
        ones, steps = [1] * len(decoded), [self._cell.inner_steps] * len(decoded)
        given = rule_named("robust").decide(summed_gram([partial_gram(decoded)], len(decoded)), ones, steps).coefficients
        return round(given[host] * (len(given) - 1) / (sum(given) - given[host]), 3)

    def _scores(
        self, outer: torch.Tensor, kinds: dict[str, torch.Tensor], others: torch.Tensor, rows: Batch
    ) -> dict[str, list[float]]:
        """Return the plain and the adjusted score of every kind, on rows the last of which nobody has seen. `others` [P]: the
        mean contribution of the other hosts."""
        is_given = np.arange(rows.num_samples) < rows.num_samples - self._cell.rows
        at_start = self._losses(outer, rows)
        common = at_start - self._losses(outer - others, rows)
        drops = {kind: at_start - self._losses(outer - vector, rows) for kind, vector in kinds.items()}
        return {
            kind: [round(plain_score(drop, is_given), 2), round(assessment_score(drop, common, is_given), 2)]
            for kind, drop in drops.items()
        }

    @torch.no_grad()
    def _losses(self, parameters: torch.Tensor, rows: Batch) -> Floats:
        """Return the mean loss of each row over its predicted tokens: [rows]."""
        with self._shell.evaluating(parameters):
            losses = self._shell.token_losses(rows).view(rows.num_samples, -1).sum(dim=1)
        found: Floats = (losses.double() / (rows.labels[:, 1:] != IGNORED_LABEL).sum(dim=1)).numpy()
        return found

    def _decoded(self, vector: torch.Tensor) -> torch.Tensor:
        return self._codec.decode(self._codec.encode(vector))

    def _take(self, first: int, count: int) -> Batch:
        return self._feed.open(instance=InstanceId(0), peer=PeerId("host"), round=0, first_sample=first).take(count)
