"""Tables of docs/results/robustness.md from records: how far apart the kinds are, and how soon a score tells them apart."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import ceil, comb
from statistics import NormalDist, fmean, stdev
from typing import Any

from benchmarks.assessed.kinds import KINDS, QUARTER
from benchmarks.assessed.run import Cell
from benchmarks.method.report import rewrite
from benchmarks.method.store import RESULTS, pack, records_by_key

Record = dict[str, Any]
KEPT = RESULTS / "assessed.jsonl.gz"
"""Records of earlier runs; a reader's own go beside them."""
CELLS = {
    "4 hosts, H 16, 2 rows a step": Cell(hosts=4, inner_steps=16, batch=2),
    "4 hosts, H 16, 8 rows": Cell(hosts=4, inner_steps=16, batch=8),
    "4 hosts, H 16, 32 rows": Cell(hosts=4, inner_steps=16, batch=32, rounds=8),
    "... and 512 rows looked at": Cell(hosts=4, inner_steps=16, batch=32, rounds=8, rows=512),
    "4 hosts, H 128, 1 row": Cell(hosts=4, inner_steps=128, rounds=8),
    "4 hosts, H 32, 1 row, 233,984 parameters": Cell(hosts=4, hidden=128, rounds=12),
    "8 hosts, H 32, 1 row": Cell(),
    "the same, `int8`": Cell(codec="int8"),
    "the same, `sign`": Cell(codec="sign"),
}
"""The cells by the name of their column."""
PLAIN, ADJUSTED, WEIGHT = range(3)
"""Places in the record of one contribution."""
SCORES, PART = 4, 1 / 3
"""A rule without a calibration: a host is idle if the mean of its last scores, so many, is below this part of an honest host's
mean."""
FALSE_ALARM, MISSED = 1e-3, 0.05
"""The rate of honest hosts that are taken for the kind, and the rate of the kind that is taken for honest."""


def tabulate(arguments: argparse.Namespace) -> None:
    """Rewrite the tables of docs/results/robustness.md, and keep the records."""
    records = records_by_key(KEPT, arguments.runs)
    rewrite(RESULTS / "robustness.md", tables(list(records.values())))
    pack([records[key] for key in sorted(records)], KEPT)


def tables(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return the tables by the marks of their places."""
    found = {name: [record for record in records if Cell(**record["cell"]) == cell] for name, cell in CELLS.items()}
    found = {name: some for name, some in found.items() if some}
    return {
        "assessed-scores": _by_kind(found, KINDS, lambda kind, some: _shown(_values(some, kind))),
        "assessed-rounds": _by_kind(found, KINDS[2:], _separation),
        "assessed-weights": _by_kind(found, KINDS, lambda kind, some: f"{fmean(_values(some, kind, WEIGHT)):.2f}"),
        "assessed-honest": honest_table(found),
        "assessed-third": third_table(found),
    }


def honest_table(found: Mapping[str, Sequence[Record]]) -> list[str]:
    """Return the table of honest hosts: what adjusting gains, and how the score changes in a run."""
    lines = _head(["swarm", "seeds, scores", "not adjusted", "adjusted", "rounds 2 to 4", "last three rounds", "least"])
    for name, some in found.items():
        pairs = [zip(record["rounds"], record["honest"], strict=True) for record in some]
        scores = list(chain.from_iterable(pairs))
        early = [score[ADJUSTED] for round, score in scores if round <= 3]
        late = [score[ADJUSTED] for round, score in scores if round >= CELLS[name].rounds - 3]
        plain, adjusted = ([score[place] for _, score in scores] for place in (PLAIN, ADJUSTED))
        cells = [*map(_shown, (plain, adjusted, early, late)), f"{min(adjusted):.1f}"]
        lines.append(_row([name, f"{len(some)}, {len(scores)}", *cells]))
    return lines


def third_table(found: Mapping[str, Sequence[Record]]) -> list[str]:
    """Return the table of how many hosts of each kind the rule without a calibration takes for idle."""
    kinds = ("honest", "slow", "copied", "replayed", "quarter", "shared")
    lines = _head(["swarm", *(f"`{kind}`" for kind in kinds)])
    for name, some in found.items():
        sizes = {kind: [score / _root_rows(CELLS[name], kind) for score in _values(some, kind)] for kind in kinds}
        below = [below_part(sizes["honest"], sizes[kind]) for kind in kinds]
        lines.append(_row([name, *(f"{100 * share:.2f} %" for share in below)]))
    return lines


def _root_rows(cell: Cell, kind: str) -> float:
    """Return the divisor that turns a score into an effect in standard deviations of a row, which does not grow with the number
    of rows that were looked at."""
    given = min(cell.rows, cell.inner_steps * cell.batch // (QUARTER if kind == "slow" else 1))
    return (given * cell.rows / (given + cell.rows)) ** 0.5


def below_part(honest: Sequence[float], others: Sequence[float]) -> float:
    """Return the share of `others` whose mean of SCORES scores is below PART of the honest mean, by the normal distribution."""
    spread = NormalDist(fmean(others), max(1e-9, stdev(others) / SCORES**0.5))
    return spread.cdf(PART * fmean(honest))


def assessments(honest: Sequence[float], others: Sequence[float]) -> int | None:
    """Return how many scores of one host, by their mean, tell it from an honest one, at the rates above; None where its mean is
    never lower. Both means are taken as normal."""
    apart = fmean(honest) - fmean(others)
    if apart <= 0:
        return None
    normal = NormalDist()
    needed = -normal.inv_cdf(FALSE_ALARM) * stdev(honest) - normal.inv_cdf(MISSED) * stdev(others)
    return max(1, ceil((needed / apart) ** 2))


def rounds_until(count: int, hosts: int) -> int:
    """Return the number of rounds after which one of `hosts`, of which each round draws one, was drawn `count` times with a
    probability of 95 %."""
    rounds, p = count, 1 / hosts
    while sum(comb(rounds, k) * p**k * (1 - p) ** (rounds - k) for k in range(count)) > 1 - 0.95:
        rounds += 1
    return rounds


def _separation(kind: str, some: Sequence[Record]) -> str:
    count, hosts = assessments(_values(some, "honest"), _values(some, kind)), some[0]["cell"]["hosts"]
    return "never" if count is None else f"{count}: {count * hosts}, {rounds_until(count, hosts)}"


def _by_kind(
    found: Mapping[str, Sequence[Record]], kinds: Sequence[str], shown: Callable[[str, Sequence[Record]], str]
) -> list[str]:
    return [*_head(["kind", *found]), *(_row([f"`{kind}`", *(shown(kind, some) for some in found.values())]) for kind in kinds)]


def _values(some: Sequence[Record], kind: str, place: int = ADJUSTED) -> list[float]:
    return [score[place] for record in some for score in record[kind]]


def _shown(values: Sequence[float]) -> str:
    return f"{fmean(values):+.1f} ({stdev(values):.1f})"


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), _row(["---"] * len(names))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
