"""The loss of ways to average, and of inner steps, that were tried and are not in the product.

python -m benchmarks.not_built run --seeds 1 2 3    train what the kept records and not_built.jsonl lack
python -m benchmarks.not_built report               the tables from both, into docs/results/bytes.md and method.md; keeps both

Model, data, start and inner steps of `benchmarks.presets`: 8 hosts, 20,864 parameters, 1,024 inner steps of one row a host.
A run takes some seven seconds of an idle core. The long ones have 200 averages and 6,400 inner steps, and take six times as
long; their outer momentum is 0.9, by the product's rule.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Literal

import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.data.feed import IndexedFeed
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.tensor_codec import TensorCodec
from adloco_p2p.training.learning_rate import LearningRateSchedule
from benchmarks.method.figures import estimate, losses_of, paired
from benchmarks.method.report import keep_tables
from benchmarks.method.run import indexed, load_base
from benchmarks.method.store import RESULTS, Record, command_line, train_missing
from benchmarks.robustness.training import Trainees, apply_, measure_of

HOSTS, STEPS, AVERAGES = 8, 1024, 32
LONG, LONG_STEPS = 200, 6400
"""Averages and inner steps of a long run."""
MASK = 16
"""One of so many values travels."""
KEPT = RESULTS / "not_built.jsonl.gz"
Change = Literal["none", "mask", "thinned", "carried", "majority", "returned", "tensors"]
"""`mask`: all hosts send only the values at places that are drawn anew for each average. `thinned`, `carried`: the mean comes
back by the codec of the contributions, whose loss is dropped, or carried to the next mean. `majority`: each place takes the
sign that most hosts sent. `returned`: hosts compute their residual from what came back. `tensors`: signs and one scale for each
tensor, both ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    preset: str = "dense"
    settings: tuple[str, ...] = ()
    averages: int = AVERAGES
    steps: int = STEPS
    """All inner steps of a host."""
    late: float = 1.0
    """Inner steps before the first average over those before the last one; between them they fall geometrically."""
    change: Change = "none"
    moments: tuple[str, ...] = ()
    """Moments of AdamW that hosts average with every pseudo-gradient."""
    is_adagrad: bool = False
    """Inner steps of AdaGrad-Norm in place of AdamW."""
    beside: str = "dense"
    """The way that it is compared with."""


BYTES = {
    "dense": Way(),
    "dense, rarely at first: 4 to 1": Way(late=4.0),
    "dense, rarely at first: 16 to 1": Way(late=16.0),
    "dense, one mean of the models at the end": Way(averages=1, settings=("outer.kind=average",)),
    "a sixteenth of the values as int8, random places that all share": Way(preset="int8", change="mask"),
    "sparse": Way(preset="sparse"),
    "sparse, 64 of 4,096 come back, the rest is dropped": Way(preset="sparse", change="thinned", beside="sparse"),
    "sparse, 64 of 4,096 come back, the rest is carried": Way(preset="sparse", change="carried", beside="sparse"),
    "sign": Way(preset="sign"),
    "sign, by majority": Way(preset="sign", change="majority", beside="sign"),
    "sign, residual against what came back": Way(preset="sign", change="returned", beside="sign"),
    "sign, the same, feedback 0.9": Way(preset="sign", settings=("averaging.feedback=0.9",), change="returned", beside="sign"),
    "sign, one scale for each tensor": Way(preset="sign", change="tensors", beside="sign"),
    "long: dense": Way(averages=LONG, steps=LONG_STEPS, beside="long: dense"),
    "long: sign": Way(preset="sign", averages=LONG, steps=LONG_STEPS, beside="long: dense"),
}
_LONG_SIGNS: dict[str, Change] = {
    "long: sign, by majority": "majority",
    "long: sign, residual against what came back": "returned",
    "long: sign, one scale for each tensor": "tensors",
}
BYTES |= {
    name: Way(preset="sign", averages=LONG, steps=LONG_STEPS, change=change, beside="long: sign")
    for name, change in _LONG_SIGNS.items()
}
STEPS_OF_OTHERS = {
    "AdamW": Way(beside="AdamW"),
    "AdamW, second moments averaged": Way(moments=("exp_avg_sq",), beside="AdamW"),
    "AdamW, first moments averaged": Way(moments=("exp_avg",), beside="AdamW"),
    "AdamW, both moments averaged": Way(moments=("exp_avg", "exp_avg_sq"), beside="AdamW"),
    "AdamW, first moments averaged, half as often": Way(averages=16, moments=("exp_avg",), beside="AdamW"),
    "AdamW, averaged half as often": Way(averages=16, beside="AdamW"),
    "AdamW, both moments averaged, a third as often": Way(averages=11, moments=("exp_avg", "exp_avg_sq"), beside="AdamW"),
    "AdamW, averaged a third as often": Way(averages=11, beside="AdamW"),
    **{
        f"AdaGrad-Norm, learning rate {rate}": Way(settings=(f"inner.learning_rate={rate}",), is_adagrad=True, beside="AdamW")
        for rate in (1.0, 3.0, 10.0, 30.0)
    },
}
"""Scaled local SGD (arXiv 2406.00846) averages what Adam divides by; AdaBatchGrad (arXiv 2402.05264) takes the steps of
AdaGrad-Norm."""
WAYS = {**BYTES, **STEPS_OF_OTHERS}


