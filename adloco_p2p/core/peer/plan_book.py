"""The plans that one peer has, and what they mean for it: its own instances, the states that it needs, and the peers that share
them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.donors import in_turn
from adloco_p2p.core.model.electorate import deciding_contributors, deciding_hosts, full_members, is_majority
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan, keepers_of, members_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import LARGEST_COUNT, Digest, InstanceId, PeerId

PLANS_KEPT = 8
"""Least number of rounds whose plans stay known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Whether other peers can bring a state that this one lacks.

    They can if its root is known and a living peer has it (`donors`). They still may as long as another living member was to
    train the instance up to the boundary and has not shown that it goes without the state. It shows that by a report without
    the state, on that round or, if it skipped that round, on a later one in which it was to train the instance. The same holds
    for the round before; otherwise hosts that are all new to an instance whose former hosts are gone would wait for each other.
    A living peer that never reports loses its seat, which ends the wait. If nobody can bring the state, this peer takes an
    older one, or goes on without any and reports the rounds that it goes through with nothing (`PeerState.ending`).
    """

    digest: Digest | None
    """Root of the state from the agreed plan or the reports; None if it is unknown."""
    donors: tuple[PeerId, ...]
    """Living peers that have the state, in the order in which they are asked."""
    may_come: bool
    """A host has the state, or may still get it."""
    is_agreed: bool
    """A plan names the state, or a majority of the planned hosts, dead or alive, reported it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """The state at the end of the run, by the claims of the peers that hold it."""

    digest: Digest
    holders: tuple[PeerId, ...]
    """Other peers that hold the state, sorted."""
    is_agreed: bool
    """A majority holds the state, or agreed on every step to it."""
    is_of_most: bool
    """More than half of all planned hosts hold the state."""
    is_disputed: bool = False
    """`is_of_most` is False, and a planned host signed two claims, of which other hosts may have counted the other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reported:
    """What a member's report on a round says about the states of others."""

    is_leaving: bool
    states: Mapping[InstanceId, Digest]
    """The states that it has after the round, by instance."""


