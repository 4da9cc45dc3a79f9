"""The swarm's ports within one process, without a network: for a peer that is alone, for simulated hosts, and as the fake that
the conformance suite compares with the real transport.

Everything runs in one event loop. Messages arrive in order and are never lost, except those of peers in `cut`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import torch

from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.events import AverageFinished
from adloco_p2p.core.model.messages import WireMessage
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import AveragingError, StateTransferFailed
from adloco_p2p.numerics.aggregate import Aggregate, aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.aggregation.rule import AggregationRule
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.digest import tensor_digest
from adloco_p2p.numerics.reduction import pseudo_gradient_statistics
from adloco_p2p.swarm.allreduce.averaged import Averaged

STATES_KEPT = 2
"""The newest boundaries of an instance whose states can still be fetched."""
AVERAGES_KEPT = 64
"""Averages that can still be fetched."""


@dataclass(slots=True)
class _Rendezvous:
    """One average in progress, with the vectors of the members that have brought theirs."""

    weights: tuple[tuple[PeerId, int], ...]
    vectors: dict[PeerId, torch.Tensor] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    result: Aggregate | None = None


@dataclass(slots=True)
class MemorySwarm:
    """The state that the peers of one process share. `cut` holds peers that cannot be reached, to test departures."""

    codec: str = "float32"
    aggregation: str = "mean"
    division: str = "all"
    inboxes: dict[PeerId, Callable[[PeerId, WireMessage | Report], None]] = field(default_factory=dict)
    rendezvous: dict[Digest, _Rendezvous] = field(default_factory=dict)
    averages: dict[Digest, tuple[torch.Tensor, tuple[PeerId, ...]]] = field(default_factory=dict)
    """The kept averages by digest, each with the hosts that were left out."""
    states: dict[tuple[PeerId, InstanceId], dict[Digest, Sequence[torch.Tensor]]] = field(default_factory=dict)
    cut: dict[PeerId, None] = field(default_factory=dict)

    def rule(self, *, is_strict: bool = False) -> AggregationRule:
        return rule_named(self.aggregation, division=self.division, is_strict=is_strict)

    def aggregated(self, effect: Average, vectors: Mapping[PeerId, torch.Tensor]) -> Aggregate:
        """Aggregate the vectors of all members, and keep the result for repairs."""
        members = tuple(peer for peer, _ in effect.weights)
        result = aggregate(
            [vectors[peer] for peer in members],
            [weight for _, weight in effect.weights],
            effect.steps,
            rule=self.rule(is_strict=effect.is_strict),
            codec=codec_named(self.codec),
        )
        if len(self.inboxes) < 2:
            return result  # no peer to fetch it
        left_out = tuple(members[host] for host in result.decision.left_out)
        self.averages[tensor_digest(result.vector)] = result.vector, left_out
        for old in list(self.averages)[:-AVERAGES_KEPT]:
            del self.averages[old]
        return result

    def port(self, me: PeerId) -> "MemoryPort":
        return MemoryPort(me=me, swarm=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPort:
    """One peer's averaging, messenger and state exchange."""

    me: PeerId
    swarm: MemorySwarm

    def listen(self, inbox: Callable[[PeerId, WireMessage | Report], None]) -> None:
        """`inbox(sender, message)` is called for every message to this peer."""
        self.swarm.inboxes[self.me] = inbox

    def send(self, peer: PeerId, message: WireMessage | Report) -> None:
        inbox = self.swarm.inboxes.get(peer)
        if inbox is not None and peer not in self.swarm.cut and self.me not in self.swarm.cut:
            inbox(self.me, message)

    def broadcast(self, message: WireMessage | Report) -> None:
        for peer in sorted(self.swarm.inboxes):
            if peer != self.me:
                self.send(peer, message)

    async def average(
        self,
        effect: Average,
        vector: torch.Tensor,
        *,
        on_decided: Callable[[Digest], None],
        on_not_shown: Callable[[PeerId, PeerId], None],
    ) -> Averaged:
        """Wait for all members, then aggregate; all members get the same tensor values."""
        del on_decided, on_not_shown  # no member is a reducer here
        rendezvous = self.swarm.rendezvous.setdefault(effect.key, _Rendezvous(weights=effect.weights))
        assert rendezvous.weights == effect.weights, "the key binds the members"
        members = tuple(peer for peer, _ in effect.weights)
        if self.me not in self.swarm.cut:
            rendezvous.vectors[self.me] = vector
        if len(rendezvous.vectors) == len(members):
            rendezvous.result = self.swarm.aggregated(effect, rendezvous.vectors)
            rendezvous.done.set()
        try:
            async with asyncio.timeout(effect.timeout_seconds):
                await rendezvous.done.wait()
        except TimeoutError:
            missing = tuple(peer for peer in members if peer not in rendezvous.vectors)
            late = f"waited {effect.timeout_seconds:.1f} s for {', '.join(missing)}"
            raise AveragingError(late, suspects=missing) from None
        finally:
            self.swarm.rendezvous.pop(effect.key, None)
        result, place = rendezvous.result, members.index(self.me)
        assert result is not None
        size = 4 * vector.numel() * (len(members) - 1) * 2 // len(members)  # the bytes of one member in a butterfly all-reduce
        finished = AverageFinished(
            asked=effect,
            digest=tensor_digest(result.vector),
            contributors=members,
            left_out=tuple(members[host] for host in result.decision.left_out),
            statistics=result.statistics[place],
            bytes_sent=size,
            bytes_received=size,
        )
        return Averaged(vector=result.vector, residual=result.residuals[place], finished=finished)

    def show_contribution(self, effect: ShowContribution) -> None:
        """Do nothing: contributions are not kept here."""

    async def contribution(self, effect: AssessContribution) -> NoReturn:
        raise AveragingError(f"no contribution to the average of round {effect.round} is kept here")

    async def repair(self, effect: RepairAverage, vector: torch.Tensor | None) -> Averaged:
        average, left_out = self.swarm.averages.get(effect.digest, (None, ()))
        if average is None or all(peer in self.swarm.cut for peer in effect.from_peers):
            raise AveragingError("no peer holds the average", suspects=effect.from_peers)
        has_mean = not self.swarm.rule().needs_gram and codec_named(self.swarm.codec).returns_mean
        is_known = vector is not None and self.me in effect.contributors and has_mean
        finished = AverageFinished(
            asked=effect,
            digest=effect.digest,
            contributors=effect.contributors,
            left_out=left_out,
            statistics=pseudo_gradient_statistics(vector, average) if vector is not None and is_known else None,
            bytes_received=4 * average.numel(),
        )
        return Averaged(vector=average, finished=finished)

    def offer(self, instance: InstanceId, round: int, digest: Digest, state: Sequence[torch.Tensor]) -> None:
        del round
        if len(self.swarm.inboxes) < 2:
            return  # no peer to fetch it
        offers = self.swarm.states.setdefault((self.me, instance), {})
        offers[digest] = tuple(state)
        for old in list(offers)[:-STATES_KEPT]:
            del offers[old]

    def keep_newest(self, instance: InstanceId) -> None:
        offers = self.swarm.states.get((self.me, instance), {})
        for old in list(offers)[:-1]:
            del offers[old]

    def retire(self, instance: InstanceId) -> None:
        """Do nothing: a state stays until `withdraw`, since it is small."""

    def withdraw(self, instance: InstanceId) -> None:
        self.swarm.states.pop((self.me, instance), None)

    async def fetch(self, effect: FetchState) -> Sequence[torch.Tensor]:
        for donor in effect.from_peers:
            state = self.swarm.states.get((donor, effect.instance), {}).get(effect.digest)
            if state is not None and donor not in self.swarm.cut:
                return state
        raise StateTransferFailed(f"no donor holds instance {effect.instance} before round {effect.round}")
