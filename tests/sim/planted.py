"""Faults that were mended in this project's history, planted again in whole peers."""

from collections.abc import Callable
from typing import Any

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.averaging.commit_votes import CommitTally, CommitVotes
from adloco_p2p.core.averaging.host_views import HostViews
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model.types import InstanceId
from adloco_p2p.core.peer.catch_up import CatchingUp
from adloco_p2p.core.peer.completion import CompletionBarrier
from adloco_p2p.core.peer.state import PeerState
from adloco_p2p.sim.averaging import AverageBuffers

Plant = Callable[[pytest.MonkeyPatch], None]


def replaced(owner: type, name: str, value: object) -> Plant:
    return lambda patch: patch.setattr(owner, name, value)


def drops_averages_of_all(self: AverageBuffers, instance: InstanceId, *, before: int | None = None) -> None:
    self._averages = {key: held for key, held in self._averages.items() if before is not None and key[1] >= before}


def counts_the_gone(original: Any = CommitVotes.tally) -> Any:
    return lambda self, absent: original(self, ())


BUGS: dict[str, tuple[Plant, int]] = {
    "averages are dropped with another instance's": (replaced(AverageBuffers, "forget", drops_averages_of_all), 81),
    "an average is applied before a majority holds it": (
        replaced(CommitTally, "majority", property(lambda self: self.ranking[0] if self.votes else None)),
        40,
    ),
    "votes of hosts that are gone are waited for": (replaced(CommitVotes, "tally", counts_the_gone()), 0),
    "a tie of two averages is waited for": (replaced(OuterRound, "_tie_seconds", property(lambda self: 1e9)), 61),
    "no retry leaves out who failed": (replaced(HostViews, "remaining", property(lambda self: self._contributors)), 0),
    "members that came and went are not called gone": (
        replaced(GossipAgreement, "_with_changes", lambda self, outcomes, now: outcomes),
        0,
    ),
    "a peer whose state differs keeps it": (replaced(CatchingUp, "check_own_state", lambda self, plan: []), 0),
    "late ends of the device count": (replaced(PeerState, "is_outdated", lambda self, end: False), 22),
    "peers leave before the others have ended": (replaced(CompletionBarrier, "is_over", lambda self, now, gone: True), 0),
}
"""What is planted, and the everyday seed that catches it."""
