"""The inner steps of the instances that a peer hosts, on one device, with the run's model and data: what the runtime's device
worker calls.

Synchronous and single-threaded. Instances take turns on one model shell, so running them in any order gives the same bits.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
import transformers

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.events import InnerResult, RunInner
from adloco_p2p.core.model.types import Digest, InstanceId, PeerId
from adloco_p2p.numerics.batch import Batch, Feed
from adloco_p2p.numerics.layout import flatten
from adloco_p2p.training.adapters import draw_adapter_
from adloco_p2p.training.device import configure_device, is_bfloat16
from adloco_p2p.training.evaluate import heldout_loss
from adloco_p2p.training.hosted_instances import HostedInstances
from adloco_p2p.training.inner_loop import OnProgress, run_inner_steps
from adloco_p2p.training.inner_optimizer import InnerOptimizer, inner_optimizer
from adloco_p2p.training.input_worker import InputWorker
from adloco_p2p.training.learning_rate import learning_rate_schedule
from adloco_p2p.training.memory_need import memory_need
from adloco_p2p.training.memory_search import MicroBatchLimit, search_cpu, search_cuda
from adloco_p2p.training.model import build_model, derived_seed, initial_seed
from adloco_p2p.training.plugins import plugin_loss
from adloco_p2p.training.sample_text import TEMPERATURE, TextCodec, continued
from adloco_p2p.training.shell import ModelShell

GUARD_ROWS = 32
"""Rows on which an outer step is measured, before and after it."""


class Hosting(HostedInstances):
    """A peer's instances of the run's model."""

    def __init__(
        self, run: RunConfig, peer_config: PeerConfig, me: PeerId, feed: Feed, *, codec: TextCodec | None = None
    ) -> None:
        """Builds the model. `codec`: where the run asks for sample texts. Raises ConfigError for a model or a device that
        cannot be had."""
        super().__init__(run, me, configure_device(peer_config))
        self._peer_config = peer_config
        self._codec = codec
        self._feed = InputWorker(feed, device=self._device)
        module = self._build_model(InstanceId(0))
        is_half = is_bfloat16(run.model.precision, self._device)
        loss = plugin_loss(run.model.loss) if run.model.loss else None
        self._shell = ModelShell(module, device=self._device, is_bfloat16=is_half, loss=loss)
        if peer_config.activation_checkpointing:
            self._shell.recompute_activations()
        self._micro_batch_limit: MicroBatchLimit | None = None
        self._heldout: Batch | None = None

    @property
    def num_parameters(self) -> int:
        return self._shell.layout.num_parameters

    @property
    def snapshot_bytes(self) -> int:
        """Of one instance."""
        return memory_need(self._run, self._shell.layout, matrices=self._shell.matrices, frozen_bytes=0).checkpoint

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
                make_room=partial(self._make_room, instance_id),
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

    def measure_step(self, instance: InstanceId, state: Digest) -> tuple[float, float]:
        """Loss before and after the last outer step, nats per predicted token, on rows that `state`, the digest of what it led
        to, draws: no contributor knew them before it was bound."""
        hosted = self._get(instance)
        rows = self._feed.drawn(state, GUARD_ROWS)
        before, after = (self._loss(outer, rows) for outer in (hosted.kept[-1][0], hosted.outer))
        return before, after

    def evaluate(self, instance: InstanceId) -> float:
        """Held-out loss of the outer parameters, nats per predicted token; infinite where it is not a number."""
        return self._heldout_loss(self._get(instance).outer)

    def sample_texts(self, instance: InstanceId) -> list[tuple[str, str]]:
        """Each of the run's prompts, and how the outer parameters continue it, by the same chance every time: what differs
        between two rounds is the model. None where the run asks for none, or the device has no memory left."""
        if self._codec is None:
            return []
        codec, asked = self._codec, self._run.evaluation
        outer = self._get(instance).outer
        found = []
        try:
            with self._shell.evaluating(outer.to(self._device, torch.float32)):
                for prompt in asked.sample_prompts:
                    ids = codec.encode([prompt])[0].tolist()
                    if not ids:
                        continue  # to this tokenizer the prompt is no text
                    new = continued(
                        self._shell.next_logits,
                        ids,
                        num_tokens=asked.sample_tokens,
                        room=self._run.data.sequence_length,
                        ends={codec.end_of_document},
                        temperature=TEMPERATURE,
                        seed=derived_seed(self._run.seed, "sample", prompt),
                    )
                    found.append((prompt, codec.decode(new)))
        except torch.OutOfMemoryError:
            self._shell.free_cache()
            return []
        return found

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

    def _heldout_loss(self, outer: torch.Tensor) -> float:
        if self._heldout is None:
            self._heldout = self._feed.heldout(self._run.evaluation.rows)
        return self._loss(outer, self._heldout)

    def _loss(self, outer: torch.Tensor, rows: Batch) -> float:
        measure = partial(heldout_loss, self._shell, outer, rows, micro_batch=self.micro_batch_limit)
        return self._with_room(measure, keep=None)

    def _reading(self, instance: InstanceId) -> dict[str, object]:
        return self._feed.state(instance)

    def _resume_reading(self, instance: InstanceId, state: dict[str, object]) -> None:
        self._feed.restore(instance, state)

    def _free_device(self) -> None:
        if self._training is None:
            self._shell.unbind()
        self._shell.free_cache()
