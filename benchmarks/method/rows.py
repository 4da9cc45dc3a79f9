"""The rows of the tables: their names, and their differences from `base.yaml`."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from benchmarks.method.clock import LARGE, SLOW, STEADY


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to train."""

    name: str
    settings: tuple[str, ...]
    """The settings, as `--set` takes them."""
    speeds: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    clock: str = LARGE.name
    """The machine and link of the emulated time."""
    micro_batch_limit: int = 1024
    """The largest micro-batch of every device (`--peer-set max_micro_batch=...`)."""
    steps_exponent: float = 0.0
    """Not in the product: H follows the requested batch to this power."""
    most_steps: int = 1 << 20
    decay_rounds: int = 0
    """The learning rate decays over so many rounds, as in the product, instead of over the samples; 0: over the samples."""
    is_last_gradient: bool = False
    """Not in the product: the test reads gradients of the last inner step."""
    length: int = 1
    """The factor to the samples of the other rows."""
    max_instances: int = 8
    """The most instances that a peer hosts (`--peer-set max_instances=...`)."""
    merged_every: int = 0
    """Not in the product: after so many rounds each, all instances get their mean and go on apart."""


LONG = 4
"""The factor of long runs to the samples: 100 tokens per parameter."""
TUNING_SEED = 0
"""The seed by which the constants of the other groups were chosen, and which is therefore not among theirs."""


def diloco(batch: int, inner_steps: int, *more: str, momentum: float = 0.7, name: str = "") -> Row:
    """Return a row of canonical DiLoCo: a constant batch, one instance, Nesterov outside."""
    fixed = ("mode=diloco", f"batch.initial_batch={batch}", f"work.inner_steps={inner_steps}", f"outer.momentum={momentum}")
    return Row(name=name or f"DiLoCo B {batch} H {inner_steps} m {momentum}", settings=(*fixed, *more))


def adloco(name: str, *more: str, count: int = 1, **others: Any) -> Row:
    """Return a row of the method, by default with one instance: the batch test and nothing else. Of one setting twice, the
    later counts."""
    plain = ("batch.level=inner", "batch.max_batch=64", "batch.eta=1.3", "inner.batch_scaling=none", "outer.momentum=0.5")
    settings = (f"instances.count={count}", *plain, *more)
    last = {text.partition("=")[0]: text for text in settings}
    return Row(name=name, settings=tuple(last.values()), **others)


def tuning() -> list[Row]:
    """Return the stated grid, with one seed of its own."""
    half = "outer.momentum=0.5"
    rates = [diloco(8, 32, f"inner.learning_rate={rate}", name=f"DiLoCo B 8 H 32 m 0.7 rate {rate}") for rate in (3e-3, 1.2e-2)]
    grid = [diloco(8, h, momentum=m) for h, m in ((32, 0.5), (32, 0.7), (32, 0.9), (64, 0.7), (64, 0.5))]
    batches = [diloco(16, 16, momentum=0.5), diloco(16, 32), diloco(16, 64)]
    etas = [adloco(f"AdLoCo eta {eta}, max 64, m 0.7", f"batch.eta={eta}", "outer.momentum=0.7") for eta in (1.3, 1.0, 1.7)]
    steps = [
        adloco(f"AdLoCo eta 1.3, max 64, m {m}, H {h}", f"work.inner_steps={h}", f"outer.momentum={m}")
        for h, m in ((64, 0.7), (16, 0.5))
    ]
    sqrt = "inner.batch_scaling=sqrt"
    roots = [
        diloco(8, 32, "inner.learning_rate=8.5e-3", momentum=0.5, name="DiLoCo B 8 H 32 m 0.5 rate 0.0085"),
        diloco(16, 32, "inner.learning_rate=8.5e-3", momentum=0.5, name="DiLoCo B 16 H 32 m 0.5 rate 0.0085"),
        adloco(
            "AdLoCo eta 1.7, max 64, m 0.5, sqrt, H with batch to 128",
            "batch.eta=1.7",
            sqrt,
            half,
            steps_exponent=1.0,
            most_steps=128,
        ),
        diloco(8, 128),
        adloco("AdLoCo eta 1.7, max 64, m 0.7, sqrt, H 64", "batch.eta=1.7", sqrt, "work.inner_steps=64", "outer.momentum=0.7"),
        adloco("AdLoCo eta 1.3, max 64, m 0.5, sqrt", "batch.eta=1.3", sqrt, half),
        diloco(8, 16, momentum=0.5),
    ]
    both = [
        adloco(
            f"AdLoCo eta {eta}, max 64, m 0.5, sqrt, H with batch^{e:g} to 128",
            f"batch.eta={eta}",
            sqrt,
            half,
            steps_exponent=e,
            most_steps=128,
        )
        for eta, e in ((2.5, 1.0), (2.1, 1.0), (2.1, 2.0))
    ]
    last = [
        diloco(16, 32, momentum=0.5),
        diloco(8, 128, momentum=0.9),
        diloco(4, 64, momentum=0.5),
        diloco(8, 32, momentum=0.3),
    ]
    outer = [diloco(8, 64, f"outer.learning_rate={rate}", name=f"DiLoCo B 8 H 64 m 0.7 outer {rate}") for rate in (1.0, 0.5)]
    capped = [growing(eta, most) for eta in (1.0, 1.3, 1.5) for most in (16, 20, 24, 32)]
    return [*rates, *grid, *batches, *etas, *steps, *_levers(), *roots, *both, *last, *outer, *capped, *long_tuning()]


