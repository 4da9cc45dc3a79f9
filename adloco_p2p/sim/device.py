"""The device of a simulated machine. The world needs only digests, so the default device computes hashes.

A state is the hash of its whole history: two hosts that applied different averages, or the same ones in another order, never
have equal digests again.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from adloco_p2p.core.model.assessments import AssessContribution
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.effects import ApplyOuter, CarryOver, Evaluate, MeasureStep, RunInner
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, PseudoGradientStatistics
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId

TOKENS_PER_SAMPLE = 31
LOSS = 3.0
HELDOUT_LOSS = 2.0
SHORT_JOB_SECONDS = 0.01
"""The time of a job on the default device that is not training."""
STATES_KEPT = 2
"""The number of outer steps by which a device can go back."""


HONEST_SCORE = 4.0
"""The mean score of a contribution that was trained on the assessed rows and on no others; one that was trained on none of them
has mean 0. Both have a standard deviation of 1."""


def hash_score(effect: AssessContribution, *, trained: float) -> float:
    """Return the score of a contribution, the same for all assessors, which see the same bytes on the same rows. `trained` is
    the number of assessed samples on which it was trained, fewer if it spans more rounds."""
    mean = HONEST_SCORE * min(1.0, trained / effect.samples)
    return mean + Random(f"score {effect.state} {effect.subject}").gauss(0.0, 1.0)


def hashed(*parts: object) -> Digest:
    return Digest(hashlib.sha256(repr(parts).encode("ascii")).hexdigest())


class Device(Protocol):
    """The instances of one process. States and vectors are opaque to the world, which compares states by equality and vectors
    by their digests."""

    short_job_seconds: float
    """The time of a job that is not training."""

    def start(self, instances: Mapping[InstanceId, object]) -> None:
        """Hold these states, from a checkpoint or the start of the run."""

    def fresh(self, instance: InstanceId) -> object:
        """Return the state with which the run begins."""

    def inner_seconds(self, effect: RunInner) -> float:
        """Return the duration of the inner steps."""

    def pseudo_gradient(self, effect: RunInner) -> object:
        """Return the pseudo-gradient from the present outer parameters; called when the inner steps begin."""

    def inner_result(self, effect: RunInner, seconds: float, num_steps: int) -> InnerResult:
        """Return the result of `num_steps` inner steps."""

    def reduce(self, effect: Average, contributions: Mapping[PeerId, tuple[int, object]], *, is_strict: bool) -> object:
        """Return the average of the weighted pseudo-gradients, by the run's rule or the strict one."""

    def average_digest(self, average: object) -> Digest: ...

    def left_out(self, average: object) -> tuple[PeerId, ...]:
        """Return the contributors that the rule left out."""

    def statistics(self, own: object, average: object) -> PseudoGradientStatistics | None:
        """Return the statistics of an own contribution; None if it was left out."""

    def apply_outer(self, effect: ApplyOuter, average: object) -> bool:
        """Take the outer step; return false, with nothing changed, if its result is not usable."""

    def measure_step(self, effect: MeasureStep) -> tuple[float, float]:
        """Return the loss before and after the last outer step."""

    def rewind(self, instance: InstanceId, state: Digest) -> bool:
        """Go back to one of the last two states; return false if it is not kept."""

    def carry_over(self, effect: CarryOver) -> None:
        """Take no outer step, so that the next pseudo-gradient spans this round, too."""

    def digests(self, instance: InstanceId) -> tuple[Digest, Digest]:
        """Return the digests of the outer parameters and of the whole state."""

    def transition(self, forks: tuple[Fork, ...], merges: tuple[Merge, ...]) -> None: ...

    def probe(self, merge: Merge) -> ProbeVerdict: ...

    def heldout_loss(self, effect: Evaluate) -> float: ...

    def state(self, instance: InstanceId) -> object | None:
        """Return a copy that later work does not change; None if the instance is not here."""

    def adopt(self, instance: InstanceId, state: object) -> None: ...

    def discard(self, instance: InstanceId) -> None:
        """Drop the inner steps of the round under way."""

    def drop(self, instance: InstanceId) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTraits:
    """The differences between machines."""

    peer: PeerId
    life: int
    round_seconds: float
    """The mean duration of a round on this machine."""
    is_liar: bool = False
    """Whether it claims a million times its work, and an absurd gradient noise."""


