"""Averages between simulated machines, as `swarm/allreduce` gives them: all or nothing for each member.

An attempt consists of all members that joined it under one key. Once the last one has joined, every member ends after a time of
its own: with the average, if it can still reach all others, else with a failure that names those that it cannot reach. So some
members of an attempt may have the average and others not. A member that gives up notifies the others, as far as its messages
arrive. Once all have joined, the attempt has decided, and a retry may complete it (`swarm/allreduce/completion.py`): here the
average is that of the members of the retry then, too.

A machine begins an attempt only once, whatever restarts there are (`storage/attempt_keys.py`), because it signs a commitment:
two commitments of one machine under one key would be evidence, and reach all members that joined. A reducer signs a receipt for
the part that it hands out, and each member shows its receipts to one other, as in `swarm/allreduce/receipt_exchange.py`, and
makes some parts again, as in `swarm/allreduce/recheck.py`. Receipts of honest reducers are right and the same everywhere, so
here only reducers that lie sign any, and only their parts are made again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.assessments import AssessContribution, ContributionAssessed
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.complaints import PartNotShown
from adloco_p2p.core.model.events import AverageDecided, AverageFailed, AverageFinished
from adloco_p2p.core.model.ledger_entry import Equivocation, Pledge
from adloco_p2p.core.model.messages import Incarnation
from adloco_p2p.core.model.quorum import LEAST_MEASURED_SECONDS, Quorum, Upload, stragglers, words_of
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.sim.device import hash_score
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.identities import signed_by
from adloco_p2p.sim.links import Links
from adloco_p2p.sim.network import Network
from adloco_p2p.sim.wrong_sums import small_average

if TYPE_CHECKING:
    from adloco_p2p.sim.device import Device
    from adloco_p2p.sim.machine import Machine
    from adloco_p2p.sim.process import Process

STALL_SECONDS = 1.5
"""The time without a byte after which a member counts as unreachable."""
BREAKS_CHANCE = 0.5
"""The chance that a member which gives up after all have joined has not yet sent all its parts."""


class AverageBuffers:
    """The averages of one process that a later `ApplyOuter` may apply."""

    def __init__(self) -> None:
        self._averages: dict[tuple[InstanceId, int], object] = {}

    def put(self, instance: InstanceId, number: int, average: object) -> None:
        self._averages[instance, number] = average

    def take(self, instance: InstanceId, number: int) -> object | None:
        """Remove and return the average, None if there is none, and drop those of earlier rounds of the instance."""
        average = self._averages.pop((instance, number), None)
        self.forget(instance, before=number)
        return average

    def forget(self, instance: InstanceId, *, before: int | None = None) -> None:
        self._averages = {
            key: average
            for key, average in self._averages.items()
            if key[0] != instance or (before is not None and key[1] >= before)
        }


@dataclass(slots=True, kw_only=True)
class _Member:
    effect: Average
    process: "Process"
    contribution: object
    has_ended: bool = False
    receipts: dict[PeerId, Pledge] = field(default_factory=dict)
    """The receipts of reducers that lie, for the parts that they handed to this member."""
    told: list[Pledge] = field(default_factory=list)
    """The receipts that other members showed to this one."""


@dataclass(slots=True, kw_only=True)
class _Attempt:
    members: dict[PeerId, int]
    """The weights of the members."""
    joined: dict[PeerId, _Member] = field(default_factory=dict)
    digest: Digest | None = None
    """The digest of the average, once all have joined."""
    average: object | None = None
    """The average, while a member still waits for it."""
    has_broken: bool = False
    """Whether a member gave up before it had sent all its parts."""


class _Stragglers(NamedTuple):
    """Members whose links are too slow to wait for."""

    seconds: float
    """The time after the last join at which they are found."""
    peers: tuple[PeerId, ...]
    reason: str


class Averaging:
    """All attempts of a world. Their ends come back as events of the process that asked."""

    def __init__(
        self,
        queue: EventQueue,
        *,
        random: Random,
        network: Network,
        machines: Mapping[PeerId, "Machine"],
        links: Links,
    ) -> None:
        self._queue = queue
        self._random = random
        self._network = network
        self._machines = machines
        self._links = links
        self._attempts: dict[Digest, _Attempt] = {}
        self.computed: dict[Digest, None] = {}
        """The digests of all averages that follow from their contributions."""
        self._commitments: dict[tuple[Digest, PeerId], Pledge] = {}

    # --- attempts ----------------------------------------------------------------------------------------------------

    def join(self, machine: "Machine", process: "Process", effect: Average, contribution: object) -> None:
        """Take part in an attempt, which ends with `AverageFinished` or `AverageFailed` unless the process cancels it."""
        key = (effect.instance, effect.round, effect.attempt)
        attempt = self._attempts.setdefault(effect.key, _Attempt(members=dict(effect.weights)))
        member = _Member(effect=effect, process=process, contribution=contribution)
        process.averagings[key] = member
        is_possible = effect.completes is None or effect.completes in process.decisions
        if attempt.digest is not None or attempt.has_broken or self.has_begun(machine.peer, effect.key) or not is_possible:
            self._queue.after(STALL_SECONDS, self._fail, attempt, machine.peer, member, "the attempt is over", ())
            return
        self._commit(attempt, machine, effect)
        attempt.joined[machine.peer] = member
        if len(attempt.joined) == len(attempt.members):
            self._reduce(attempt, process)
        if len(attempt.members) > 1:
            self._queue.after(STALL_SECONDS, self._watch, attempt, machine.peer, member)
            if self._links.have_deadlines:
                self._queue.after(effect.timeout_seconds, self._expire, attempt, machine.peer, member)

    def has_begun(self, peer: PeerId, key: Digest) -> bool:
        """Return whether the peer began the attempt, before or after a restart."""
        return (key, peer) in self._commitments

    def _commit(self, attempt: _Attempt, machine: "Machine", effect: Average) -> None:
        """Sign the commitment of a member. As on a real device, training after a restart gives other bytes."""
        life = sum(isinstance(record, Incarnation) for record in machine.disk.journal)
        pledge = pledge_of(machine.peer, effect, "contribution", canonical.digest([effect.key, life]))
        known = self._commitments.setdefault((effect.key, machine.peer), pledge)
        if known.content != pledge.content:
            self.show(attempt.joined.values(), known, pledge)

    def show(self, members: Iterable[_Member], one: Pledge, other: Pledge) -> None:
        """Give these members two differing pledges of one peer."""
        first, second = sorted((one, other), key=lambda pledge: pledge.content)
        for member in members:
            if member.process.is_alive:
                member.process.agreement.state(Equivocation(first=first, second=second))

    def cancel(self, process: "Process", key: tuple[InstanceId, int, int]) -> None:
        """Give up an attempt or a repair, whose end is then not reported."""
        member = process.averagings.pop(key, None)
        if isinstance(member, _Member) and not member.has_ended:
            member.has_ended = True
            attempt = self._attempts[member.effect.key]
            self._tell_failure(attempt, process.me)

    def _reduce(self, attempt: _Attempt, process: "Process") -> None:
        contributions = {peer: (attempt.members[peer], member.contribution) for peer, member in sorted(attempt.joined.items())}
        if (found := self._stragglers(attempt)) is not None:
            self._queue.after(found.seconds, self._leave_out, attempt, found)
            return
        is_strict = any(member.effect.is_strict for member in attempt.joined.values())
        effect = attempt.joined[process.me].effect
        attempt.average = process.device.reduce(effect, contributions, is_strict=is_strict)
        attempt.digest = process.device.average_digest(attempt.average)
        self.computed[attempt.digest] = None
        is_alone = len(attempt.members) == 1
        for peer, member in attempt.joined.items():
            if member.effect.completes is None and not is_alone:
                self._queue.after(0.0, self._decide, peer, member)
            seconds = self._links.exchange(peer, member.effect, attempt.average)
            seconds += 0.0 if is_alone else self._network.delay_seconds()
            self._queue.after(seconds, self._finish, attempt, peer, member)

    def _decide(self, peer: PeerId, member: _Member) -> None:
        """Tell a member that the attempt has decided, so that a retry may complete it."""
        effect, decision = member.effect, canonical.digest(["decision", member.effect.key])
        if not member.has_ended and member.process.is_alive:
            member.process.decisions.add(decision)
            self._machines[peer].feed(AverageDecided(asked=effect, decision=decision), member.process)

    def _stragglers(self, attempt: _Attempt) -> _Stragglers | None:
        """Find the stragglers as reducers would, once the vectors of the others are there, if the rates of links are stated."""
        quorum = next(iter(attempt.joined.values())).effect.quorum
        if quorum is None or not self._links.are_rated:
            return None
        fastest = sorted(attempt.members, key=lambda peer: (-self._links.rate(peer), peer))
        for last in fastest:
            seconds = max(self._links.vector_seconds(last), LEAST_MEASURED_SECONDS)
            uploads = [self._upload(quorum, peer, weight, seconds) for peer, weight in attempt.members.items()]
            if late := stragglers(quorum, uploads):
                number = attempt.joined[last].effect.round
                names = list(attempt.members)
                reason = "; ".join(f"{names[place]} {words_of(uploads[place], quorum, round=number)}" for place in late)
                return _Stragglers(seconds, tuple(names[place] for place in late), reason)
        return None

    def _upload(self, quorum: Quorum, peer: PeerId, weight: int, seconds: float) -> Upload:
        sent = min(self._links.vector_bytes, round(self._links.rate(peer) * seconds))
        return Upload(
            weight=weight,
            is_there=self._links.vector_seconds(peer) <= seconds,
            num_bytes=sent,
            rest_bytes=self._links.vector_bytes - sent,
            seconds=seconds,
            is_known=peer not in quorum.unmeasured,
        )

    def _leave_out(self, attempt: _Attempt, found: _Stragglers) -> None:
        """Fail the attempt at the member that finds the stragglers; all others, which lose their measurements, hear of it."""
        for peer, member in attempt.joined.items():
            if self._machines[peer].is_responsive and peer not in found.peers:
                failed = AverageFailed(asked=member.effect, reason=found.reason, suspects=found.peers)
                self._end_failed(attempt, peer, member, failed)
                return

    def _finish(self, attempt: _Attempt, peer: PeerId, member: _Member) -> None:
        if member.has_ended or not member.process.is_alive:
            return
        if self._unreachable(attempt, peer):  # `_watch` ends the attempt then
            self._queue.after(self._links.vector_seconds(peer), self._finish, attempt, peer, member)
            return
        member.has_ended = True
        effect, process = member.effect, member.process
        process.averagings.pop((effect.instance, effect.round, effect.attempt), None)
        handed = self._handed_out(attempt, peer)
        average = [attempt.average, *handed.values()][-1]
        self._exchange_receipts(attempt, peer, handed)
        self._keep(process, effect.instance, effect.round, average)
        finished = AverageFinished(
            asked=effect,
            digest=process.device.average_digest(average),
            contributors=tuple(attempt.members),
            left_out=process.device.left_out(average),
            statistics=process.device.statistics(member.contribution, average),
            bytes_sent=self._links.num_bytes(effect, peer),
            bytes_received=self._links.num_bytes(effect, peer),
            upload_bytes_per_second=self._links.rate(peer),
        )
        member.contribution = None
        if all(other.has_ended for other in attempt.joined.values()):
            attempt.average = None
        self._machines[peer].feed(finished, process)

    def _handed_out(self, attempt: _Attempt, peer: PeerId) -> dict[PeerId, object]:
        """Return the vectors that lying reducers hand out in place of the average; the last one counts."""
        reducers = _reducers(attempt.joined[peer].effect)
        liars = {other: self._machines[other].liar for other in attempt.joined if other in reducers - {peer}}
        return {other: liar.hands_out(peer, attempt.average) for other, liar in liars.items() if liar and liar.hands_out}

    def _exchange_receipts(self, attempt: _Attempt, peer: PeerId, handed: Mapping[PeerId, object]) -> None:
        """Keep the receipts of reducers that lie, compare them with those that others showed, and show them to one other
        member. A member that lies itself compares nothing."""
        member, liar = attempt.joined[peer], self._machines[peer].liar
        if not handed or (liar is not None and (liar.hands_out is not None or liar.withholds)):
            return
        device = member.process.device
        for reducer, average in handed.items():
            content = small_average(member.effect).receipt_content(reducer, self._wrong(attempt, device, average))
            member.receipts[reducer] = pledge_of(reducer, member.effect, "reduction", content)
        self._compare(member)
        self._queue.after(
            self._links.vector_seconds(peer) + self._network.delay_seconds(), self._recheck, attempt, peer, dict(handed)
        )
        other = self._random.choice([name for name in attempt.members if name != peer])
        if self._network.is_open(peer, other):
            told = tuple(member.receipts.values())
            self._queue.after(self._network.delay_seconds(), self._show_receipts, attempt, other, told)

    @staticmethod
    def _wrong(attempt: _Attempt, device: "Device", average: object) -> Digest | None:
        """Return the digest of an average that does not follow from its contributions, else None."""
        digest = device.average_digest(average)
        return None if digest == attempt.digest else digest

    def _recheck(self, attempt: _Attempt, peer: PeerId, handed: Mapping[PeerId, object]) -> None:
        """Make the drawn parts again if every contributor shows its own; the ledger judges the resulting evidence."""
        member = attempt.joined[peer]
        if not member.process.is_alive:
            return
        withholding = {name for name in attempt.joined if (liar := self._machines[name].liar) is not None and liar.withholds}
        silent = sorted({*self._unreachable(attempt, peer), *withholding} - {peer})
        small, effect = small_average(member.effect), member.effect
        for reducer in sorted(small.drawn_by(peer, effect.inspected) & set(handed)):
            if silent:
                event = PartNotShown(instance=effect.instance, round=effect.round, contributor=silent[0], reducer=reducer)
                self._machines[peer].feed(event, member.process)
                return
            wrong = self._wrong(attempt, member.process.device, handed[reducer])
            member.process.agreement.state(small.evidence(member.receipts[reducer], wrong))

    def _show_receipts(self, attempt: _Attempt, peer: PeerId, told: tuple[Pledge, ...]) -> None:
        member = attempt.joined.get(peer)
        if member is not None and member.process.is_alive:
            member.told.extend(told)
            self._compare(member)

    def _compare(self, member: _Member) -> None:
        for told in member.told:
            own = member.receipts.get(told.peer)
            if own is not None and own.content != told.content:
                self.show([member], own, told)

    def _unreachable(self, attempt: _Attempt, peer: PeerId) -> tuple[PeerId, ...]:
        """Return the members from which `peer` cannot get bytes now. One that has joined must still be the same process."""

        def reaches(other: PeerId) -> bool:
            machine, joined = self._machines.get(other), attempt.joined.get(other)
            if machine is None:  # an identity of the adversary has a seat and no machine
                return False
            is_same = joined is None or joined.process is machine.process
            return machine.is_responsive and is_same and self._network.are_connected(peer, other)

        return tuple(other for other in attempt.members if other != peer and not reaches(other))

    def _watch(self, attempt: _Attempt, peer: PeerId, member: _Member) -> None:
        if member.has_ended or not member.process.is_alive:
            return
        unreachable = self._unreachable(attempt, peer) if self._machines[peer].is_responsive else ()
        if unreachable:
            self._fail(attempt, peer, member, "members cannot be reached", unreachable)
        else:
            self._queue.after(STALL_SECONDS, self._watch, attempt, peer, member)

    def _expire(self, attempt: _Attempt, peer: PeerId, member: _Member) -> None:
        awaited = tuple(other for other in attempt.members if other not in attempt.joined)
        if not awaited and self._links.are_rated:  # a timeout names the member that holds up the result
            awaited = (min(attempt.members, key=lambda other: (self._links.rate(other), other)),)
        self._fail(attempt, peer, member, "timed out", awaited)

    def _fail(
        self,
        attempt: _Attempt,
        peer: PeerId,
        member: _Member,
        reason: str,
        suspects: tuple[PeerId, ...],
        because: PeerId | None = None,
    ) -> None:
        failed = AverageFailed(asked=member.effect, reason=reason, suspects=suspects, because=because)
        self._end_failed(attempt, peer, member, failed)

    def _end_failed(self, attempt: _Attempt, peer: PeerId, member: _Member, failed: AverageFailed) -> None:
        if member.has_ended or not member.process.is_alive:
            return
        member.has_ended = True
        effect = member.effect
        member.process.averagings.pop((effect.instance, effect.round, effect.attempt), None)
        self._machines[peer].feed(failed, member.process)
        self._tell_failure(attempt, peer)

    def _tell_failure(self, attempt: _Attempt, peer: PeerId) -> None:
        """Tell the others that a member gave up; they may have all its parts by then."""
        if attempt.has_broken or (attempt.digest is not None and self._random.random() >= BREAKS_CHANCE):
            return
        attempt.has_broken = True
        for other, member in attempt.joined.items():
            if other != peer and not member.has_ended and self._network.is_open(peer, other):
                delay = self._network.delay_seconds()
                self._queue.after(delay, self._fail, attempt, other, member, f"{peer} gave up", (), peer)

    # --- contributions looked at --------------------------------------------------------------------------------------

    def assess(self, machine: "Machine", process: "Process", effect: AssessContribution) -> None:
        """Fetch the subject's contribution beside everything else, and score it."""
        seconds = self._links.vector_seconds(effect.subject) + self._network.delay_seconds()
        self._queue.after(seconds, self._assessed, machine, process, effect)

    def _assessed(self, machine: "Machine", process: "Process", effect: AssessContribution) -> None:
        subject = self._machines.get(effect.subject)
        samples = self._shown_samples(subject, machine, effect) if subject is not None else 0.0
        if not samples or subject is None:
            event = ContributionAssessed(asked=effect, score=0.0, reason="it showed nothing")
        else:
            is_idle = subject.liar is not None and subject.liar.is_idle
            event = ContributionAssessed(asked=effect, score=hash_score(effect, trained=0.0 if is_idle else samples))
        machine.feed(event, process)

    def _shown_samples(self, subject: "Machine", assessor: "Machine", effect: AssessContribution) -> float:
        """Return the samples of the contribution that the subject shows; 0 if it shows none, as after a restart or a repair."""
        is_connected = subject.is_responsive and self._network.are_connected(assessor.peer, subject.peer)
        withholds = subject.liar is not None and subject.liar.withholds
        if subject.process is None or not is_connected or withholds:
            return 0.0
        return subject.process.shown_samples(effect.instance, effect.round)

    # --- averages that others made -----------------------------------------------------------------------------------

    def repair(self, machine: "Machine", process: "Process", effect: RepairAverage) -> None:
        """Fetch a committed average from one of its holders."""
        token = process.averagings[effect.instance, effect.round, effect.attempt] = object()
        seconds = self._links.repair_seconds(machine.peer) + self._network.delay_seconds()
        self._queue.after(seconds, self._repaired, machine, process, effect, token)

    def _repaired(self, machine: "Machine", process: "Process", effect: RepairAverage, token: object) -> None:
        key = (effect.instance, effect.round, effect.attempt)
        if process.averagings.get(key) is not token or not process.is_alive:
            return
        del process.averagings[key]
        process.trained.pop((effect.instance, effect.round), None)
        average = next(
            (found for peer in effect.from_peers if (found := self._held_by(peer, machine, effect)) is not None), None
        )
        if average is None:
            machine.feed(AverageFailed(asked=effect, reason="no donor has it", suspects=effect.from_peers), process)
            return
        self._keep(process, effect.instance, effect.round, average)
        finished = AverageFinished(
            asked=effect,
            digest=effect.digest,
            contributors=effect.contributors,
            statistics=None,
            bytes_received=self._links.vector_bytes,
        )
        machine.feed(finished, process)

    def _held_by(self, peer: PeerId, machine: "Machine", effect: RepairAverage) -> object | None:
        donor = self._machines.get(peer)
        if donor is None or donor.process is None or not donor.is_responsive:
            return None
        if not self._network.are_connected(machine.peer, peer):
            return None
        return donor.process.served_averages.get((effect.instance, effect.round), {}).get(effect.digest)

    def _keep(self, process: "Process", instance: InstanceId, number: int, average: object) -> None:
        process.buffers.put(instance, number, average)
        process.serve_average(instance, number, average)


def _reducers(effect: Average) -> set[PeerId]:
    return {
        peer for (peer, _), share in zip(effect.weights, effect.shares or [1.0] * len(effect.weights), strict=True) if share
    }


def pledge_of(peer: PeerId, effect: Average, kind: Literal["contribution", "reduction"], content: Digest) -> Pledge:
    """Return a pledge about this attempt, signed by the peer."""
    plan, number = effect.plan, effect.round
    return signed_by(peer, Pledge(kind=kind, peer=peer, plan=plan, round=number, key=effect.key, content=content, signature=""))
