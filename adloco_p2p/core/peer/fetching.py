"""State that this peer needs and others have: for instances that it now hosts, merges, and branch states of lost histories."""

from collections.abc import Callable, Collection
from dataclasses import replace

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.branches import FIRST_BRANCH_ID
from adloco_p2p.core.model.donors import in_turn
from adloco_p2p.core.model.effects import DiscardRound, Effect, FetchState, Send
from adloco_p2p.core.model.electorate import full_members
from adloco_p2p.core.model.events import FetchFailed, StateFetched
from adloco_p2p.core.model.messages import AttemptFailed, AttemptStart, AverageDigest, AveragingMessage
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId, float_sum
from adloco_p2p.core.peer.completion import PENDING_SECONDS
from adloco_p2p.core.peer.hosted_instance import Fetch, HostedInstance
from adloco_p2p.core.peer.state import PeerState

FETCH_RETRY_SECONDS = 2.0
"""Pause after the first failed transfer of a state; it doubles with every further failure."""
MOST_DOUBLINGS = 4
"""Number of doublings, up to a pause of 32 s, so that donors that refuse are not pressed."""
NO_DONOR_SECONDS = 30.0
"""How long a peer waits for state that no living peer is known to have, before it takes an older one instead."""

PATIENCE_ROUNDS = 3.0
"""A state is awaited for `PENDING_SECONDS`, as finished peers wait for others, plus this many times the expected duration of
the known rounds and the longest transfer so far. The wait begins anew with every plan."""

LATE_FRACTION = 0.25
"""A newcomer whose state has not arrived after this fraction of the expected duration of its first round withdraws from that
round, because the others would wait for it."""


