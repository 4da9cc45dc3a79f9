"""The catching up of one peer, without the rest of it."""

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.peer.catch_up import CatchingUp
from adloco_p2p.core.peer.fetching import Fetching
from adloco_p2p.core.peer.saving import Checkpoints
from adloco_p2p.core.peer.state import PeerState


def catching_up_of(state: PeerState) -> CatchingUp:
    checkpoints = Checkpoints(state, is_on_schedule=lambda _: False, least_seconds=0.0)
    return CatchingUp(state, fetching=Fetching(state), checkpoints=checkpoints, adaptive_timeout=AdaptiveTimeout())
