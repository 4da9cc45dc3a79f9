"""State that this peer needs and others have: for instances that it now hosts, merges, and branch states of lost histories."""

from dataclasses import dataclass

from adloco_p2p.core.model.events import DiscardRound, Effect, FetchFailed, FetchState, Send, StateFetched
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart, AverageDigest
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import FIRST_BRANCH_ID, InstanceId, PeerId
from adloco_p2p.core.peer.state import PeerState

FETCH_RETRY_SECONDS = 2.0
"""A failed state transfer is tried again after so long."""
NO_DONOR_SECONDS = 30.0
"""A peer waits so long for state that no living peer is known to have, before it takes an older one instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetch:
    """State of an instance that this peer asked others for."""

    boundary: int
    retry_at: float | None = None
    """None while under way."""


class Fetching:
    """`fetch_missing` and `fetch_branches` whenever something happened; `fetched` or `failed` when a transfer ended."""

    def __init__(self, at: PeerState) -> None:
        self._state = at
        self._book = at.book
        self._branches = at.branches
        self._under_way: dict[InstanceId, _Fetch] = {}
        self._without_donor: dict[InstanceId, float] = {}
        """Instances that this peer needs and no other is known to have -> since when."""
        self._missed_branches: dict[InstanceId, float] = {}
        """Branch states that the next transition needs and this peer lacks -> since when."""
        self._stale: dict[InstanceId, None] = {}
        """Instances whose state here is of an older boundary: the last resort where no other peer has any."""

    @property
    def next_deadline(self) -> float | None:
        deadlines = [fetch.retry_at for fetch in self._under_way.values() if fetch.retry_at is not None]
        deadlines += [since + NO_DONOR_SECONDS for since in self._without_donor.values()]
        deadlines += [since + NO_DONOR_SECONDS for key, since in self._missed_branches.items() if key not in self._under_way]
        return min(deadlines, default=None)

    @property
    def is_under_way(self) -> bool:
        return any(fetch.retry_at is None for fetch in self._under_way.values())

    def has_failed(self, instance: InstanceId) -> bool:
        """Its transfer did, and waits for its next try."""
        fetch = self._under_way.get(instance)
        return fetch is not None and fetch.retry_at is not None

    def tick(self, now: float) -> None:
        due = [key for key, fetch in self._under_way.items() if fetch.retry_at is not None and fetch.retry_at <= now]
        for key in due:
            del self._under_way[key]

    def give_up(self) -> list[Effect]:
        """Before a fast-forward: cancel the transfers under way; what is here is of an older boundary."""
        under_way = [instance for instance, fetch in sorted(self._under_way.items()) if fetch.retry_at is None]
        self._stale.update(dict.fromkeys(sorted(self._state.held)))
        self._under_way, self._without_donor = {}, {}
        return [DiscardRound(instance=instance) for instance in under_way]

    def restart_wait(self) -> None:
        """Wait the full time again for state that no peer is known to have."""
        self._without_donor = {}

    def takes_part(self, instance: InstanceId, number: int) -> bool:
        """Whether this peer has, or will have, the instance's state after round `number`. What a round that is done has led to,
        and is not here, was given up."""
        outer = self._state.rounds.get((number, instance))
        return instance in self._state.held or instance in self._under_way or (outer is not None and not outer.is_done)

    # --- asking ------------------------------------------------------------------------------------------------------

    def fetch_missing(self, now: float) -> list[Effect]:
        """Ask for the state of instances that this peer now hosts, or needs for a merge, and does not have."""
        if self._state.opening is not None:
            return []
        wanted = {i: at for i, at in reversed(self._wanted()) if i not in self._state.held and i < FIRST_BRANCH_ID}
        self._without_donor = {instance: since for instance, since in self._without_donor.items() if instance in wanted}
        self._state.lost = {instance: None for instance in self._state.lost if instance in wanted}
        effects: list[Effect] = []
        for instance, at in sorted(wanted.items()):
            digest, donors = self._book.known_state(instance, at, self._state.gone)
            if instance in self._under_way:
                continue
            if digest is not None and donors:
                self._without_donor.pop(instance, None)
                self._state.lost.pop(instance, None)
                self._under_way[instance] = _Fetch(boundary=at)
                effects.append(FetchState(instance=instance, round=at, digest=digest, from_peers=donors))
                effects += self._decline_round(instance, at)
                continue
            effects += self._decline_round(instance, at)
            if self._without_donor.setdefault(instance, now) + NO_DONOR_SECONDS <= now:
                self._without_donor[instance] = now
                effects += self._take_stale(instance, at)
        return effects

    def fetch_branches(self, now: float) -> list[Effect]:
        """Ask for states of lost histories that this peer's instances are to be merged with. A merge that is due waits
        a limited time."""
        effects = self._branches.tidy(self._state.opened)
        following, mine = self._book.get(self._state.opened + 1), self._book.mine(self._book.newest)
        needed = self._book.sources(following) if following is not None and self._state.opening is None else []
        missing = self._branches.missing(mine, needed)
        self._missed_branches = {key: self._missed_branches.get(key, now) for key in missing if key in needed}
        for key in missing:
            if key in self._under_way:
                continue
            item = self._branches.pending(key)
            holders = item.holders if item is not None else ()
            donors = [peer for peer in holders if peer != self._state.me and peer not in self._state.gone]
            if self._missed_branches.get(key, now) + NO_DONOR_SECONDS <= now:
                del self._missed_branches[key]
                self._branches.give_up(key)
                effects.append(fetch_warning(key, "no peer has this state of a lost history; merging without it", active=True))
            elif item is not None and donors:
                branch_state = item.branch_state
                self._under_way[key] = _Fetch(boundary=branch_state.round)
                effects.append(
                    FetchState(instance=key, round=branch_state.round, digest=branch_state.state, from_peers=tuple(donors))
                )
        return effects

    def _wanted(self) -> list[tuple[InstanceId, int]]:
        """State that this peer needs: instance and boundary. Of two boundaries of one instance the first counts."""
        boundary = self._state.opened + 1
        plan, opened = self._book.get(boundary), self._book.get(self._state.opened)
        wanted: list[tuple[InstanceId, int]] = []
        if opened is not None and self._state.opened > self._state.skipped:
            wanted += [(instance, self._state.opened) for instance in self._book.mine(opened)]
            if self._book.probes(opened) and opened.probe is not None:
                wanted += [(instance, boundary) for instance in opened.probe.sources]
        if plan is not None:
            wanted += [(instance, boundary) for instance in self._book.sources(plan)]
        return wanted

    def _take_stale(self, instance: InstanceId, boundary: int) -> list[Effect]:
        """All peers that had it are gone. The older state here is all that is left of the instance."""
        message = f"no peer has the state of instance {instance} before round {boundary}"
        if instance not in self._stale:
            if not self._book.may_come(instance, boundary, self._state.gone):
                self._state.lost[instance] = None
            return [fetch_warning(instance, f"{message}; waiting for one that has it", active=True)]
        del self._stale[instance]
        self._without_donor.pop(instance, None)
        self._state.held[instance] = boundary
        warning = fetch_warning(instance, f"{message}; going on from an older one", active=True)
        return [warning, DiscardRound(instance=instance)]

    # --- answers -----------------------------------------------------------------------------------------------------

    def fetched(self, event: StateFetched) -> list[Effect]:
        fetch = self._under_way.get(event.instance)
        if fetch is None or fetch.boundary != event.round:
            return []  # asked for before a fast-forward
        del self._under_way[event.instance]
        if event.instance >= FIRST_BRANCH_ID:
            return [_fetch_ended(event.instance), *self._branches.fetched(event.instance)]
        self._stale.pop(event.instance, None)
        self._state.held[event.instance] = event.round
        return [_fetch_ended(event.instance)]

    def failed(self, event: FetchFailed, now: float) -> list[Effect]:
        fetch = self._under_way.get(event.instance)
        if fetch is None or fetch.boundary != event.round:
            return []
        self._under_way[event.instance] = _Fetch(boundary=event.round, retry_at=now + FETCH_RETRY_SECONDS)
        return [fetch_warning(event.instance, event.reason, active=True)]

    # --- declining a round -------------------------------------------------------------------------------------------

    def _decline_round(self, instance: InstanceId, number: int) -> list[Effect]:
        """Where this peer fetches the state while the others train the round, it withdraws from the round."""
        if number > self._state.opened:
            return []  # no host trains it yet, and its plan may not be known: a probe needs state as soon as its round is open
        plan = self._book.plans[number]
        if instance not in self._book.mine(plan) or not self._book.has_company(plan, instance, self._state.gone):
            return []
        shares = {share.peer: share.samples for share in plan.instance(instance).hosts}
        if not shares[self._state.me] or (number, instance) in self._state.declined:
            return []
        self._state.declined[number, instance] = None
        refusal = AttemptFailed(instance=instance, round=number, attempt=0, suspects=(self._state.me,))
        return [Send(peer=peer, message=refusal) for peer in shares if peer != self._state.me]

    def decline(self, sender: PeerId, message: AverageDigest | AttemptFailed | AttemptStart) -> list[Effect]:
        """Answer a host that waits for this peer, which cannot contribute: it lacks the state, or is rounds behind."""
        plan = self._book.get(message.round)
        is_behind = message.round > self._state.opened + 1
        lacks_state = message.round <= self._state.opened and message.instance not in self._state.held
        if plan is None or not (is_behind or lacks_state):
            return []
        item = next((item for item in plan.instances if item.instance == message.instance), None)
        shares = {share.peer: share.samples for share in item.hosts} if item is not None else {}
        is_answer = message.is_answer if isinstance(message, AverageDigest) else sender in getattr(message, "suspects", ())
        if is_answer or sender not in shares or not shares.get(self._state.me, 0):
            return []
        refusal = AttemptFailed(instance=message.instance, round=message.round, attempt=0, suspects=(self._state.me,))
        self._state.declined[message.round, message.instance] = None
        return [Send(peer=sender, message=refusal)]


def fetch_warning(instance: InstanceId, message: str, *, active: bool) -> Log:
    """The state of an instance cannot be had, or can again."""
    return Log(name="warning", fields={"key": f"fetch {instance}", "message": message, "active": active})


def _fetch_ended(instance: InstanceId) -> Log:
    return fetch_warning(instance, "the state has arrived", active=False)
