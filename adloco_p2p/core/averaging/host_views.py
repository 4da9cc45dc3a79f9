"""Facts about the other hosts of one round, and the rules that follow from them: the members of a retry, its leader, the hosts
whose commit votes are awaited, and the donors of an average."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from adloco_p2p.core.averaging.assignment import Assignment
from adloco_p2p.core.model.scalars import Digest, PeerId


@dataclass(slots=True)
class HostView:
    """The facts that this host has about one host of the round."""

    failed_attempt: int = -1
    """The newest attempt whose failure it reported; -1: none."""
    decision: Digest | None = None
    """Of the attempt that it can complete, by its newest report of a failure."""
    partial_steps: int | None = None
    """The inner steps that it contributes, by its own report, where they are fewer than planned; 0: as many as planned;
    None: it has stated nothing here, as where this host restarted since."""
    has_declined: bool = False
    """It has reported that it will not contribute, so its commit vote is not awaited."""
    is_suspect: bool = False
    """An attempt failed because of it here, or its own report leaves it out."""
    has_failed_here: bool = False
    """An attempt of this host failed because of it; this host joins no attempt with it again, under any leader."""
    was_silent_leader: bool = False
    """It was its turn to lead a retry, and no start came."""
    is_resting_donor: bool = False
    """A repair from it failed since the last pause: it is not asked again before the next one."""
    has_voted: bool = False
    """It has cast its commit vote, so it joins no further attempt."""
    accused: frozenset[PeerId] = frozenset()
    """The other contributors that it has accused in this round, as far as its accusations count."""
    accuses_this_host: bool = False
    """An attempt of that host failed because of this one: it joins no attempt with this host again."""
    refused_in: int = -1
    """The newest attempt of this host in which it refused a start of that unreliable one; -1: none."""
    is_waiting: bool = False
    """It waits in an attempt for this host, which trains."""
    uncalled_start_at: float = -math.inf
    """When it last ended an attempt of which no member had reported a failure. Seconds."""


class HostViews:
    """One host's facts about all hosts of one instance's round."""

    def __init__(self, assignment: Assignment) -> None:
        self.gone: Collection[PeerId] = ()
        """Peers that the membership counts as gone at the moment: a table of the peer, which changes it. None counts before the
        round's first event."""
        self.unreliable: Collection[PeerId] = ()
        """Members that made attempts fail again and again; see `FailedAttempts.repeated`."""
        self._me = assignment.me
        self._contributors = assignment.contributors
        self._clients = assignment.clients
        self._views = {peer: HostView() for peer in assignment.hosts}

    def __getitem__(self, peer: PeerId) -> HostView:
        return self._views[peer]

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._views

    # --- rules -------------------------------------------------------------------------------------------------------

    @property
    def remaining(self) -> tuple[PeerId, ...]:
        """Members of the next attempt. This host always counts itself."""

        def is_out(peer: PeerId) -> bool:
            view = self._views[peer]
            return peer in self.gone or peer in suspects or view.has_voted or view.has_declined

        suspects = self.suspects

        return tuple(peer for peer in self._contributors if peer == self._me or not is_out(peer))

    @property
    def present(self) -> tuple[PeerId, ...]:
        """Contributors with which an average could have been made, by the facts of this host."""
        out = self.suspects.union(self.gone, self.declined)
        return tuple(peer for peer in self._contributors if peer not in out)

    @property
    def leader(self) -> PeerId:
        """Starts the next attempt: of those that remain and were not silent as leaders the one with the smallest id, hosts that
        all others can reach first."""
        candidates = [peer for peer in self.remaining if peer == self._me or not self._views[peer].was_silent_leader]
        return min(candidates, key=lambda peer: (peer in self._clients, peer))

    @property
    def absent(self) -> frozenset[PeerId]:
        """Hosts whose commit votes are not awaited."""
        return self.declined.union(self.gone)

    @property
    def declined(self) -> frozenset[PeerId]:
        """Hosts that reported that they will not contribute."""
        return frozenset(peer for peer, view in self._views.items() if view.has_declined)

    @property
    def resting_donors(self) -> frozenset[PeerId]:
        return frozenset(peer for peer, view in self._views.items() if view.is_resting_donor)

    @property
    def newest_failure(self) -> int:
        """The newest attempt that any host reported as failed; -1: none."""
        return max(view.failed_attempt for view in self._views.values())

    @property
    def suspects(self) -> frozenset[PeerId]:
        """Hosts that retries leave out: an attempt failed because of them, here or as a member reports that is reliable."""
        seen = (peer for peer, view in self._views.items() if view.is_suspect)
        return self._accused.union(self.unreliable, seen) - {self._me}

    @property
    def _accused(self) -> frozenset[PeerId]:
        return frozenset().union(*(view.accused for peer, view in self._views.items() if peer not in self.unreliable))

    def partial_steps(self, members: Iterable[PeerId]) -> tuple[tuple[PeerId, int], ...]:
        """Of those members that contribute fewer inner steps than planned."""
        return tuple((peer, steps) for peer in members if (steps := self._views[peer].partial_steps))

    def failed_here(self, members: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """Those of the members with which this host joins no attempt again."""
        return tuple(peer for peer in members if self._views[peer].has_failed_here)

    # --- facts -------------------------------------------------------------------------------------------------------

    def suspect(self, peers: Iterable[PeerId]) -> None:
        for view in self._others(peers):
            view.is_suspect = True

    def saw_failure(self, peers: Sequence[PeerId]) -> None:
        """An attempt that this host took part in failed because of these."""
        self.suspect(peers)
        for view in self._others(peers):
            view.has_failed_here = True

    def accuse(self, accuser: PeerId, peers: Sequence[PeerId]) -> None:
        """An attempt of `accuser` failed because of these, by its own report. It has less than half of those that remain left
        out at once, and all accusers together less than half of the contributors in the whole round: the others could still
        make an average of a majority. Hosts that have voted are in no further attempt anyway and count for neither. The accuser
        is left out itself if it names itself; and if it names this host, with which it joins no attempt again, as long as less
        than half do: otherwise two leaders that each have such a member start attempts in turn for ever."""
        voted = frozenset(peer for peer, view in self._views.items() if view.has_voted)
        accused = frozenset(peer for peer in peers if peer in self._contributors and peer != accuser) - voted
        in_round = accused.union(self._accused) - voted
        if 2 * len(accused) < len(self.remaining) and 2 * len(in_round) < len(self._contributors):
            self._views[accuser].accused |= accused
        if accuser not in self._contributors:
            return
        view = self._views[accuser]
        view.accuses_this_host = view.accuses_this_host or self._me in peers
        accusers = sum(view.accuses_this_host for view in self._views.values())
        refuses = self._me in peers and 2 * accusers < len(self._contributors)
        if accuser in peers or refuses:
            self.suspect([accuser])

    def skip_leader(self) -> None:
        """The leader's turn has passed without a start."""
        self._views[self.leader].was_silent_leader = True

    def repair_failed(self, donors: Iterable[PeerId]) -> None:
        for view in self._others(donors):
            view.is_resting_donor = True

    def rest_is_over(self) -> None:
        """Every donor may be asked again."""
        for view in self._views.values():
            view.is_resting_donor = False

    def _others(self, peers: Iterable[PeerId]) -> list[HostView]:
        return [self._views[peer] for peer in peers if peer != self._me and peer in self._views]
