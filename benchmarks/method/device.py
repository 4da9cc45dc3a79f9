"""A device of the simulated world that really trains, by the product's training rooms, and takes the time of a stated machine.

Every step is `Hosting`'s, every average `numerics.aggregate`'s. All hosts of a run are in one process and one thread, so on a
processor a run repeats exactly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

import torch

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.effects import ApplyOuter, CarryOver, Evaluate, MeasureStep, RunInner
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import rule_named
from adloco_p2p.numerics.batch import Feed
from adloco_p2p.numerics.codecs import codec_named
from adloco_p2p.numerics.digest import tensor_digest
from adloco_p2p.numerics.reduction import pseudo_gradient_statistics, weighted_average
from adloco_p2p.training.hosting import Hosting
from benchmarks.method.clock import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A run, with the settings that are not part of its configuration."""

    run: RunConfig
    speeds: tuple[float, ...]
    """The speed of each peer, relative to the profile's machine."""
    profile: Profile
    micro_batch_limit: int = 1024
    steps_exponent: float = 0.0
    most_steps: int = 1 << 20
    decay_rounds: int = 0
    """Rounds over which the learning rate decays, in place of the samples; 0: over the samples."""
    is_last_gradient: bool = False
    """Feed the batch test with the gradients of each host's last inner step, as the method's reference code does."""
    max_instances: int = 8
    """The most instances that a peer hosts."""
    merged_every: int = 0
    """Not in the product: after so many rounds each, all instances get their mean and go on apart; 0: they do not."""
    device: str = "cpu"
    """The device on which all hosts train in turn, as `--peer-set device=...` takes it."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of an instance; states with equal digests are equal."""

    digest: Digest
    outer: torch.Tensor = field(compare=False, repr=False)
    """The outer parameters [P], which nobody writes to, like the momentum."""
    momentum: torch.Tensor = field(compare=False, repr=False)


@dataclass(slots=True, eq=False)
class Contribution:
    """A pseudo-gradient [R], once it exists, and the gradient [P] of the last inner step where the setting asks for it."""

    peer: PeerId
    vector: torch.Tensor | None = None
    gradient: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Mean:
    """The average of contributions."""

    vector: torch.Tensor
    """The average, [R]."""
    digest: Digest
    left_out: tuple[PeerId, ...]
    statistics: Mapping[PeerId, PseudoGradientStatistics | None]
    residuals: Mapping[PeerId, torch.Tensor | None]


OnTrained = Callable[[float], None]
"""Called with the seconds of inner steps before they begin."""
OnOuter = Callable[[int, InstanceId, State], None]
"""Called by each host with its present state, after an outer step of a round and at the end of the run."""


