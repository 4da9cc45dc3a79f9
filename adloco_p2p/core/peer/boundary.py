"""Between two rounds: when the boundary opens, and what forks, merges and moves of instances leave this peer with."""

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import DropInstance, Effect, Evaluate, Transition, TransitionApplied
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.model.types import Fork
from adloco_p2p.core.peer.fetching import Fetching
from adloco_p2p.core.peer.reporting import Reporting
from adloco_p2p.core.peer.state import PeerState


class Boundary:
    """`open` it as soon as it can be; the device says when the transition is `applied`."""

    def __init__(self, at: PeerState, *, fetching: Fetching, reporting: Reporting) -> None:
        self._state = at
        self._book = at.book
        self._branches = at.branches
        self._fetching = fetching
        self._reporting = reporting

    def open(self, last: int | None) -> list[Effect]:
        """Open the boundary before the next round; none after round `last`, if there is such."""
        boundary = self._state.opened + 1
        plan = self._book.get(boundary)
        if plan is None or self._state.opening is not None or (last is not None and boundary > last):
            return []
        was_there = boundary - 1 > self._state.skipped or boundary - 1 in self._state.own_reports
        before = self._book.get(boundary - 1) if was_there else None
        mine = self._book.mine(plan)
        mine_before = self._book.mine(before) if before is not None else []
        mine_before = [instance for instance in mine_before if self._fetching.takes_part(instance, boundary - 1)]
        has_probe = before is not None and self._state.measures(before)
        needs_all = plan.forks or plan.merges or plan.is_last or has_probe or any(i not in mine for i in mine_before)
        arrived = [instance for instance in mine_before if self._state.stands_at(instance, boundary)]
        if not needs_all and not arrived:
            arrived = [instance for instance in mine_before if self._state.runs_ahead(instance, boundary)]
        if len(arrived) < (len(mine_before) if needs_all else min(1, len(mine_before))):
            return []
        if has_probe and boundary - 1 not in self._reporting.verdicts:
            return []
        needed = [i for i in self._book.sources(plan) if i in mine or i not in self._state.lost]
        if not all(self._state.stands_at(instance, boundary) for instance in needed):
            return []
        forks = tuple(
            Fork(source=fork.source, targets=tuple(target for target in fork.targets if target in mine))
            for fork in plan.forks
            if any(target in mine for target in fork.targets)
        )
        merges = tuple(self._branches.doable(merge, self._state.lost) for merge in plan.merges if merge.target in mine)
        self._state.opening = boundary
        return self._state.stamped([Transition(round=boundary, forks=forks, merges=merges)])

    def applied(self, event: TransitionApplied) -> list[Effect]:
        assert event.round == self._state.opening
        plan = self._book.plans[event.round]
        mine = self._book.mine(plan)
        effects: list[Effect] = []
        for fork in plan.forks:
            self._state.held.update(dict.fromkeys((target for target in fork.targets if target in mine), event.round))
            effects.append(Log(name="fork", fields={"round": plan.round, **canonical.to_plain(fork)}))
        for merge in plan.merges:
            if merge.target in mine:
                self._state.held[merge.target] = event.round
            effects.append(Log(name="merge", fields={"round": plan.round, **canonical.to_plain(merge)}))
        self._state.opening, self._state.opened = None, event.round
        self._branches.merged(plan, mine)
        for instance in sorted(instance for instance in self._state.held if instance not in mine):
            del self._state.held[instance]
            effects.append(DropInstance(instance=instance))
        if plan.is_last:
            effects += self._state.stamped(Evaluate(instance=instance, round=plan.round) for instance in mine)
        return effects