def lengths(way: Way) -> list[int]:
    """Return the inner steps before each average; `way.steps` in all."""
    parts = [way.late ** (-number / max(1, way.averages - 1)) for number in range(way.averages)]
    ends = [round(way.steps * end / sum(parts)) for end in accumulate(parts)]
    return [end - begin for begin, end in pairwise([0, *ends])]


def run_of(way: Way, seed: int) -> RunConfig:
    settings = [f"averaging.preset={way.preset}", f"work.rounds={way.averages}", f"seed={seed}", *way.settings]
    return load_base(["batch.test=constant", "inner.batch_scaling=none", "work.inner_steps=32", *settings])


def schedule_between(run: RunConfig, begin: int, end: int, steps: int = STEPS) -> LearningRateSchedule:
    """Return the schedule of the inner steps from `begin` to `end` of `steps`."""
    return LearningRateSchedule(
        inner=run.inner,
        steps_before=begin,
        num_steps=end - begin,
        progress_start=begin / steps,
        progress_end=end / steps,
        batch_ratio=1.0,
    )


class Averaging:
    """The averages of one run, with the residuals of its hosts."""

    def __init__(self, run: RunConfig, change: Change, *, sizes: Sequence[int]) -> None:
        """`sizes`: the values of each tensor of the vectors, P in all."""
        self._run, self._change, self._sizes, size = run, change, list(sizes), sum(sizes)
        self._codec: TensorCodec = codec_named(run.averaging.codec)
        self._residuals, self._rest = [torch.zeros(size)] * HOSTS, torch.zeros(size)
        self._places = torch.Generator().manual_seed(run.seed)

    def average(self, vectors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return what comes back, float32 [P], for these pseudo-gradients [P] of all hosts."""
        averaging, codec, ones = self._run.averaging, self._codec, [1] * HOSTS
        own = [vector + averaging.feedback * rest for vector, rest in zip(vectors, self._residuals, strict=True)]
        if self._change == "tensors":
            signs = [self._signs(vector) for vector in own]
            self._residuals = [whole - part for whole, part in zip(own, signs, strict=True)]
            return self._signs(torch.stack(signs).mean(dim=0))
        sent = own
        if self._change == "mask":
            places = torch.rand(len(own[0]), generator=self._places) < 1 / MASK
            sent = [vector * places for vector in own]
        rule = rule_named(averaging.aggregation, division=averaging.division)
        found = aggregate(sent, ones, ones, rule=rule, codec=codec)
        back = self._changed(found.vector, sent)
        if self._change == "returned":
            self._residuals = [vector - back for vector in own]
        elif codec.needs_feedback:
            lost = [residual for residual in found.residuals if residual is not None]
            self._residuals = [whole - part + rest for whole, part, rest in zip(own, sent, lost, strict=True)]
        return back

    def _signs(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the signs of a vector times the mean size of the values of their tensor."""
        parts = vector.split(self._sizes)
        return torch.cat([torch.where(part < 0, -1.0, 1.0) * part.abs().mean() for part in parts])

    def _changed(self, mean: torch.Tensor, sent: Sequence[torch.Tensor]) -> torch.Tensor:
        codec = self._codec
        match self._change:
            case "thinned" | "carried":
                whole = mean + self._rest
                back = codec.decode(codec.encode(whole))
                self._rest = whole - back if self._change == "carried" else self._rest
                return back
            case "majority":
                transmitted = torch.stack([codec.decode(codec.encode(vector)) for vector in sent])
                return mean.abs() * torch.where(transmitted.sign().sum(dim=0) < 0, -1.0, 1.0)
            case _:
                return mean


class AdaGradNorm(torch.optim.Optimizer):
    """Parameters [n, P]; each of the n is a host of its own: a step of rate / sqrt(sum of squared norms so far) along its
    gradient (Ward, Wu and Bottou, arXiv 1806.01811)."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.0})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["sum"] = state.get("sum", 0.0) + parameter.grad.square().sum(dim=1, keepdim=True)
                parameter.sub_(group["lr"] * parameter.grad / state["sum"].sqrt().clamp_(min=1e-12))


def run_way(name: str, seed: int) -> Record:
    torch.set_num_threads(1)
    started, way = time.process_time(), WAYS[name]
    run = run_of(way, seed)
    rows, vocab_size = indexed()
    feed = IndexedFeed(rows, vocab_size=vocab_size, seed=seed)
    trainees = Trainees(run, vocab_size=vocab_size, num_hosts=HOSTS, optimizer=AdaGradNorm if way.is_adagrad else None)
    outer, momentum = trainees.start.clone(), torch.zeros_like(trainees.start)
    averaging, begin = Averaging(run, way.change, sizes=[entry.size for entry in trainees.layout.entries]), 0
    for number, steps in enumerate(lengths(way)):
        taken = [
            feed.open(
                instance=InstanceId(0), peer=PeerId(f"peer{host}"), round=number, first_sample=begin * HOSTS + host * steps
            ).take(steps)
            for host in range(HOSTS)
        ]
        ended = trainees.inner_round(outer, taken, schedule_between(run, begin, begin + steps, way.steps))
        apply_(run, outer, momentum, averaging.average(list(outer - ended)))
        trainees.share_moments(way.moments)
        begin += steps
    return {
        "way": name,
        "seed": seed,
        "parameters": len(outer),
        "loss": round(measure_of(run, rows, vocab_size)(outer), 5),
        "processor_seconds": round(time.process_time() - started, 1),
    }


def train(arguments: argparse.Namespace) -> None:
    """Train all ways of one seed before the next seed."""
    jobs = ((f"{name}, seed {seed}", partial(run_way, name, seed)) for seed in arguments.seeds for name in arguments.ways)
    train_missing(KEPT, arguments.output, jobs)


def table(ways: Mapping[str, Way], records: Sequence[Record]) -> list[str]:
    """Return one line per way, with the loss beside that of the way that it is compared with, of the same seeds."""
    lines = ["| way | seeds | loss | beside | minus that |", "|" + "---|" * 5]
    of_way = {name: losses_of(record for record in records if record["way"] == name) for name in ways}
    for name, way in ways.items():
        losses, others = of_way[name], of_way[way.beside]
        if not losses:
            continue
        found = None if name == way.beside else paired(losses, others)
        shown = "|" if found is None else f"{way.beside} | {'+' if found.mean >= 0 else ''}{found.shown(3)}"
        lines.append(f"| {name} | {len(losses)} | {estimate(list(losses.values())).shown(3)} | {shown} |")
    return lines


def tabulate(arguments: argparse.Namespace) -> None:
    keep_tables(KEPT, arguments.runs, "bytes.md", {"not built": partial(table, BYTES)})
    keep_tables(KEPT, arguments.runs, "method.md", {"steps of others": partial(table, STEPS_OF_OTHERS)})


def main() -> None:
    line = command_line("not_built", __doc__, seeds=[1, 2, 3], train=train, tabulate=tabulate)
    line.run.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    line.act()


if __name__ == "__main__":
    main()
