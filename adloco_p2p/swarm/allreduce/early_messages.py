"""A bound on what other members tell about averages before they begin or end here."""

from collections import Counter, OrderedDict
from typing import TypeVar

from adloco_p2p.core.model.scalars import Digest, PeerId

T = TypeVar("T")


def keep_bounded(
    kept: OrderedDict[tuple[Digest, PeerId], T], place: tuple[Digest, PeerId], value: T, *, per_teller: int, in_all: int
) -> None:
    """Keep what a member tells about the average with a key; `place`: the key and the teller.

    The oldest give way: of the teller beyond `per_teller`, and beyond `in_all` of the teller with the most. So no member
    displaces what others told, unless nobody has more than they.
    """
    kept[place] = value
    own = [known for known in kept if known[1] == place[1]]
    if len(own) > per_teller:
        del kept[own[0]]
    if len(kept) > in_all:
        (most, _), *_ = Counter(teller for _, teller in kept).most_common(1)
        del kept[next(known for known in kept if known[1] == most)]
