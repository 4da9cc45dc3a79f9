"""Whole peers that agree by themselves, over a network that can be cut in two."""

from collections.abc import Sequence
from dataclasses import replace

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.events import (
    Average,
    AverageFailed,
    Effect,
    Event,
    FetchState,
    Persist,
    Received,
    RepairAverage,
    SnapshotState,
    Transition,
)
from adloco_p2p.core.model.ledger_entry import LedgerEntry
from adloco_p2p.core.model.types import FIRST_BRANCH_ID, Digest, Merge, PeerId, Report, RosterChange, RoundPlan
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.planning.round_plan import next_plan
from tests.core.agreement.test_consensus import sign, verify
from tests.core.peer.test_peer import PEER0
from tests.core.world import STALL_SECONDS, Host, World


class PartitionedWorld(World):
    """Peers that agree by themselves, over a network that can be cut in two."""

    def __init__(self, **arguments: object) -> None:
        self.journals: dict[PeerId, dict[Digest, LedgerEntry]] = {}
        self.decisions: dict[tuple[Digest, tuple[Digest, ...], RosterChange], RoundPlan] = {}
        self.sides: dict[PeerId, int] = {}
        """While the network is cut."""
        self.merges: dict[PeerId, list[tuple[int, Merge, list[Digest], Digest]]] = {}
        """What each host merged, before which round: the states that went in, and what came out."""
        self.lost_state: dict[PeerId, Digest] = {}
        """What each host set aside last."""
        super().__init__(**arguments)  # type: ignore[arg-type]

    def agreement(self) -> Agreement:
        me = PeerId(f"peer{len(self.hosts)}")
        journal = self.journals[me] = {}
        return GossipAgreement(
            me,
            genesis=self.genesis,
            records=(),
            recall=lambda digest: journal[digest],
            contacts=(),
            capacity=self.capacity,
            decide=self.decide,
            sign=lambda payload: sign(me, payload),
            verify=verify,
            draw=self.random.random,
            timing=Timing(),
        )

    def decide(self, parent: RoundPlan, reports: Sequence[Report], change: RosterChange) -> RoundPlan:
        key = (canonical.digest_once(parent), tuple(canonical.digest_once(report) for report in reports), change)
        if key not in self.decisions:
            self.decisions[key] = next_plan(parent, reports, self.rules, roster=change)
        return self.decisions[key]

    def are_apart(self, one: PeerId, other: PeerId) -> bool:
        return self.sides.get(one, 0) != self.sides.get(other, 0)

    def feed(self, name: PeerId, event: Event) -> None:
        if not (isinstance(event, Received) and self.are_apart(name, event.sender)):
            super().feed(name, event)

    def perform(self, name: PeerId, host: Host, effect: Effect) -> None:
        match effect:
            case Persist(record=LedgerEntry() as entry):
                self.journals[name][entry.value.plan] = entry
            case _:
                super().perform(name, host, effect)

    def on_device_effect(self, name: PeerId, effect: Effect) -> None:
        super().on_device_effect(name, effect)
        if isinstance(effect, SnapshotState) and effect.copy != effect.instance:
            self.on_device(name, 0.0, lambda host: self.lost_state.update({name: host.states[effect.copy]}))

    def average(self, name: PeerId, effect: Average) -> None:
        apart = tuple(peer for peer, _ in effect.weights if self.are_apart(name, peer))
        if not apart:
            super().average(name, effect)
            return
        ids = {"instance": effect.instance, "round": effect.round, "attempt": effect.attempt}
        self.deliver(name, AverageFailed(**ids, reason="the network is cut", suspects=apart), STALL_SECONDS)

    def repair(self, name: PeerId, effect: RepairAverage) -> None:
        super().repair(name, replace(effect, from_peers=self.reached(name, effect.from_peers)))

    def fetch(self, name: PeerId, effect: FetchState) -> None:
        super().fetch(name, replace(effect, from_peers=self.reached(name, effect.from_peers)))

    def reached(self, name: PeerId, peers: Sequence[PeerId]) -> tuple[PeerId, ...]:
        return tuple(peer for peer in peers if not self.are_apart(name, peer))

    def transition(self, host: Host, effect: Transition) -> Event:
        before = dict(host.states)
        applied = super().transition(host, effect)
        for merge in effect.merges:
            went_in = [before[s] for s, weight in zip(merge.sources, merge.weights, strict=True) if weight > 0.0]
            self.merges.setdefault(host.peer.me, []).append((effect.round, merge, went_in, host.states[merge.target]))
        return applied


def cut(world: PartitionedWorld, *, at: float, seconds: float, side: Sequence[PeerId]) -> None:
    world.at(at, lambda: world.sides.update(dict.fromkeys(side, 1)))
    world.at(at + seconds, world.sides.clear)


def healed(world: PartitionedWorld) -> list[Merge]:
    """The merges of branch states, in the order of the ledger."""
    agreement = world.hosts[PEER0].peer._agreement
    assert isinstance(agreement, GossipAgreement)
    merges = [merge for entry in agreement.ledger.since(1) for merge in entry.plan.merges]
    return [merge for merge in merges if merge.sources[-1] >= FIRST_BRANCH_ID]
