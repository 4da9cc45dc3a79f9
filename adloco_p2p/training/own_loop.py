"""Outer rounds around a user's own program, which has its own model, data, loss and training loop.

Two threads meet here. The device thread asks for a round and waits; the program's thread does the inner steps and calls
`OwnLoop.step` after each. Only the program's thread touches the parameters: while it waits for a round it also does what the
device thread asks of it (`_Handover.ask`), such as an evaluation.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NoReturn

import torch

from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.assessments import AssessContribution
from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.layout import gathered, scatter_
from adloco_p2p.numerics.outer_optimizer import is_sound
from adloco_p2p.training.hosted_instances import HostedInstances
from adloco_p2p.training.inner_optimizer import InnerOptimizer, State
from adloco_p2p.training.loss_rounding import LOSS_ROUNDING, without_rounding
from adloco_p2p.training.progress import IsEnough, OnProgress, never_enough

LOOK_SECONDS = 0.05
"""How often the device thread checks whether it should stop while the program computes."""
UNLIMITED_SAMPLES = 1 << 20
"""How many samples fit one pass is left to the program: the plan never asks it to accumulate."""

Parameters = Sequence[torch.nn.Parameter]
Evaluate = Callable[[], float]
"""Returns the held-out loss of the model as it is, in nats per predicted token."""


def check_loss(given: str, loss: float) -> None:
    """Raise ConfigError for a negative loss, which no peer accepts in a report. One that is not a number passes: the training
    has diverged. So does one that rounding makes negative."""
    if loss < -LOSS_ROUNDING:
        raise ConfigError(
            f"{given}: {loss:.6g}; accepted: 0 or more; train on any loss, but report one that is not negative, such as the"
            " cross-entropy, or this one plus a constant",
            code="E233",
        )


def layout_digest(parameters: Parameters) -> str:
    """Return the digest of the parameters' shapes in order, which all peers of a run share."""
    return canonical.digest([list(parameter.shape) for parameter in parameters])


@dataclass(slots=True, kw_only=True)
class _Round:
    """The inner steps of one round, as far as the program has done them."""

    number: int
    share: HostShare
    start: torch.Tensor | None
    """The parameters [P] from which the round begins; None once the program has them."""
    begun: float = 0.0
    steps: int = 0
    samples: int = 0
    tokens: int = 0
    loss_sum: torch.Tensor | float = 0.0
    """The sum of losses times samples, on the program's device, so that no step waits for it."""
    last_loss: torch.Tensor | float = math.nan
    least_loss: torch.Tensor | float = math.inf
    """The least loss of a step, on the program's device, too."""
    seconds: float = 0.0
    is_discarded: bool = False
    """Whether the node no longer waits for it."""
    ends_early: bool = False
    """Whether its next step is its last one."""
    end: torch.Tensor | None = None
    """The parameters [P] after the last step; None before it."""


@dataclass(slots=True)
class _Ended:
    """The end of the run: no further round comes."""

    error: BaseException | None
    outer: torch.Tensor | None
    """The outer parameters [P] at the last boundary."""


