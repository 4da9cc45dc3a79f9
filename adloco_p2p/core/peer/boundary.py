"""The boundary between two rounds: when it opens, and which forks, merges and moves of instances it performs on this peer."""

from collections.abc import Sequence
from math import inf

from adloco_p2p.core.model import telemetry
from adloco_p2p.core.model.effects import DropInstance, Effect, Transition
from adloco_p2p.core.model.events import TransitionApplied
from adloco_p2p.core.model.lineage import Fork
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.plan_telemetry import fork_line, merge_line
from adloco_p2p.core.model.scalars import InstanceId
from adloco_p2p.core.peer.fetching import Fetching
from adloco_p2p.core.peer.state import PeerState

STATELESS_SECONDS = 30.0
"""Least duration of a round whose states no peer has, unless more was expected. A peer waits equally long before it takes an
older state, from which the others then continue; at full speed, such rounds would use up the run meanwhile."""


class Boundary:
    """Opens each boundary as soon as possible (`open`); the device answers when its transition is `applied`."""

    def __init__(self, state: PeerState, *, fetching: Fetching) -> None:
        self._state = state
        self._book = state.book
        self._branches = state.branches
        self._fetching = fetching
        self._opened_at = -inf
        """Time at which a round last began here."""
        self.next_deadline: float | None = None
        """Time at which a round may begin whose states no peer has."""

    def open(self, last: int | None, now: float) -> list[Effect]:
        """Open the boundary before the next round, if it is possible and the round is not after `last`."""
        self.next_deadline = None
        boundary = self._state.opened + 1
        plan = self._book.get(boundary)
        if plan is None or self._state.opening is not None or (last is not None and boundary > last):
            return []
        before = self._plan_before(boundary)
        if not (self._have_arrived(plan, before) and self._is_measured(before) and self._has_sources(plan)):
            return []
        earliest = self._opened_at + max(STATELESS_SECONDS, plan.expected_seconds)
        if self._is_stateless(plan) and now < earliest:
            self.next_deadline = earliest
            return []
        self._state.opening, self._opened_at = boundary, now
        return self._state.stamped([self._transition(plan)])

    def _is_stateless(self, plan: RoundPlan) -> bool:
        """Return whether, by the plan, no peer had the state of any instance, and none is here or on its way."""
        has_any = any(self._fetching.takes_part(instance, plan.round - 1) for instance in self._book.mine(plan))
        return not has_any and all(item.orphaned_rounds for item in plan.instances)

    def _plan_before(self, boundary: int) -> RoundPlan | None:
        """Return the plan of the round before the boundary, if this peer took part in that round."""
        was_there = boundary - 1 > self._state.skipped or boundary - 1 in self._state.own_reports
        return self._book.get(boundary - 1) if was_there else None

    def _have_arrived(self, plan: RoundPlan, before: RoundPlan | None) -> bool:
        """Return whether enough instances of the round before have reached the boundary: all if the transition needs them
        together, otherwise one."""
        boundary = plan.round
        hosted = self._book.mine(before) if before is not None else []
        hosted = [instance for instance in hosted if self._fetching.takes_part(instance, boundary - 1)]
        arrived = [self._state.is_at(instance, boundary) for instance in hosted]
        if self._needs_all(plan, before, hosted):
            return all(arrived)
        return not hosted or any(arrived) or any(self._state.runs_ahead(instance, boundary) for instance in hosted)

    def _needs_all(self, plan: RoundPlan, before: RoundPlan | None, hosted: Sequence[InstanceId]) -> bool:
        """Return whether the transition involves several instances, or takes one away from this peer."""
        mine = self._book.mine(plan)
        has_probe = before is not None and self._state.measures(before)
        goes_back = any(item.rewind is not None for item in plan.instances)
        is_plain = not (plan.forks or plan.merges or plan.is_last or has_probe or goes_back)
        return not is_plain or any(instance not in mine for instance in hosted)

    def _is_measured(self, before: RoundPlan | None) -> bool:
        """Return whether this peer need not measure the probe of the round before any more. Once it has reported the round it
        need not, even if a branch state arrives later."""
        if before is None or before.round in self._state.own_reports or before.round in self._state.verdicts:
            return True
        return not self._state.measures(before)

    def _has_sources(self, plan: RoundPlan) -> bool:
        """Return whether all that the transition needs is here, except instances that no peer has."""
        mine = self._book.mine(plan)
        needed = [i for i in self._book.sources(plan) if i in mine or i not in self._state.lost]
        return all(self._state.is_at(instance, plan.round) for instance in needed)

    def _transition(self, plan: RoundPlan) -> Transition:
        """Return the part of the plan's rewinds, forks and merges that concerns this peer's instances."""
        mine = self._book.mine(plan)
        forks = tuple(
            Fork(source=fork.source, targets=tuple(target for target in fork.targets if target in mine))
            for fork in plan.forks
            if any(target in mine for target in fork.targets) and fork.source in self._state.held
        )
        merges = tuple(self._branches.doable(merge, self._state.lost) for merge in plan.merges if merge.target in mine)
        rewinds = tuple(  # a state that is still to be fetched comes from hosts that have done the rewind
            (item.instance, item.rewind)
            for item in plan.instances
            if item.rewind and item.instance in mine and self._state.held.get(item.instance) == plan.round
        )
        return Transition(round=plan.round, forks=forks, merges=merges, rewinds=rewinds)

    def applied(self, event: TransitionApplied) -> list[Effect]:
        assert event.round == self._state.opening
        plan = self._book.plans[event.round]
        mine = self._book.mine(plan)
        effects: list[Effect] = []
        for fork in plan.forks:
            for target in fork.targets:
                if target in mine and fork.source in self._state.held:
                    self._state.instance(target).descend(event.round, [self._state.instance(fork.source)])
            effects.append(fork_line(fork, plan.round))
        for merge in plan.merges:
            if merge.target in mine:
                sources = [self._state.known(source) for source in merge.sources]
                self._state.instance(merge.target).descend(event.round, sources)
            effects.append(merge_line(merge, plan.round))
        effects += self._gone_back(plan, mine, event.missing)
        self._state.opening, self._state.opened = None, event.round
        self._branches.merged(plan, mine)
        for instance in sorted(instance for instance in self._state.held if instance not in mine):
            dropped = self._state.instance(instance)
            dropped.boundary, dropped.state_digest, dropped.is_carried = None, None, False
            effects.append(DropInstance(instance=instance))
        if plan.is_last:
            effects += self._state.final_evaluations(plan)
        return effects

    def _gone_back(self, plan: RoundPlan, mine: Sequence[InstanceId], missing: Sequence[InstanceId]) -> list[Effect]:
        """Report alarms of the guard, and their end. A state that is not kept here is fetched from the other hosts."""
        effects: list[Effect] = []
        for item in plan.instances:
            if item.instance not in mine:
                continue
            hosted, key = self._state.instance(item.instance), f"guard {item.instance}"
            if item.rewind is not None:
                hosted.is_carried, hosted.state_digest = False, None
                effects.append(telemetry.Warning(key=key, message=f"round {plan.round}: {item.reason}", active=True))
            elif item.strict_before == plan.round > 0:
                message = f"round {plan.round}: instance {item.instance} is averaged by the run's rule again"
                effects.append(telemetry.Warning(key=key, message=message, active=False))
            if item.instance in missing:
                hosted.give_up()
        return effects
