"""The inner steps of the instances that a peer hosts, with the run's model and data; the runtime's device threads call it.

All calls are synchronous. The instances of a device take turns on its model shell, so their order does not change a bit; those
of different devices may train at the same time, each called from its device's thread.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch
import transformers

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.assessments import AssessContribution
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import ConfigError, DeviceError
from adloco_p2p.numerics.batch import Batch, Feed
from adloco_p2p.numerics.layout import Layout, flatten
from adloco_p2p.training.adapters import check_targets, draw_adapter_
from adloco_p2p.training.assessment import ROWS_AT_ONCE, Steps, assessed, row_losses
from adloco_p2p.training.compiling import check_can_compile
from adloco_p2p.training.data_parallel import Team
from adloco_p2p.training.device import configure_devices, is_bfloat16
from adloco_p2p.training.device_shell import DeviceShell, draws_random_numbers, model_of, own_randomness
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.hosted_instances import HostedInstances
from adloco_p2p.training.inner_loop import Trainers, run_inner_steps
from adloco_p2p.training.inner_optimizer import InnerOptimizer, inner_optimizer
from adloco_p2p.training.input_worker import InputWorker
from adloco_p2p.training.learning_rate import learning_rate_schedule
from adloco_p2p.training.memory_need import memory_need
from adloco_p2p.training.memory_search import MicroBatchLimit, search_cpu, search_cuda, synthetic_rows
from adloco_p2p.training.model import build_model, check_texts_apart
from adloco_p2p.training.plugins import plugin_loss
from adloco_p2p.training.progress import IsEnough, OnProgress, never_enough
from adloco_p2p.training.sample_text import TEMPERATURE, TextCodec, continued
from adloco_p2p.training.seeds import derived_seed, initial_seed
from adloco_p2p.training.shell import ModelShell

GUARD_ROWS = 32
"""Rows on which an outer step is measured, before and after it."""
_TRIAL_TOKENS = 64
"""Tokens of the row with which a kernel is tried."""


class Hosting(HostedInstances):
    """A peer's instances of the run's model."""

    def __init__(
        self, run: RunConfig, peer_config: PeerConfig, me: PeerId, feed: Feed, *, codec: TextCodec | None = None
    ) -> None:
        """Build the model on every device. `codec` is needed where the run asks for sample texts. Raises ConfigError for a
        model or a device that cannot be had."""
        self._peer_config = peer_config
        devices = self._configured(run, peer_config)
        super().__init__(run, me, devices)
        self._codec = codec
        self._feed = InputWorker(feed, is_pinned=any(device.type == "cuda" for device in devices.values()))
        module = self._build_model(InstanceId(0))
        if run.data.keeps_texts_apart:
            check_texts_apart(module, run.model)
        self._shells = self._open(devices, module)
        self._check_randomness()
        self._heldout: list[tuple[float, Batch]] = []
        """Held-out rows with the weight of their loss: those of all data, or of each data set of the mixture."""
        self._heldout_losses: dict[InstanceId, tuple[float, ...]] = {}

    def start(self, instances: Sequence[InstanceId]) -> None:
        """Host fresh instances. Raises ConfigError for adapters that the run's author cannot have meant; only here, because
        runs that exist go on."""
        if instances and self._run.model.lora.rank:
            check_targets(self._shell.module, self._run.model.lora)
        super().start(instances)

    def _configured(self, run: RunConfig, peer_config: PeerConfig) -> dict[str, torch.device]:  # noqa: ARG002
        """Return the devices of local parameters by name, ready for work."""
        return configure_devices(peer_config)

    def _open(self, devices: Mapping[str, torch.device], module: transformers.PreTrainedModel) -> tuple[DeviceShell, ...]:
        """Return the model on each device."""
        copies = [*(copy.deepcopy(module) for _ in range(len(devices) - 1)), module]  # before one of them leaves the host
        return tuple(
            DeviceShell(name, self._shell_of(own, device)) for own, (name, device) in zip(copies, devices.items(), strict=True)
        )

    def _shell_of(self, module: transformers.PreTrainedModel, device: torch.device) -> ModelShell:
        """Return the model as a shell on the device. Raises DeviceError where it does not fit."""
        loss = plugin_loss(self._run.model.loss) if self._run.model.loss else None
        is_half = is_bfloat16(self._run.model.precision, device)
        has_kernel = self._peer_config.document_kernel and not self._peer_config.deterministic
        try:
            shell = ModelShell(module, device=device, is_bfloat16=is_half, loss=loss)
            if has_kernel and self._run.data.keeps_texts_apart and device.type == "cuda" and is_half:
                length = min(_TRIAL_TOKENS, self._feed.sequence_length)
                shell.try_document_kernel(synthetic_rows(2, length, self._feed.vocab_size, num_documents=2))
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"memory_fraction: {device} does not hold the model and a gradient of its parameters; raise it, or train on"
                " another device",
                code="E502",
            ) from error
        if self._peer_config.activation_checkpointing:
            shell.recompute_activations()
        if self._peer_config.compile:
            check_can_compile(device)
            shell.compile()
        return shell

    def _check_randomness(self) -> None:
        """Raise ConfigError where several threads would draw from one random state in an undefined order."""
        on_cpu = [one.name for one in self._shells if one.device.type == "cpu"]
        sizes = {"sequence_length": self._feed.sequence_length, "vocab_size": self._feed.vocab_size}
        if len(on_cpu) > 1 and draws_random_numbers(self._shell, **sizes):
            raise ConfigError(
                f"device: {', '.join(on_cpu)} share one random state, and this model draws from it (dropout); name one of them",
                code="E210",
            )

    @property
    def _shell(self) -> ModelShell:
        """The shell of the first device."""
        return model_of(self._shells[0])

    @property
    def num_parameters(self) -> int:
        return self._shells[0].shell.layout.num_parameters

    @property
    def _vector_layout(self) -> Layout:
        return self._shells[0].shell.layout

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the snapshot of one instance."""
        shell = self._shells[0].shell
        return memory_need(self._run, shell.layout, matrices=shell.matrices, frozen_bytes=0).checkpoint

    @property
    def micro_batch_limit(self) -> int:
        """The largest micro-batch, in samples, that fits every device. It is probed at the first call, falls after an
        out-of-memory and rises again after many rounds without one.

        Raises DeviceError where one sample does not fit.
        """
        return min(self._limit_of(one).samples for one in self._shells)

    def _limit_of(self, one: DeviceShell) -> MicroBatchLimit:
        if one.limit is None:
            with own_randomness(one.device):
                one.limit = MicroBatchLimit(self._probe(one))
        return one.limit

    def run_inner(
        self,
        effect: RunInner,
        *,
        should_stop: Callable[[], bool],
        is_enough: IsEnough = never_enough,
        on_progress: OnProgress,
    ) -> InnerResult | None:
        """Train one instance for a round, from its outer parameters; see `run_inner_steps` for stopping, results and errors.

        `should_stop` may finish the round before: apply, evaluate and snapshot it. Random numbers (dropout) are drawn from a
        seed of run, instance, peer and round, so they need no saved state.
        """
        instance_id = effect.plan.instance
        instance = self._begin_round(effect)
        place = self._place_of(instance_id)
        devices = [self._shells[device] for device in self._team_of(instance_id)]
        batches = self._feed.open(
            instance=instance_id,
            peer=self._me,
            round=effect.round,
            first_sample=effect.share.first_sample,
            num_samples=effect.share.effective_batch,
            num_batches=effect.share.inner_steps,
            reads=effect.plan.reads,
        )
        limit = min(self._limit_of(device).samples for device in devices)  # probing draws random numbers: before the seed
        seed = derived_seed(self._run.seed, "inner", instance_id, self._me, effect.round)
        with ExitStack() as stack:
            self._lend(stack, devices, seed)
            stack.enter_context(batches)
            stack.enter_context(self._stays_on_device(instance_id))
            self._with_room(lambda: instance.local, device=place, keep=instance_id)
            team = stack.enter_context(self._team(devices, instance.local, seed))
            result = run_inner_steps(
                team,
                instance,
                batches,
                share=effect.share,
                schedule=learning_rate_schedule(effect, inner=self._run.inner, initial_batch=self._run.batch.initial_batch),
                micro_batch_limit=limit,
                is_measured=self._run.batch.is_tested,
                make_room=partial(self._make_room, place, instance_id),
                should_stop=should_stop,
                is_enough=is_enough,
                on_progress=on_progress,
            )
        if self._run.model.lora.rank and devices[0].device.type == "cpu":
            # Activations fill most of the memory. Vectors of the averaging would fragment it, and the next activations would
            # take new memory.
            devices[0].shell.free_cache()
        return None if result is None else self._noted(result, effect, devices, limit=limit)

    def _team(
        self,
        devices: Sequence[DeviceShell],
        local: torch.Tensor,
        seed: int,  # noqa: ARG002
    ) -> AbstractContextManager[Trainers]:
        """Return the trainers of an instance with these local parameters [P] for a round. `seed` is that of their random
        numbers."""
        return Team([model_of(device) for device in devices], local)

    def _noted(self, result: InnerResult, effect: RunInner, devices: Sequence[DeviceShell], *, limit: int) -> InnerResult:
        """Return the result with the devices' names, after noting its lasting effects in the micro-batch limits and the
        instance."""
        instance = self._get(effect.plan.instance)
        for device in devices:
            own = self._limit_of(device)
            own.note_round(own.samples if result.micro_batch_limit == limit else min(own.samples, result.micro_batch_limit))
        instance.fraction = result.samples / sum(share.samples for share in effect.plan.hosts)
        if result.has_diverged:  # its moments belong to parameters that are given up
            instance.has_diverged = True
            instance.forget_moments()
        return replace(result, devices=tuple(device.name for device in devices))

    def measure_step(self, instance: InstanceId, state: Digest, *, reads: tuple[InstanceId, ...] = ()) -> tuple[float, float]:
        """Return the loss before and after the last outer step, in nats per predicted token, on rows of the instance's data.
        `state`, the digest of the resulting state, draws them: no contributor could determine them before the state was
        fixed."""
        hosted = self._get(instance)
        rows = self._feed.drawn(state, GUARD_ROWS, reads=reads)
        place = self._place_of(instance)
        before, after = (self._loss(outer, rows, device=place) for outer in (hosted.kept[-1][0], hosted.outer))
        return before, after

    def assess(
        self, asked: AssessContribution, before: torch.Tensor, contribution: torch.Tensor, others: torch.Tensor
    ) -> Steps:
        """Look at a contribution; see `assessed` and `before_step`. Random states, the feed's place and everything that trains
        stay as they are. The steps raise DeviceError where the device's memory is short."""
        places = (asked.given_rows, asked.unseen_rows)
        read = partial(self._feed.at, instance=asked.instance, peer=self._me, round=asked.round, reads=asked.reads)
        given, unseen = (read(of_one) for of_one in places)
        device = self._place_of(asked.instance)
        one = self._shells[device]

        def losses(parameters: torch.Tensor, rows: Batch) -> torch.Tensor:
            with one.lent:
                return self._with_room(partial(row_losses, one.shell, parameters, rows), device=device)

        micro_batch = min(ROWS_AT_ONCE, self._limit_of(one).samples)
        return assessed(before, contribution, others, given=given, unseen=unseen, micro_batch=micro_batch, losses=losses)

    def evaluate(self, instance: InstanceId) -> float:
        """Return the held-out loss of the outer parameters, in nats per predicted token; infinite where it is not finite. Where
        instances have data of their own, it is the mean over the data sets of the mixture by their weights, whatever the
        instance reads."""
        losses = self._losses(self._get(instance).outer, device=self._place_of(instance))
        self._heldout_losses[instance] = losses
        return self._mean(losses)

    def heldout_losses(self, instance: InstanceId) -> tuple[float, ...]:
        """Return the losses of the last `evaluate`, one for each data set of the mixture; empty unless instances have data of
        their own."""
        losses = self._heldout_losses.get(instance, ())
        return losses if self._run.readers else ()

    def _lend(self, stack: ExitStack, devices: Sequence[DeviceShell], seed: int) -> None:
        """Lend the devices until the stack closes, with random states that begin with the seed. The order is fixed, so that no
        two instances wait for each other."""
        for device in sorted(devices, key=self._shells.index):
            stack.enter_context(device.lent)
        stack.enter_context(own_randomness(devices[0].device, seed))
        for index, device in enumerate(devices[1:], start=1):
            if device.device != devices[0].device:
                stack.enter_context(own_randomness(device.device, derived_seed(seed, "device", index)))

    def sample_texts(self, instance: InstanceId) -> list[tuple[str, str]]:
        """Return each of the run's prompts with its continuation by the outer parameters. The random numbers are the same
        every time, so only the model changes between two rounds. Empty where the run asks for none, or the device has no
        memory left."""
        if self._codec is None:
            return []
        codec, asked = self._codec, self._run.evaluation
        outer = self._get(instance).outer
        one = self._shells[self._place_of(instance)]
        shell = one.shell
        found = []
        try:
            with one.lent, shell.evaluating(outer.to(shell.device, torch.float32)):
                for prompt in asked.sample_prompts:
                    ids = codec.encode([prompt])[0].tolist()
                    if not ids:
                        continue  # the tokenizer gives no token for this prompt
                    new = continued(
                        shell.next_logits,
                        ids,
                        num_tokens=asked.sample_tokens,
                        room=self._run.data.sequence_length,
                        ends={codec.end_of_document},
                        temperature=TEMPERATURE,
                        seed=derived_seed(self._run.seed, "sample", prompt),
                    )
                    found.append((prompt, codec.decode(new)))
        except torch.OutOfMemoryError:
            shell.free_cache()
            return []
        return found

    @contextmanager
    def _stays_on_device(self, instance: InstanceId) -> Iterator[None]:
        self._training.add(instance)
        try:
            yield
        finally:
            self._training.discard(instance)

    def _new_optimizer(self, local: torch.Tensor) -> InnerOptimizer:
        return inner_optimizer(self._run.inner, local, self._shell.layout, matrices=self._shell.matrices)

    def _fresh(self, instance: InstanceId) -> torch.Tensor:
        """Return the first parameters [P] of an instance, on the CPU. Adapters are drawn into the vector: their base is here
        already."""
        if not self._run.model.lora.rank:
            return flatten(self._build_model(instance))
        drawn = torch.zeros(self.num_parameters, device=self._shell.device)
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

    def _probe(self, one: DeviceShell) -> int:
        shell = model_of(one)
        sequence_length, vocab_size = self._feed.sequence_length, self._feed.vocab_size
        limit = self._peer_config.max_micro_batch
        if shell.device.type != "cuda":
            budget_bytes = self._peer_config.memory_budget_bytes
            return search_cpu(
                shell, sequence_length=sequence_length, vocab_size=vocab_size, budget_bytes=budget_bytes, limit=limit
            )
        # The hosted instances already occupy memory; the probe's own instance stands for the next one.
        most = -(-min(self._peer_config.max_instances, self._run.instances.count) // len(self._shells))
        hosted = sum(self._devices[self._place_of(instance)] == shell.device for instance in self._instances)
        return search_cuda(
            shell,
            sequence_length=sequence_length,
            vocab_size=vocab_size,
            clip_norm=self._run.inner.clip_norm,
            is_measured=self._run.batch.is_tested,
            new_optimizer=self._new_optimizer,
            num_instances=max(1, most - hosted),
            num_documents=1 + self._run.data.keeps_texts_apart,
            limit=limit,
        )

    def _heldout_loss(self, outer: torch.Tensor) -> float:
        return self._mean(self._losses(outer, device=0))

    def _mean(self, losses: Sequence[float]) -> float:
        return sum(weight * loss for (weight, _), loss in zip(self._heldout, losses, strict=True))

    def _losses(self, outer: torch.Tensor, *, device: int) -> tuple[float, ...]:
        """Return the losses on all held-out rows; where instances have data of their own, on as many rows of each data set of
        the mixture."""
        count, readers, weights = self._run.evaluation.rows, self._run.readers, self._run.data.data_sets
        if not self._heldout and readers:
            each, total = count // len(readers), sum(weights.values())
            parts = [(weights[name] / total, self._feed.heldout(each, reads=(first,))) for name, first in readers.items()]
            self._heldout = parts
        elif not self._heldout:
            self._heldout = [(1.0, self._feed.heldout(count))]
        return tuple(self._loss(outer, rows, device=device) for _, rows in self._heldout)

    def _loss(self, outer: torch.Tensor, rows: Batch, *, device: int) -> float:
        one = self._shells[device]
        measure = partial(heldout_loss, one.shell, outer, rows, micro_batch=self._limit_of(one).samples)
        with one.lent:
            return self._with_room(measure, device=device)

    def _reading(self, instance: InstanceId) -> dict[str, object]:
        return self._feed.state(instance)

    def _resume_reading(self, instance: InstanceId, state: dict[str, object]) -> None:
        self._feed.restore(instance, state)

    def _free_device(self, device: int) -> None:
        one = self._shells[device]
        if one.lent.acquire(blocking=False):  # otherwise it is helping another device
            if not any(self._place_of(instance) == device for instance in list(self._training)):
                one.shell.unbind()
            one.lent.release()
        one.shell.free_cache()