def _levers() -> list[Row]:
    """Return the rows of the stated grid that differ in more than the rate, H, the batch or eta."""
    half, sqrt = "outer.momentum=0.5", "inner.batch_scaling=sqrt"
    return [
        adloco("AdLoCo eta 2.5, max 64, m 0.5", "batch.eta=2.5", half),
        adloco("AdLoCo eta 2.5, max 16, m 0.5", "batch.eta=2.5", "batch.max_batch=16", half),
        adloco("AdLoCo eta 2.5, max 64, m 0.5, H with batch to 128", "batch.eta=2.5", half, steps_exponent=1.0, most_steps=128),
        adloco(
            "AdLoCo eta 2.5, max 16, m 0.5, H with batch squared to 128",
            "batch.eta=2.5",
            "batch.max_batch=16",
            half,
            steps_exponent=2.0,
            most_steps=128,
        ),
        adloco("AdLoCo eta 2.5, max 64, m 0.5, sqrt", "batch.eta=2.5", sqrt, half),
        adloco("AdLoCo eta 1.7, max 64, m 0.5, sqrt", "batch.eta=1.7", sqrt, half),
    ]


def growing(eta: float, most: int, *more: str, momentum: float = 0.5, name: str = "") -> Row:
    """Return a row of one instance whose batch grows to `most` at most, the learning rate with its root."""
    changes = (f"batch.eta={eta}", f"batch.max_batch={most}", "inner.batch_scaling=sqrt", f"outer.momentum={momentum}")
    return adloco(name or f"AdLoCo eta {eta}, max {most}, m {momentum}, sqrt", *changes, *more)


def long_tuning() -> list[Row]:
    """Return trials of runs four times as long."""
    plain = [diloco(8, h, momentum=m) for h, m in ((32, 0.5), (32, 0.6), (32, 0.7), (64, 0.7), (128, 0.7))]
    plain.append(diloco(16, 32, momentum=0.5))
    plain.append(diloco(8, 32, "outer.learning_rate=1.0", momentum=0.5, name="DiLoCo B 8 H 32 m 0.5 outer 1.0"))
    plain.append(diloco(8, 32, momentum=0.9))
    rates = ((8, "4e-3", 0.5), (8, "8.5e-3", 0.5), (16, "8.5e-3", 0.5), (16, "8.5e-3", 0.7))
    fixed = [
        diloco(batch, 32, f"inner.learning_rate={rate}", momentum=m, name=f"DiLoCo B {batch} H 32 m {m} rate {rate}")
        for batch, rate, m in (*rates, (24, "1.04e-2", 0.5), (32, "1.2e-2", 0.5))
    ]
    pairs = [(0.8, 16), (0.8, 20), (1.0, 24), (1.0, 32), (1.3, 16), (1.3, 24), (1.3, 32), (1.3, 64), (1.7, 24), (1.7, 64)]
    pairs += ((2.1, 20), (2.1, 24), (2.1, 32), (2.5, 24), (2.5, 64), (3.5, 64))
    quick = [(2.1, 20, 0.7), (2.1, 24, 0.7), (1.7, 64, 0.7), (2.1, 20, 0.9), (2.1, 24, 0.9), (1.7, 64, 0.9)]
    grown = [*(growing(eta, most) for eta, most in pairs), *(growing(eta, most, momentum=m) for eta, most, m in quick)]
    return [replace(row, name=f"long: {row.name}", length=LONG) for row in (*plain, *fixed, *grown)]


