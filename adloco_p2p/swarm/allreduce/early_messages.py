"""A bound on what other members report about averages before they begin or end here."""

from collections import Counter, OrderedDict
from typing import TypeVar

from adloco_p2p.core.model.scalars import Digest, PeerId

T = TypeVar("T")


def keep_bounded(
    kept: OrderedDict[tuple[Digest, PeerId], T], place: tuple[Digest, PeerId], value: T, *, per_reporter: int, in_all: int
) -> None:
    """Keep what a member reports about the average with a key; `place`: the key and the reporter.

    The oldest give way: of the reporter beyond `per_reporter`, and beyond `in_all` of the reporter with the most. So no member
    displaces the reports of others, unless nobody has more than they.
    """
    kept[place] = value
    own = [known for known in kept if known[1] == place[1]]
    if len(own) > per_reporter:
        del kept[own[0]]
    if len(kept) > in_all:
        (most, _), *_ = Counter(reporter for _, reporter in kept).most_common(1)
        del kept[next(known for known in kept if known[1] == most)]
