"""The plans that one peer has, and their consequences for it: its own instances, the states that it needs, the peers that share
it."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.instance_plan import InstancePlan
from adloco_p2p.core.model.plan import REPORT_LAG, RoundPlan, keepers_of, members_of
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import LARGEST_COUNT, Digest, InstanceId, PeerId

PLANS_KEPT = 8
"""Rounds whose plans stay known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Whether other peers can bring a state that this one lacks.

    They can where its root is known and a peer that lives has it (`donors`). Else they may, while another living peer with a
    seat was to train the instance up to the boundary and has not shown that it goes without: it has reported neither that round
    without the state nor, as one that skipped that round does, a later one that it was to train it in. The same holds for the
    round before: hosts that are all new to an instance whose former hosts are gone would wait for each other. The seat of a
    peer that lives and never reports ends, and with it the wait. Otherwise nobody can: this peer takes an older state, or goes
    on without any, and reports the rounds that it goes through with nothing (`PeerState.ending`).
    """

    digest: Digest | None
    """Root of the state, from the agreed plan or the reports, as far as it is known."""
    donors: tuple[PeerId, ...]
    """Living peers that have it, sorted."""
    may_come: bool
    """A host has it, or may still come to have it."""
    is_agreed: bool
    """A plan names the state, or a majority of the planned hosts, dead or alive, reported it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """Of the run's end, by the word of the peers that hold it."""

    digest: Digest
    holders: tuple[PeerId, ...]
    """Other peers, sorted."""
    is_agreed: bool
    """A majority holds it, or agreed on every step to it."""
    is_of_most: bool
    """More than half of all planned hosts hold it."""
    is_disputed: bool = False
    """It is not, and a planned host signed two claims, of which other hosts may have counted the other one."""


