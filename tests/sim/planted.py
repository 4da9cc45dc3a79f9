"""Faults that were mended in this project's history, planted again in whole peers."""

from collections.abc import Callable

import pytest

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.averaging.commit_phase import CommitPhase
from adloco_p2p.core.averaging.commit_votes import Choice, CommitTally, choice_of
from adloco_p2p.core.averaging.host_views import HostViews
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.peer.catch_up import CatchingUp
from adloco_p2p.core.peer.completion import CompletionBarrier
from adloco_p2p.core.peer.state import PeerState
from adloco_p2p.sim.averaging import AverageBuffers
from adloco_p2p.sim.device import HashDevice

Plant = Callable[[pytest.MonkeyPatch], None]


def replaced(owner: type, name: str, value: object) -> Plant:
    return lambda patch: patch.setattr(owner, name, value)


def drops_averages_of_all(self: AverageBuffers, instance: InstanceId, *, before: int | None = None) -> None:
    self._averages = {key: held for key, held in self._averages.items() if before is not None and key[1] >= before}


def keeps_another_state(patch: pytest.MonkeyPatch) -> None:
    """In the run, and at its end, where the states are compared once more."""
    patch.setattr(CatchingUp, "check_own_state", lambda self, plan: [])
    patch.setattr(CompletionBarrier, "final_state", lambda self, voters: None)


def any_average(self: CommitTally) -> Choice | None:
    return next((choice_of(vote) for vote in self.votes.values() if not vote.is_void), None)


SLOW_JOB_SECONDS = 0.3
"""Of a save, an outer step or a fork on a device that is not fast: an end that comes late needs a job that takes time."""


def counts_late_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HashDevice, "short_job_seconds", SLOW_JOB_SECONDS)
    patch.setattr(PeerState, "is_outdated", lambda self, end: False)


BUGS: dict[str, tuple[Plant, int]] = {
    "averages are dropped with another instance's": (replaced(AverageBuffers, "forget", drops_averages_of_all), 21),
    "an average is applied before a majority holds it": (
        replaced(CommitTally, "majority", property(any_average)),
        3,
    ),
    "an average that can get no majority is waited for": (
        replaced(CommitPhase, "_is_void_for_sure", lambda self, tally, now: False),
        61,
    ),
    "no retry leaves out who failed": (replaced(HostViews, "remaining", property(lambda self: self._contributors)), 0),
    "a peer whose state differs keeps it": (keeps_another_state, 17),
    "a host forgets in a crash how it voted on an average": (
        replaced(GossipAgreement, "kept_vote", lambda self, plan, instance: None),
        8,
    ),
    "late ends of the device count": (counts_late_ends, 0),
    "peers leave before the others have ended": (replaced(CompletionBarrier, "is_over", lambda self, now, gone: True), 0),
}
"""What is planted, and the everyday seed that catches it."""