class TorchDevice:
    """The device in one life of a machine. Only inner steps take time."""

    short_job_seconds = 0.0

    def __init__(
        self,
        setting: Setting,
        feed: Feed,
        me: PeerId,
        *,
        speed: float,
        clock: Callable[[], float],
        on_trained: OnTrained,
        on_outer: OnOuter,
    ) -> None:
        """`speed`: relative to the profile's machine. `clock`: returns virtual seconds."""
        config = PeerConfig(device=setting.device, num_threads=1, max_micro_batch=setting.micro_batch_limit)
        self._setting = setting
        self._me = me
        self._speed = speed
        self._clock = clock
        self._on_trained, self._on_outer = on_trained, on_outer
        self._engine = Hosting(setting.run, config, me, feed)
        self._results: dict[InstanceId, InnerResult] = {}
        """The results of the inner steps under way."""
        self._begun: dict[InstanceId, tuple[float, RunInner, Contribution]] = {}
        """Inner steps during which a fragment is averaged: when they began, and what they will contribute."""
        self._own: dict[tuple[InstanceId, int], torch.Tensor] = {}
        """Pseudo-gradients of the last two rounds."""

    @property
    def num_parameters(self) -> int:
        return self._engine.num_parameters

    # --- states ------------------------------------------------------------------------------------------------------

    def start(self, instances: Mapping[InstanceId, object]) -> None:
        for instance, state in instances.items():
            if self.state(instance) is None:
                self.adopt(instance, state)

    def fresh(self, instance: InstanceId) -> State:
        self._engine.start([instance])
        return self._state(instance)

    def digests(self, instance: InstanceId) -> tuple[Digest, Digest]:
        return self._engine.digests(instance)

    def state(self, instance: InstanceId) -> State | None:
        return self._state(instance) if instance in self._engine.hosted else None

    def _state(self, instance: InstanceId) -> State:
        return State(self.digests(instance)[1], *self._engine.state(instance))

    def adopt(self, instance: InstanceId, state: object) -> None:
        assert isinstance(state, State)
        self._engine.adopt(instance, state.outer, state.momentum)

    def rewind(self, instance: InstanceId, state: Digest) -> bool:
        return self._engine.rewind(instance, state)

    def transition(self, forks: tuple[Fork, ...], merges: tuple[Merge, ...]) -> None:
        self._engine.transition(forks, merges)

    def discard(self, instance: InstanceId) -> None:
        self._engine.discard(instance)

    def drop(self, instance: InstanceId) -> None:
        self._engine.drop(instance)

    # --- a round -----------------------------------------------------------------------------------------------------

    def inner_seconds(self, effect: RunInner) -> float:
        share = effect.share
        seconds = share.inner_steps * self._setting.profile.machine.inner_step(share.effective_batch, speed=self._speed)
        self._on_trained(seconds)
        return seconds

    def pseudo_gradient(self, effect: RunInner) -> Contribution:
        """Train, and return the contribution. The end of the round before may still write to the vector, as in the product. A
        streamed fragment is mixed in between two inner steps, so its steps are done when their time is over."""
        given = Contribution(self._me)
        if effect.is_ahead and self._setting.run.outer.overlap == "streaming":
            self._engine._begin_round(effect)
            self._begun[effect.plan.instance] = self._clock(), effect, given
        else:
            self._train(effect, given)
        return given

    def _train(self, effect: RunInner, given: Contribution) -> None:
        instance = effect.plan.instance
        due, self._engine._get(instance)._due = self._engine._get(instance)._due, None
        if total := self._setting.decay_rounds:
            start, end = min(1.0, effect.round / total), min(1.0, (effect.round + 1) / total)
            effect = replace(effect, progress_start=start, progress_end=end)

        def should_stop() -> bool:
            nonlocal due
            if due is not None:  # the steps have begun, so it is theirs
                self._engine._get(instance)._due, due = due, None
            return False

        result = self._engine.run_inner(effect, should_stop=should_stop, on_progress=lambda *_: None)
        assert result is not None
        self._results[instance] = result
        vector = self._engine.pseudo_gradient(instance)
        self._own = {key: own for key, own in self._own.items() if key[0] != instance or key[1] == effect.round - 1}
        self._own[instance, effect.round] = vector
        given.vector = vector
        given.gradient = self._engine._shell.gradient.clone() if self._setting.is_last_gradient else None

    def inner_result(self, effect: RunInner, seconds: float, num_steps: int) -> InnerResult:
        assert num_steps == effect.share.inner_steps, "no host of these worlds begins late"
        _, begun, given = self._begun.pop(effect.plan.instance, (0.0, None, None))
        if given is not None:
            assert begun is effect
            self._train(effect, given)
        return replace(self._results.pop(effect.plan.instance), seconds=seconds)

    def reduce(self, effect: Average, contributions: Mapping[PeerId, tuple[int, object]], *, is_strict: bool) -> Mean:
        given = [(weight, one) for weight, one in contributions.values() if isinstance(one, Contribution)]
        weights, rules = [weight for weight, _ in given], self._setting.run.averaging
        result = aggregate(
            [one.vector for _, one in given if one.vector is not None],
            weights,
            effect.steps,
            rule=rule_named(rules.aggregation, division=rules.division, is_strict=is_strict),
            codec=codec_named(rules.codec),
        )
        statistics: list[PseudoGradientStatistics | None] = [*result.statistics]
        gradients = [one.gradient for _, one in given if one.gradient is not None]
        if gradients:
            mean = weighted_average(gradients, weights)
            statistics = [pseudo_gradient_statistics(gradient, mean) for gradient in gradients]
        members = tuple(contributions)
        return Mean(
            vector=result.vector,
            digest=tensor_digest(result.vector),
            left_out=tuple(members[place] for place in result.decision.left_out),
            statistics=dict(zip(members, statistics, strict=True)),
            residuals=dict(zip(members, result.residuals, strict=True)),
        )

    def average_digest(self, average: object) -> Digest:
        assert isinstance(average, Mean)
        return average.digest

    def left_out(self, average: object) -> tuple[PeerId, ...]:
        assert isinstance(average, Mean)
        return average.left_out

    def statistics(self, own: object, average: object) -> PseudoGradientStatistics | None:
        assert isinstance(own, Contribution) and isinstance(average, Mean)
        return average.statistics[own.peer]

    def apply_outer(self, effect: ApplyOuter, average: object) -> bool:
        assert isinstance(average, Mean)
        instance, number = effect.instance, effect.round
        own = self._own.pop((instance, number), None)
        residual = own if effect.keeps_own else average.residuals.get(self._me)
        is_applied = self._engine.apply_outer(instance, average.vector, round=number, residual=residual)
        self._mix_no_sooner(instance)
        self._on_outer(number, instance, self._state(instance))
        return is_applied

    def _mix_no_sooner(self, instance: InstanceId) -> None:
        """Mix no sooner than after the inner steps that are done by now."""
        begin, begun, _ = self._begun.get(instance, (0.0, None, None))
        hosted = self._engine._get(instance)
        if begun is not None and hosted._due is not None:
            step = self._setting.profile.machine.inner_step(begun.share.effective_batch, speed=self._speed)
            part, kept, after = hosted._due
            hosted.mix_later(part, kept=kept, after_steps=max(after, ceil((self._clock() - begin) / step)))

    def carry_over(self, effect: CarryOver) -> None:
        own = self._own.pop((effect.instance, effect.round), None)
        self._engine.carry_over(effect.instance, own, round=effect.round)

    # --- losses ------------------------------------------------------------------------------------------------------

    def measure_step(self, effect: MeasureStep) -> tuple[float, float]:
        return self._engine.measure_step(effect.instance, effect.state, reads=effect.reads)

    def probe(self, merge: Merge) -> ProbeVerdict:
        return self._engine.probe_merge(merge)

    def heldout_loss(self, effect: Evaluate) -> float:
        self._on_outer(effect.round, effect.instance, self._state(effect.instance))
        return self._engine.evaluate(effect.instance)