class PlanBook:
    """Plans by round, and the states that were reported under them."""

    def __init__(self, me: PeerId) -> None:
        self.me = me
        self.plans: dict[int, RoundPlan] = {}
        self.digests: dict[int, Digest] = {}
        self._states: dict[tuple[int, InstanceId], dict[PeerId, Digest]] = {}
        """(Round, instance) -> the state after the round, as each peer reported it."""
        self._reporters: dict[int, dict[PeerId, bool]] = {}
        """Round -> peers that reported it, and whether they announced that they end."""
        self.final: FinalState | None = None
        """Of the run, where this peer ended it with another."""
        self._mine: dict[int, list[InstanceId]] = {}
        """Round -> instances that this peer hosts in it. Every event asks."""
        self._ended: dict[tuple[int, InstanceId], Digest] = {}
        """(Round, instance) -> the state before the round before that one, of an instance that its plan merges away."""

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
        """A plan has no place for the states of the instances that it merges away. The reports that it was decided from name
        them all the same, by the rule that names the others."""
        before = self.plans.get(plan.round - 1)
        sources = {source for merge in plan.merges for source in merge.sources} - {item.instance for item in plan.instances}
        for instance in sources:
            item = before.find(instance) if before is not None else None
            state = named_state(item, reports, round=plan.round - 2) if item is not None else None
            if state is not None:
                self._ended[plan.round, instance] = state

    def named(self, instance: InstanceId, number: int) -> Digest | None:
        """The state before the round `number - 1`, as the plan of this round names it, or what that plan was decided from."""
        item = self._plan_of(instance, number)
        return item.state_digest if item is not None else self._ended.get((number, instance))

    def note_states(self, report: Report) -> None:
        self._reporters.setdefault(report.round, {})[report.peer] = report.capacity.is_leaving
        for item in report.instances:
            self._states.setdefault((report.round, item.instance), {})[report.peer] = item.state_digest

    def forget(self, *, before: int) -> None:
        """Plans of the last rounds stay in any case: a peer that is behind needs them."""
        self._keep(range(min(before, max(self.plans) - PLANS_KEPT), LARGEST_COUNT), reports=range(before, LARGEST_COUNT))

    def cut(self, *, at: int) -> None:
        """Forget everything from this round on: another history counts."""
        self.final = None
        self._keep(range(at), reports=range(at))

    def _keep(self, plans: range, *, reports: range) -> None:
        """Plans, and reports, of these rounds."""
        self.plans = {number: plan for number, plan in self.plans.items() if number in plans}
        self.digests = {number: digest for number, digest in self.digests.items() if number in plans}
        self._mine = {number: hosted for number, hosted in self._mine.items() if number in plans}
        self._ended = {key: state for key, state in self._ended.items() if key[0] in plans}
        self._states = {key: states for key, states in self._states.items() if key[0] in reports}
        self._reporters = {number: peers for number, peers in self._reporters.items() if number in reports}

    # --- what a plan means for this peer -----------------------------------------------------------------------------

    def mine(self, plan: RoundPlan) -> list[InstanceId]:
        """Instances that this peer hosts by a plan of this book."""
        return self._mine[plan.round]

    def sources(self, plan: RoundPlan) -> list[InstanceId]:
        """Instances whose state this peer needs at the boundary before `plan` to carry its transition out."""
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
        """Hosts of the target measure a possible merge."""
        return plan.probe is not None and plan.probe.target in self.mine(plan)

    def has_work(self, plan: RoundPlan, instance: InstanceId) -> bool:
        """This peer trains the instance in this round."""
        return any(share.peer == self.me and share.samples > 0 for share in plan.instance(instance).hosts)

    def has_company(self, plan: RoundPlan, instance: InstanceId, gone: Collection[PeerId]) -> bool:
        """Another living peer trains the instance for the average of this round."""
        shares = plan.instance(instance).hosts
        return any(share.contributes(plan.round) and share.peer != self.me and share.peer not in gone for share in shares)

    def successors(self, instance: InstanceId, number: int, gone: Collection[PeerId]) -> list[PeerId]:
        """Living peers that the plan of round `number` makes hosts of the instance, this one left out."""
        return [peer for peer in self._hosts_of(instance, number) if peer != self.me and peer not in gone]

    def heirs(self, instance: InstanceId, number: int, gone: Collection[PeerId]) -> list[PeerId]:
        """Living peers to which the plan of round `number` gives the instance, or one that it is merged into; this one left
        out, and those that end, as their reports announce: they may rely on this peer as it would on them."""
        plan = self.plans.get(number)
        if plan is None:
            return []
        weighed = [(merge.target, dict(zip(merge.sources, merge.weights, strict=True))) for merge in plan.merges]
        targets = {instance, *(target for target, weights in weighed if weights.get(instance))}
        hosts = {peer for item in plan.instances if item.instance in targets for peer in item.peers}
        return sorted(hosts - self.leaving - {self.me, *gone})

    @property
    def leaving(self) -> set[PeerId]:
        """Members that end, as their newest report announces, which a plan shows two rounds later. One that has joined again
        since does not."""
        announced = {seat.peer: seat.capacity.is_leaving for seat in self.newest.roster}
        joined = {seat.peer: seat.joined_round for seat in self.newest.roster}
        for number, reporters in sorted(self._reporters.items()):
            if number > self.newest.round - REPORT_LAG:
                announced |= {peer: ends for peer, ends in reporters.items() if joined.get(peer, LARGEST_COUNT) <= number}
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
        """More than half of the heirs that train the instance reported its state after the round `after`, are among the
        `served`, or make that state themselves: they had work in that round, and reported a state before it. A host that only
        receives has an older state until then, and one that is still fetching none. For keepers see `is_kept`.

        `is_going`: this peer has ended that round and would go now. Another one may do so in the same moment, and its report,
        which announces that, is not here yet. Of those that have not reported only peers with smaller names count, until a
        plan has the reports of that round: so no two rely on each other."""
        plan = self.plans.get(number)
        keepers = keepers_of(plan) if plan is not None else frozenset()
        heirs = [peer for peer in self.heirs(instance, number, gone) if peer not in keepers]
        known = (states for (round, of), states in self._states.items() if of == instance and round < after)
        had = {peer for states in known for peer in states}
        makers = had.intersection(self.planned(instance, after))
        if is_going and after + REPORT_LAG not in self.plans:
            makers = {peer for peer in makers if peer < self.me}
        have = {*served, *self._states.get((after, instance), {}), *makers}
        return is_majority(len(have.intersection(heirs)), len(heirs))

    def is_kept(self, instance: InstanceId, number: int, gone: Collection[PeerId], *, served: Collection[PeerId] = ()) -> bool:
        """More than half of the other living keepers reported the same state after this round as this peer, or are among the
        `served`. A state of an earlier round, which they had, is not what this peer would take along."""
        plan, states = self.plans.get(number), self._states.get((number, instance), {})
        keepers = [peer for peer in (keepers_of(plan) if plan is not None else ()) if peer != self.me and peer not in gone]
        own = states.get(self.me)
        have = [peer for peer in keepers if peer in served or (own is not None and states.get(peer) == own)]
        return is_majority(len(have), len(keepers))

    def has_heirs(self, plan: RoundPlan, gone: Collection[PeerId]) -> bool:
        """Another peer of the roster that trains is alive, and stays."""
        others = {seat.peer for seat in plan.roster} - keepers_of(plan) - self.leaving - {self.me, *gone}
        return bool(others)

    def has_others(self, plan: RoundPlan, gone: Collection[PeerId]) -> bool:
        """Another peer of the roster is alive."""
        return any(roster_entry.peer != self.me and roster_entry.peer not in gone for roster_entry in plan.roster)

    def reported_state(
        self, instance: InstanceId, number: int, gone: Collection[PeerId], *, passes_over: bool = False
    ) -> Digest | None:
        """The state after a round by the reports that came: that of more than half of the planned hosts that live.

        Where all of them have reported one, or that they go without, and there is no such state, that of most hosts counts, of
        equally many the one whose first host joined first: two hosts whose states differ would differ for ever, and an
        id can be made, a date not. Hosts take it, plans never name it. Where all that had work are gone, or go without, what
        others hold is left: keepers, and hosts without work.

        `passes_over`: reports that the newest plan has passed over are not awaited. For a host that lacks the state and has
        waited: hosts that lack it have none to report, and would wait for each other. A host with a state of its own awaits
        them all, or a minority whose reports come first would take it away.

        Hosts that surely had the agreed state before the round count before all others. One that had another state, cut off,
        may have reported before it learned of the agreed one and took it: then nobody has what it reported.
        """
        plan, states = self.plans.get(number), self._states.get((number, instance), {})
        planned = self.planned(instance, number)
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
        """More than half of the planned hosts, dead or alive, reported this state after the round. Fewer prove nothing,
        whatever they state of it: one liar would end the doubts of others against the reports of most."""
        planned, states = self.planned(instance, number), self._states.get((number, instance), {})
        return is_majority(sum(states.get(peer) == state for peer in planned), len(planned))

    @staticmethod
    def _may_have(plan: RoundPlan, instance: InstanceId) -> list[PeerId]:
        """Members to which the plan gives the instance, with or without work: no other's word counts."""
        item = plan.find(instance)
        return sorted(keepers_of(plan).union(item.peers if item is not None else ()))

    def _had_agreed_state(self, peer: PeerId, instance: InstanceId, number: int) -> bool:
        """Before this round, where a plan names one: it reported it, or it had no work in the round before and fetched it."""
        named = self.named(instance, number + 1)
        if named is None or peer not in self.planned(instance, number - 1):
            return True
        return self._states.get((number - 1, instance), {}).get(peer) == named

    def _have_none(self, planned: Collection[PeerId], instance: InstanceId, number: int, gone: Collection[PeerId]) -> bool:
        """Each of these is gone, or goes without."""
        left = [peer for peer in planned if self._are_seated([peer], gone)]
        return all(self._goes_without(peer, instance, number) for peer in left)

    def _are_seated(self, peers: Collection[PeerId], gone: Collection[PeerId]) -> bool:
        """Whether one of them lives and has a seat in the newest plan."""
        seated = {roster_entry.peer for roster_entry in self.newest.roster}
        return any(peer in seated and peer not in gone for peer in peers)

    def outlook(self, instance: InstanceId, boundary: int, gone: Collection[PeerId], *, passes_over: bool = False) -> Outlook:
        """Can another peer bring the instance's state before round `boundary`? `passes_over`: see `reported_state`."""
        if self.final is not None:
            donors = tuple(peer for peer in self.final.holders if peer not in gone)
            return Outlook(digest=self.final.digest, donors=donors, may_come=False, is_agreed=self.final.is_agreed)
        states = self._states.get((boundary - 1, instance), {})
        digest = self.reported_state(instance, boundary - 1, gone, passes_over=passes_over)
        is_agreed = digest is not None and self.is_of_majority(instance, boundary - 1, digest)
        present, named = self._plan_of(instance, boundary), self.named(instance, boundary + 1)
        rewind = present.rewind if present is not None else None
        if named is not None:
            digest, is_agreed = named, True
        hosts = [peer for number in range(boundary - 1, boundary + 2) for peer in self.planned(instance, number)]
        having = self.plans.get(boundary - 1)
        hosts += [peer for peer in self._may_have(having, instance) if peer in states] if having is not None else []
        if rewind is not None:  # the reports on the boundary are of the state that the hosts go back from
            digest, states, is_agreed = rewind, {}, True
        holders = {peer for peer in hosts if states.get(peer, digest) == digest and peer != self.me and peer not in gone}
        donors = tuple(sorted(holders)) if digest is not None else ()
        may_come = self._may_come(instance, boundary - 1, gone)
        return Outlook(digest=digest, donors=donors, may_come=may_come, is_agreed=is_agreed)

    def _may_come(self, instance: InstanceId, number: int, gone: Collection[PeerId]) -> bool:
        """Whether the report of another host on the state after this round is there, or to come: none comes where no host of
        the round before is left, from which the hosts of this round could have had the state."""
        others = [peer for peer in self._hosts_of(instance, number) if peer != self.me]
        before = self._hosts_of(instance, number - 1)
        return self._may_report(others, instance, number, gone) and (
            not before
            or any(peer in self._states.get((number, instance), {}) for peer in others)
            or self._may_report(before, instance, number - 1, gone)
        )

    def _may_report(self, hosts: Collection[PeerId], instance: InstanceId, number: int, gone: Collection[PeerId]) -> bool:
        """Whether one of these living members reported the state after this round, or may still come to report it."""
        states = self._states.get((number, instance), {})
        return any(
            self._are_seated([peer], gone) and (peer in states or not self._goes_without(peer, instance, number))
            for peer in hosts
        )

    def _goes_without(self, peer: PeerId, instance: InstanceId, since: int) -> bool:
        """Whether it reported a round in which it was to train the instance, and had no state of it."""
        return any(
            peer in reporters
            and peer in self._hosts_of(instance, number)
            and peer not in self._states.get((number, instance), {})
            for number, reporters in self._reporters.items()
            if number >= since
        )

    def planned(self, instance: InstanceId, number: int) -> tuple[PeerId, ...]:
        """Hosts that were to contribute to the average of that round."""
        item = self._plan_of(instance, number)
        return item.contributors(number) if item is not None else ()

    def _hosts_of(self, instance: InstanceId, number: int) -> tuple[PeerId, ...]:
        item = self._plan_of(instance, number)
        return item.peers if item is not None else ()

    def _plan_of(self, instance: InstanceId, number: int) -> InstancePlan | None:
        """By the plan of that round, where it is known and has the instance."""
        plan = self.plans.get(number)
        return plan.find(instance) if plan is not None else None


def named_state(item: InstancePlan, reports: Sequence[Report], *, round: int) -> Digest | None:
    """The state of an instance after this round, where the next plan is decided from these `reports` on it: that of more than
    half of the hosts that had work in it, as far as the plan after it (`item`) has them. See `core/planning/round_plan.py`."""
    workers = {share.peer for share in item.hosts if share.place_before is not None and share.had_work(round)}
    found = [(report.peer, one) for report in reports if report.round == round for one in report.instances]
    counts = Counter(
        one.state_digest for peer, one in found if peer in workers and one.instance == item.instance and not one.is_bare
    )
    return next((state for state, count in sorted(counts.items()) if is_majority(count, len(workers))), None)