class PlanBook:
    """The plans by round, and the states that were reported under them."""

    def __init__(self, me: PeerId) -> None:
        self.me = me
        self.plans: dict[int, RoundPlan] = {}
        self.digests: dict[int, Digest] = {}
        self._reports: dict[tuple[int, Digest], dict[PeerId, _Reported]] = {}
        """The newest report of each peer, by round and plan of that round, because members of another history report, too."""
        self.final: FinalState | None = None
        """The final state of the run, if this peer ended the run with another one."""
        self._mine: dict[int, list[InstanceId]] = {}
        """Instances that this peer hosts, by round; computed once because every event asks."""
        self._ended: dict[tuple[int, InstanceId], Digest] = {}
        """For an instance that the plan of a round merges away: its state before the previous round, by (round, instance)."""

    @property
    def newest(self) -> RoundPlan:
        return self.plans[max(self.plans)]

    def get(self, number: int) -> RoundPlan | None:
        return self.plans.get(number)

    def remember(self, plan: RoundPlan) -> None:
        self.plans[plan.round] = plan
        self.digests[plan.round] = canonical.digest_once(plan)
        hosted = [item.instance for item in plan.instances if any(share.peer == self.me for share in item.hosts)]
        self._mine[plan.round] = hosted

    def name_ended(self, plan: RoundPlan, reports: Sequence[Report]) -> None:
        """Remember the states of instances that a plan merges away, for which it has no field. The reports from which it was
        made determine them by the rule that determines the states of the others."""
        before = self.plans.get(plan.round - 1)
        sources = {source for merge in plan.merges for source in merge.sources} - {item.instance for item in plan.instances}
        for instance in sources:
            item = before.find(instance) if before is not None else None
            state = named_state(item, before, reports) if item is not None and before is not None else None
            if state is not None:
                self._ended[plan.round, instance] = state

    def named(self, instance: InstanceId, number: int) -> Digest | None:
        """Return the state before the round `number - 1` that the plan of round `number` names or, for a merged instance,
        implies."""
        item = self._plan_of(instance, number)
        return item.state_digest if item is not None else self._ended.get((number, instance))

    def note_states(self, report: Report) -> None:
        """Note which states a member has. A report on the plan of another history counts only once that history does."""
        states = {item.instance: item.state_digest for item in report.instances}
        reported = _Reported(is_leaving=report.capacity.is_leaving, states=states)
        self._reports.setdefault((report.round, report.plan), {})[report.peer] = reported

    def forget(self, *, before: int) -> None:
        """Forget rounds before this one. The last plans are kept in any case, because a peer that is behind needs them."""
        self._keep(range(min(before, max(self.plans) - PLANS_KEPT), LARGEST_COUNT), reports=range(before, LARGEST_COUNT))

    def cut(self, *, at: int) -> None:
        """Forget everything from this round on, because another history counts, but for what is reported of its plans."""
        self.final = None
        lost = {key for key in self.digests.items() if key[0] >= at}
        self._reports = {key: reported for key, reported in self._reports.items() if key not in lost}
        self._keep(range(at), reports=range(LARGEST_COUNT))

    def _keep(self, plans: range, *, reports: range) -> None:
        """Keep the plans of some rounds, and the reports of some, and forget the others."""
        self.plans = {number: plan for number, plan in self.plans.items() if number in plans}
        self.digests = {number: digest for number, digest in self.digests.items() if number in plans}
        self._mine = {number: hosted for number, hosted in self._mine.items() if number in plans}
        self._ended = {key: state for key, state in self._ended.items() if key[0] in plans}
        self._reports = {key: reported for key, reported in self._reports.items() if key[0] in reports}

    def _reported(self, number: int) -> Mapping[PeerId, _Reported]:
        """Return the reports on the round by the plan that counts here."""
        digest = self.digests.get(number)
        return self._reports.get((number, digest), {}) if digest is not None else {}

    def _states(self, instance: InstanceId, number: int) -> Mapping[PeerId, Digest]:
        """Return the state after the round as each peer reported it."""
        found = ((peer, reported.states.get(instance)) for peer, reported in self._reported(number).items())
        return {peer: state for peer, state in found if state is not None}

    # --- what a plan means for this peer -----------------------------------------------------------------------------

    def mine(self, plan: RoundPlan) -> list[InstanceId]:
        """Return the instances that this peer hosts by a plan of this book."""
        return self._mine[plan.round]

    def sources(self, plan: RoundPlan) -> list[InstanceId]:
        """Return the instances whose state this peer needs for the transition at the boundary before `plan`."""
        mine = self.mine(plan)
        needed = list(mine) if plan.is_last else []
        for merge in plan.merges:
            if merge.target in mine:
                weighed = zip(merge.sources, merge.weights, strict=True)
                needed += [source for source, weight in weighed if weight > 0.0 or source == merge.target]
        needed += [fork.source for fork in plan.forks if any(target in mine for target in fork.targets)]
        return sorted(set(needed))

    def is_on_roster(self, plan: RoundPlan) -> bool:
        return self.me in members_of(plan)

    def probes(self, plan: RoundPlan) -> bool:
        """Return whether this peer hosts the target of the plan's probe: such hosts measure the possible merge."""
        return plan.probe is not None and plan.probe.target in self.mine(plan)

    def has_work(self, plan: RoundPlan, instance: InstanceId) -> bool:
        """Return whether this peer trains the instance in this round."""
        return any(share.peer == self.me and share.samples > 0 for share in plan.instance(instance).hosts)

    def has_company(self, plan: RoundPlan, instance: InstanceId, gone: Collection[PeerId]) -> bool:
        """Return whether another living peer trains the instance for the average of this round."""
        shares = plan.instance(instance).hosts
        return any(share.contributes(plan.round) and share.peer != self.me and share.peer not in gone for share in shares)

    def successors(self, instance: InstanceId, number: int, gone: Collection[PeerId]) -> list[PeerId]:
        """Return the living peers, except this one, that the plan of round `number` makes hosts of the instance."""
        return [peer for peer in self._hosts_of(instance, number) if peer != self.me and peer not in gone]

    def heirs(self, instance: InstanceId, number: int, gone: Collection[PeerId]) -> list[PeerId]:
        """Return the living peers to which the plan of round `number` gives the instance, or one that it is merged into.
        Excluded are this peer and those whose reports announce that they leave: they may rely on this peer as it would on
        them."""
        plan = self.plans.get(number)
        if plan is None:
            return []
        weighed = [(merge.target, dict(zip(merge.sources, merge.weights, strict=True))) for merge in plan.merges]
        targets = {instance, *(target for target, weights in weighed if weights.get(instance))}
        hosts = {peer for item in plan.instances if item.instance in targets for peer in item.peers}
        return sorted(hosts - self.leaving - {self.me, *gone})

    @property
    def leaving(self) -> set[PeerId]:
        """Members that leave, as their newest report announces; a plan shows that only two rounds later. A member that has
        joined again since is excluded."""
        announced = {seat.peer: seat.capacity.is_leaving for seat in self.newest.roster}
        joined = {seat.peer: seat.joined_round for seat in self.newest.roster}
        for number in range(self.newest.round - REPORT_LAG + 1, self.newest.round + 1):
            reports = self._reported(number).items()
            announced |= {peer: one.is_leaving for peer, one in reports if joined.get(peer, LARGEST_COUNT) <= number}
        return {peer for peer, ends in announced.items() if ends}

    def is_held(
        self,
        instance: InstanceId,
        number: int,
        gone: Collection[PeerId],
        *,
        after: int,
        served: Collection[PeerId] = (),
        is_going: bool = False,
    ) -> bool:
        """Return whether more than half of the heirs that train the instance have or will have its state after the round
        `after`.

        An heir counts if it reported this state, is among the `served`, or makes the state itself: it had work in that round
        and reported a state before it. Until then a host that only receives has an older state, and one that is still fetching
        has none. For keepers see `is_kept`.

        `is_going`: this peer has ended that round and would go now. Another peer may do so at the same moment, and its report,
        which announces that, is not here yet. Therefore, until a plan has the reports of that round, only those heirs without a
        report count whose names are smaller than this peer's, so that no two peers rely on each other.
        """
        plan = self.plans.get(number)
        keepers = keepers_of(plan) if plan is not None else frozenset()
        heirs = [peer for peer in self.heirs(instance, number, gone) if peer not in keepers]
        had = {peer for round in self.digests if round < after for peer in self._states(instance, round)}
        makers = had.intersection(self.planned(instance, after))
        if is_going and after + REPORT_LAG not in self.plans:
            makers = {peer for peer in makers if peer < self.me}
        have = {*served, *self._states(instance, after), *makers}
        return is_majority(len(have.intersection(heirs)), len(heirs))

    def is_kept(self, instance: InstanceId, number: int, gone: Collection[PeerId], *, served: Collection[PeerId] = ()) -> bool:
        """Return whether more than half of the other living keepers reported the same state after this round as this peer, or
        are among the `served`. A state of an earlier round does not count, because it is not what would be lost with this
        peer."""
        plan, states = self.plans.get(number), self._states(instance, number)
        keepers = [peer for peer in (keepers_of(plan) if plan is not None else ()) if peer != self.me and peer not in gone]
        own = states.get(self.me)
        have = [peer for peer in keepers if peer in served or (own is not None and states.get(peer) == own)]
        return is_majority(len(have), len(keepers))

    def has_heirs(self, plan: RoundPlan, gone: Collection[PeerId]) -> bool:
        """Return whether another peer of the roster that trains is alive and does not leave."""
        others = {seat.peer for seat in plan.roster} - keepers_of(plan) - self.leaving - {self.me, *gone}
        return bool(others)

    def has_others(self, plan: RoundPlan, gone: Collection[PeerId]) -> bool:
        """Return whether another peer of the roster is alive."""
        return any(roster_entry.peer != self.me and roster_entry.peer not in gone for roster_entry in plan.roster)

    def reported_state(
        self, instance: InstanceId, number: int, gone: Collection[PeerId], *, passes_over: bool = False
    ) -> Digest | None:
        """Return the state after a round by the reports that came: that of more than half of the planned hosts that live.

        If all of them have reported a state, or that they go without, and there is no such majority, the state of most hosts
        counts; of states with equally many hosts, the one whose first host joined first. Otherwise two hosts whose states
        differ would differ for ever; and an id can be chosen, a date of joining cannot. Hosts take such a state, but plans
        never name it. If all hosts that had work are gone, or go without, the states of others count: keepers, and hosts
        without work.

        `passes_over`: do not await reports that the newest plan has passed over. It is for a host that lacks the state and has
        waited: hosts that lack it have no state to report, and would wait for each other. A host with a state of its own awaits
        all reports, or a minority whose reports come first would take its state away.

        Hosts that surely had the agreed state before the round count before all others. A host that had another state, because
        it was cut off, may have reported before it learned of the agreed state and took it: then no peer has what it reported.
        """
        plan, states = self.plans.get(number), self._states(instance, number)
        planned = self.deciding(instance, number)
        planned = tuple(peer for peer in planned if peer not in gone) or planned
        is_unreported = not any(peer in states for peer in planned)
        if plan is not None and is_unreported and self._have_none(planned, instance, number, gone):
            planned = tuple(peer for peer in self._may_have(plan, instance) if peer in states and peer not in gone)
        if plan is None or not planned:
            return None
        joined = {roster_entry.peer: (roster_entry.joined_round, roster_entry.peer) for roster_entry in plan.roster}
        groups: dict[Digest, list[PeerId]] = {}
        for peer in sorted(planned, key=joined.__getitem__):
            if peer in states:
                groups.setdefault(states[peer], []).append(peer)
        sure = [peer for peer in planned if self._had_agreed_state(peer, instance, number)]
        first = max(groups, key=lambda digest: (len({*sure} & {*groups[digest]}), len(groups[digest])), default=None)
        if first is None or is_majority(len(groups[first]), len(planned)):
            return first
        has_passed = passes_over and self.newest.round == number + 2  # from an older boundary it goes to the present
        awaited = [] if has_passed else [peer for peer in planned if peer not in states]
        return first if all(self._goes_without(peer, instance, number) for peer in awaited) else None

    def is_of_majority(self, instance: InstanceId, number: int, state: Digest) -> bool:
        """Return whether more than half of the planned hosts, dead or alive, reported this state after the round. Fewer prove
        nothing, whatever they claim about it: otherwise one liar could end doubts against the reports of most."""
        planned, states = self.deciding(instance, number), self._states(instance, number)
        return is_majority(sum(states.get(peer) == state for peer in planned), len(planned))

    @staticmethod
    def _may_have(plan: RoundPlan, instance: InstanceId) -> list[PeerId]:
        """Return the members to which the plan gives the instance, with or without work; no other peer's word counts."""
        item = plan.find(instance)
        return sorted(keepers_of(plan).union(item.peers if item is not None else ()))

    def _had_agreed_state(self, peer: PeerId, instance: InstanceId, number: int) -> bool:
        """Return whether the peer had the agreed state before this round, if a plan names one: it reported that state, or it
        had no work in the round before and fetched it."""
        named = self.named(instance, number + 1)
        if named is None or peer not in self.planned(instance, number - 1):
            return True
        return self._states(instance, number - 1).get(peer) == named

    def _have_none(self, planned: Collection[PeerId], instance: InstanceId, number: int, gone: Collection[PeerId]) -> bool:
        """Return whether each of these peers is gone or goes without."""
        left = [peer for peer in planned if self._are_seated([peer], gone)]
        return all(self._goes_without(peer, instance, number) for peer in left)

    def _are_seated(self, peers: Collection[PeerId], gone: Collection[PeerId]) -> bool:
        """Return whether one of these peers is alive and has a seat in the newest plan."""
        seated = {roster_entry.peer for roster_entry in self.newest.roster}
        return any(peer in seated and peer not in gone for peer in peers)

    def outlook(self, instance: InstanceId, boundary: int, gone: Collection[PeerId], *, passes_over: bool = False) -> Outlook:
        """Return whether other peers can bring the instance's state before round `boundary`. For `passes_over` see
        `reported_state`."""
        if self.final is not None:
            donors = self._in_turn([peer for peer in self.final.holders if peer not in gone], self.final.digest)
            return Outlook(digest=self.final.digest, donors=donors, may_come=False, is_agreed=self.final.is_agreed)
        states = self._states(instance, boundary - 1)
        digest = self.reported_state(instance, boundary - 1, gone, passes_over=passes_over)
        is_agreed = digest is not None and self.is_of_majority(instance, boundary - 1, digest)
        present, named = self._plan_of(instance, boundary), self.named(instance, boundary + 1)
        rewind = present.rewind if present is not None else None
        if named is not None:
            digest, is_agreed = named, True
        hosts = [peer for number in range(boundary - 1, boundary + 2) for peer in self.planned(instance, number)]
        having = self.plans.get(boundary - 1)
        hosts += [peer for peer in self._may_have(having, instance) if peer in states] if having is not None else []
        if rewind is not None:  # the reports on the boundary name the state that the hosts rewind from
            digest, states, is_agreed = rewind, {}, True
        holders = {peer for peer in hosts if states.get(peer, digest) == digest and peer != self.me and peer not in gone}
        donors = self._in_turn(holders, digest) if digest is not None else ()
        may_come = self._may_come(instance, boundary - 1, gone)
        return Outlook(digest=digest, donors=donors, may_come=may_come, is_agreed=is_agreed)

    def _in_turn(self, donors: Collection[PeerId], state: Digest) -> tuple[PeerId, ...]:
        return in_turn(donors, state, self.me, first=full_members(self.newest))

    def _may_come(self, instance: InstanceId, number: int, gone: Collection[PeerId]) -> bool:
        """Return whether another host's report on the state after this round is there or may come. None comes if no host of the
        round before is left, from which the hosts of this round could have got the state."""
        others = [peer for peer in self._hosts_of(instance, number) if peer != self.me]
        before = self._hosts_of(instance, number - 1)
        return self._may_report(others, instance, number, gone) and (
            not before
            or any(peer in self._states(instance, number) for peer in others)
            or self._may_report(before, instance, number - 1, gone)
        )

    def _may_report(self, hosts: Collection[PeerId], instance: InstanceId, number: int, gone: Collection[PeerId]) -> bool:
        """Return whether one of these peers, alive and with a seat, reported the state after this round, or may still report
        it."""
        states = self._states(instance, number)
        return any(
            self._are_seated([peer], gone) and (peer in states or not self._goes_without(peer, instance, number))
            for peer in hosts
        )

    def _goes_without(self, peer: PeerId, instance: InstanceId, since: int) -> bool:
        """Return whether the peer reported a round, not before `since`, in which it was to train the instance and had no state
        of it."""
        return any(
            peer in (reports := self._reported(number))
            and peer in self._hosts_of(instance, number)
            and instance not in reports[peer].states
            for number in self.digests
            if number >= since
        )

    def planned(self, instance: InstanceId, number: int) -> tuple[PeerId, ...]:
        """Return the hosts that were to contribute to the average of that round."""
        item = self._plan_of(instance, number)
        return item.contributors(number) if item is not None else ()

    def deciding(self, instance: InstanceId, number: int) -> tuple[PeerId, ...]:
        """Return those of the hosts that were to contribute whose reports decide."""
        plan = self.plans.get(number)
        return () if plan is None or plan.find(instance) is None else tuple(sorted(deciding_contributors(plan, instance)))

    def _hosts_of(self, instance: InstanceId, number: int) -> tuple[PeerId, ...]:
        item = self._plan_of(instance, number)
        return item.peers if item is not None else ()

    def _plan_of(self, instance: InstanceId, number: int) -> InstancePlan | None:
        """Return the instance in the plan of that round, or None if the plan is unknown or lacks it."""
        plan = self.plans.get(number)
        return plan.find(instance) if plan is not None else None


def named_state(item: InstancePlan, plan: RoundPlan, reports: Sequence[Report]) -> Digest | None:
    """Return the state of an instance (`item` of `plan`) before the plan that its successor names if it is made from these
    `reports`: that of more than half of the deciding hosts that had work in the round before, as far as the plan still has
    them. See `core/planning/round_plan.py`."""
    round = plan.round - 1
    workers = deciding_hosts(item.workers_before(round), plan)
    found = [(report.peer, one) for report in reports if report.round == round for one in report.instances]
    counts = Counter(
        one.state_digest for peer, one in found if peer in workers and one.instance == item.instance and not one.is_bare
    )
    return next((state for state, count in sorted(counts.items()) if is_majority(count, len(workers))), None)
