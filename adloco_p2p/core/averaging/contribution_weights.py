"""How much each contribution weighs in an average: samples, and the standing of newcomers."""

from collections.abc import Mapping

from adloco_p2p.core.model.roster_entry import FULL_STANDING
from adloco_p2p.core.model.scalars import PeerId


def contribution_weights(samples: Mapping[PeerId, int], standings: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """Integers: samples times standing (`core/planning/standing.py`). Where all stand alike, their samples."""
    known = {standings.get(peer, FULL_STANDING) for peer in samples}
    if len(known) <= 1:
        return dict(samples)
    return {peer: number * standings.get(peer, FULL_STANDING) for peer, number in samples.items()}
