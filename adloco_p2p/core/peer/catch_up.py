"""How a peer that was away, or on another history, comes back to the round that the others compute now."""

from collections.abc import Collection

from adloco_p2p.core.averaging.adaptive_timeout import AdaptiveTimeout
from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.branches import FIRST_BRANCH_ID
from adloco_p2p.core.model.effects import DiscardRound, Effect
from adloco_p2p.core.model.ledger_entry import Reorg
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.scalars import Digest, InstanceId
from adloco_p2p.core.peer.fetching import Fetching, fetch_warning
from adloco_p2p.core.peer.saving import Checkpoints
from adloco_p2p.core.peer.state import PeerState


class CatchingUp:
    """Fast-forwards this peer: when `catch_up` finds it necessary, when `rewrite` changes the history, or when
    `check_own_state` finds that its state differs."""

    def __init__(
        self,
        state: PeerState,
        *,
        fetching: Fetching,
        checkpoints: Checkpoints,
        adaptive_timeout: AdaptiveTimeout,
    ) -> None:
        self._state = state
        self._book = state.book
        self._branches = state.branches
        self._fetching = fetching
        self._checkpoints = checkpoints
        self._adaptive_timeout = adaptive_timeout
        self._waiting: tuple[int, int, float] | None = None
        """While this peer waits in a round that is over for the others: boundary, number of rounds done, and when the wait
        began."""

    @property
    def next_deadline(self) -> float | None:
        return self._waiting[2] + self._patience_seconds if self._waiting is not None else None

    def restart_wait(self) -> None:
        self._waiting = None

    def catch_up(self, now: float, *, is_donor: bool) -> list[Effect]:
        """Fast-forward to the present round if the swarm is far ahead, or is somewhat ahead and this peer makes no progress.

        A donor stays where it is, so that others can fetch its state.
        """
        if self._state.opening is not None or is_donor:
            self._waiting = None
            return []
        in_wait = [outer.round for outer in self._state.rounds if outer.is_waiting]
        self._watch(in_wait, now)
        if not (self._is_far_behind(in_wait) or self._is_stuck(now)):
            return []
        self._waiting = None
        if not self._book.has_others(self._book.newest, self._state.gone):
            return []  # only this peer has the plans of these rounds, and it does them again
        if any(self._state.is_alone_with(instance, self._present) for instance in self._state.held):
            return []  # no other peer has the state that this one would drop
        return self._fast_forward(self._present)

    @property
    def _present(self) -> int:
        """The round that the others compute now."""
        return self._book.newest.round - 1

    def _lacking(self) -> list[InstanceId]:
        """Instances of a past round whose state is not here."""
        opened = self._state.opened
        hosted = self._state.mine_of(opened) if 0 <= opened < self._present else []
        return [instance for instance in hosted if instance not in self._state.held and instance not in self._state.lost]

    def _outdated_sources(self) -> list[InstanceId]:
        """Instances that the next transition needs here, if the others have already done the round after it."""
        following = self._book.get(self._state.opened + 1)
        if following is None or following.round >= self._present:
            return []
        return [source for source in self._book.sources(following) if source < FIRST_BRANCH_ID]

    def _watch(self, in_wait: Collection[int], now: float) -> None:
        """Note since when this peer has made no progress in a round that is over for the others. `in_wait` are the rounds in
        which it waits for them."""
        is_arriving = self._fetching.under_way
        lacking = [instance for instance in self._lacking() if instance not in is_arriving]
        if not lacking and not any(number < self._present for number in in_wait):
            self._waiting = None
            return
        num_done = sum(outer.is_done for outer in self._state.rounds)
        if self._waiting is None or self._waiting[:2] != (self._state.opened, num_done):
            self._waiting = (self._state.opened, num_done, now)

    def _is_far_behind(self, in_wait: Collection[int]) -> bool:
        return self._present - min(in_wait, default=self._state.opened + 1) > self._state.rounds_kept

    def _is_stuck(self, now: float) -> bool:
        """Return whether this peer has waited too long, or the others may no longer hold a state as old as it needs."""
        is_overdue = self._waiting is not None and now >= self._waiting[2] + self._patience_seconds
        outdated = self._outdated_sources()
        has_failed = any(self._fetching.has_failed(instance) for instance in (*self._lacking(), *outdated))
        is_gone = any(self._has_no_donor(instance, self._state.opened + 1) for instance in outdated)
        return is_overdue or has_failed or is_gone

    def _has_no_donor(self, instance: InstanceId, boundary: int) -> bool:
        """Return whether the instance's state has to come from another peer, and none is known to have it."""
        item = self._state.known(instance)
        is_awaited = item.boundary is None and item.fetch is None and not item.is_lost
        return is_awaited and not self._book.outlook(instance, boundary, self._state.gone).donors

    def _fast_forward(self, boundary: int, *, agreeing: Collection[InstanceId] = ()) -> list[Effect]:
        """Abandon the work in progress and continue at the boundary with state from others. Instances in `agreeing` keep their
        own state, if it is at this boundary and no outer step is in progress."""
        boundaries = self._boundaries()
        held, is_opening = self._state.held, self._state.opening is not None
        resting = [i for i in self._state.instances if held.get(i) == boundaries.get(i) and not is_opening]
        keeping = [i for i in agreeing if i in resting and held.get(i) == boundary]
        effects = self._state.abandon_rounds()
        effects += [DiscardRound(instance=instance) for instance in self._fetching.under_way]
        effects.append(telemetry.FastForwarded(from_round=self._state.opened + 1, to_round=boundary))
        self._state.move_to(boundary, keeping=keeping, resting=resting)
        self._waiting = None
        return effects

    def pass_over_the_rest(self) -> list[Effect]:
        """Go to the end of the run, which others have reached: only their state after the last plan is still needed."""
        last = self._book.newest.round
        effects = self._fast_forward(last)
        self._state.opened = last
        return effects

    def rewrite(self, switched: Reorg) -> list[Effect]:
        """Adopt the winning history and its state; what was trained here since the fork is set aside, to be merged in."""
        plans = [entry.plan for entry in switched.won]
        first = plans[0].round
        boundaries = self._boundaries()
        effects = self._fast_forward(max(plans[-1].round - 1, min([first, *self._book.plans])))
        self._branches.on_reorg(switched)
        for instance, boundary in sorted(boundaries.items()):
            effects += self._branches.set_aside(switched, instance, boundary)
        self._state.cut(at=first)
        self._checkpoints.cut(after=first)
        for entry in switched.won:
            self._state.learn(entry.plan)
            reports = [signed.report for signed in entry.reports]
            self._book.name_ended(entry.plan, reports)
            for report in reports:
                self._book.note_states(report)
        return [*effects, *(line for plan in plans for line in self._state.plan_lines(plan))]

    def _boundaries(self) -> dict[InstanceId, int]:
        """Return the boundary at which the device will have each hosted instance, once it has done what it was asked for."""
        opening = self._book.get(self._state.opening) if self._state.opening is not None else None
        if opening is not None and self._book.sources(opening):
            here = {*self._state.held, *(target for fork in opening.forks for target in fork.targets)}
            return {instance: opening.round for instance in self._book.mine(opening) if instance in here}
        state = dict(self._state.held)
        for outer in self._state.rounds:
            if outer.is_applying and self._state.held.get(outer.instance) == outer.round:
                state[outer.instance] = outer.round + 1
        return state

    def check_own_state(self, plan: RoundPlan) -> list[Effect]:
        """Compare this peer's states with those of the run, and fetch the ones that differ. Plans name the state that a
        majority of the hosts reported; without a majority, all reports decide. States that agree are kept, because after a fork
        two hosts may each hold what the other one lacks."""
        number = plan.round - 2
        own = self._state.own_reports.get(number)
        if own is None or number <= self._state.skipped or self._book.digests.get(number) != own.plan:
            return []
        named = {item.instance: item.state_digest for item in plan.instances}
        agreed = {i: state or self._book.reported_state(i, number, self._state.gone) for i, state in named.items()}
        states = {item.instance: self._state_after(number, item) for item in own.instances}
        for instance, state in states.items():
            if state == self._book.named(instance, plan.round) or self._book.is_of_majority(instance, number, state):
                self._state.instance(instance).confirm(number + 1)
        differing = [i for i, state in states.items() if agreed.get(i) not in (None, state)]
        effects: list[Effect] = []
        for instance in differing:
            message = f"the state of instance {instance} after round {number} differs from the others'; fetching theirs"
            effects.append(fetch_warning(instance, message, active=True))  # it ends when the state has arrived
        if differing:
            agreeing = [instance for instance, state in states.items() if agreed.get(instance) == state]
            effects += self._fast_forward(max(plan.round - 1, self._state.opened), agreeing=agreeing)
        return effects

    def _state_after(self, number: int, reported: InstanceReport) -> Digest:
        """Return this peer's state after the round. Since its report, the peer may have gone through the round again, from the
        others' state."""
        outer = self._state.round_of(number, reported.instance)
        applied = outer.applied if outer is not None and outer.is_done else None
        return applied.state_digest if applied is not None else reported.state_digest

    @property
    def _patience_seconds(self) -> float:
        return self._adaptive_timeout.patience_seconds
