"""Several real peers in one process under virtual time: the product's core and training rooms, a fake network.

Every decision is `Peer`'s, every step `Hosting`'s, every average `numerics.merging`'s. Only what takes time is pretended: inner
steps last what the clock says (scaled by a host's speed), averaging what the link says. One thread, so a run repeats exactly.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.agreement.fixed_roster import FixedRosterAgreement
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.events import (
    ApplyOuter,
    AverageFinished,
    Broadcast,
    DiscardRound,
    DropInstance,
    Durable,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    FetchState,
    InnerFinished,
    InnerResult,
    OuterApplied,
    Persist,
    Probe,
    Probed,
    Received,
    RunInner,
    SaveCheckpoint,
    SaveInstance,
    Send,
    Started,
    StateFetched,
    Stop,
    Ticked,
    Transition,
    TransitionApplied,
)
from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.telemetry import Log
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.core.planning.round_plan import genesis
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.batch import Feed
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.digest import tensor_digest
from adloco_p2p.numerics.reduction import pseudo_gradient_statistics, weighted_average
from adloco_p2p.training.hosting import Hosting
from benchmarks.method.clock import Profile, transferred
from benchmarks.method.mutual_merges import with_mutual_merges
from benchmarks.method.steps import GrowingSteps

STATES_KEPT = 16
"""States that can still be fetched."""
MAX_EVENTS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run, and what is not part of its configuration."""

    run: RunConfig
    speeds: tuple[float, ...]
    """One per peer, relative to the profile's machine."""
    profile: Profile
    micro_batch_limit: int = 1024
    steps_exponent: float = 0.0
    most_steps: int = 1 << 20
    decay_rounds: int = 0
    """Decay the learning rate over so many rounds instead of over the samples."""
    is_last_gradient: bool = False
    """Feed the batch test the gradients of each host's last inner step, as the method's reference code does."""
    max_instances: int = 8
    """That a peer hosts."""
    merged_every: int = 0
    """Not in the product: after so many rounds each, all instances get their mean and go on apart; 0: they do not."""


@dataclass(slots=True)
class _Host:
    place: int
    """0 for the first."""
    peer: Peer
    engine: Hosting
    speed: float
    device_free: float = 0.0
    is_ahead: bool = False
    """The device does inner steps that did not wait for the last outer step."""
    stop: Stop | None = None
    averages: dict[InstanceId, tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=dict)
    """With this host's residual."""
    gradients: dict[InstanceId, torch.Tensor] = field(default_factory=dict)
    bytes_sent: float = 0.0
    computing_seconds: float = 0.0
    made: set[Digest] = field(default_factory=set)
    """States that this host had by its own outer steps, forks and merges."""


@dataclass(slots=True)
class _Rendezvous:
    average: Average
    joined: dict[PeerId, torch.Tensor] = field(default_factory=dict)


OnApplied = Callable[["World", RoundPlan, InstanceId, torch.Tensor], None]
"""Called once per instance and round with the outer parameters [P] that all its hosts now have."""


