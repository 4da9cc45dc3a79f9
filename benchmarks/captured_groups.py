"""How many liars of an instance turn its average: in one average of all hosts, and in averages of groups and then of these.

    python -m benchmarks.captured_groups [--hosts 36] [--group 6] [--draws 40] [--values 1024] [--rule robust]

An honest contribution is a common direction and noise of the same length, so two of them have a cosine of about 0.5; a liar
sends the reverse of the common direction, with noise of its own, so no two liars are copies. An average is turned where its
cosine to the common direction is not positive. `placed`: the liars are in the groups that serve them best; `drawn`: the part
of random divisions into groups that are turned. Both levels of the grid use the same aggregation rule.
"""

import argparse
import random
from collections.abc import Sequence

import torch

from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.codecs import codec_named


class Instance:
    """The contributions of honest hosts and liars to an instance."""

    def __init__(self, values: int, rule: str, seed: int) -> None:
        self._values, self._rule = values, rule_named(rule)
        self._generator = torch.Generator().manual_seed(seed)
        self._common = torch.randn(values, generator=self._generator)

    def contribution(self, *, is_liar: bool) -> torch.Tensor:
        """Return a contribution, float32 [values]."""
        noise = torch.randn(self._values, generator=self._generator)
        return noise - self._common if is_liar else noise + self._common

    def average(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the average by the rule, with equal weights."""
        ones = [1] * len(rows)
        return aggregate(rows, ones, ones, rule=self._rule, codec=codec_named("float32")).vector

    def is_turned(self, groups: Sequence[Sequence[bool]]) -> bool:
        """Return whether the average is turned. `groups`: for each host whether it lies; one group is an average of all."""
        means = [self.average([self.contribution(is_liar=is_liar) for is_liar in group]) for group in groups]
        whole = self.average(means) if len(means) > 1 else means[0]
        return float(whole @ self._common) <= 0.0


def groups_of(liars: Sequence[bool], size: int) -> list[Sequence[bool]]:
    return [liars[start : start + size] for start in range(0, len(liars), size)]


def placements(hosts: int, size: int, liars: int) -> list[list[bool]]:
    """Return placements with as many liars in each group as go in, at most 1, 2, ... of them."""
    found = []
    for most in range(1, size + 1):
        left, placed = liars, []
        for _ in range(hosts // size):
            here = min(most, left)
            left -= here
            placed += [True] * here + [False] * (size - here)
        if not left:
            found.append(placed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=36)
    parser.add_argument("--group", type=int, default=6)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--values", type=int, default=1024)
    parser.add_argument("--rule", default="robust")
    args = parser.parse_args()
    torch.set_num_threads(1)
    instance, lots = Instance(args.values, args.rule, seed=1), random.Random(1)
    print(f"{args.hosts} hosts, groups of {args.group}, rule {args.rule}")
    print(f"{'liars':>5}{'flat':>8}{'placed':>8}{'drawn':>8}")
    for liars in range(1, args.hosts // 2 + 2):
        whole = [True] * liars + [False] * (args.hosts - liars)
        flat = instance.is_turned([whole])
        placed = any(instance.is_turned(groups_of(each, args.group)) for each in placements(args.hosts, args.group, liars))
        turned = sum(instance.is_turned(groups_of(lots.sample(whole, k=args.hosts), args.group)) for _ in range(args.draws))
        words = [("turned" if each else "holds") for each in (flat, placed)]
        print(f"{liars:5}{words[0]:>8}{words[1]:>8}{turned / args.draws:8.2f}", flush=True)


if __name__ == "__main__":
    main()
