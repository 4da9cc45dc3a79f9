"""The progress of one peer in the run: the plans that it has, the boundaries that its instances have reached, and its rounds.
The parts of a `Peer` share it."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model.branches import FIRST_BRANCH_ID
from adloco_p2p.core.model.effects import DeviceJob, DiscardRound, Effect, Evaluate
from adloco_p2p.core.model.electorate import is_majority
from adloco_p2p.core.model.events import DeviceEnd, Evaluated
from adloco_p2p.core.model.lineage import ProbeVerdict
from adloco_p2p.core.model.messages import AverageDigest, AveragingMessage
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.plan_telemetry import joined_lines, plan_line
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import LARGEST_COUNT, InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.peer.branch_store import BranchStore
from adloco_p2p.core.peer.hosted_instance import HostedInstance
from adloco_p2p.core.peer.plan_book import PlanBook


class PeerState:
    """Mutable state of a peer, which answers questions but decides nothing. Entries that it keeps by round are pruned
    here only: `forget_before` drops the past, `cut` a history that lost, `move_to` the work in progress."""

    def __init__(self, me: PeerId, *, is_delayed: bool, rounds_kept: int) -> None:
        """`is_delayed`: outer updates may come one round late. For `rounds_kept` see `WorkRules`."""
        self.me = me
        self.rounds_kept = rounds_kept
        self.is_delayed = is_delayed
        self.book = PlanBook(me)
        self.branches = BranchStore()
        self.instances: dict[InstanceId, HostedInstance] = {}
        self.opened = -1
        """The last boundary whose transition, if it had one, is applied."""
        self.opening: int | None = None
        """The boundary whose transition is in progress."""
        self.skipped = -1
        """Rounds up to this one happened without this peer, because it started or fast-forwarded after them."""
        self.own_reports: dict[int, Report] = {}
        self.verdicts: dict[int, ProbeVerdict] = {}
        """This peer's measurement of the possible merge, by round."""
        self.probing: dict[int, None] = {}
        """Rounds whose possible merge the device was asked to measure."""
        self.gone: dict[PeerId, None] = {}
        self.final: Evaluated | None = None
        """The held-out loss of an instance after the last plan, once the device has answered."""
        self.epoch = 0
        """Number of times that all work in progress on the device was given up."""

    def stamped(self, effects: Iterable[Effect]) -> list[Effect]:
        """Return the effects, with the present epoch on the jobs for the device."""
        return [replace(item, epoch=self.epoch) if isinstance(item, DeviceJob) else item for item in effects]

    def is_outdated(self, end: DeviceEnd) -> bool:
        """Return whether the job was given up after it was asked for."""
        return end.epoch < self.epoch

    def instance(self, instance: InstanceId) -> HostedInstance:
        """Return the record of the instance for changes; it is created if it is missing."""
        if instance not in self.instances:
            self.instances[instance] = HostedInstance()
        return self.instances[instance]

    def known(self, instance: InstanceId) -> HostedInstance:
        """Return the record of the instance for questions; it is not created if it is missing."""
        return self.instances.get(instance) or HostedInstance()

    def round_of(self, number: int, instance: InstanceId) -> OuterRound | None:
        item = self.instances.get(instance)
        return item.rounds.get(number) if item is not None else None

    @property
    def rounds(self) -> list[OuterRound]:
        """Rounds of all instances, sorted by number."""
        rounds = [(number, name, outer) for name, item in self.instances.items() for number, outer in item.rounds.items()]
        return [outer for _, _, outer in sorted(rounds)]

    @property
    def held(self) -> dict[InstanceId, int]:
        """The boundary that each instance's state has reached."""
        return {instance: item.boundary for instance, item in self.instances.items() if item.boundary is not None}

    @property
    def lost(self) -> list[InstanceId]:
        """Instances whose state no peer has."""
        return [instance for instance, item in self.instances.items() if item.is_lost]

    # --- what is dropped ---------------------------------------------------------------------------------------------

    def forget_before(self, number: int) -> None:
        """Forget earlier rounds, which are no longer needed."""
        self.book.forget(before=number)
        self._keep(range(number, LARGEST_COUNT))
        self.probing = {other: None for other in self.probing if other >= number}
        nothing = HostedInstance()
        self.instances = {instance: item for instance, item in self.instances.items() if item != nothing}

    def cut(self, *, at: int) -> None:
        """Forget everything from this round on, because another history counts. Rounds declined in the lost history are not
        declined in the other."""
        self.book.cut(at=at)
        self._keep(range(at))

    def _keep(self, rounds: range) -> None:
        self.own_reports = {number: report for number, report in self.own_reports.items() if number in rounds}
        self.verdicts = {number: verdict for number, verdict in self.verdicts.items() if number in rounds}
        for item in self.instances.values():
            item.keep(rounds)

    def abandon_rounds(self) -> list[Effect]:
        """Abandon all work in progress on the device and in the network."""
        effects: list[Effect] = []
        for outer in self.rounds:
            if not outer.is_done:
                effects += [*outer.abandon(), DiscardRound(instance=outer.instance)]
        return effects

    def move_to(self, boundary: int, *, keeping: Collection[InstanceId] = (), resting: Collection[InstanceId] = ()) -> None:
        """Continue at the boundary without any work in progress, and without any state except that of the instances in
        `keeping`, which is at this boundary. A round in which this peer has voted is not averaged again. `resting` are the
        instances whose state no work in progress on the device changes."""
        self.epoch += 1
        if self.opening is not None:
            opening = self.book.plans[self.opening]
            self.branches.merged(opening, self.book.mine(opening))
        for instance, item in self.instances.items():
            item.declined |= {number for number, outer in item.rounds.items() if number >= boundary and outer.has_voted}
            item.rounds = {number: outer for number, outer in item.rounds.items() if outer.is_done and number < boundary}
            item.is_carried = False
            if instance not in keeping:
                item.give_up()
            if instance not in resting:
                item.state_digest = None
        self.probing, self.opening, self.final = {}, None, None
        self.opened = self.skipped = boundary - 1

    # --- what is known -----------------------------------------------------------------------------------------------

    def learn(self, plan: RoundPlan) -> None:
        self.book.remember(plan)
        self.branches.note(plan)

    def plan_lines(self, plan: RoundPlan) -> list[Log]:
        """Return the telemetry of the plan and of the peers that take part from it on."""
        line = plan_line(plan, self.book.digests[plan.round])
        return [line, *joined_lines(self.book.get(plan.round - 1), plan)]

    def final_evaluations(self, plan: RoundPlan) -> list[Effect]:
        """Return the evaluations of what this peer hosts at the end of the run."""
        return self.stamped(Evaluate(instance=item, round=plan.round, is_final=True) for item in self.book.mine(plan))

    def here(self, plan: RoundPlan) -> list[InstanceId]:
        """Return the instances that this peer hosts, except those whose state no peer has."""
        return [instance for instance in self.book.mine(plan) if instance not in self.lost]

    def keep_early(self, sender: PeerId, message: AveragingMessage) -> None:
        """Keep a void vote until its round begins here, if the plan of the round is known."""
        if not (isinstance(message, AverageDigest) and message.is_void):
            return
        if sender in self.book.planned(message.instance, message.round):
            vote = replace(message, backers=())  # nobody has verified them; an unsigned one shows that its sender will not vote
            self.instance(message.instance).early_votes.setdefault(message.round, {})[sender] = vote

    def prove(self, instance: InstanceId, number: int) -> bool:
        """Note that, by the votes here, no host can have committed an average of that round. Return whether a state was in
        doubt because of it."""
        doubtful = [item for item in self.instances.values() if (instance, number) in item.unproven]
        for item in doubtful:
            item.unproven.remove((instance, number))
        return bool(doubtful)

    def working(self) -> list[int]:
        """Return the rounds that this peer trains or averages, on which its reports are still to come."""
        return sorted({outer.round for outer in self.rounds if outer.is_contributor and not outer.is_done})

    def mine_of(self, number: int) -> list[InstanceId]:
        plan = self.book.get(number)
        return self.book.mine(plan) if plan is not None and number > self.skipped else []

    def measures(self, plan: RoundPlan) -> bool:
        """Return whether this peer measures the plan's probe: it hosts the target, some peer has each source, and this peer
        holds the branch states among them."""
        probe = plan.probe
        if probe is None or not self.book.probes(plan):
            return False
        return not any(i in self.lost or (i >= FIRST_BRANCH_ID and not self.branches.holds(i)) for i in probe.sources)

    def is_at(self, instance: InstanceId, boundary: int) -> bool:
        return self.held.get(instance) == boundary or self.branches.is_ready(instance)

    def ending(self, plan: RoundPlan) -> list[InstanceId]:
        """Return the instances that this peer hosts, and any peer has, whose end of this round it awaits or has seen. It is not
        awaited if this peer has left the round behind, or has the state after it from others."""
        return [instance for instance in self.here(plan) if self._ends_here(instance, plan.round)]

    def _ends_here(self, instance: InstanceId, number: int) -> bool:
        item = self.known(instance)
        if number in item.rounds or number in item.untrained:
            return True
        if number >= self.opened:
            return item.boundary is None or item.boundary <= number
        boundaries = [item.boundary, item.fetch.boundary if item.fetch is not None else None]
        return any(at is not None and at <= number for at in boundaries)

    def runs_ahead(self, instance: InstanceId, boundary: int) -> bool:
        """Return whether the round after the boundary may begin while the one before is averaged: updates are delayed, and this
        is the only hosted instance, so the device would otherwise be idle."""
        outer, plan = self.round_of(boundary - 1, instance), self.book.get(boundary)
        if not self.is_delayed or outer is None or not outer.is_hidden or plan is None:
            return False
        is_next = self.held.get(instance) == boundary - 1 and self.book.newest.round < boundary + 2
        is_only_one = self.mine_of(boundary - 1) == self.book.mine(plan) == [instance]
        return is_next and is_only_one and self.book.has_work(plan, instance)

    def is_reported(self, last: RoundPlan, instance: InstanceId) -> bool:
        """Return whether most hosts of the last round reported the states here from which the last plan makes this instance. No
        plan names these states."""
        number = last.round - 1
        merged = {merge.target: dict(zip(merge.sources, merge.weights, strict=True)) for merge in last.merges}
        sources = [source for source, weight in merged.get(instance, {instance: 1.0}).items() if weight > 0.0]
        own = self.own_reports.get(number)
        states = {item.instance: item.state_digest for item in own.instances} if own is not None else {}
        return all(source in states and self.book.is_of_majority(source, number, states[source]) for source in sources)

    def is_alone_with(self, instance: InstanceId, present: int) -> bool:
        """Return whether this peer alone was to train the instance in all rounds from its boundary here up to the present, or
        all others are gone; the plans of all these rounds must be known."""
        numbers = range(self.held[instance], present + 1)
        hosted = all(instance in self.mine_of(number) for number in numbers)
        return hosted and not any(self.book.successors(instance, number, self.gone) for number in numbers)

    def is_doubtful_without(self, plan: RoundPlan, instance: InstanceId) -> bool:
        """Return whether others could be left in doubt about the average of the round if this peer goes. That is so if its vote
        on it counts and is not cast, and most of those whose votes count are out: this peer, gone peers, and those that are
        about to leave. The living hosts could not know whether these made one."""
        outer, deciding = self.round_of(plan.round, instance), self.book.deciding(instance, plan.round)
        is_open = plan.round >= self.opened if outer is None else not (outer.has_voted or outer.is_past)
        is_open = is_open and self.held.get(instance, plan.round) <= plan.round and not plan.is_last
        out = {self.me, *self.gone, *self.book.leaving}
        absent = [peer for peer in deciding if peer in out]
        is_lost = self.me in deciding and is_majority(len(absent), len(deciding))
        return is_open and is_lost and bool(self.book.successors(instance, plan.round, self.gone))

    def is_deserted(self, outer: OuterRound) -> bool:
        """Return whether the round waits for an average of other hosts that are all gone, or make none."""
        if not outer.is_deserted:
            return False
        return not self.book.has_company(self.book.plans[outer.round], outer.instance, outer.hosts.absent)