class World:
    """`run()` trains to the end of the run."""

    def __init__(self, setting: Setting, feed: Feed, *, on_applied: OnApplied) -> None:
        self.setting = setting
        self.now = 0.0
        self._rule = GrowingSteps(rules=setting.run.rules, exponent=setting.steps_exponent, most=setting.most_steps)
        self.plans: dict[int, RoundPlan] = {}
        self._on_applied = on_applied
        self._applied: dict[tuple[int, InstanceId], Digest] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._rendezvous: dict[Digest, _Rendezvous] = {}
        self._states: dict[Digest, tuple[torch.Tensor, torch.Tensor]] = {}
        self._uplink_free: dict[int, float] = {}
        """When each island's uplink has carried the states that others fetch."""
        names = [PeerId(f"peer{index}") for index in range(len(setting.speeds))]
        config = PeerConfig(device="cpu", num_threads=1, max_micro_batch=setting.micro_batch_limit)
        capacity = Capacity(
            samples_per_second=0.0, micro_batch_limit=setting.micro_batch_limit, max_instances=setting.max_instances
        )
        first = genesis(setting.run.digest, [(name, capacity) for name in names], setting.run.rules)
        self.plans[0] = first
        cadence = Cadence(
            work=setting.run.work,
            evaluation_period=0,
            checkpoint_period=1 << 30,
            is_delayed=setting.run.outer.overlap != "none",
        )
        self.hosts: dict[PeerId, _Host] = {}
        for place, (name, speed) in enumerate(zip(names, setting.speeds, strict=True)):
            engine = Hosting(setting.run, config, name, feed)
            held = [item.instance for item in first.instances if any(share.peer == name for share in item.hosts)]
            engine.start(held)
            peer = Peer(me=name, cadence=cadence, agreement=FixedRosterAgreement(decide=self._decide))
            self.hosts[name] = _Host(place=place, peer=peer, engine=engine, speed=speed)
            durable = Durable(round=0, plans=(first,), held=tuple(held))
            self._deliver(name, Started(durable=durable, capacity=capacity), 0.0)

    def run(self) -> None:
        for _ in range(MAX_EVENTS):
            if all(host.stop is not None for host in self.hosts.values()):
                return
            assert self._queue, f"nothing can happen any more at {self.now:.1f} s"
            self.now, _, action = heapq.heappop(self._queue)
            action()
        raise AssertionError(f"no end after {MAX_EVENTS} events, now {self.now:.1f} s")

    @property
    def bytes_per_peer(self) -> float:
        """Sent by a peer so far, on average: pseudo-gradients in float32 and fetched states; messages are not counted."""
        return sum(host.bytes_sent for host in self.hosts.values()) / len(self.hosts)

    @property
    def utilisation(self) -> float:
        """Part of the time so far in which a peer did inner steps, on average."""
        computing = sum(host.computing_seconds for host in self.hosts.values())
        return computing / (len(self.hosts) * self.now) if self.now > 0 else 0.0

    # --- time --------------------------------------------------------------------------------------------------------

    def _decide(self, previous: RoundPlan, reports: Sequence[Report]) -> RoundPlan:
        plan = with_mutual_merges(self._rule.decide(previous, reports), every=self.setting.merged_every)
        self.plans.setdefault(plan.round, plan)
        return plan

    def _at(self, delay: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay, self._sequence, action))

    def _deliver(self, name: PeerId, event: Event, delay: float) -> None:
        self._at(delay, lambda: self._feed(name, event))

    def _feed(self, name: PeerId, event: Event) -> None:
        host = self.hosts[name]
        if host.stop is not None:
            return
        for effect in host.peer.handle(event, self.now):
            self._perform(name, host, effect)
        deadline = host.peer.next_deadline
        if deadline is not None:
            self._deliver(name, Ticked(), max(0.0, deadline - self.now))

    def _on_device(self, name: PeerId, seconds: float, event: Event) -> None:
        """The device works in order; what it did is known when its time is over. An outer step takes no time, and comes between
        inner steps that did not wait for it."""
        host = self.hosts[name]
        if host.is_ahead and isinstance(event, OuterApplied):
            self._deliver(name, event, 0.0)
            return
        host.device_free = max(host.device_free, self.now) + seconds
        self._deliver(name, event, host.device_free - self.now)

    # --- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, name: PeerId, host: _Host, effect: Effect) -> None:
        match effect:
            case Log() | Persist() | SaveInstance() | SaveCheckpoint():
                pass
            case Send(peer=peer, message=message):
                self._deliver(peer, Received(sender=name, message=message), 0.0)
            case Broadcast(message=message):
                for other in self.hosts:
                    if other != name:
                        self._deliver(other, Received(sender=name, message=message), 0.0)
            case Average():
                self._average(name, host, effect)
            case FetchState(instance=instance, round=number, digest=digest, from_peers=donors):
                host.engine.adopt(instance, *self._states[digest])
                host.bytes_sent += 8 * host.engine.num_parameters  # its donor's, on average the same: parameters, momentum
                seconds = self._fetching(
                    host, [self.hosts[donor].place for donor in donors if digest in self.hosts[donor].made]
                )
                self._deliver(name, StateFetched(instance=instance, round=number, digest=digest), seconds)
            case Stop():
                host.stop = effect
            case _:
                self._perform_on_device(name, host, effect)

    def _fetching(self, host: _Host, donors: Sequence[int]) -> float:
        """Seconds until this host has a state that the hosts at these places have: from its own island, where one of them is
        there, else after the states that wait for the uplink of the first of them."""
        profile = self.setting.profile
        islands = profile.islands
        if islands is None or islands.island_of(host.place) in {islands.island_of(donor) for donor in donors}:
            return profile.link.transfer(profile.state_bytes) + profile.link.latency_seconds
        island = islands.island_of(donors[0])
        end = max(self.now, self._uplink_free.get(island, 0.0)) + islands.uplink.transfer(profile.state_bytes)
        self._uplink_free[island] = end
        return end - self.now + islands.uplink.latency_seconds

    def _perform_on_device(self, name: PeerId, host: _Host, effect: Effect) -> None:
        engine = host.engine
        match effect:
            case RunInner():
                result = self._train(host, effect)
                finished = InnerFinished(instance=effect.plan.instance, round=effect.round, result=result, epoch=effect.epoch)
                self._on_device(name, result.seconds, finished)
                host.computing_seconds += result.seconds
                host.is_ahead = effect.is_ahead
            case ApplyOuter(instance=instance, round=number):
                averaged, residual = host.averages.pop(instance)
                engine.apply_outer(instance, averaged, round=number, residual=residual)
                digest, state_digest = engine.digests(instance)
                self._remember(host, state_digest, engine.state(instance))
                self._note(number, instance, engine)
                applied = OuterApplied(
                    instance=instance, round=number, digest=digest, state_digest=state_digest, epoch=effect.epoch
                )
                self._on_device(name, 0.0, applied)
            case Transition(round=number, forks=forks, merges=merges):
                engine.transition(forks, merges)
                for instance in engine.hosted:
                    self._remember(host, engine.digests(instance)[1], engine.state(instance))
                self._on_device(name, 0.0, TransitionApplied(round=number, epoch=effect.epoch))
            case Probe(round=number, merge=merge):
                probed = Probed(round=number, verdict=engine.probe_merge(merge), epoch=effect.epoch)
                self._on_device(name, 0.0, probed)
            case Evaluate(instance=instance, round=number):
                self._note(number, instance, engine)
                evaluated = Evaluated(instance=instance, round=number, heldout_loss=0.0, epoch=effect.epoch)
                self._on_device(name, 0.0, evaluated)
            case DropInstance(instance=instance):
                engine.drop(instance)
            case DiscardRound(instance=instance):
                engine.discard(instance)
            case _:
                raise AssertionError(f"{name} at {self.now:.1f} s: {effect} has no place in a run without faults")

    def _train(self, host: _Host, effect: RunInner) -> InnerResult:
        """The product's inner steps; seconds are those of the clock."""
        if total := self.setting.decay_rounds:
            start, end = min(1.0, effect.round / total), min(1.0, (effect.round + 1) / total)
            effect = replace(effect, progress_start=start, progress_end=end)
        result = host.engine.run_inner(effect, should_stop=lambda: False, on_progress=lambda *_: None)
        assert result is not None
        if self.setting.is_last_gradient:
            host.gradients[effect.plan.instance] = host.engine._shell.gradient.clone()
        step = self.setting.profile.machine.inner_step(result.batch_samples, speed=host.speed)
        return replace(result, seconds=result.inner_steps * step)

    def _average(self, name: PeerId, host: _Host, effect: Average) -> None:
        rendezvous = self._rendezvous.setdefault(effect.key, _Rendezvous(average=effect))
        rendezvous.joined[name] = host.engine.pseudo_gradient(effect.instance)
        if len(rendezvous.joined) < len(effect.weights):
            return
        del self._rendezvous[effect.key]
        members = tuple(peer for peer, _ in effect.weights)
        weights = [weight for _, weight in effect.weights]
        rules, vectors = self.setting.run.averaging, [rendezvous.joined[peer] for peer in members]
        rule = rule_named(rules.aggregation, division=rules.division)
        result = aggregate(vectors, weights, effect.steps, rule=rule, codec=codec_named(rules.codec))
        digest = tensor_digest(result.vector)
        left_out = tuple(members[place] for place in result.decision.left_out)
        profile = self.setting.profile
        part = result.vector.numel() / self.hosts[name].engine.num_parameters
        seconds = profile.averaging(part * profile.payload_bytes, [self.hosts[peer].place for peer in members])
        moved = transferred(4 * result.vector.numel(), len(members))
        for place, peer in enumerate(members):
            statistics = result.statistics[place]
            if self.setting.is_last_gradient:
                gradients = [self.hosts[member].gradients[effect.instance] for member in members]
                mean = weighted_average(gradients, weights)
                statistics = pseudo_gradient_statistics(self.hosts[peer].gradients[effect.instance], mean)
            self.hosts[peer].averages[effect.instance] = result.vector, result.residuals[place]
            self.hosts[peer].bytes_sent += moved
            finished = AverageFinished(
                instance=effect.instance,
                round=effect.round,
                attempt=effect.attempt,
                digest=digest,
                contributors=members,
                left_out=left_out,
                statistics=statistics,
                bytes_sent=round(moved),
                bytes_received=round(moved),
            )
            self._deliver(peer, finished, seconds)

    def _remember(self, host: _Host, digest: Digest, state: tuple[torch.Tensor, torch.Tensor]) -> None:
        host.made.add(digest)
        self._states[digest] = state
        for old in list(self._states)[:-STATES_KEPT]:
            del self._states[old]

    def _note(self, number: int, instance: InstanceId, engine: Hosting) -> None:
        """The first of an instance's hosts to get there is measured; the others must have the same bytes."""
        digest = engine.digests(instance)[0]
        if (number, instance) not in self._applied:
            self._applied[number, instance] = digest
            self._on_applied(self, self.plans[number], instance, engine.state(instance)[0])
        assert self._applied[number, instance] == digest, f"instance {instance} differs between hosts after round {number}"
