"""The instances that a peer hosts: their states, and what outer rounds, forks, merges and checkpoints do with them.

Subclasses do the inner steps: `Hosting` those of a run's model on its data, `OwnLoop` those of a user's own program. Between
rounds an instance stands at a boundary, where its local parameters are its outer parameters. There are three exceptions:

- Delayed outer updates: the inner steps of a round may begin before the outer step of the last one (`RunInner.is_ahead`). Their
  pseudo-gradient counts from where they began, and that outer step leaves the local parameters alone.
- Fragments averaged in turn: only the fragment of the round comes to the boundary. The local parameters of the others go on and
  are part of the snapshot.
- Streamed fragments: all local parameters go on, and are mixed with the outer parameters of a fragment after its outer step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.measurers import is_assessed
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId, within_scalars
from adloco_p2p.errors import LocalProtocolError
from adloco_p2p.numerics.digest import StateHashing, state_digests
from adloco_p2p.numerics.layout import Entry, Layout, Ranges, num_values, places, strided_fragments
from adloco_p2p.numerics.outer_optimizer import is_sound, outer_step_
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.device import Result, with_room
from adloco_p2p.training.inner_optimizer import InnerOptimizer
from adloco_p2p.training.instance import Instance
from adloco_p2p.training.saved_instance import check_saved, load_saved_, saved_tensors
from adloco_p2p.training.seeds import derived_seed

STATE_DTYPES = {
    "float32": (torch.float32, torch.float32),
    "mixed": (torch.float32, torch.bfloat16),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
}
"""The types of the outer parameters and the outer momentum, by the setting `outer.state`."""


class HostedInstances(ABC):
    """A peer's instances.

    All vectors that go in or out are on the CPU and have size P. The pseudo-gradient of a round and its average have the size R
    of the round's fragment, which is P unless the run has fragments. All are fp32, except that outer momentum, or outer
    parameters too, are bf16 where the run keeps them so (`outer.state`).
    """

    def __init__(self, run: RunConfig, me: PeerId, devices: Mapping[str, torch.device]) -> None:
        """`devices`: the devices of the local parameters, by name."""
        self._run = run
        self._me = me
        self._devices = tuple(devices.values())
        self._device_names = tuple(devices)
        self._placed: dict[InstanceId, tuple[int, ...]] = {}
        """The devices that train an instance, beginning with the one that holds it; the first device of all where none are
        named."""
        self._instances: dict[InstanceId, Instance] = {}
        self._pseudo_gradients: dict[InstanceId, torch.Tensor] = {}
        self._residual: dict[InstanceId, torch.Tensor] = {}
        """What earlier pseudo-gradients lost on their way into an average (error feedback), [P]; saved in checkpoints and
        dropped with the instance. The vectors are replaced, never written to, like outer parameters."""
        self._outer_dtype, self._momentum_dtype = STATE_DTYPES[run.outer.state]
        self._training: set[InstanceId] = set()
        """The instances whose inner steps are under way: at most one on each device."""

    # --- for subclasses ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def num_parameters(self) -> int:
        """P, the number of trainable parameters."""

    @abstractmethod
    def _fresh(self, instance: InstanceId) -> torch.Tensor:
        """Return the first parameters [P] of an instance, on the CPU."""

    @abstractmethod
    def _new_optimizer(self, local: torch.Tensor) -> InnerOptimizer:
        """Return an inner optimizer with zero state, for local parameters [P]."""

    @abstractmethod
    def _heldout_loss(self, outer: torch.Tensor) -> float:
        """Return the held-out loss of outer parameters [P], in nats per predicted token."""

    @property
    def _vector_layout(self) -> Layout:
        """The layout of the vectors; a single entry where no more is known."""
        return Layout(entries=(Entry(name="parameters", shape=(self.num_parameters,), offset=0, size=self.num_parameters),))

    def _reading(self, instance: InstanceId) -> dict[str, object]:  # noqa: ARG002
        """Return the instance's place in its data, for a checkpoint."""
        return {}

    def _resume_reading(self, instance: InstanceId, state: dict[str, object]) -> None:  # noqa: B027 - most need nothing
        """Continue reading from a place that `_reading` returned."""

    def _free_device(self, device: int) -> None:  # noqa: B027 - only a device that is short of memory needs it
        """Free memory of the device that its instances do not need now."""

    def release(self) -> None:  # noqa: B027 - most have none
        """End the processes that work for this object. Called once, when the node has ended."""

    # --- what is hosted ---------------------------------------------------------------------------------------------------

    @property
    def hosted(self) -> tuple[InstanceId, ...]:
        """The instances whose state is here, sorted."""
        return tuple(sorted(self._instances))

    @property
    def devices(self) -> tuple[torch.device, ...]:
        return self._devices

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names of all devices, in order."""
        return self._device_names

    def place(self, instance: InstanceId, devices: Sequence[int]) -> None:
        """Let the first of these devices hold the instance from now on, and the others help to train it. Called from the first
        one's thread, once no other thread works on the instance."""
        self._placed[instance] = tuple(devices)
        if instance in self._instances:
            self._instances[instance].move_to(self._devices[devices[0]])

    def _team_of(self, instance: InstanceId) -> tuple[int, ...]:
        return self._placed.get(instance, (0,))

    def _place_of(self, instance: InstanceId) -> int:
        return self._team_of(instance)[0]

    @property
    def state_dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """The types of the outer parameters and the outer momentum."""
        return self._outer_dtype, self._momentum_dtype

    def start(self, instances: Sequence[InstanceId]) -> None:
        """Host fresh instances, which follow from the run's seed and are the same on every peer."""
        for instance in instances:
            outer = self._fresh(instance).to(self._outer_dtype)
            momentum = torch.zeros_like(outer, dtype=self._momentum_dtype)
            self._instances[instance] = self._new(instance, outer, momentum=momentum)

    def adopt(self, instance: InstanceId, outer: torch.Tensor, momentum: torch.Tensor) -> None:
        """Host an instance whose state came from others, in place of any state that is here, with zero moments and adoption
        warm-up.

        The vectors [P] are kept as they are; nobody writes to them from now on.
        """
        adopted = self._new(instance, outer, momentum=momentum)
        adopted.adoption_steps = 0
        self._instances[instance] = adopted
        self._pseudo_gradients.pop(instance, None)
        self._residual.pop(instance, None)

    def drop(self, instance: InstanceId) -> None:
        """Forget an instance, if it is here."""
        self._instances.pop(instance, None)
        self._placed.pop(instance, None)
        self._pseudo_gradients.pop(instance, None)
        self._residual.pop(instance, None)

    # --- one outer round --------------------------------------------------------------------------------------------------

    @cached_property
    def _fragments(self) -> tuple[Ranges, ...]:
        return strided_fragments(self._vector_layout, self._run.averaging.fragments)

    @property
    def _whole(self) -> Ranges:
        return (slice(0, self.num_parameters),)

    def _fragment_of(self, round: int) -> Ranges:
        """Return the part of the vector that this round averages. The last round of a run averages all of it, so that the model
        holds the training of every fragment; a run with streamed fragments never sends more than one."""
        count = self._run.averaging.fragments
        if count == 1 or (not self._is_streamed and round + 1 == self._run.work.rounds):
            return self._whole
        return self._fragments[round % count]

    @property
    def _is_streamed(self) -> bool:
        return self._run.outer.overlap == "streaming"

    def num_averaged(self, round: int) -> int:
        """Return R, the number of values that this round averages."""
        return num_values(self._fragment_of(round))

    def _begin_round(self, effect: RunInner) -> Instance:
        """Return the instance, ready for the round's inner steps."""
        instance = effect.plan.instance
        hosted = self._get(instance)
        if effect.is_ahead and not self._is_streamed:
            self._run_ahead(instance)
        elif not (effect.is_ahead or hosted.is_at_boundary):  # a round that never got an average came before
            self.discard(instance)
        hosted.mix_in()
        hosted.round, hosted.is_ahead = effect.round, effect.is_ahead
        self._pseudo_gradients.pop(instance, None)
        return hosted

    def _run_ahead(self, instance: InstanceId) -> None:
        """Begin a round before the last average is there: from the outer parameters as they are, or from where this host's own
        pseudo-gradient would bring them in its place."""
        hosted = self._get(instance)
        start = hosted.outer.to(torch.float32, copy=True)
        weight = {"eager": hosted.fraction, "forecast": 1.0}.get(self._run.outer.overlap)
        if weight is not None:
            momentum = hosted.momentum.to(torch.float32, copy=True)
            self._step(start, momentum, self.pseudo_gradient(instance) * weight)
        self._residual.pop(instance, None)  # part of the pseudo-gradient; its loss on the way comes back with the average
        hosted.run_ahead(start)

    def pseudo_gradient(self, instance: InstanceId) -> torch.Tensor:
        """Return the pseudo-gradient [R]: the outer parameters, or the start of inner steps that did not wait for them, minus
        the local parameters.

        It is the same vector until `discard`, the round's `apply_outer` or the next `run_inner`; only the end of the round
        before writes to it. After averaging it belongs to the averaging as well (`Averager.average`).
        """
        if instance in self._pseudo_gradients:
            return self._pseudo_gradients[instance]
        hosted = self._get(instance)
        part = self._part(hosted)
        if hosted.start is None:
            scratch = torch.empty(num_values(part))
            for where, there in places(part):
                scratch[there].copy_(hosted.local[where])
                torch.sub(hosted.outer[where], scratch[there], out=scratch[there])
        else:
            scratch = hosted.start.sub_(hosted.local.to("cpu"))
        if instance in self._residual:
            for where, there in places(part):
                scratch[there].add_(self._residual[instance][where], alpha=self._run.averaging.feedback)
        self._pseudo_gradients[instance] = scratch
        return scratch

    def apply_outer(
        self, instance: InstanceId, averaged: torch.Tensor, *, round: int, residual: torch.Tensor | None = None
    ) -> bool:
        """Step the outer parameters with the committed average [R] of the round.

        The local parameters follow, unless the inner steps of the next round have begun. Streamed fragments are mixed instead
        (`outer.mixing`), and if those steps have begun, between two of them (`outer.delay_steps`). `residual` [R] is what the
        round's pseudo-gradient lost on its way into the average, or all of a pseudo-gradient that no average was to hold. It is
        added to the next pseudo-gradient, even one that exists already.

        Returns False where the step would lead to parameters that are not sound (`is_sound`). Outer parameters and momentum
        then stay as they are, on every host alike, since all hosts have the same state and the same average.
        """
        hosted = self._get(instance)
        part = self._fragment_of(round)
        is_late = hosted.round is not None and hosted.round > round
        # An earlier residual was part of the pseudo-gradient. Both are freed before the vectors of the next boundary are made.
        had_own = not is_late and self._pseudo_gradients.pop(instance, None) is not None
        if part == self._whole and (had_own or residual is not None):
            self._residual.pop(instance, None)
        is_applied = self._step_outer(instance, averaged, part, round=round)
        if residual is None and part != self._whole and (had_own or is_late) and instance in self._residual:
            residual = torch.zeros(len(averaged))  # the residual that waited for this turn is in the average
        if is_applied and residual is not None and self._run.averaging.feedback:
            self._keep_residual(instance, part, residual, is_late=is_late)
        kept = self._run.outer.mixing if self._is_streamed and is_applied else 0.0
        if hosted.has_diverged and not is_late:
            hosted.return_to_outer()
        elif not is_late:
            hosted.return_to_outer(part, kept=kept)
        elif self._is_streamed:
            hosted.mix_later(part, kept=kept, after_steps=self._run.outer.delay_steps)
        return is_applied

    def _step_outer(self, instance: InstanceId, averaged: torch.Tensor, part: Ranges, *, round: int) -> bool:
        """Make the outer parameters and momentum of the next boundary, and their digests. Returns False, and keeps those of the
        last one with zero moments, where they are not sound."""
        hosted, is_whole = self._get(instance), part == self._whole
        outer, momentum = hosted.new_outer()
        if not is_whole:
            outer.copy_(hosted.outer)
            momentum.copy_(hosted.momentum)
        with StateHashing(outer, momentum) as hashing:
            for where, there in places(part):
                begin = (where.start,) if where.start else ()  # each range has random rounding of its own
                self._step(
                    hosted.outer[where],
                    hosted.momentum[where],
                    averaged[there],
                    into=(outer[where], momentum[where]),
                    rounding_seed=derived_seed(self._run.seed, "outer rounding", instance, round, *begin),
                    on_written=hashing.written if is_whole else None,
                )
            is_applied = all(is_sound(outer[where], momentum[where]) for where in part)
            if is_applied:
                if self._run.guard.enabled:
                    hosted.keep_present()
                hashing.written(self.num_parameters)
                before = (round, hosted.outer) if is_assessed(round, every=self._run.averaging.assess_every) else None
                hosted.set_outer(outer, momentum, digests=hashing.digests())
                hosted.before = before
        if not is_applied:
            hosted.forget_moments()
        return is_applied

    def carry_over(self, instance: InstanceId, pseudo_gradient: torch.Tensor | None, *, round: int) -> None:
        """Let the next pseudo-gradient span this void round, which has no outer step.

        Before the inner steps of the next round, the local parameters just stay where they are. Once those steps have begun,
        the round's `pseudo_gradient` [P] is added to theirs. It contains the earlier residual, so the codec's loss of it no
        longer counts: whatever the codec, nothing is lost. A streamed fragment waits for its next turn in any case.
        """
        hosted = self._get(instance)
        residual, feedback = self._residual.get(instance), self._run.averaging.feedback
        if hosted.has_diverged:  # an instance that diverged gives nothing, nor what was carried into it
            if hosted.round is None or hosted.round <= round:
                hosted.return_to_outer()
            return
        if hosted.round is None or hosted.round <= round:
            if hosted.start is not None and pseudo_gradient is not None:  # not counted from the outer parameters
                hosted.local.copy_(hosted.outer - pseudo_gradient)
                if residual is not None:
                    hosted.local.add_(residual.to(hosted.local.device), alpha=feedback)
            hosted.stay_local()
            self._pseudo_gradients.pop(instance, None)
            return
        if self._is_streamed:
            return
        assert pseudo_gradient is not None and hosted.start is not None, "a round that ran ahead follows one that was trained"
        following = self._pseudo_gradients.get(instance)
        if following is None:
            hosted.start.add_(pseudo_gradient)
        else:
            following.add_(pseudo_gradient)
            if residual is not None:
                following.sub_(residual, alpha=feedback)
        self._residual.pop(instance, None)

    def rewind(self, instance: InstanceId, state: Digest) -> bool:
        """Go back to the kept state with this digest, with zero moments and adoption warm-up: the moments belong to parameters
        that are given up. Returns False, and changes nothing, where there is no such state."""
        hosted = self._get(instance)
        found = next((kept for kept in (*hosted.kept, hosted.state) if state_digests(*kept)[1] == state), None)
        if found is None:
            return False
        hosted.set_outer(*found)
        hosted.kept.clear()
        hosted.forget_moments()
        hosted.return_to_outer()
        self._pseudo_gradients.pop(instance, None)
        self._residual.pop(instance, None)
        return True

    def before_step(self, instance: InstanceId, *, round: int) -> torch.Tensor | None:
        """Return the outer parameters [P] before the outer step of the round, whose contributions are to be looked at. Nobody
        writes to them. Gives them once; None where another step followed. May be called from any thread."""
        hosted = self._instances.get(instance)
        if hosted is None or hosted.before is None or hosted.before[0] != round:
            return None
        (_, before), hosted.before = hosted.before, None
        return before

    def _part(self, hosted: Instance) -> Ranges:
        """Return the parameters that the current round's pseudo-gradient refers to."""
        return self._whole if hosted.round is None else self._fragment_of(hosted.round)

    def _step(
        self,
        outer: torch.Tensor,
        momentum: torch.Tensor,
        averaged: torch.Tensor,
        *,
        into: tuple[torch.Tensor, torch.Tensor] | None = None,
        rounding_seed: int = 0,
        on_written: Callable[[int], None] | None = None,
    ) -> None:
        """Step as `outer_step_` does, by the run's rules."""
        rules = self._run.outer
        outer_step_(
            outer,
            momentum,
            averaged,
            kind=rules.kind,
            learning_rate=rules.learning_rate,
            momentum_factor=rules.momentum,
            into=into,
            rounding_seed=rounding_seed,
            on_written=on_written,
        )

    def _keep_residual(self, instance: InstanceId, part: Ranges, residual: torch.Tensor, *, is_late: bool) -> None:
        """Keep the residual for the next pseudo-gradient. `is_late`: the inner steps of the next round have begun, and its
        pseudo-gradient may exist already; with streamed fragments it is that of another fragment."""
        if part == self._whole:
            self._residual[instance] = residual
        else:
            before = self._residual.get(instance)
            whole = torch.zeros(self.num_parameters) if before is None else before.clone()
            for where, there in places(part):
                whole[where] = residual[there]
            self._residual[instance] = whole
        if is_late and not self._is_streamed and instance in self._pseudo_gradients:
            self._pseudo_gradients[instance].add_(residual, alpha=self._run.averaging.feedback)

    def discard(self, instance: InstanceId) -> None:
        """Return local parameters to the outer parameters, if the instance is here. The state of the inner optimizer stays."""
        if instance in self._instances:
            self._instances[instance].return_to_outer()
        self._pseudo_gradients.pop(instance, None)

    def digests(self, instance: InstanceId) -> tuple[Digest, Digest]:
        """Return the digests of the outer parameters, and of the state (outer parameters and momentum)."""
        return self._get(instance).digests

    def state(self, instance: InstanceId) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outer parameters and momentum [P], which nobody writes to: a donor serves them, and `adopt` takes them."""
        return self._get(instance).state

    # --- forks and merges -------------------------------------------------------------------------------------------------

    def transition(self, forks: Sequence[Fork], merges: Sequence[Merge]) -> None:
        """Apply forks, then merges, at a boundary, and drop the sources that are merged away.

        A fork copies everything: parameters, momentum, the inner optimizer's state. A merge takes the weighted mean of outer
        parameters and momentum. Sources of positive weight must be here; those that this peer did not train are fetched first
        (`adopt`), and a fetched target therefore starts from zero moments. Raises LocalProtocolError where a source is missing.
        """
        for fork in forks:
            for target in fork.targets:
                device = self._place_of(fork.source)
                self._placed[target] = (device,)
                self._instances[target] = self._with_room(self._get(fork.source).copy, device=device, keep=fork.source)
        for merge in merges:
            self._merge(merge)
            for source in merge.sources:
                if source != merge.target:
                    self.drop(source)

    def probe_merge(self, merge: Merge) -> ProbeVerdict:
        """Return the held-out losses of the sources and of the point to which the merge would lead; changes nothing."""
        losses = tuple(within_scalars(self._heldout_loss(self._get(source).outer)) for source in merge.sources)
        merged = weighted_average([self._get(source).outer.float() for source in merge.sources], merge.weights)
        return ProbeVerdict(
            sources=merge.sources,
            target=merge.target,
            source_losses=losses,
            merged_loss=within_scalars(self._heldout_loss(merged)),
        )

    # --- saving -----------------------------------------------------------------------------------------------------------

    def snapshot(self, instance: InstanceId) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        """Return all that a bit-exact resume needs, at a boundary: CPU tensors that nobody writes to, and JSON-able values.
        Where the inner steps of the next round have begun, the inner optimizer's state and the feed are already a few steps
        into it."""
        hosted = self._get(instance)
        assert hosted.is_at_boundary or hosted.is_ahead, f"instance {instance} has unfinished work"
        has_fragments = self._run.averaging.fragments > 1
        save = partial(saved_tensors, hosted, has_fragments=has_fragments)
        tensors = self._with_room(save, device=self._place_of(instance), keep=instance)
        if instance in self._residual:
            tensors["residual"] = self._residual[instance]
        meta: dict[str, object] = {
            "optimizer_steps": hosted.optimizer_steps,
            "adoption_steps": hosted.adoption_steps,
            "feed": self._reading(instance),
        }
        return tensors, meta

    def restore(self, instance: InstanceId, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, object]) -> None:
        """Host an instance as a snapshot left it. Keeps the vectors of outer parameters and momentum, and copies the others.
        Raises StorageError for a snapshot of another model."""
        has_fragments = self._run.averaging.fragments > 1
        for name, dtype in zip(("outer", "momentum"), self.state_dtypes, strict=True):
            check_saved(instance, tensors, (name,), size=self.num_parameters, dtype=dtype)
        also = [name for name in ("local", "residual") if name in tensors or (name == "local" and has_fragments)]
        check_saved(instance, tensors, also, size=self.num_parameters, dtype=torch.float32)
        restored = self._new(instance, tensors["outer"], momentum=tensors["momentum"])
        load = partial(load_saved_, instance, restored, tensors, meta, has_fragments=has_fragments)
        feed_state = self._with_room(load, device=self._place_of(instance))
        self._instances[instance] = restored
        if "residual" in tensors:
            self._residual[instance] = tensors["residual"].clone()
        self._resume_reading(instance, feed_state)

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _get(self, instance: InstanceId) -> Instance:
        if instance not in self._instances:
            raise LocalProtocolError(f"instance {instance} is not hosted here; hosted: {self.hosted}")
        return self._instances[instance]

    def _with_room(self, work: Callable[[], Result], *, device: int, keep: InstanceId | None = None) -> Result:
        """Return the result of `work`. Where the device's memory is short, all its instances but `keep` and the one in training
        move to the host first. Raises DeviceError where that is not enough."""
        problem = (
            f"memory_fraction: {self._device_names[device]} does not hold one instance of {self.num_parameters} parameters"
            " and a second set of them; raise it, or lower max_micro_batch"
        )
        return with_room(work, partial(self._make_room, device, keep), problem=problem)

    def _make_room(self, device: int, keep: InstanceId | None) -> None:
        """Move all instances of the device to the host, except `keep` and the one in training."""
        for instance, hosted in list(self._instances.items()):  # as a list: other devices' threads take in instances meanwhile
            if self._place_of(instance) == device and instance != keep and instance not in self._training:
                hosted.leave_device()
        self._free_device(device)

    def _new(self, instance: InstanceId, outer: torch.Tensor, *, momentum: torch.Tensor | None) -> Instance:
        device = self._devices[self._place_of(instance)]
        return Instance(outer, momentum=momentum, device=device, new_optimizer=self._new_optimizer)

    def _merge(self, merge: Merge) -> None:
        """Set outer parameters and momentum of the target to the weighted means, and treat its inner optimizer by the run's
        rules (docs/mathematics.md, 6)."""
        rules = self._run.merge
        target = self._get(merge.target)
        taken = [(self._get(s), weight) for s, weight in zip(merge.sources, merge.weights, strict=True) if weight > 0]
        weights = [weight for _, weight in taken]
        if all(source is target for source, _ in taken):
            return  # a merge that only ends other instances leaves the survivor as it is
        outer = weighted_average([source.outer.float() for source, _ in taken], weights).to(self._outer_dtype)
        if rules.outer_momentum == "zero":
            momentum = torch.zeros_like(target.momentum)
        else:
            momentum = weighted_average([source.momentum.float() for source, _ in taken], weights).to(self._momentum_dtype)
        target.set_outer(outer, momentum)
        if rules.inner_state == "reset":
            target.forget_moments()
        target.return_to_outer()
        self._residual.pop(merge.target, None)
