"""The instances that a peer hosts, on one device: everything the runtime's device worker calls.

Synchronous and single-threaded. Instances take turns on one model shell, so running them in any order gives the same bits.
Between rounds an instance stands at a boundary: its local parameters are its outer parameters. Where outer updates are delayed
the inner steps of a round may begin before the outer step of the last one (`RunInner.is_ahead`). Their pseudo-gradient counts
from where they began, and the outer step, when it comes, leaves the local parameters to them. Where fragments of the vector are
averaged in turn, only those of the round's fragment come to the boundary; the others go on, and are part of the snapshot.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar

import torch
import transformers

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.events import InnerResult, RunInner
from adloco_p2p.core.model.types import Digest, Fork, InstanceId, Merge, PeerId, ProbeVerdict, within_scalars
from adloco_p2p.errors import DeviceError, LocalProtocolError, StorageError
from adloco_p2p.numerics.batch import Batch, Feed
from adloco_p2p.numerics.digest import state_digests
from adloco_p2p.numerics.layout import flatten, fragment
from adloco_p2p.numerics.outer_optimizer import is_sound, outer_step_
from adloco_p2p.numerics.reduction import weighted_average
from adloco_p2p.training.adapters import draw_adapter_
from adloco_p2p.training.device import configure_device, is_bfloat16
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.inner_loop import OnProgress, run_inner_steps
from adloco_p2p.training.inner_optimizer import InnerOptimizer, has_shape_of, inner_optimizer, load_state_
from adloco_p2p.training.input_worker import InputWorker
from adloco_p2p.training.instance import Instance
from adloco_p2p.training.learning_rate import learning_rate_schedule
from adloco_p2p.training.memory_need import memory_need
from adloco_p2p.training.memory_search import MicroBatchLimit, search_cpu, search_cuda
from adloco_p2p.training.model import build_model, derived_seed, initial_seed
from adloco_p2p.training.shell import ModelShell

GUARD_ROWS = 32
"""Rows on which an outer step is measured, before and after it."""
Result = TypeVar("Result")


class Hosting:
    """A peer's instances. All vectors that go in or out are on the CPU, of size P; of a round's pseudo-gradient and its
    average, of the size R of the round's fragment, which is P unless the run has fragments. They are fp32; outer parameters
    and outer momentum are bf16 where the run keeps them so (`outer.state`)."""

    def __init__(self, run: RunConfig, peer_config: PeerConfig, me: PeerId, feed: Feed) -> None:
        """Builds the model. Raises ConfigError for a model or a device that cannot be had."""
        self._run = run
        self._peer_config = peer_config
        self._me = me
        self._device = configure_device(peer_config)
        self._feed = InputWorker(feed, device=self._device)
        module = self._build_model(InstanceId(0))
        self._shell = ModelShell(module, device=self._device, is_bfloat16=is_bfloat16(run.model.precision, self._device))
        if peer_config.activation_checkpointing:
            self._shell.recompute_activations()
        self._instances: dict[InstanceId, Instance] = {}
        self._pseudo_gradients: dict[InstanceId, torch.Tensor] = {}
        self._residual: dict[InstanceId, torch.Tensor] = {}
        """What earlier pseudo-gradients lost on their way into an average (error feedback), [P]; checkpointed, forgotten with
        the instance."""
        self._state_dtype = torch.bfloat16 if run.outer.state == "bfloat16" else torch.float32
        self._micro_batch_limit: MicroBatchLimit | None = None
        self._training: InstanceId | None = None
        """The instance whose inner steps are under way."""
        self._heldout: Batch | None = None

    # --- what is hosted ----------------------------------------------------------------------------------------------

    @property
    def hosted(self) -> tuple[InstanceId, ...]:
        """Instances whose state is here, sorted."""
        return tuple(sorted(self._instances))

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def num_parameters(self) -> int:
        """P."""
        return self._shell.layout.num_parameters

    @property
    def state_dtype(self) -> torch.dtype:
        """Of outer parameters and outer momentum."""
        return self._state_dtype

    @property
    def snapshot_bytes(self) -> int:
        """Of one instance."""
        return memory_need(self._run, self._shell.layout, matrices=self._shell.matrices).checkpoint

    @property
    def micro_batch_limit(self) -> int:
        """Largest micro-batch that the device holds, in samples; probed when first asked, smaller after an out-of-memory
        until many rounds went well.

        Raises DeviceError where one sample does not fit.
        """
        if self._micro_batch_limit is None:
            with self._own_randomness():
                self._micro_batch_limit = MicroBatchLimit(self._probe())
        return self._micro_batch_limit.samples

    def start(self, instances: Sequence[InstanceId]) -> None:
        """Host fresh instances, as the run's seed makes them: the same on every peer."""
        for instance in instances:
            self._instances[instance] = self._new(self._fresh(instance).to(self._state_dtype), momentum=None)

    def adopt(self, instance: InstanceId, outer: torch.Tensor, momentum: torch.Tensor) -> None:
        """Host an instance whose state came from others, or replace what is here by it: zero moments, adoption warm-up.

        The vectors [P] are kept, and written to by nobody from now on.
        """
        adopted = self._new(outer, momentum=momentum)
        adopted.adoption_steps = 0
        self._instances[instance] = adopted
        self._pseudo_gradients.pop(instance, None)
        self._residual.pop(instance, None)

    def drop(self, instance: InstanceId) -> None:
        """Forget an instance, if it is here."""
        self._instances.pop(instance, None)
        self._pseudo_gradients.pop(instance, None)
        self._residual.pop(instance, None)

    # --- one outer round ---------------------------------------------------------------------------------------------

    def run_inner(self, effect: RunInner, *, should_stop: Callable[[], bool], on_progress: OnProgress) -> InnerResult | None:
        """Train one instance for a round, from its outer parameters; see `run_inner_steps` for stopping, results and errors.

        `should_stop` may end the round before: apply, evaluate and snapshot it.

        Chance (dropout) is drawn from a seed of run, instance, peer and round, so it needs no saved state.
        """
        instance_id = effect.plan.instance
        instance = self._get(instance_id)
        self._with_room(lambda: instance.local, keep=instance_id)
        if effect.is_ahead:
            self._run_ahead(instance_id)
        elif not instance.is_at_boundary:  # a round that never got an average
            self.discard(instance_id)
        instance.round = effect.round
        self._pseudo_gradients.pop(instance_id, None)
        batches = self._feed.open(
            instance=instance_id,
            peer=self._me,
            round=effect.round,
            first_sample=effect.share.first_sample,
            num_samples=effect.share.effective_batch,
            num_batches=effect.share.inner_steps,
        )
        micro_batch_limit = self.micro_batch_limit  # probing draws from torch's random state, so before it is seeded
        with self._own_randomness(), batches, self._stays_on_device(instance_id):
            torch.manual_seed(derived_seed(self._run.seed, "inner", instance_id, self._me, effect.round))
            result = run_inner_steps(
                self._shell,
                instance,
                batches,
                share=effect.share,
                schedule=learning_rate_schedule(effect, inner=self._run.inner, initial_batch=self._run.batch.initial_batch),
                micro_batch_limit=micro_batch_limit,
                is_measured=self._run.batch.is_tested,
                should_stop=should_stop,
                on_progress=on_progress,
            )
        if result is not None:
            assert self._micro_batch_limit is not None
            self._micro_batch_limit.note_round(result.micro_batch_limit)
            instance.fraction = result.samples / sum(share.samples for share in effect.plan.hosts)
            if result.has_diverged:  # its moments are of parameters that are given up
                instance.has_diverged = True
                instance.forget_moments()
        return result

    def _fragment_of(self, round: int) -> slice:
        """Where in the vector lies what this round averages."""
        num_fragments, rounds = self._run.averaging.fragments, self._run.work.rounds
        if num_fragments == 1:
            return slice(0, self.num_parameters)
        assert rounds is not None, "combinations.py: the last round of a run with fragments is known"
        return fragment(round, size=self.num_parameters, count=num_fragments, rounds=rounds)

    def num_averaged(self, round: int) -> int:
        """R: how many values this round averages."""
        return len(range(self.num_parameters)[self._fragment_of(round)])

    def _run_ahead(self, instance: InstanceId) -> None:
        """Begin a round from the outer parameters as they are, or from where this host's own pseudo-gradient, in place of the
        average that is under way, would bring them."""
        hosted = self._get(instance)
        start = hosted.outer.to(torch.float32, copy=True)
        weight = {"eager": hosted.fraction, "forecast": 1.0}.get(self._run.outer.overlap)
        if weight is not None:
            momentum = hosted.momentum.to(torch.float32, copy=True)
            self._step(start, momentum, self.pseudo_gradient(instance) * weight)
        self._residual.pop(instance, None)  # it travels with the pseudo-gradient, and what is lost comes back with the average
        hosted.run_ahead(start)

    def pseudo_gradient(self, instance: InstanceId) -> torch.Tensor:
        """Outer parameters, or where the inner steps began without waiting for them, minus local parameters, [R]. Scratch of
        the round: the same buffer until `discard`, the round's `apply_outer` or the next `run_inner`."""
        if instance in self._pseudo_gradients:
            return self._pseudo_gradients[instance]
        hosted = self._get(instance)
        part = self._part(hosted)
        if hosted.start is None:
            scratch = hosted.local[part].to("cpu", copy=True)
            torch.sub(hosted.outer[part], scratch, out=scratch)
        else:
            scratch = hosted.start.sub_(hosted.local.to("cpu"))
        if instance in self._residual:
            scratch.add_(self._residual[instance][part], alpha=self._run.averaging.feedback)
        self._pseudo_gradients[instance] = scratch
        return scratch

    def apply_outer(
        self, instance: InstanceId, averaged: torch.Tensor, *, round: int, residual: torch.Tensor | None = None
    ) -> bool:
        """Step the outer parameters with the committed average [R] of the round; the local parameters follow, unless the inner
        steps of the next one have begun. `residual` [R], what the round's pseudo-gradient lost on its way into the average, is
        kept, and is part of the next one, also where that is made already.

        False where the step would lead to parameters that are not sound (`is_sound`): then outer parameters and momentum stay
        as they are, on every host alike, since all have the same ones and the same average.
        """
        hosted = self._get(instance)
        part = self._fragment_of(round)
        outer, momentum = hosted.new_outer()
        if len(averaged) < self.num_parameters:
            outer.copy_(hosted.outer)
            momentum.copy_(hosted.momentum)
        self._step(
            hosted.outer[part],
            hosted.momentum[part],
            averaged,
            into=(outer[part], momentum[part]),
            rounding_seed=derived_seed(self._run.seed, "outer rounding", instance, round),
        )
        is_applied = is_sound(outer[part], momentum[part])
        if is_applied:
            if self._run.guard.enabled:
                hosted.keep_present()
            hosted.set_outer(outer, momentum)
        else:
            hosted.forget_moments()
        if is_applied and residual is not None and self._run.averaging.feedback:
            self._keep_residual(instance, part, residual, is_late=hosted.round is not None and hosted.round > round)
        if hosted.round is None or hosted.round <= round:
            hosted.return_to_outer(part)
            self._pseudo_gradients.pop(instance, None)
        return is_applied

    def carry_over(self, instance: InstanceId, pseudo_gradient: torch.Tensor | None, *, round: int) -> None:
        """The round is void: its outer step falls out, and the next pseudo-gradient spans it, too.

        Where the inner steps of the next round have not begun, the local parameters stay where they are and nothing else is
        needed. Where they have, `pseudo_gradient` [P] of the round is added to theirs. It contains the residual that was there
        before, so the codec's loss of it counts no more: whatever the codec, nothing is lost.
        """
        hosted = self._get(instance)
        residual, feedback = self._residual.get(instance), self._run.averaging.feedback
        if hosted.has_diverged:  # with what was carried into it, it has nothing to give
            if hosted.round is None or hosted.round <= round:
                hosted.return_to_outer()
            return
        if hosted.round is None or hosted.round <= round:
            if hosted.start is not None and pseudo_gradient is not None:  # it counts from elsewhere than the outer parameters
                hosted.local.copy_(hosted.outer - pseudo_gradient)
                if residual is not None:
                    hosted.local.add_(residual.to(self._device), alpha=feedback)
            hosted.stay_local()
            self._pseudo_gradients.pop(instance, None)
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

    def measure_step(self, instance: InstanceId, state: Digest) -> tuple[float, float]:
        """Loss before and after the last outer step, nats per predicted token, on rows that `state`, the digest of what it led
        to, draws: no contributor knew them before it was bound."""
        hosted = self._get(instance)
        rows = self._feed.drawn(state, GUARD_ROWS)
        micro_batch = self.micro_batch_limit
        before, after = (
            heldout_loss(self._shell, outer, rows, micro_batch=micro_batch) for outer in (hosted.kept[-1][0], hosted.outer)
        )
        return before, after

    def rewind(self, instance: InstanceId, state: Digest) -> bool:
        """Go back to the kept state with this digest, with zero moments and adoption warm-up: what they learned since, they
        learned elsewhere. False where there is none; then nothing is changed."""
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

    def _part(self, hosted: Instance) -> slice:
        """The parameters that the pseudo-gradient of the current round refers to."""
        return slice(0, self.num_parameters) if hosted.round is None else self._fragment_of(hosted.round)

    def _step(
        self,
        outer: torch.Tensor,
        momentum: torch.Tensor,
        averaged: torch.Tensor,
        *,
        into: tuple[torch.Tensor, torch.Tensor] | None = None,
        rounding_seed: int = 0,
    ) -> None:
        """As `outer_step_`, by the run's rules."""
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
        )

    def _keep_residual(self, instance: InstanceId, part: slice, residual: torch.Tensor, *, is_late: bool) -> None:
        """`is_late`: the next round's inner steps have begun, and its pseudo-gradient may be there already."""
        if len(residual) == self.num_parameters:
            self._residual[instance] = residual
        else:
            self._residual.setdefault(instance, torch.zeros(self.num_parameters))[part].copy_(residual)
        if is_late and instance in self._pseudo_gradients:
            self._pseudo_gradients[instance].add_(residual, alpha=self._run.averaging.feedback)

    def discard(self, instance: InstanceId) -> None:
        """Local parameters return to the outer parameters, if the instance is here. The inner optimizer's state keeps what it
        learned."""
        if instance in self._instances:
            self._instances[instance].return_to_outer()
        self._pseudo_gradients.pop(instance, None)

    def digests(self, instance: InstanceId) -> tuple[Digest, Digest]:
        """Of the outer parameters, and of the state (outer parameters and momentum)."""
        hosted = self._get(instance)
        return state_digests(hosted.outer, hosted.momentum)

    def state(self, instance: InstanceId) -> tuple[torch.Tensor, torch.Tensor]:
        """Outer parameters and momentum [P], which nobody writes to: what a donor serves and `adopt` takes."""
        return self._get(instance).state

    # --- forks and merges --------------------------------------------------------------------------------------------

    def transition(self, forks: Sequence[Fork], merges: Sequence[Merge]) -> None:
        """Apply forks, then merges, at a boundary. The merged-away sources are dropped.

        A fork copies everything: parameters, momentum, the inner optimizer's state. A merge takes the weighted mean of outer
        parameters and momentum. Sources of positive weight must be here, fetched (`adopt`) where this peer did not train them;
        a target that was fetched starts from zero moments by that. Raises LocalProtocolError where one is missing.
        """
        for fork in forks:
            for target in fork.targets:
                self._instances[target] = self._with_room(self._get(fork.source).copy, keep=fork.source)
        for merge in merges:
            self._merge(merge)
            for source in merge.sources:
                if source != merge.target:
                    self.drop(source)

    def probe_merge(self, merge: Merge) -> ProbeVerdict:
        """Held-out losses of the sources and of the point that the merge would give; changes nothing."""
        losses = tuple(within_scalars(self.evaluate(source)) for source in merge.sources)
        merged = weighted_average([self._get(source).outer.float() for source in merge.sources], merge.weights)
        return ProbeVerdict(
            sources=merge.sources,
            target=merge.target,
            source_losses=losses,
            merged_loss=within_scalars(self._heldout_loss(merged)),
        )

    def evaluate(self, instance: InstanceId) -> float:
        """Held-out loss of the outer parameters, nats per predicted token; infinite where it is not a number."""
        return self._heldout_loss(self._get(instance).outer)

    # --- saving ------------------------------------------------------------------------------------------------------

    def snapshot(self, instance: InstanceId) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        """All that a bit-exact resume needs, taken at a boundary: CPU tensors that nobody writes to, and JSON-able values.
        Where the inner steps of the next round have begun, the inner optimizer's state and the feed are already a few steps
        into it."""
        hosted = self._get(instance)
        assert hosted.is_at_boundary or hosted.start is not None, f"instance {instance} has unfinished work"
        tensors = {"outer": hosted.outer, "momentum": hosted.momentum}
        tensors |= {name: tensor.to("cpu", copy=True) for name, tensor in hosted.optimizer.state.items()}
        if self._run.averaging.fragments > 1 or (hosted.is_carried and hosted.start is None):
            tensors["local"] = hosted.local.to("cpu", copy=True)
        if instance in self._residual:
            tensors["residual"] = self._residual[instance].clone()
        meta: dict[str, object] = {
            "optimizer_steps": hosted.optimizer.steps,
            "adoption_steps": hosted.adoption_steps,
            "feed": self._feed.state(instance),
        }
        return tensors, meta

    def restore(self, instance: InstanceId, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, object]) -> None:
        """Host an instance as a snapshot left it. Outer parameters and momentum are kept, the others copied. Raises
        StorageError for one of another model."""
        has_local = self._run.averaging.fragments > 1 or "local" in tensors
        self._check_saved(instance, tensors, ("outer", "momentum"), self._state_dtype)
        also = [name for name, is_there in (("local", has_local), ("residual", "residual" in tensors)) if is_there]
        self._check_saved(instance, tensors, also, torch.float32)
        match meta:
            case {"optimizer_steps": int(steps), "adoption_steps": int() | None as adoption_steps, "feed": dict(feed_state)}:
                pass
            case _:
                raise StorageError(f"checkpoint of instance {instance}: its counters are missing", code="E405")
        restored = self._new(tensors["outer"], momentum=tensors["momentum"])
        for name, own in restored.optimizer.state.items():
            if not has_shape_of(tensors.get(name), own):
                raise StorageError(f"checkpoint of instance {instance}: {name} is missing or not of this model", code="E405")
        load_state_(restored.optimizer, tensors, steps)
        restored.adoption_steps = adoption_steps
        if has_local:
            restored.local.copy_(tensors["local"])
            restored.is_carried = self._run.averaging.fragments == 1
        self._instances[instance] = restored
        if "residual" in tensors:
            self._residual[instance] = tensors["residual"].clone()
        self._feed.restore(instance, feed_state)

    def _check_saved(
        self, instance: InstanceId, tensors: Mapping[str, torch.Tensor], names: Sequence[str], dtype: torch.dtype
    ) -> None:
        for name in names:
            if name not in tensors or tensors[name].shape != (self.num_parameters,) or tensors[name].dtype != dtype:
                raise StorageError(f"checkpoint of instance {instance}: {name} is missing or not of this model", code="E405")

    # --- inside ------------------------------------------------------------------------------------------------------

    def _get(self, instance: InstanceId) -> Instance:
        if instance not in self._instances:
            raise LocalProtocolError(f"instance {instance} is not hosted here; hosted: {self.hosted}")
        return self._instances[instance]

    def _with_room(self, work: Callable[[], Result], *, keep: InstanceId | None) -> Result:
        """What `work` gives; where the device's memory is short, while all instances but `keep`, and the one that is training,
        wait on the host. Raises DeviceError where that is not enough."""
        try:
            return work()
        except torch.OutOfMemoryError:
            pass
        # outside the handler, which would keep the failed attempt's tensors alive
        for instance, hosted in self._instances.items():
            if instance not in (keep, self._training):
                hosted.leave_device()
        if self._training is None:
            self._shell.unbind()
        self._shell.free_cache()
        try:
            return work()
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"memory_fraction: {self._device} does not hold one instance of {self.num_parameters} parameters and a second"
                " set of them; raise it, or lower max_micro_batch",
                code="E502",
            ) from error

    @contextmanager
    def _stays_on_device(self, instance: InstanceId) -> Iterator[None]:
        self._training = instance
        try:
            yield
        finally:
            self._training = None

    def _own_randomness(self) -> AbstractContextManager[None]:
        """Random draws inside leave torch's global random state as it was."""
        return torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else [])

    def _new(self, outer: torch.Tensor, *, momentum: torch.Tensor | None) -> Instance:
        return Instance(outer, momentum=momentum, device=self._device, new_optimizer=self._new_optimizer)

    def _new_optimizer(self, local: torch.Tensor) -> InnerOptimizer:
        return inner_optimizer(self._run.inner, local, self._shell.layout, matrices=self._shell.matrices)

    def _fresh(self, instance: InstanceId) -> torch.Tensor:
        """An instance's first parameters [P], on the CPU. Adapters are drawn into the vector: their base is here already."""
        if not self._run.model.lora.rank:
            return flatten(self._build_model(instance))
        drawn = torch.zeros(self.num_parameters, device=self._device)
        self._shell.bind(drawn)
        draw_adapter_(self._shell.module, seed=initial_seed(self._run, instance))
        return drawn.cpu()

    def _build_model(self, instance: InstanceId) -> transformers.PreTrainedModel:
        return build_model(
            self._run.model,
            vocab_size=self._feed.vocab_size,
            sequence_length=self._feed.sequence_length,
            seed=initial_seed(self._run, instance),
        )

    def _probe(self) -> int:
        sequence_length, vocab_size = self._feed.sequence_length, self._feed.vocab_size
        limit = self._peer_config.max_micro_batch
        if self._device.type == "cpu":
            budget_bytes = self._peer_config.memory_budget_bytes
            return search_cpu(
                self._shell, sequence_length=sequence_length, vocab_size=vocab_size, budget_bytes=budget_bytes, limit=limit
            )
        # what is hosted already occupies its memory; the probe's own instance stands for the next one
        most = min(self._peer_config.max_instances, self._run.instances.count)
        return search_cuda(
            self._shell,
            sequence_length=sequence_length,
            vocab_size=vocab_size,
            clip_norm=self._run.inner.clip_norm,
            is_measured=self._run.batch.is_tested,
            new_optimizer=self._new_optimizer,
            num_instances=max(1, most - len(self._instances)),
            limit=limit,
        )

    def _merge(self, merge: Merge) -> None:
        """Outer parameters and momentum of the target <- weighted means; its inner optimizer by the rules (method
        section 6)."""
        rules = self._run.merge
        target = self._get(merge.target)
        taken = [(self._get(s), weight) for s, weight in zip(merge.sources, merge.weights, strict=True) if weight > 0]
        weights = [weight for _, weight in taken]
        if all(source is target for source, _ in taken):
            return  # a merge that only ends other instances leaves the survivor as it is
        outer = weighted_average([source.outer.float() for source, _ in taken], weights).to(self._state_dtype)
        if rules.outer_momentum == "zero":
            momentum = torch.zeros_like(target.momentum)
        else:
            momentum = weighted_average([source.momentum.float() for source, _ in taken], weights).to(self._state_dtype)
        target.set_outer(outer, momentum)
        if rules.inner_state == "reset":
            target.forget_moments()
        target.return_to_outer()
        self._residual.pop(merge.target, None)

    def _heldout_loss(self, outer: torch.Tensor) -> float:
        if self._heldout is None:
            self._heldout = self._feed.heldout(self._run.evaluation.rows)
        return self._with_room(
            partial(heldout_loss, self._shell, outer, self._heldout, micro_batch=self.micro_batch_limit), keep=None
        )
