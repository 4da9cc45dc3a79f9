"""One peer is a function: `Peer.handle(event, now)` returns effects. It composes the machines over all hosted instances.

The contract:
- `handle` never blocks, never raises for anything that a remote peer does, and is the only way state changes.
- Effects are performed in order; see `events.py`.
- `next_deadline` is an instant or none; the loop feeds `Ticked` when it has passed.
- Same state, event and `now`: same effects.

How rounds follow each other. plan(r) is known before round r begins (it was agreed while round r - 1 computed). The
boundary before round r OPENS once plan(r) is there; where it forks, merges, needs foreign state, or where a probe of round
r - 1 is due, all hosted instances must have ended round r - 1 first. Otherwise each instance goes on by itself: while one
is still being averaged the next one computes.

How a peer that was away comes back. A known plan(r + 2) says that round r is over. A peer that is a little behind takes the
averages of such rounds from the others without training; one that is far behind, or gets nowhere, or whose state is not the
one that the others agree on, jumps to the present and fetches the state.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from adloco_p2p.core import canonical
from adloco_p2p.core.agreement import Agreement, Decided, Outcome
from adloco_p2p.core.events import (
    AverageFailed,
    AverageFinished,
    Commanded,
    DiscardRound,
    DropInstance,
    Durable,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    FetchFailed,
    FetchState,
    InnerFinished,
    Log,
    OuterApplied,
    PeerBack,
    PeerGone,
    Probe,
    Probed,
    Received,
    ReportHeard,
    SaveCheckpoint,
    SaveInstance,
    Send,
    Started,
    StateFetched,
    Stop,
    Ticked,
    Totals,
    Transition,
    TransitionApplied,
)
from adloco_p2p.core.farewell import Farewell, RunEnded
from adloco_p2p.core.histories import HistorySwitched
from adloco_p2p.core.log_lines import fetch_warning, plan_line, round_line
from adloco_p2p.core.outer_round import AttemptFailed, AttemptStart, AverageDigest, OuterRound
from adloco_p2p.core.patience import Patience
from adloco_p2p.core.plan_book import PlanBook
from adloco_p2p.core.types import (
    Capacity,
    Fork,
    InstanceId,
    PeerId,
    ProbeVerdict,
    Report,
    RoundPlan,
)

ROUNDS_KEPT = 2
"""Finished rounds whose averages this peer still vouches for, so that a late host can catch up."""
FETCH_RETRY_SECONDS = 2.0
"""A failed state transfer is tried again after so long."""
ORPHAN_SECONDS = 30.0
"""State that nobody who lives is known to have is waited for so long, before an older one is taken instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How often a peer evaluates (equal in the swarm) and saves (its own business)."""

    rounds: int
    """Length of the run."""
    evaluation_period: int
    """0: only at the end."""
    checkpoint_period: int

    def evaluates(self, round: int) -> bool:
        return self.evaluation_period > 0 and (round + 1) % self.evaluation_period == 0

    def saves(self, boundary: int) -> bool:
        return boundary % self.checkpoint_period == 0 or boundary >= self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetch:
    """State of an instance that this peer asked others for."""

    boundary: int
    retry_at: float | None = None
    """None while under way."""


class Peer:
    """Everything one volunteer's process decides about training. Consensus and membership live behind `agreement`."""

    def __init__(self, *, me: PeerId, cadence: Cadence, agreement: Agreement) -> None:
        self.me = me
        self.cadence = cadence
        self._agreement = agreement
        self._book = PlanBook(me)
        self._rounds: dict[tuple[int, InstanceId], OuterRound] = {}
        self._held: dict[InstanceId, int] = {}
        """Instance -> the boundary at which its state stands."""
        self._opened = -1
        self._opening: int | None = None
        self._skipped = -1
        """Rounds up to this one happened without this peer: it landed behind them, or started there."""
        self._fetching: dict[InstanceId, _Fetch] = {}
        self._void: Counter[tuple[type, int, InstanceId | None]] = Counter()
        """Ends of work on the device that was given up while under way: they come, and mean nothing any more."""
        self._resigned: dict[tuple[int, InstanceId], None] = {}
        """Rounds that others were told not to wait for us in."""
        self._orphaned: dict[InstanceId, float] = {}
        """Instances that this peer needs and nobody is known to have -> since when."""
        self._waiting: tuple[int, int, float] | None = None
        """Boundary, number of rounds done, since when this peer waits in a round that is over for the others."""
        self._farewell = Farewell(me)
        self._verdicts: dict[int, ProbeVerdict] = {}
        self._probing: dict[int, None] = {}
        self._final_loss: float | None = None
        self._own_reports: dict[int, Report] = {}
        self._stale: dict[InstanceId, None] = {}
        """Instances whose state is here but of an older boundary: the last resort where nobody else has any."""
        self._saved: dict[int, dict[InstanceId, None]] = {}
        """Boundary -> instances that were saved there."""
        self._checkpointed = -1
        self._patience = Patience()
        self._gone: dict[PeerId, None] = {}
        self._capacity: Capacity | None = None
        self._totals = Totals()
        self._started_at = 0.0
        self._stop_after: int | None = None
        self._is_stopped = False

    @property
    def next_deadline(self) -> float | None:
        deadlines = [self._agreement.next_deadline, *(outer.next_deadline for outer in self._rounds.values())]
        deadlines += [fetch.retry_at for fetch in self._fetching.values()]
        deadlines += [since + ORPHAN_SECONDS for since in self._orphaned.values()]
        deadlines += [self._waiting[2] + self._patience_seconds] if self._waiting is not None else []
        deadlines.append(self._farewell.next_deadline)
        return min((instant for instant in deadlines if instant is not None), default=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The one entry. After each event, everything that has become possible is begun."""
        if self._is_stopped:
            return []
        effects = self._take(event, now)
        while not self._is_stopped:
            more = self._advance(now)
            effects += more
            if not more:
                break
        return effects

    # --- one event ---------------------------------------------------------------------------------------------------

    def _take(self, event: Event, now: float) -> list[Effect]:
        if self._is_void(event):
            return []
        match event:
            case Started():
                return self._start(event, now)
            case Received():
                return self._receive(event, now)
            case Ticked():
                return self._tick(now)
            case InnerFinished() | AverageFinished() | AverageFailed() | OuterApplied() | Evaluated():
                return self._step(event, now)
            case TransitionApplied():
                return self._transition_applied(event)
            case Probed():
                self._verdicts[event.round] = event.verdict
                return [Log(name="probe", fields={"round": event.round, **canonical.to_plain(event.verdict)})]
            case StateFetched():
                return self._state_fetched(event)
            case FetchFailed():
                return self._fetch_failed(event, now)
            case Commanded():
                return self._asked_to_stop(now)
            case ReportHeard():
                self._book.note_states(event.report)
                return []
            case PeerGone() | PeerBack():
                return self._roster_changed(event, now)

    def _start(self, event: Started, now: float) -> list[Effect]:
        durable = event.durable
        assert durable.plans, "a peer starts from a plan"
        self._started_at = now
        self._capacity = event.capacity
        self._totals = durable.totals
        self._opened = self._skipped = durable.round - 1
        self._checkpointed = durable.round
        self._held = dict.fromkeys(durable.held, durable.round)
        for plan in durable.plans:
            self._book.remember(plan)
        for report in durable.reports:
            if report.peer == self.me:
                self._own_reports[report.round] = report
                if report.verdict is not None:
                    self._verdicts[report.round] = report.verdict
            self._book.note_states(report)
        effects: list[Effect] = [self._plan_line(plan) for plan in durable.plans if plan.round >= durable.round]
        return effects + self._outcomes(self._agreement.start(durable.plans, durable.reports, now), now)

    def _receive(self, event: Received, now: float) -> list[Effect]:
        message = event.message
        if isinstance(message, (AverageDigest, AttemptFailed, AttemptStart)):
            outer = self._rounds.get((message.round, message.instance))
            if outer is None:
                return self._resign(event.sender, message)
            return outer.received(event.sender, message, now, self._gone)
        if isinstance(message, RunEnded):
            return self._farewell.received(event.sender, message)
        return self._outcomes(self._agreement.receive(event.sender, message, now), now)

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for key in sorted(self._rounds):
            effects += self._rounds[key].tick(now, self._gone)
        for instance, fetch in sorted(self._fetching.items()):
            if fetch.retry_at is not None and fetch.retry_at <= now:
                del self._fetching[instance]
        effects += self._farewell.tick(now, self._gone)
        return effects + self._outcomes(self._agreement.tick(now), now)

    def _step(
        self, event: InnerFinished | AverageFinished | AverageFailed | OuterApplied | Evaluated, now: float
    ) -> list[Effect]:
        outer = self._rounds.get((event.round, event.instance))
        if outer is None:
            plan = self._book.get(event.round)
            if isinstance(event, Evaluated) and plan is not None and plan.is_last:
                self._final_loss = event.heldout_loss
            return []
        match event:
            case InnerFinished():
                return outer.inner_finished(event.result, now, self._gone)
            case AverageFinished():
                return outer.average_finished(event, now, self._gone)
            case AverageFailed():
                return outer.average_failed(event, now, self._gone)
            case OuterApplied():
                effects = outer.outer_applied(event, now, evaluate=self._evaluates(outer))
            case Evaluated():
                effects = outer.evaluated(event.heldout_loss, now)
        if outer.is_done:
            effects += self._round_done(outer)
        return effects

    def _roster_changed(self, event: PeerGone | PeerBack, now: float) -> list[Effect]:
        if isinstance(event, PeerGone):
            self._gone[event.peer] = None
        else:
            self._gone.pop(event.peer, None)
        name = "left" if isinstance(event, PeerGone) else "returned"
        effects: list[Effect] = [Log(name=name, fields={"peer": event.peer})]
        for key in sorted(self._rounds):
            effects += self._rounds[key].roster_changed(now, self._gone)
        return effects

    def _outcomes(self, outcomes: Sequence[Outcome], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for outcome in outcomes:
            match outcome:
                case Decided(plan=plan, reports=reports):
                    self._book.remember(plan)
                    for report in reports:
                        self._book.note_states(report)
                    effects.append(self._plan_line(plan))
                    effects += self._check_own_state(plan)
                case HistorySwitched():
                    effects += self._rewrite(outcome)
                case PeerGone() | PeerBack():
                    effects += self._roster_changed(outcome, now)
                case ReportHeard(report=report):
                    self._book.note_states(report)
                case _:
                    effects.append(outcome)
        return effects

    # --- what has become possible ------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        if self._farewell.has_begun:
            return self._go(now)
        effects = [*self._catch_up(now), *self._go_on_alone()]
        effects += self._report_rounds(now)
        effects += self._save(now)
        if self._farewell.has_begun:
            return effects
        effects += self._fetch_missing(now)  # first: what is on its way takes part in the boundary
        effects += self._open_boundary()
        effects += self._start_rounds(now)
        return effects or self._stop_where_asked(now)

    def _catch_up(self, now: float) -> list[Effect]:
        """Where the swarm is far ahead, or a little and we get nowhere, jump to the round that computes now."""
        newest = self._book.newest
        present = newest.round - 1
        behind = present - (self._opened + 1)
        is_waiting = any(outer.is_waiting and key[0] < present for key, outer in self._rounds.items()) or (
            0 <= self._opened < present and any(i not in self._held for i in self._mine_of(self._opened))
        )
        if not is_waiting:
            self._waiting = None
        num_done = sum(outer.is_done for outer in self._rounds.values())
        if is_waiting and (self._waiting is None or self._waiting[:2] != (self._opened, num_done)):
            self._waiting = (self._opened, num_done, now)
        is_stuck = self._waiting is not None and now >= self._waiting[2] + self._patience_seconds
        if self._opening is not None or not (behind > ROUNDS_KEPT or is_stuck):
            return []
        self._waiting = None
        if not self._book.has_others(newest, self._gone):
            return []  # nobody is ahead of us: the plans are of rounds that only we know, and we do them again
        return self._jump(present)

    def _go_on_alone(self) -> list[Effect]:
        """An average that was to come from others who are all gone: train the round after all."""
        effects: list[Effect] = []
        for key, outer in sorted(self._rounds.items()):
            if self._is_deserted(outer) and not self._have_others_ended():
                effects += outer.abandon()
                del self._rounds[key]
                self._resigned.pop(key, None)
        return effects

    def _jump(self, present: int) -> list[Effect]:
        """Give up what is under way and go on at the boundary before `present`, with state from others."""
        effects: list[Effect] = []
        if self._opening is not None:
            self._void[TransitionApplied, self._opening, None] += 1
        for number in self._probing:
            if number not in self._verdicts:
                self._void[Probed, number, None] += 1
        for key, outer in sorted(self._rounds.items()):
            if not outer.is_done:
                end = outer.device_end
                if end is not None:
                    self._void[end, key[0], key[1]] += 1
                effects += [*outer.abandon(), DiscardRound(instance=key[1])]
        for instance, fetch in sorted(self._fetching.items()):
            if fetch.retry_at is None:
                effects.append(DiscardRound(instance=instance))
        self._stale.update(dict.fromkeys(sorted(self._held)))
        self._rounds = {key: outer for key, outer in self._rounds.items() if outer.is_done}
        self._held, self._fetching, self._probing, self._opening, self._waiting = {}, {}, {}, None, None
        self._orphaned = {}
        fields: dict[str, object] = {"from_round": self._opened + 1, "to_round": present}
        self._opened = self._skipped = present - 1
        return [*effects, Log(name="jumped", fields=fields)]

    def _rewrite(self, switched: HistorySwitched) -> list[Effect]:
        """Take the other history over, and its state."""
        plans = [entry.plan for entry in switched.won]
        first = plans[0].round
        effects = self._jump(max(plans[-1].round - 1, min([first, *self._book.plans])))
        self._book.cut(at=first)
        self._own_reports = {number: report for number, report in self._own_reports.items() if number < first}
        self._verdicts = {number: verdict for number, verdict in self._verdicts.items() if number < first}
        self._rounds = {key: outer for key, outer in self._rounds.items() if key[0] < first}
        self._saved = {boundary: saved for boundary, saved in self._saved.items() if boundary <= first}
        self._checkpointed = min(self._checkpointed, first)
        for entry in switched.won:
            self._book.remember(entry.plan)
            for signed in entry.reports:
                self._book.note_states(signed.report)
        return [*effects, *(self._plan_line(plan) for plan in plans)]

    def _check_own_state(self, plan: RoundPlan) -> list[Effect]:
        """Plans name the state that most hosts reported. Whoever has another one takes theirs."""
        number = plan.round - 2
        own = self._own_reports.get(number)
        if own is None or number <= self._skipped or self._book.digests.get(number) != own.plan:
            return []
        agreed = {item.instance: item.state_digest for item in plan.instances}
        for item in own.instances:
            if agreed.get(item.instance) not in (None, item.state_digest):
                message = (
                    f"the state of instance {item.instance} after round {number} differs from the others'; fetching theirs"
                )
                log = Log(name="warning", fields={"key": f"state {item.instance}", "message": message, "active": True})
                return [log, *self._jump(max(plan.round - 1, self._opened))]
        return []

    def _step_back(self, instance: InstanceId, number: int) -> list[Effect]:
        """Where the state has to be fetched while the others train the round, they do without our part."""
        plan = self._book.plans[number]
        if (
            number > self._opened
            or instance not in self._book.mine(plan)
            or not self._book.has_company(plan, instance, self._gone)
        ):
            return []
        shares = {share.peer: share.samples for share in plan.instance(instance).hosts}
        if not shares[self.me] or (number, instance) in self._resigned:
            return []
        self._resigned[number, instance] = None
        refusal = AttemptFailed(instance=instance, round=number, attempt=0, suspects=(self.me,))
        return [Send(peer=peer, message=refusal) for peer in shares if peer != self.me]

    def _resign(self, sender: PeerId, message: AverageDigest | AttemptFailed | AttemptStart) -> list[Effect]:
        """Tell a host that waits for us that we cannot contribute: we have not got the state yet."""
        plan = self._book.get(message.round)
        if plan is None or message.round > self._opened or message.instance in self._held:
            return []
        item = next((item for item in plan.instances if item.instance == message.instance), None)
        shares = {share.peer: share.samples for share in item.hosts} if item is not None else {}
        is_answer = message.is_answer if isinstance(message, AverageDigest) else sender in getattr(message, "suspects", ())
        if is_answer or sender not in shares or not shares.get(self.me, 0):
            return []
        refusal = AttemptFailed(instance=message.instance, round=message.round, attempt=0, suspects=(self.me,))
        self._resigned[message.round, message.instance] = None
        return [Send(peer=sender, message=refusal)]

    def _open_boundary(self) -> list[Effect]:
        """Open the boundary before the next round, through a transition where the plan asks for one."""
        boundary = self._opened + 1
        plan = self._book.get(boundary)
        if plan is None or self._opening is not None or (self._stop_after is not None and boundary > self._stop_after):
            return []
        before = self._book.get(boundary - 1) if boundary - 1 > self._skipped or boundary - 1 in self._own_reports else None
        mine = self._book.mine(plan)
        mine_before = [] if before is None else [i for i in self._book.mine(before) if self._takes_part(i, before.round)]
        has_probe = before is not None and self._book.probes(before)
        needs_all = plan.forks or plan.merges or plan.is_last or has_probe or any(i not in mine for i in mine_before)
        arrived = [instance for instance in mine_before if self._stands_at(instance, boundary)]
        if len(arrived) < (len(mine_before) if needs_all else min(1, len(mine_before))):
            return []
        if has_probe and boundary - 1 not in self._verdicts:
            return []
        if not all(self._stands_at(instance, boundary) for instance in self._book.sources(plan)):
            return []
        forks = tuple(
            Fork(source=fork.source, targets=tuple(target for target in fork.targets if target in mine))
            for fork in plan.forks
            if any(target in mine for target in fork.targets)
        )
        merges = tuple(merge for merge in plan.merges if merge.target in mine)
        self._opening = boundary
        return [Transition(round=boundary, forks=forks, merges=merges)]

    def _transition_applied(self, event: TransitionApplied) -> list[Effect]:
        assert event.round == self._opening
        plan = self._book.plans[event.round]
        mine = self._book.mine(plan)
        effects: list[Effect] = []
        for fork in plan.forks:
            self._held.update(dict.fromkeys((target for target in fork.targets if target in mine), event.round))
            effects.append(Log(name="fork", fields={"round": plan.round, **canonical.to_plain(fork)}))
        for merge in plan.merges:
            if merge.target in mine:
                self._held[merge.target] = event.round
            effects.append(Log(name="merge", fields={"round": plan.round, **canonical.to_plain(merge)}))
        self._opening, self._opened = None, event.round
        for instance in sorted(instance for instance in self._held if instance not in mine):
            del self._held[instance]
            effects.append(DropInstance(instance=instance))
        if plan.is_last:
            effects += [Evaluate(instance=instance, round=plan.round) for instance in mine]
        return effects

    def _fetch_missing(self, now: float) -> list[Effect]:
        """Ask for the state of instances that this peer now hosts, or needs for a merge, and does not have."""
        if self._opening is not None:
            return []
        wanted = {instance: at for instance, at in reversed(self._wanted()) if instance not in self._held}
        self._orphaned = {instance: since for instance, since in self._orphaned.items() if instance in wanted}
        effects: list[Effect] = []
        for instance, at in sorted(wanted.items()):
            digest, donors = self._book.known_state(instance, at, self._gone)
            if instance in self._fetching:
                continue
            if digest is not None and donors:
                self._orphaned.pop(instance, None)
                self._fetching[instance] = _Fetch(boundary=at)
                effects.append(FetchState(instance=instance, round=at, digest=digest, from_peers=donors))
                effects += self._step_back(instance, at)
                continue
            effects += self._step_back(instance, at)
            if self._orphaned.setdefault(instance, now) + ORPHAN_SECONDS <= now:
                self._orphaned[instance] = now
                effects += self._take_stale(instance, at)
        return effects

    def _wanted(self) -> list[tuple[InstanceId, int]]:
        """State that this peer needs: instance and boundary. Of two boundaries of one instance the first counts."""
        boundary = self._opened + 1
        plan, opened = self._book.get(boundary), self._book.get(self._opened)
        wanted: list[tuple[InstanceId, int]] = []
        if opened is not None and self._opened > self._skipped:
            wanted += [(instance, self._opened) for instance in self._book.mine(opened)]
            if self._book.probes(opened) and opened.probe is not None:
                wanted += [(instance, boundary) for instance in opened.probe.sources]
        if plan is not None:
            wanted += [(instance, boundary) for instance in self._book.sources(plan)]
        return wanted

    def _take_stale(self, instance: InstanceId, boundary: int) -> list[Effect]:
        """Everybody who had it is gone. What is here, older as it is, is all that is left of the instance."""
        message = f"nobody has the state of instance {instance} before round {boundary}"
        if instance not in self._stale:
            return [fetch_warning(instance, f"{message}; waiting for a peer that has", active=True)]
        del self._stale[instance]
        self._orphaned.pop(instance, None)
        self._held[instance] = boundary
        warning = fetch_warning(instance, f"{message}; going on from an older one", active=True)
        return [warning, DiscardRound(instance=instance)]

    def _state_fetched(self, event: StateFetched) -> list[Effect]:
        fetch = self._fetching.get(event.instance)
        if fetch is None or fetch.boundary != event.round:
            return []  # asked for before a jump
        del self._fetching[event.instance]
        self._stale.pop(event.instance, None)
        self._held[event.instance] = event.round
        return [fetch_warning(event.instance, "the state is here", active=False)]

    def _fetch_failed(self, event: FetchFailed, now: float) -> list[Effect]:
        fetch = self._fetching.get(event.instance)
        if fetch is None or fetch.boundary != event.round:
            return []
        self._fetching[event.instance] = _Fetch(boundary=event.round, retry_at=now + FETCH_RETRY_SECONDS)
        return [fetch_warning(event.instance, event.reason, active=True)]

    def _start_rounds(self, now: float) -> list[Effect]:
        """Every hosted instance goes on from where it stands, as far as boundaries are open."""
        effects: list[Effect] = []
        for instance, number in sorted(self._held.items()):
            key, plan = (number, instance), self._book.get(number)
            if plan is None or plan.is_last or number > self._opened or instance not in self._book.mine(plan):
                continue
            following = self._book.get(number + 1)
            progress_end = following.progress if following else min(1.0, (number + 1) / self.cadence.rounds)
            if key not in self._rounds:
                is_over = self._book.newest.round >= number + 2 or key in self._resigned
                outer = OuterRound(
                    me=self.me,
                    plan=plan,
                    plan_digest=self._book.digests[plan.round],
                    instance=instance,
                    patience=self._patience,
                    is_late=is_over and self._book.has_company(plan, instance, self._gone),
                )
                self._rounds[key] = outer
                effects += outer.start(now, progress_end=progress_end)
        return effects

    def _round_done(self, outer: OuterRound) -> list[Effect]:
        """One instance ended its round: count it, write it down, save it where due."""
        self._held[outer.instance] = outer.round + 1
        self._totals += outer.totals()
        effects: list[Effect] = [round_line(outer)]
        if self.cadence.saves(outer.round + 1) or self._stop_after is not None:
            effects.append(self._save_instance(outer.instance, outer.round + 1))
        return effects

    def _report_rounds(self, now: float) -> list[Effect]:
        """Report a round once all hosted instances, and the probe if there is one, have ended it."""
        effects: list[Effect] = []
        numbers = {key[0] for key in self._rounds}
        current = self._book.get(self._opened)
        if current is not None and not current.is_last and not self._book.mine(current) and self._book.has_seat(current):
            numbers.add(self._opened)  # a member without an instance says that it is there
        for number in sorted(numbers):
            plan = self._book.plans[number]
            outers = [self._rounds.get((number, instance)) for instance in self._book.mine(plan)]
            done = [outer for outer in outers if outer is not None and outer.is_done]
            if number in self._own_reports or len(done) < len(outers):
                continue
            if self._book.probes(plan) and number not in self._verdicts:
                assert plan.probe is not None
                is_ready = all(self._stands_at(source, number + 1) for source in plan.probe.sources)
                if is_ready and number not in self._probing:
                    self._probing[number] = None
                    effects.append(Probe(round=number, merge=plan.probe))
                continue
            effects += self._report(plan, done, now)
        return effects

    def _report(self, plan: RoundPlan, done: Sequence[OuterRound], now: float) -> list[Effect]:
        results = [outer.result for outer in done if outer.result is not None]
        seconds = sum(result.seconds for result in results)
        assert self._capacity is not None
        if results and seconds > 0:
            speed = sum(result.samples for result in results) / seconds
            limit = min(result.micro_batch_limit for result in results)
            self._capacity = replace(self._capacity, samples_per_second=speed, micro_batch_limit=limit)
        report = Report(
            peer=self.me,
            round=plan.round,
            plan=self._book.digests[plan.round],
            capacity=self._capacity,
            instances=tuple(outer.report() for outer in done),
            verdict=self._verdicts.get(plan.round),
        )
        self._own_reports[plan.round] = report
        self._book.note_states(report)
        self._forget(before=plan.round - ROUNDS_KEPT)
        return self._outcomes(self._agreement.submit(report, now), now)

    # --- saving and stopping -----------------------------------------------------------------------------------------

    def _save(self, now: float) -> list[Effect]:
        """Complete every checkpoint of which all hosted instances are saved, also where one of them is already a round
        further; stop where that was the aim."""
        effects: list[Effect] = []
        for boundary in sorted(number + 1 for number in self._own_reports if number in self._book.plans):
            is_due = self._checkpointed < boundary and self.cadence.saves(boundary)
            if is_due and all(
                instance in self._saved.get(boundary, {}) for instance in self._book.mine(self._book.plans[boundary - 1])
            ):
                effects += self._checkpoint(boundary, now)
        plan = self._book.get(self._opened)
        if plan is None or self._opening is not None:
            return effects
        if plan.is_last:
            return effects + self._finish(plan, now)
        return effects

    def _asked_to_stop(self, now: float) -> list[Effect]:
        if self._farewell.has_begun:
            return self._goodbye(Stop(reason="the run is complete", is_finished=True), now)
        if self._stop_after is None:
            self._stop_after = max([self._opened, *(key[0] for key in self._rounds)])
        return [Log(name="stopping", fields={"reason": f"asked; ends after round {self._stop_after}"})]

    def _stop_where_asked(self, now: float) -> list[Effect]:
        """Once nothing is under way and nothing more has begun; also where the others ended the run without us."""
        under_way = [outer for outer in self._rounds.values() if not (outer.is_done or self._is_deserted(outer))]
        is_busy = self._opening is not None or bool(under_way)
        is_busy = is_busy or any(number not in self._verdicts for number in self._probing)
        newest = self._book.newest
        is_arriving = self._opened == newest.round or any(fetch.retry_at is None for fetch in self._fetching.values())
        if not (is_busy or is_arriving) and self._have_others_ended():
            return self._goodbye(Stop(reason="the others ended the run before this peer had caught up", is_finished=False), now)
        if self._stop_after is None or is_busy:
            return []
        effects: list[Effect] = []
        plan, boundary = self._book.get(self._opened), self._opened + 1
        mine = self._book.mine(plan) if plan is not None else []
        if self._opened in self._own_reports and all(self._stands_at(instance, boundary) for instance in mine):
            if self._checkpointed < boundary:
                effects += [self._save_instance(i, boundary) for i in mine if i not in self._saved.get(boundary, {})]
                effects += self._checkpoint(boundary, now)
            return effects + self._goodbye(Stop(reason=f"stopped before round {boundary}", is_finished=False), now)
        return self._goodbye(Stop(reason="stopped; the last checkpoint stands", is_finished=False), now)

    def _have_others_ended(self) -> bool:
        newest = self._book.newest
        return newest.is_last and self._farewell.are_all_done([seat.peer for seat in newest.roster], self._gone)

    def _is_deserted(self, outer: OuterRound) -> bool:
        """It waits for an average of others, and they are all gone."""
        return outer.is_deserted and not self._book.has_company(self._book.plans[outer.round], outer.instance, self._gone)

    def _go(self, now: float) -> list[Effect]:
        """The run is complete here: stay until the others have it too."""
        if not self._farewell.is_over(now, self._gone):
            return []
        return self._goodbye(Stop(reason="the run is complete", is_finished=True), now)

    def _goodbye(self, stop: Stop, now: float) -> list[Effect]:
        self._is_stopped = True
        return [*self._outcomes(self._agreement.leave(now), now), stop]

    def _finish(self, plan: RoundPlan, now: float) -> list[Effect]:
        """The last plan is applied: the run is over once its instance is evaluated."""
        loss = self._final_loss
        mine = self._book.mine(plan)
        if mine and loss is None:
            return []
        effects: list[Effect] = [self._save_instance(instance, plan.round) for instance in mine]
        effects += self._checkpoint(plan.round, now, is_finished=True)
        fields: dict[str, object] = {"round": plan.round, "heldout_loss": loss, **canonical.to_plain(self._total(now))}
        return [*effects, Log(name="finished", fields=fields), *self._farewell.begin([seat.peer for seat in plan.roster], now)]

    def _checkpoint(self, boundary: int, now: float, *, is_finished: bool = False) -> list[Effect]:
        """Everything as it was at the boundary, for the instances that were saved there."""
        self._checkpointed = boundary
        totals = self._total(now)
        for (number, _), outer in self._rounds.items():
            if number >= boundary and outer.is_done:  # done again after a resume, so not counted yet
                totals -= outer.totals()
        plans = tuple(self._book.plans[number] for number in sorted(self._book.plans) if number >= boundary - 1)
        durable = Durable(
            round=boundary,
            plans=plans,
            reports=tuple(report for number, report in sorted(self._own_reports.items()) if number >= boundary - 2),
            held=tuple(sorted(self._saved.get(boundary, {}))),
            totals=totals,
            is_finished=is_finished,
        )
        self._saved = {saved: instances for saved, instances in self._saved.items() if saved > boundary}
        return [SaveCheckpoint(durable=durable), Log(name="checkpoint", fields={"round": boundary})]

    def _save_instance(self, instance: InstanceId, boundary: int) -> SaveInstance:
        self._saved.setdefault(boundary, {})[instance] = None
        return SaveInstance(instance=instance, round=boundary)

    def _total(self, now: float) -> Totals:
        return replace(self._totals, seconds=self._totals.seconds + now - self._started_at)

    # --- small things ------------------------------------------------------------------------------------------------

    @property
    def _patience_seconds(self) -> float:
        return self._patience.timeout_seconds(expected_seconds=0.0)

    def _is_void(self, event: Event) -> bool:
        """The end of something that was given up. Work on the device ends in the order in which it was asked for."""
        match event:
            case InnerFinished() | OuterApplied() | Evaluated():
                key: tuple[type, int, InstanceId | None] = (type(event), event.round, event.instance)
            case TransitionApplied() | Probed():
                key = (type(event), event.round, None)
            case _:
                return False
        if not self._void[key]:
            return False
        self._void[key] -= 1
        return True

    def _mine_of(self, number: int) -> list[InstanceId]:
        plan = self._book.get(number)
        return self._book.mine(plan) if plan is not None and number > self._skipped else []

    def _takes_part(self, instance: InstanceId, number: int) -> bool:
        """Whether this peer has, or will have, the instance's state after round `number`."""
        return instance in self._held or instance in self._fetching or (number, instance) in self._rounds

    def _stands_at(self, instance: InstanceId, boundary: int) -> bool:
        return self._held.get(instance) == boundary

    def _evaluates(self, outer: OuterRound) -> bool:
        """Of an instance's hosts one evaluates, in turn: they all hold the same parameters."""
        contributors = outer.contributors
        return self.cadence.evaluates(outer.round) and contributors[outer.round % len(contributors)] == self.me

    def _plan_line(self, plan: RoundPlan) -> Log:
        return plan_line(plan, self._book.digests[plan.round])

    def _forget(self, *, before: int) -> None:
        self._book.forget(before=before)
        self._rounds = {key: outer for key, outer in self._rounds.items() if key[0] >= before}
        self._own_reports = {number: report for number, report in self._own_reports.items() if number >= before}
        self._verdicts = {number: verdict for number, verdict in self._verdicts.items() if number >= before}
        self._resigned = {key: None for key in self._resigned if key[0] >= before}
        self._probing = {number: None for number in self._probing if number >= before}
