"""The cells of the measurement: one run for each cell and seed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.robustness.attacks import AGAINST_SPARSE, ATTACKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A swarm, what its last hosts do, and the rule that stands against it."""

    hosts: int = 8
    liars: int = 0
    attack: str = ""
    """Empty: the liars are not there, which is what an attack is compared with."""
    rule: str = "mean"
    codec: str = "float32"
    data: str = "even"
    """`uneven`: rows sorted by the first component of their byte counts, an equal piece of them for each host."""

    division: str = "all"
    """`named`, with `topk2`: the mean per place."""

    rounds: int = 16
    momentum: float = 0.5
    """Of the outer step; `topk2` has none."""

    @property
    def baseline(self) -> "Cell":
        """The honest hosts alone, by the plain mean."""
        return replace(self, attack="", rule="mean")


RULES = ("mean", "robust", "clip", "geometric_median", "centered_clip")


def _clean(**common: str) -> Iterator[Cell]:
    """Nobody lies."""
    for rule in RULES:
        yield Cell(rule=rule, **common)  # type: ignore[arg-type]


def _attacked(*, hosts: int = 8, liars: int = 2, **common: str) -> Iterator[Cell]:
    """Every attack of so many liars, and the honest hosts without them."""
    cell = Cell(hosts=hosts, liars=liars, **common)  # type: ignore[arg-type]
    yield cell
    for attack in ATTACKS:
        if attack not in AGAINST_SPARSE or cell.codec == "topk2":
            for rule in RULES:
                yield replace(cell, attack=attack, rule=rule)


def clean() -> Iterator[Cell]:
    yield from _clean()
    yield from _clean(data="uneven")


def two() -> Iterator[Cell]:
    yield from _attacked()


def uneven() -> Iterator[Cell]:
    yield from _attacked(data="uneven")


def three() -> Iterator[Cell]:
    yield from _attacked(hosts=10, liars=3)


def one() -> Iterator[Cell]:
    yield from _attacked(liars=1)


def int8() -> Iterator[Cell]:
    yield from _in_codec("int8")


def int8_uneven() -> Iterator[Cell]:
    yield from _attacked(codec="int8", data="uneven")


def topk2() -> Iterator[Cell]:
    yield from _in_codec("topk2")


def per_place() -> Iterator[Cell]:
    """The preset `sparse`."""
    for data in ("even", "uneven"):
        yield from _clean(data=data, codec="topk2", division="named")
    yield from _attacked(codec="topk2", division="named")


def per_place_uneven() -> Iterator[Cell]:
    yield from _attacked(codec="topk2", division="named", data="uneven")


def sign() -> Iterator[Cell]:
    yield from _in_codec("sign")


def sign_uneven() -> Iterator[Cell]:
    yield from _attacked(codec="sign", data="uneven")


def sign_long() -> Iterator[Cell]:
    """The preset `sign` as it is in runs of 64 rounds or more, with its outer momentum."""
    for data in ("even", "uneven"):
        plain = Cell(codec="sign", data=data, rounds=64, momentum=0.9)
        yield plain
        yield replace(plain, rule="robust")
        attacked = replace(plain, liars=2)
        yield attacked
        for attack in ATTACKS:
            if attack not in AGAINST_SPARSE:
                yield replace(attacked, attack=attack, rule="robust")


def _in_codec(codec: str) -> Iterator[Cell]:
    for data in ("even", "uneven"):
        yield from _clean(data=data, codec=codec)
    yield from _attacked(codec=codec)


GROUPS = {
    "clean": clean,
    "two": two,
    "uneven": uneven,
    "three": three,
    "one": one,
    "int8": int8,
    "topk2": topk2,
    "per_place": per_place,
    "sign": sign,
    "int8_uneven": int8_uneven,
    "per_place_uneven": per_place_uneven,
    "sign_uneven": sign_uneven,
    "sign_long": sign_long,
}
"""In the order in which they are run."""