SAME_START = "DiLoCo B 8 H 32"
"""The row with the batch and H of the start of the AdLoCo rows."""
TUNED = "DiLoCo B 8 H 64 (H tuned)"
"""The H of the grid that halves the traffic for the least loss."""

ONE = "AdLoCo, one instance"
"""The batch test with the tuned constants, and nothing else."""
_TUNED = ("batch.eta=1.7", "inner.batch_scaling=sqrt", "outer.momentum=0.5")
_TWO = ("instances.fork_round=4", "merge.first_round=6", "merge.period_rounds=2")
FULL = "AdLoCo, two instances"
LINEAR = "linear ramp 8 -> 26"
SEESAW = "Seesaw, at most 32"
DOUBLING = "doubling ramp 8 -> 32"


def full(name: str = FULL, *more: str, count: int = 2, **others: Any) -> Row:
    """Return a row of the whole method with the tuned constants: warm-up, fork, merge, growing batch."""
    return adloco(name, *_TUNED, *_TWO, *more, count=count, **others)


def main() -> list[Row]:
    return [
        diloco(8, 32, momentum=0.5, name=SAME_START),
        diloco(8, 64, momentum=0.7, name=TUNED),
        adloco(ONE, *_TUNED),
        diloco(16, 32, "inner.learning_rate=8.5e-3", momentum=0.5, name="DiLoCo B 16 H 32 (fixed batch)"),
        adloco("AdLoCo, one instance, eta 2.5", *_TUNED, "batch.eta=2.5"),
        growing(1.5, 20, name="AdLoCo, one instance, at most 20"),
        full(),
        adloco(
            "AdLoCo, two instances, eta 1.3, H 16, constant rate",
            "work.inner_steps=16",
            "batch.max_batch=32",
            "instances.fork_round=8",
            "merge.period_rounds=4",
            "merge.first_round=12",
            count=2,
        ),
        adloco("AdLoCo, one instance, H 64", *_TUNED, "work.inner_steps=64", "outer.momentum=0.7"),
        adloco("AdLoCo, one instance, H follows batch", *_TUNED, steps_exponent=1.0, most_steps=128),
        Row(name="LocalSGD B 8 H 32", settings=("mode=localsgd", "batch.initial_batch=8", "work.inner_steps=32")),
        Row(name="AdamW B 8, one process", settings=("mode=localsgd", "batch.initial_batch=8"), speeds=(1.0,)),
        diloco(8, 128, momentum=0.7, name="DiLoCo B 8 H 128"),
    ]


LONG_START = "long: DiLoCo B 8 H 32"
LONG_FIXED = "long: DiLoCo B 16 H 32 (fixed batch)"


def long() -> list[Row]:
    """Return rows with four times the samples, which show what a growing batch gives in a run that is long for its model."""
    rows = [
        diloco(8, 32, momentum=0.7, name=LONG_START),
        diloco(8, 32, momentum=0.5, name=f"{LONG_START}, outer momentum 0.5"),
        diloco(8, 64, momentum=0.7, name="long: DiLoCo B 8 H 64"),
        diloco(8, 128, momentum=0.7, name="long: DiLoCo B 8 H 128"),
        diloco(16, 32, "inner.learning_rate=8.5e-3", momentum=0.7, name=LONG_FIXED),
        growing(2.1, 20, momentum=0.7, name="long: AdLoCo, at most 20"),
        growing(2.1, 24, momentum=0.7, name="long: AdLoCo, at most 24"),
        growing(2.5, 24, momentum=0.7, name="long: AdLoCo, eta 2.5, at most 24"),
        growing(2.1, 20, "work.inner_steps=128", momentum=0.7, name="long: AdLoCo, at most 20, H 128"),
    ]
    return [replace(row, length=LONG) for row in rows]