@dataclass(slots=True)
class _Handover:
    """Hands rounds from the device thread to the program's thread, which takes them while it waits."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards the round under way; notified after each of its steps."""
    _jobs: "queue.SimpleQueue[_Round | _Ended | Callable[[], None]]" = field(default_factory=queue.SimpleQueue)

    def put(self, item: _Round | _Ended) -> None:
        self._jobs.put(item)

    def ask(self, work: Callable[[], float]) -> float:
        """Return the result of `work`, done by the program's thread. Must not be called from that thread."""
        answer: Future[float] = Future()

        def do() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # the device thread raises it, and the node ends with it
                answer.set_exception(error)

        self._jobs.put(do)
        return answer.result()

    def serve(self, *, timeout_seconds: float | None = None) -> _Round | _Ended:
        """Do what is asked until a round begins or the run ends. Skips rounds that were discarded before they began. Raises
        TimeoutError."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                job = self._jobs.get(timeout=left)
            except queue.Empty:
                raise TimeoutError from None
            if callable(job):
                job()
            elif not (isinstance(job, _Round) and job.is_discarded):
                return job


class _ProgramsOptimizer:
    """Takes the place of an inner optimizer: the program has its own, so this one has no state and does no step."""

    def __init__(self, on_forget: Callable[[], None]) -> None:
        self.state: State = {}
        self.steps = 0
        self._on_forget = on_forget

    def copied(self) -> State:
        return {}

    def load(self, state: Mapping[str, torch.Tensor], steps: int) -> None:  # noqa: ARG002
        self.steps = steps

    def forget(self) -> None:
        self.steps = 0
        self._on_forget()

    def step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        raise AssertionError(f"the program steps, not the node ({gradient.shape}, {learning_rate})")


class OwnLoop(HostedInstances):
    """The engine of a peer whose inner steps a program does. The program's thread calls `step`, `wait` and `finish_early`; the
    runtime calls everything else, as with any engine."""

    def __init__(
        self,
        run: RunConfig,
        me: PeerId,
        parameters: Parameters,
        *,
        evaluate: Evaluate | None,
        on_reset: Callable[[], None] | None = None,
    ) -> None:
        """`parameters`: those of the program, all fp32, in the same order and with the same shapes on every peer. `on_reset`:
        called in the program's thread where a round begins from parameters that do not follow from its own last ones."""
        super().__init__(run, me, {"cpu": torch.device("cpu")})
        self._parameters = parameters
        self._layout = layout_digest(parameters)
        self._num_parameters = sum(parameter.numel() for parameter in parameters)
        self._evaluate = evaluate
        self._on_reset = on_reset
        self._needs_reset = False
        """Whether the program's optimizer has moments of parameters that were given up."""
        self._handover = _Handover()
        self._round: _Round | None = None
        """The round under way, or the one that the program has just ended."""
        self._ended: _Ended | None = None

    # --- the program's side ------------------------------------------------------------------------------------------

    @property
    def round(self) -> int | None:
        """The number of the round whose steps are to be done; None before the first and after the last one."""
        return None if self._round is None else self._round.number

    @property
    def share(self) -> HostShare | None:
        """This peer's share of the plan of that round."""
        return None if self._round is None else self._round.share

    def wait(self, *, timeout_seconds: float | None = None) -> bool:
        """Wait until a round begins, and set the parameters to its start. Returns False once the node has ended; the parameters
        are then those of the last boundary, even where the program has done a step since. Raises the error that ended the node,
        and TimeoutError."""
        if self._ended is None:
            match self._handover.serve(timeout_seconds=timeout_seconds):
                case _Round() as begun:
                    assert begun.start is not None
                    scatter_(self._parameters, begun.start)
                    begun.start = None
                    needs_reset, self._needs_reset = self._needs_reset, False
                    if needs_reset and self._on_reset is not None:
                        self._on_reset()
                    begun.begun = time.perf_counter()
                    self._round = begun
                    return True
                case _Ended() as ended:
                    self._ended, self._round = ended, None
        assert self._ended is not None
        if self._ended.error is not None:
            raise self._ended.error
        if self._ended.outer is not None:
            scatter_(self._parameters, self._ended.outer)
        return False

    def step(self, *, samples: int, tokens: int, loss: torch.Tensor | float) -> bool:
        """Count one inner step that the program has done. After the last one of a round, `wait` for the next round."""
        return self.count(samples=samples, tokens=tokens, loss=loss) or self.wait()

    def count(self, *, samples: int, tokens: int, loss: torch.Tensor | float) -> bool:
        """Count one inner step as `step` does, without waiting. Returns False where the round is over, or there is none."""
        current = self._round
        if current is None or current.is_discarded:
            self._round = None
            return False
        value: torch.Tensor | float = loss
        if isinstance(loss, torch.Tensor):  # at least fp32: the sum would lose steps in bfloat16 and be infinite in float16
            value = loss.detach().to(torch.promote_types(loss.dtype, torch.float32))
        with self._handover.changed:
            current.steps += 1
            current.samples += samples
            current.tokens += tokens
            current.loss_sum = current.loss_sum + value * samples
            current.last_loss = value
            current.least_loss = _least(value, current.least_loss)
            self._handover.changed.notify_all()
        if current.steps < current.share.inner_steps and not current.ends_early:
            return True
        self._end_round(current)
        return False

    def finish_early(self) -> bool:
        """End the round with the steps that are done, as a smaller contribution. Returns False where no step is done, or the
        node no longer waits for the round."""
        current = self._round
        if current is None or current.steps == 0:
            return False
        if current.is_discarded:
            self._round = None
            return False
        self._end_round(current)
        return True

    def wait_for_end(self, *, timeout_seconds: float) -> None:
        """Wait until the node has ended, and do no further round. Raises TimeoutError."""
        self._round = None
        while self._ended is None:
            if isinstance(item := self._handover.serve(timeout_seconds=timeout_seconds), _Ended):
                self._ended = item

    def _end_round(self, current: _Round) -> None:
        self._check_parameters()
        check_loss("step(loss=...)", float(current.least_loss))
        vector = gathered(self._parameters)
        with self._handover.changed:
            current.seconds = time.perf_counter() - current.begun
            current.end = vector
            self._handover.changed.notify_all()
        self._round = None

    def _check_parameters(self) -> None:
        """Raise ConfigError where the parameters' shapes or types have changed since the run began."""
        if layout_digest(self._parameters) != self._layout or any(one.dtype != torch.float32 for one in self._parameters):
            raise ConfigError(
                "parameters: their shapes or types have changed; accepted: resize or convert the model before Swarm(...)",
                code="E233",
            )

    # --- the node's side ---------------------------------------------------------------------------------------------

    def close(self, error: BaseException | None) -> None:
        """Announce that no round comes any more, once no other thread of the node uses the engine. `error`: what ended the
        node."""
        outer = next((hosted.outer.float() for hosted in self._instances.values()), None) if error is None else None
        self._handover.put(_Ended(error, outer))

    @property
    def num_parameters(self) -> int:
        return self._num_parameters

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Those of the program's parameters; the node's own vectors are on the CPU."""
        return tuple(sorted({parameter.device for parameter in self._parameters}, key=str))

    @property
    def device_names(self) -> tuple[str, ...]:
        """One name for all of them, because one program trains."""
        return (" and ".join(map(str, self.devices)),)

    def adopt(self, instance: InstanceId, outer: torch.Tensor, momentum: torch.Tensor) -> None:
        super().adopt(instance, outer, momentum)
        self._needs_reset = True

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of outer parameters and momentum."""
        return 2 * 4 * self.num_parameters

    @property
    def micro_batch_limit(self) -> int:
        return UNLIMITED_SAMPLES

    def run_inner(
        self,
        effect: RunInner,
        *,
        should_stop: Callable[[], bool],
        is_enough: IsEnough = never_enough,
        on_progress: OnProgress,
    ) -> InnerResult | None:
        """Wait until the program has done the round's inner steps, has ended the round early, or has done one more step than
        `is_enough` asks for. None where the peer stops before."""
        assert not effect.is_ahead, "combinations.py: a program's rounds wait for the outer step"
        instance = self._begin_round(effect)
        done = _Round(number=effect.round, share=effect.share, start=instance.local.clone())
        self._handover.put(done)
        shown, shown_tokens = 0, 0
        while done.end is None or done.steps > shown:
            with self._handover.changed:
                if done.end is None:
                    self._handover.changed.wait(LOOK_SECONDS)
                if should_stop():
                    done.is_discarded = True
                    return None
                done.ends_early = done.steps > 0 and is_enough(done.steps)
                steps, tokens, loss = done.steps, done.tokens, done.last_loss
            if steps > shown:  # without the lock: reading a loss may wait for a GPU, which the program's next step must not
                on_progress(steps, loss, tokens - shown_tokens)
                shown, shown_tokens = steps, tokens
        instance.local.copy_(done.end)
        instance.is_at_boundary = False
        mean_loss = without_rounding(float(done.loss_sum) / done.samples)
        has_diverged = not (math.isfinite(mean_loss) and is_sound(instance.local))
        instance.has_diverged = has_diverged
        self._needs_reset |= has_diverged
        return InnerResult(
            samples=done.samples,
            tokens=done.tokens,
            inner_steps=done.steps,
            batch_samples=max(1, done.samples // done.steps),
            accumulation_steps=1,
            loss=mean_loss,
            seconds=done.seconds,
            half_batch=None,
            micro_batch_limit=UNLIMITED_SAMPLES,
            has_diverged=has_diverged,
        )

    def evaluate(self, instance: InstanceId) -> float | None:
        """Return the program's loss of the outer parameters; None where the program gave no function for it."""
        return None if self._evaluate is None else self._heldout_loss(self._get(instance).outer)

    def sample_texts(self, instance: InstanceId) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return none: a program's model need not write text."""
        return []

    def heldout_losses(self, instance: InstanceId) -> tuple[float, ...]:  # noqa: ARG002
        """Return none: a program has no data sets."""
        return ()

    def measure_step(
        self,
        instance: InstanceId,
        state: Digest,
        *,
        reads: tuple[InstanceId, ...],  # noqa: ARG002
    ) -> tuple[float, float]:
        raise AssertionError(f"combinations.py: no guard measures a program's steps ({instance}, {state})")

    def assess(self, asked: AssessContribution, *vectors: torch.Tensor) -> NoReturn:
        raise AssertionError(f"combinations.py: nobody looks at a program's contributions ({asked}, {len(vectors)} vectors)")

    # --- inside ------------------------------------------------------------------------------------------------------

    def _fresh(self, instance: InstanceId) -> torch.Tensor:  # noqa: ARG002 - there is one
        return gathered(self._parameters)  # as the program made them: it waits for its first round

    def _new_optimizer(self, local: torch.Tensor) -> InnerOptimizer:  # noqa: ARG002
        def reset() -> None:
            self._needs_reset = True

        return _ProgramsOptimizer(reset)

    def _heldout_loss(self, outer: torch.Tensor) -> float:
        """Return 0 where the program gave no function: histories that a partition separated are then merged unmeasured."""
        if self._evaluate is None:
            return 0.0
        return self._handover.ask(lambda: self._measured(outer))

    def _measured(self, outer: torch.Tensor) -> float:
        """Measure in the program's thread, and restore the parameters, which the program may go on from."""
        assert self._evaluate is not None
        before = gathered(self._parameters)
        scatter_(self._parameters, outer)
        try:
            with torch.no_grad():
                loss = float(self._evaluate())
        finally:
            scatter_(self._parameters, before)
        check_loss("evaluate()", loss)
        return without_rounding(loss) if math.isfinite(loss) else math.inf


def _least(one: torch.Tensor | float, other: torch.Tensor | float) -> torch.Tensor | float:
    """Return the lesser of two losses, without waiting for the device of one."""
    if isinstance(one, torch.Tensor):
        return one.clamp(max=other)
    return other.clamp(max=one) if isinstance(other, torch.Tensor) else min(one, other)