class Fetching:
    """Fetches states. Call `fetch_missing` and `fetch_branches` whenever something happened, and `fetched` or `failed` when a
    transfer ended."""

    def __init__(
        self, state: PeerState, *, kept_vote: Callable[[Digest, InstanceId], AverageDigest | None] = lambda *_: None
    ) -> None:
        """`kept_vote` returns this peer's vote on the average of a plan and instance, if it ever cast one."""
        self._state = state
        self._book = state.book
        self._branches = state.branches
        self._kept_vote = kept_vote
        self._newest: Digest | None = None
        """Digest of the plan since which states are awaited."""
        self._transfer_seconds = 0.0
        """Duration of the longest transfer that this peer completed; transfers of others, for which it waits, may take as
        long."""
        self.has_given_up = False
        """No living peer has brought the state at the end of the run, so this peer ends without the model."""

    @property
    def next_deadline(self) -> float | None:
        deadlines: list[float] = []
        for item in self._state.instances.values():
            if item.fetch is not None and item.fetch.retry_at is not None:
                deadlines.append(item.fetch.retry_at)
            if item.decline_at is not None:
                deadlines.append(item.decline_at)
            if item.no_donor_since is not None:
                deadlines.append(item.no_donor_since + NO_DONOR_SECONDS)
            if item.missed_since is not None and item.fetch is None:
                deadlines.append(item.missed_since + NO_DONOR_SECONDS)
            if item.awaited_since is not None and not (item.fetch is not None and item.fetch.is_under_way):
                deadlines.append(item.awaited_since + self._patience_seconds)
        return min(deadlines, default=None)

    @property
    def under_way(self) -> list[InstanceId]:
        """Instances and branch states whose transfer is in progress."""
        return sorted(key for key, item in self._state.instances.items() if item.fetch and item.fetch.is_under_way)

    def has_failed(self, instance: InstanceId) -> bool:
        """Return whether the instance's transfer failed and waits for its next try."""
        fetch = self._fetch(instance)
        return fetch is not None and not fetch.is_under_way

    def _fetch(self, instance: InstanceId) -> Fetch | None:
        return self._state.known(instance).fetch

    def tick(self, now: float) -> None:
        for item in self._state.instances.values():
            if item.decline_at is not None and item.decline_at <= now:
                item.decline_at, item.is_late = None, True
            if item.fetch is not None and item.fetch.retry_at is not None and item.fetch.retry_at <= now:
                item.fetch = None

    def restart_wait(self) -> None:
        """Wait the full time again for state that no peer is known to have."""
        for item in self._state.instances.values():
            item.no_donor_since = None

    def takes_part(self, instance: InstanceId, number: int) -> bool:
        """Return whether this peer has, or will have, the instance's state after round `number`. If the round is done and the
        state is not here, it was given up."""
        outer = self._state.round_of(number, instance)
        return instance in self._state.held or self._fetch(instance) is not None or (outer is not None and not outer.is_done)

    # --- asking ------------------------------------------------------------------------------------------------------

    def fetch_missing(self, now: float) -> list[Effect]:
        """Ask for the state of instances that this peer now hosts, or needs for a merge, and does not have."""
        if self._state.opening is not None:
            return []
        wanted = self._wanted_first()
        self._end_waits(wanted)
        effects: list[Effect] = []
        for instance, at in sorted(wanted.items()):
            item = self._state.instance(instance)
            if item.is_late:
                item.is_late = False
                effects += self._decline_round(instance, at)
            if self._is_waited_out(item, now):
                effects += self._give_up(instance, at, now)
                continue
            if item.fetch is not None or item.given_up_at == at:
                continue
            has_waited = item.no_donor_since is not None and item.no_donor_since + NO_DONOR_SECONDS <= now
            outlook = self._book.outlook(instance, at, self._state.gone, passes_over=has_waited)
            if item.is_stale and outlook.digest is not None and item.state_digest == outlook.digest:
                effects += self._take_back(instance, at, is_agreed=outlook.is_agreed)
                continue
            if outlook.digest is not None and outlook.donors:
                if item.no_donor_since is not None and self._starts_with(at):
                    item.decline_at = now + LATE_FRACTION * self._book.plans[at].expected_seconds
                item.fetch = Fetch(boundary=at, began_at=now, is_agreed=outlook.is_agreed)
                item.no_donor_since, item.is_lost = None, False
                effects.append(FetchState(instance=instance, round=at, digest=outlook.digest, from_peers=outlook.donors))
                if item.decline_at is None:
                    effects += self._decline_round(instance, at)
                continue
            if not self._starts_with(at):
                effects += self._decline_round(instance, at)
            if item.no_donor_since is None:
                item.no_donor_since = now
            if has_waited:
                item.no_donor_since = now
                effects += self._take_stale(instance, at, may_come=outlook.may_come)
        return effects

    def _end_waits(self, wanted: Collection[InstanceId]) -> None:
        """End the waits for states that are no longer needed and, if a new plan came, those that a plan could have ended."""
        newest = self._book.digests[self._book.newest.round]
        has_new_plan, self._newest = newest != self._newest, newest
        self.has_given_up = self.has_given_up and not has_new_plan
        for instance, item in self._state.instances.items():
            if has_new_plan or instance not in wanted:
                item.awaited_since = item.given_up_at = None
            if instance not in wanted:
                item.no_donor_since, item.decline_at, item.is_lost, item.failed_fetches = None, None, False, 0
                item.is_late = False

    def fetch_branches(self, now: float) -> list[Effect]:
        """Ask for states of lost histories that are to be merged into this peer's instances. A merge that is due waits for a
        limited time."""
        effects = self._branches.tidy(self._state.opened)
        following, mine = self._book.get(self._state.opened + 1), self._book.mine(self._book.newest)
        needed = self._book.sources(following) if following is not None and self._state.opening is None else []
        missing = self._branches.missing(mine, needed)
        for key, item in self._state.instances.items():
            if key not in missing or key not in needed:
                item.missed_since = None
        for key in missing:
            item, pending = self._state.instance(key), self._branches.pending(key)
            if item.missed_since is None and key in needed:
                item.missed_since = now
            if item.fetch is not None:
                continue
            holders = pending.holders if pending is not None else ()
            donors = [peer for peer in holders if peer != self._state.me and peer not in self._state.gone]
            if item.missed_since is not None and item.missed_since + NO_DONOR_SECONDS <= now:
                item.missed_since = None
                self._branches.give_up(key)
                effects.append(fetch_warning(key, "no peer has this state of a lost history; merging without it", active=False))
            elif pending is not None and donors:
                branch_state = pending.branch_state
                item.fetch = Fetch(boundary=branch_state.round, began_at=now)
                asked = in_turn(donors, branch_state.state, self._state.me, first=full_members(self._book.newest))
                effects.append(FetchState(instance=key, round=branch_state.round, digest=branch_state.state, from_peers=asked))
        return effects

    def _wanted_first(self) -> dict[InstanceId, int]:
        """Return at which boundary this peer asks for each state that it needs and lacks. Of two boundaries the first counts,
        unless a peer is known to have the state at the second only: then the round between them is over."""
        wanted: dict[InstanceId, int] = {}
        held, opened = self._state.held, self._book.get(self._state.opened)
        mine = self._book.mine(opened) if opened is not None else []
        for instance, at in self._wanted():
            # a state moves on only where this peer hosts the instance; that of a probe's source may have come too late
            if instance >= FIRST_BRANCH_ID or (instance in held and (held[instance] >= at or instance in mine)):
                continue
            first = wanted.setdefault(instance, at)
            if at > first and self._donors(instance, at) and not self._donors(instance, first):
                wanted[instance] = at
        return wanted

    def _donors(self, instance: InstanceId, boundary: int) -> tuple[PeerId, ...]:
        return self._book.outlook(instance, boundary, self._state.gone).donors

    def _wanted(self) -> list[tuple[InstanceId, int]]:
        """Return the states that this peer needs as (instance, boundary), the earlier boundary of an instance first."""
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

    def _starts_with(self, number: int) -> bool:
        """Return whether this peer's seat begins with this round, which is not over: it waits for the end of the round before.
        With delayed updates that end comes in the middle of this round, and the others would have to wait for this peer."""
        plan = self._book.get(number)
        if self._state.is_delayed:
            return False
        is_first = plan is not None and any(e.peer == self._state.me and e.joined_round == number for e in plan.roster)
        return is_first and self._book.newest.round <= number + 1

    def _is_waited_out(self, item: HostedInstance, now: float) -> bool:
        """Return whether neither a plan nor a transfer has come for so long that the peers that may have the state will not
        bring it. If all hosts wait, none reports, so no plan would end the wait; after the last plan none comes anyway."""
        if item.awaited_since is None:
            item.awaited_since = now
        is_under_way = item.fetch is not None and item.fetch.is_under_way
        return not is_under_way and now >= item.awaited_since + self._patience_seconds

    def _give_up(self, instance: InstanceId, boundary: int, now: float) -> list[Effect]:
        """Continue without the state or from an older one. Without either at the last boundary of the run, this peer's run
        ends."""
        item, last = self._state.instance(instance), self._book.newest
        if not item.is_stale and last.is_last and instance in self._book.mine(last):
            self.has_given_up |= boundary == last.round or item.given_up_at == boundary
        item.awaited_since, item.given_up_at, item.no_donor_since = now, boundary, None
        return self._take_stale(instance, boundary, may_come=False)

    @property
    def _patience_seconds(self) -> float:
        plans = [plan for number, plan in self._book.plans.items() if number >= self._state.opened]
        return PENDING_SECONDS + PATIENCE_ROUNDS * (float_sum(plan.expected_seconds for plan in plans) + self._transfer_seconds)

    def _take_back(self, instance: InstanceId, boundary: int, *, is_agreed: bool) -> list[Effect]:
        """Use the given-up state after all, because it is the one that is wanted: the others had the same one in the winning
        history, or went through the rounds since then without an outer step."""
        item = self._state.instance(instance)
        item.arrive(boundary, is_agreed=is_agreed, state_digest=item.state_digest)
        item.fetch, item.no_donor_since, item.decline_at, item.failed_fetches, item.is_lost = None, None, None, 0, False
        return [_fetch_ended(instance), DiscardRound(instance=instance)]

    def _take_stale(self, instance: InstanceId, boundary: int, *, may_come: bool) -> list[Effect]:
        """Use the older state that is here, if no peer can bring the right one any more."""
        if may_come and self._starts_with(boundary):
            return []  # normal case: the others are in the round before it
        message = f"no peer has the state of instance {instance} before round {boundary}"
        item = self._state.instance(instance)
        if may_come or not item.is_stale:
            item.is_lost = item.is_lost or not may_come
            return [fetch_warning(instance, f"{message}; waiting for one that has it", active=True)]
        item.arrive(boundary, is_agreed=False)
        item.fetch = item.no_donor_since = None
        ended = fetch_warning(instance, f"{message}; going on from an older one", active=False)
        return [ended, DiscardRound(instance=instance)]

    # --- answers -----------------------------------------------------------------------------------------------------

    def fetched(self, event: StateFetched, now: float) -> list[Effect]:
        item = self._state.instance(event.instance)
        if item.fetch is None or item.fetch.boundary != event.round:
            return []  # asked for before a fast-forward
        self._transfer_seconds = max(self._transfer_seconds, now - item.fetch.began_at)
        was_agreed = item.fetch.is_agreed
        item.fetch, item.decline_at, item.failed_fetches = None, None, 0
        if event.instance >= FIRST_BRANCH_ID:
            return [_fetch_ended(event.instance), *self._branches.fetched(event.instance)]
        outlook = self._book.outlook(event.instance, event.round, self._state.gone)  # with the reports that came meanwhile
        is_agreed = was_agreed or (outlook.is_agreed and outlook.digest == event.digest)
        item.arrive(event.round, is_agreed=is_agreed, state_digest=event.digest)
        return [_fetch_ended(event.instance)]

    def failed(self, event: FetchFailed, now: float) -> list[Effect]:
        item = self._state.instance(event.instance)
        if item.fetch is None or item.fetch.boundary != event.round:
            return []
        pause_seconds = FETCH_RETRY_SECONDS * 2 ** min(item.failed_fetches, MOST_DOUBLINGS)
        if item.awaited_since is not None:
            item.awaited_since += now - max(item.fetch.began_at, item.awaited_since)
        item.fetch = replace(item.fetch, retry_at=now + pause_seconds)
        item.failed_fetches += 1
        return [fetch_warning(event.instance, event.reason, active=True)]

    # --- declining a round -------------------------------------------------------------------------------------------

    def _decline_round(self, instance: InstanceId, number: int) -> list[Effect]:
        """Withdraw from the round if this peer fetches the state while the others train it."""
        if number > self._state.opened:
            return []  # no host trains it yet, and its plan may not be known: a probe needs state as soon as its round is open
        plan = self._book.plans[number]
        if instance not in self._book.mine(plan) or not self._book.has_company(plan, instance, self._state.gone):
            return []
        shares = {share.peer: share.contributes(number) for share in plan.instance(instance).hosts}
        item = self._state.instance(instance)
        if not shares[self._state.me] or number in item.declined:
            return []
        item.declined.add(number)
        refusal = AttemptFailed(instance=instance, round=number, attempt=0, suspects=(self._state.me,))
        return [Send(peer=peer, message=refusal) for peer in shares if peer != self._state.me]

    def decline(self, sender: PeerId, message: AveragingMessage) -> list[Effect]:
        """Answer a host that waits for this peer, which cannot contribute: it lacks the state, is rounds behind, or came back
        with a state of a later boundary and will not vote on this round any more."""
        plan = self._book.get(message.round)
        if plan is not None and self._state.held.get(message.instance, -1) > message.round:
            return self._answer_from_later(sender, message, plan)
        is_behind = message.round > self._state.opened + 1
        is_late = message.round <= self._state.opened or self._fetches_older(message.instance, message.round)
        lacks_state = is_late and message.instance not in self._state.held
        if plan is None or not (is_behind or lacks_state):
            return []
        item = plan.find(message.instance)
        shares = {share.peer: share.contributes(plan.round) for share in item.hosts} if item is not None else {}
        if _asks_nothing(sender, message) or sender not in shares or not shares.get(self._state.me, False):
            return []
        declined = self._state.instance(message.instance).declined
        if _only_begins(sender, message) and shares[sender] and message.round not in declined:
            return []  # it does not wait for this peer yet
        declined.add(message.round)
        refusal = AttemptFailed(instance=message.instance, round=message.round, attempt=0, suspects=(self._state.me,))
        return [Send(peer=sender, message=refusal)]

    def _fetches_older(self, instance: InstanceId, number: int) -> bool:
        """Return whether the state on its way here is that of a boundary before this round's."""
        fetch = self._fetch(instance)
        return fetch is not None and fetch.boundary < number

    def _answer_from_later(self, sender: PeerId, message: AveragingMessage, plan: RoundPlan) -> list[Effect]:
        """Answer about a round that this peer went through before a restart. A host that only receives the round waits for the
        votes of all live hosts, so it needs this peer's vote, or the answer that none will come."""
        item = plan.find(message.instance)
        hosts = item.peers if item is not None else ()
        if (isinstance(message, AverageDigest) and message.is_answer) or sender not in hosts or self._state.me not in hosts:
            return []
        kept = self._kept_vote(self._book.digests[message.round], message.instance)
        vote = kept or AverageDigest.void(message.instance, message.round)
        return [Send(peer=sender, message=replace(vote, is_answer=True, is_held=vote.is_void))]


def _asks_nothing(sender: PeerId, message: AveragingMessage) -> bool:
    """Return whether the message is an answer or a bare refusal; an answer to these would start an endless exchange of
    refusals."""
    match message:
        case AverageDigest():
            return message.is_answer
        case AttemptFailed():
            return sender in message.suspects and not message.is_question
        case AttemptStart():
            return False


def _only_begins(sender: PeerId, message: AveragingMessage) -> bool:
    """Return whether the message is the question of a contributor that begins its inner steps, or of a host without a part in
    the average."""
    return isinstance(message, AttemptFailed) and message.is_question and sender not in message.suspects


def fetch_warning(instance: InstanceId, message: str, *, active: bool) -> telemetry.Warning:
    """Return the warning that the state of an instance cannot be had, or its end: the state has arrived, or this peer goes on
    without."""
    return telemetry.Warning(key=f"fetch {instance}", message=message, active=active)


def _fetch_ended(instance: InstanceId) -> telemetry.Warning:
    return fetch_warning(instance, "the state has arrived", active=False)