def ablations() -> list[Row]:
    """Return rows that differ from the whole method, or from its one-instance form, in the point that their names state."""
    limit = {"micro_batch_limit": 3}
    three = (*_TUNED, *_TWO)
    return [
        full(),
        full("two: no adaptive batch", "batch.test=constant"),
        full("two: no merge before the end", "merge.policy=none"),
        full("two: same start, no fork", "instances.start=same"),
        full("two: different starts", "instances.start=different"),
        adloco(ONE, *_TUNED),
        adloco("one: rate unchanged when the batch grows", "batch.eta=1.7", "outer.momentum=0.5"),
        adloco("one: last-gradient statistic", *_TUNED, "batch.level=outer", is_last_gradient=True),
        adloco("one: micro-batch statistic", *_TUNED, "batch.statistic=micro_batch"),
        adloco("one: outer level, eta 0.3", *_TUNED, "batch.level=outer", "batch.eta=0.3"),
        adloco("one: inner-product test", *_TUNED, "batch.test=inner_product"),
        adloco("one: augmented test", *_TUNED, "batch.test=augmented"),
        adloco("one: devices hold 3, exact switch", *_TUNED, **limit),
        adloco("one: devices hold 3, no switch mode", *_TUNED, "switch.policy=never", **limit),
        adloco("one: devices hold 3, always accumulate", *_TUNED, "switch.policy=always", **limit),
        full("two: merge without guard", "merge.guard=false"),
        full("two: different starts, no guard", "instances.start=different", "merge.guard=false"),
        full("two: merge late (from round 9)", "merge.first_round=9"),
        adloco("three, worst_with_worst", *three, count=3),
        adloco("three, best_with_worst", *three, "merge.policy=best_with_worst", count=3),
        adloco("three, worst_group of three", *three, "merge.policy=worst_group", "merge.group_size=3", count=3),
        adloco("one: naive denominator", *_TUNED, "batch.denominator=naive"),
        adloco("one: learning rate decays over rounds", *_TUNED, decay_rounds=17),
    ]


def unequal() -> list[Row]:
    """Return rows for peers of speed 1, 2 and 4, by the clock. The first row gives the end up to which the others are
    measured."""
    speeds, fast = (1.0, 2.0, 4.0), (2.0, 4.0)

    def diloco14(name: str, share: str, who: tuple[float, ...]) -> Row:
        settings = ("mode=diloco", "batch.initial_batch=14", "outer.momentum=0.5", f"work.share={share}")
        return Row(name=name, settings=settings, speeds=who, clock=SLOW.name)

    def adloco14(name: str, share: str, who: tuple[float, ...]) -> Row:
        return adloco(name, *_TUNED, "batch.initial_batch=14", f"work.share={share}", speeds=who, clock=SLOW.name)

    return [
        diloco14("DiLoCo, equal shares: waits for the slowest", "equal", speeds),
        diloco14("DiLoCo, shared by speed", "speed", speeds),
        diloco14("DiLoCo, the slow one left out", "speed", fast),
        adloco14("AdLoCo, equal shares: waits for the slowest", "equal", speeds),
        adloco14("AdLoCo, shared by speed", "speed", speeds),
        adloco14("AdLoCo, the slow one left out", "speed", fast),
    ]


