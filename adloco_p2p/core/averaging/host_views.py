"""The facts about the other hosts of one round, and the rules on them: the members of a retry, its leader, the hosts whose
commit votes are awaited, and the donors of an average."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from adloco_p2p.core.averaging.assignment import Assignment
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.scalars import Digest, PeerId


@dataclass(slots=True)
class HostView:
    """The facts that this host knows about one host of the round, called the viewed host here."""

    failed_attempt: int = -1
    """The newest attempt whose failure the viewed host reported; -1 if none."""
    decision: Digest | None = None
    """The decision that the viewed host can complete, by its newest report of a failure."""
    partial_steps: int | None = None
    """The inner steps that the viewed host states to contribute, if fewer than planned; 0 means as planned; None means that it
    has stated nothing, at least since this host restarted."""
    has_declined: bool = False
    """Whether the viewed host reported that it will not contribute, so that its commit vote is not awaited."""
    is_suspect: bool = False
    """Whether an attempt failed here because of the viewed host, or it must be left out by its own report."""
    has_failed_here: bool = False
    """Whether an attempt of this host failed because of the viewed one, so that it joins none with that host again."""
    was_silent_leader: bool = False
    """Whether the viewed host did not start a retry when it was its turn to lead."""
    is_resting_donor: bool = False
    """Whether a repair from the viewed host has failed, so that it is not asked again before the next pause."""
    has_voted: bool = False
    """Whether the viewed host has cast its commit vote, so that it joins no further attempt."""
    accused: frozenset[PeerId] = frozenset()
    """The contributors that the viewed host has accused in this round, as far as its accusations count."""
    accused_deciding: frozenset[PeerId] = frozenset()
    """If the viewed host does not decide: the hosts that it has accused in this round and that do."""
    accuses_this_host: bool = False
    """Whether an attempt of the viewed host failed because of this one, so that it joins none with this host again."""
    refused_in: int = -1
    """The newest attempt of this host in which it refused a start of the viewed host as unreliable; -1 if none."""
    asks: bool = False
    """Whether the viewed host, which may be late, asked who waits for it before this host did."""
    is_waiting: bool = False
    """Whether the viewed host waits in an attempt for this host, which trains."""
    uncalled_start_at: float = -math.inf
    """When the viewed host last ended an attempt of which no member had reported a failure, in seconds."""


class HostViews:
    """The facts that one host knows about all hosts of one instance's round."""

    def __init__(self, assignment: Assignment) -> None:
        self.gone: Collection[PeerId] = ()
        """The peers that the membership counts as gone now: a shared table that the peer updates. It is empty before the
        round's first event."""
        self.unreliable: Collection[PeerId] = ()
        """The members that made attempts fail again and again; see `FailedAttempts.repeated`."""
        self.have_others_failed = False
        """Whether several attempts failed because of hosts that do not decide, so that retries hold those that decide alone."""
        self._me = assignment.me
        self._contributors = assignment.contributors
        self._deciding = assignment.deciding
        self._clients = assignment.clients
        self._views = {peer: HostView() for peer in assignment.hosts}

    def __getitem__(self, peer: PeerId) -> HostView:
        return self._views[peer]

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._views

    # --- rules -------------------------------------------------------------------------------------------------------

    @property
    def remaining(self) -> tuple[PeerId, ...]:
        """The members of the next attempt, this host always included if it is a contributor."""

        def is_out(peer: PeerId) -> bool:
            view = self._views[peer]
            is_left_out = peer in suspects or (leaves_others_out and peer not in self._deciding)
            return peer in self.gone or is_left_out or view.has_voted or view.has_declined

        suspects = self.suspects
        leaves_others_out = self.have_others_failed and not self._are_apart

        return tuple(peer for peer in self._contributors if peer == self._me or not is_out(peer))

    @property
    def present(self) -> tuple[PeerId, ...]:
        """The contributors with which an average could have been made, by the facts known here."""
        out = self.suspects.union(self.gone, self.declined)
        return tuple(peer for peer in self._contributors if peer not in out)

    @property
    def leader(self) -> PeerId:
        """The host that starts the next attempt: of the remaining hosts that were not silent as leaders the one with the
        smallest id, hosts that do not decide and hosts in client mode last."""
        candidates = [peer for peer in self.remaining if peer == self._me or not self._views[peer].was_silent_leader]
        return min(candidates, key=lambda peer: (not self.may_lead(peer), peer in self._clients, peer))

    def may_lead(self, peer: PeerId) -> bool:
        """Return whether the host's attempts count: its vote does, or those whose votes do cannot reach each other."""
        return peer in self._deciding or self._are_apart

    @property
    def _are_apart(self) -> bool:
        """Whether all hosts that decide are in client mode."""
        return self._deciding <= self._clients

    @property
    def absent(self) -> frozenset[PeerId]:
        """The hosts whose commit votes are not awaited."""
        return self.declined.union(self.gone)

    @property
    def declined(self) -> frozenset[PeerId]:
        """The hosts that reported that they will not contribute."""
        return frozenset(peer for peer, view in self._views.items() if view.has_declined)

    @property
    def resting_donors(self) -> frozenset[PeerId]:
        return frozenset(peer for peer, view in self._views.items() if view.is_resting_donor)

    @property
    def newest_failure(self) -> int:
        """The newest attempt that any host reported as failed; -1 if none."""
        return max(view.failed_attempt for view in self._views.values())

    @property
    def suspects(self) -> frozenset[PeerId]:
        """The hosts that retries leave out: an attempt failed because of them, here or by the report of a reliable member, or
        they do not decide and accuse one that does and is there."""
        lost = self._lost.union(self._accused, self.unreliable)
        accusing = (peer for peer, view in self._views.items() if not view.accused_deciding <= lost)
        seen = (peer for peer, view in self._views.items() if view.is_suspect)
        return self._accused.union(self.unreliable, seen, accusing) - {self._me}

    @property
    def _lost(self) -> frozenset[PeerId]:
        """The hosts that join no further attempt by the facts known here."""
        return self.absent.union(peer for peer, view in self._views.items() if view.is_suspect or view.has_voted)

    @property
    def _accused(self) -> frozenset[PeerId]:
        return frozenset().union(*(view.accused for peer, view in self._views.items() if peer not in self.unreliable))

    @property
    def is_left_behind(self) -> bool:
        """Whether an attempt of another contributor failed because of this host, and the others can commit one."""
        is_accused = any(view.accuses_this_host for view in self._views.values())
        return is_accused and self.can_commit(self._deciding - self.absent - {self._me})

    def can_commit(self, members: Collection[PeerId]) -> bool:
        """Return whether an average of these members can get a majority of the commit votes that count."""
        return is_majority(len(self._deciding.intersection(members)), len(self._deciding))

    def are_minority(self, peers: Collection[PeerId]) -> bool:
        """Return whether those of these hosts that decide are less than half of all that do."""
        return 2 * len(self._deciding.intersection(peers)) < len(self._deciding)

    def partial_steps(self, members: Iterable[PeerId]) -> tuple[tuple[PeerId, int], ...]:
        """Return the inner steps of the members that contribute fewer than planned."""
        return tuple((peer, steps) for peer in members if (steps := self._views[peer].partial_steps))

    def failed_here(self, members: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """Return the members with which this host joins no attempt again."""
        return tuple(peer for peer in members if self._views[peer].has_failed_here)

    # --- facts -------------------------------------------------------------------------------------------------------

    def suspect(self, peers: Iterable[PeerId]) -> None:
        for view in self._others(peers):
            view.is_suspect = True

    def saw_failure(self, peers: Sequence[PeerId]) -> None:
        """Note that an attempt of this host failed because of these peers."""
        self.suspect(peers)
        for view in self._others(peers):
            view.has_failed_here = True

    def accuse(self, accuser: PeerId, peers: Sequence[PeerId]) -> None:
        """Note that an attempt of `accuser` failed because of these peers, by its report.

        One report leaves out less than half of the remaining hosts. All reports of the round together leave out one host, or
        several that are a minority together with their accusers, one of which may lie and not vote. So the others can still
        make an average of a majority. Hosts that are lost for this one as well need no accuser, and hosts that have voted do
        not count at all. A host whose vote does not count leaves out nobody whose vote counts, but itself (`suspects`).

        The accuser itself is left out, too, if it names itself, or if it names this host, with which it joins no attempt again,
        as long as a minority does: otherwise two leaders that each have such a member would start attempts in turn for ever.
        """
        voted = frozenset(peer for peer, view in self._views.items() if view.has_voted)
        accused = frozenset(peer for peer in peers if peer in self._contributors and peer != accuser) - voted
        in_round = self._deciding.intersection(accused.union(self._accused) - voted)
        if len(in_round - (lost := self._lost)) > 1:
            accusers = {peer for peer, view in self._views.items() if peer not in self.unreliable and view.accused - lost}
            in_round = in_round.union(accusers, [accuser] if accused - lost else [])
        if accuser not in self._deciding and not self._deciding.isdisjoint(accused):
            self._views[accuser].accused_deciding |= self._deciding.intersection(accused)
        elif 2 * len(accused) < len(self.remaining) and self.are_minority(in_round):
            self._views[accuser].accused |= accused
        if accuser not in self._contributors:
            return
        view = self._views[accuser]
        view.accuses_this_host = view.accuses_this_host or self._me in peers
        refusing = [peer for peer, view in self._views.items() if view.accuses_this_host]
        if accuser in peers or (self._me in peers and self.are_minority(refusing)):
            self.suspect([accuser])

    def skip_leader(self) -> None:
        """Note that the leader's turn has passed without a start."""
        self._views[self.leader].was_silent_leader = True

    def repair_failed(self, donors: Iterable[PeerId]) -> None:
        for view in self._others(donors):
            view.is_resting_donor = True

    def rest_is_over(self) -> None:
        """Allow all donors to be asked again."""
        for view in self._views.values():
            view.is_resting_donor = False

    def _others(self, peers: Iterable[PeerId]) -> list[HostView]:
        return [self._views[peer] for peer in peers if peer != self._me and peer in self._views]