class HashDevice:
    """The default device, whose states and vectors are hashes."""

    short_job_seconds = SHORT_JOB_SECONDS

    def __init__(self, traits: DeviceTraits, random: Random) -> None:
        self._traits = traits
        self._random = random
        self._states: dict[InstanceId, Digest] = {}
        self._kept: dict[InstanceId, list[Digest]] = {}
        """The states before the last outer steps."""
        self._begun: dict[InstanceId, Digest] = {}
        """The last pseudo-gradient of each instance."""
        self._carried: dict[InstanceId, Digest] = {}
        """The carried-over pseudo-gradient that the next one of each instance spans."""

    def start(self, instances: Mapping[InstanceId, object]) -> None:
        self._states = {instance: Digest(str(state)) for instance, state in instances.items()}

    def fresh(self, instance: InstanceId) -> object:
        return hashed("start", instance)

    def inner_seconds(self, effect: RunInner) -> float:
        del effect  # rounds have about the same length, whatever the plan asks for
        return self._traits.round_seconds * self._random.uniform(0.8, 1.2)

    def pseudo_gradient(self, effect: RunInner) -> object:
        traits, instance = self._traits, effect.plan.instance
        parts = (traits.peer, traits.life, instance, effect.round, self._states[instance], self._carried.get(instance))
        self._begun[instance] = hashed("gradient", *parts)
        return self._begun[instance]

    def inner_result(self, effect: RunInner, seconds: float, num_steps: int) -> InnerResult:
        share, is_liar = effect.share, self._traits.is_liar
        return InnerResult(
            samples=share.effective_batch * num_steps * (1_000_000 if is_liar else 1),
            tokens=share.effective_batch * num_steps * TOKENS_PER_SAMPLE,
            inner_steps=num_steps,
            batch_samples=share.effective_batch,
            accumulation_steps=share.accumulation_steps,
            loss=LOSS,
            seconds=1e-9 if is_liar else seconds,
            half_batch=_half_batch(share.effective_batch, covariance_trace=1e29 if is_liar else self._random.uniform(20, 60)),
            micro_batch_limit=8,
        )

    def reduce(self, effect: Average, contributions: Mapping[PeerId, tuple[int, object]], *, is_strict: bool) -> object:
        del effect
        return hashed("strict average" if is_strict else "average", sorted(contributions.items()))

    def average_digest(self, average: object) -> Digest:
        return Digest(str(average))

    def left_out(self, average: object) -> tuple[PeerId, ...]:
        del average
        return ()

    def statistics(self, own: object, average: object) -> PseudoGradientStatistics | None:
        del own, average
        noise = 1e29 if self._traits.is_liar else self._random.uniform(2.0, 6.0)
        return PseudoGradientStatistics(own_sqnorm=noise, inner_product=1.0, averaged_sqnorm=1.5)

    def apply_outer(self, effect: ApplyOuter, average: object) -> bool:
        instance = effect.instance
        self._kept[instance] = [*self._kept.get(instance, []), self._states[instance]][-STATES_KEPT:]
        self._states[instance] = hashed("step", self._states[instance], average)
        self._carried.pop(instance, None)
        if effect.keeps_own:
            self._carry(instance)
        return True

    def measure_step(self, effect: MeasureStep) -> tuple[float, float]:
        del effect
        return HELDOUT_LOSS, HELDOUT_LOSS

    def rewind(self, instance: InstanceId, state: Digest) -> bool:
        if state not in (*self._kept.get(instance, []), self._states[instance]):
            return False
        self._states[instance] = state
        self._carried.pop(instance, None)
        return True

    def carry_over(self, effect: CarryOver) -> None:
        self._carry(effect.instance)

    def _carry(self, instance: InstanceId) -> None:
        if instance in self._begun:
            self._carried[instance] = self._begun[instance]

    def digests(self, instance: InstanceId) -> tuple[Digest, Digest]:
        return self._states[instance], self._states[instance]

    def transition(self, forks: tuple[Fork, ...], merges: tuple[Merge, ...]) -> None:
        for fork in forks:
            forked = self._states[fork.source]
            self._states.update(dict.fromkeys(fork.targets, forked))
        for merge in merges:
            weighed = zip(merge.sources, merge.weights, strict=True)
            parts = [(self._states[source], weight) for source, weight in weighed if weight > 0.0]
            for source in merge.sources:
                self._states.pop(source, None)
            self._states[merge.target] = parts[0][0] if len(parts) == 1 else hashed("merge", parts)

    def probe(self, merge: Merge) -> ProbeVerdict:
        losses = tuple(HELDOUT_LOSS for source in merge.sources if self._states[source])
        return ProbeVerdict(sources=merge.sources, target=merge.target, source_losses=losses, merged_loss=HELDOUT_LOSS - 0.1)

    def heldout_loss(self, effect: Evaluate) -> float:
        del effect
        return HELDOUT_LOSS

    def state(self, instance: InstanceId) -> object | None:
        return self._states.get(instance)

    def adopt(self, instance: InstanceId, state: object) -> None:
        self._states[instance] = Digest(str(state))

    def discard(self, instance: InstanceId) -> None:
        """Do nothing: the pseudo-gradient was never handed over."""

    def drop(self, instance: InstanceId) -> None:
        self._states.pop(instance, None)


def _half_batch(batch_samples: int, *, covariance_trace: float) -> HalfBatchStatistics | None:
    if batch_samples < 2:
        return None
    return HalfBatchStatistics(
        num_steps=4,
        batch_samples=batch_samples,
        covariance_trace=covariance_trace,
        true_sqnorm=1.0,
        mean_sqnorm=1.0 + covariance_trace / batch_samples,
        inner_variance=1.0,
        orthogonal_trace=covariance_trace / 2,
    )