def overlap() -> list[Row]:
    """Return ways to hide or cut the averaging of a single instance, at two H. The clock has a link on which that pays."""

    def row(inner_steps: int, kind: str, momentum: float) -> Row:
        name = f"H {inner_steps}, overlap {kind}, m {momentum}"
        plain = diloco(8, inner_steps, f"outer.overlap={kind}", momentum=momentum, name=name)
        return replace(plain, clock=STEADY.name)

    def penalised(inner_steps: int, divisor: int) -> Row:
        """The late update divided, as CO2 does (arXiv 2401.16265): by its outer rate, which is linear in it."""
        late = row(inner_steps, "delayed", 0.5)
        settings = (*late.settings, f"outer.learning_rate={0.7 / divisor}")
        return replace(late, name=f"{late.name}, divided by {divisor}", settings=settings)

    def parts(inner_steps: int, count: int, momentum: float) -> Row:
        rounds = f"work.rounds={8192 // (8 * inner_steps)}"  # after the last of them everything is averaged
        name = f"H {inner_steps}, {count} fragments, m {momentum}"
        plain = diloco(8, inner_steps, f"averaging.fragments={count}", rounds, momentum=momentum, name=name)
        return replace(plain, clock=STEADY.name)

    def in_turn(period: int, count: int, momentum: float) -> Row:
        """Average each fragment every `period` inner steps; a round has a part of these."""
        short = parts(period // count, count, momentum)
        return replace(short, name=f"H {period}, {count} fragments, one every {period // count}, m {momentum}")

    def streamed(period: int, count: int, momentum: float, *, mixing: float, every: int | None = None) -> Row:
        """Average as `in_turn` does, and mix in after the inner steps that an average takes by this clock."""
        every = every or period // count
        delay = ceil(STEADY.averaging(STEADY.payload_bytes / count, range(4)) / STEADY.machine.step_seconds)
        settings = ("outer.overlap=streaming", f"outer.delay_steps={delay}", f"outer.mixing={mixing}")
        often = "" if every == period else f", one every {every}"
        name = f"H {period}, {count} fragments streamed{often}, mixing {mixing}, m {momentum}"
        plain = diloco(8, every, f"averaging.fragments={count}", *settings, momentum=momentum, name=name)
        return replace(plain, clock=STEADY.name)

    kinds = [(kind, momentum) for kind in ("delayed", "eager", "forecast") for momentum in (0.7, 0.5, 0.3)]
    return [
        *(row(64, *kind) for kind in (("none", 0.7), *kinds)),
        *(parts(64, count, 0.7) for count in (2, 4)),
        in_turn(64, 4, 0.7),
        *(streamed(64, 4, 0.7, mixing=mixing) for mixing in (0.5, 0.25)),
        streamed(64, 4, 0.7, mixing=0.5, every=64),
        *(penalised(64, divisor) for divisor in (2, 4)),
        *(row(32, *kind) for kind in (("none", 0.5), *kinds)),
        *(penalised(32, divisor) for divisor in (2, 4)),
        *(parts(32, count, 0.5) for count in (2, 4)),
    ]


def controls() -> list[Row]:
    """Return controls for whether the gain comes from the test: schedules that read no statistics, and a warm-up of another
    length for both methods. The schedules were not tuned; 128 is one of two other warm-ups that were tried, on these same
    seeds."""
    sixteen, longer = "inner.learning_rate=8.5e-3", "inner.warmup_steps=128"
    return [
        diloco(8, 32, momentum=0.5, name=SAME_START),
        adloco(ONE, *_TUNED),
        adloco(LINEAR, *_TUNED, "batch.test=schedule", "batch.ramp=linear", "batch.max_batch=26"),
        adloco(SEESAW, *_TUNED, "batch.test=schedule", "batch.ramp=seesaw", "batch.max_batch=32"),
        adloco(DOUBLING, *_TUNED, "batch.test=schedule", "batch.ramp=doubling", "batch.max_batch=32"),
        diloco(16, 32, sixteen, momentum=0.5, name="DiLoCo B 16 H 32 (fixed batch)"),
        diloco(16, 32, sixteen, "inner.warmup_steps=32", momentum=0.5, name="fixed 16, warm-up 32"),
        diloco(16, 32, sixteen, longer, momentum=0.5, name="fixed 16, warm-up 128"),
        diloco(8, 32, longer, momentum=0.5, name="DiLoCo B 8 H 32, warm-up 128"),
        adloco("AdLoCo, one instance, warm-up 128", *_TUNED, longer),
    ]


GROUPS = {
    "tuning": tuning,
    "main": main,
    "controls": controls,
    "long": long,
    "ablations": ablations,
    "unequal": unequal,
    "overlap": overlap,
}
