"""The inner steps of a program of the user's: its own model, data, loss and loop around the same outer rounds.

Two threads meet here. The device thread asks for a round and waits; the program's thread does the steps of the round and comes
back to `OwnLoop.step` after each. Parameters are touched in the program's thread only: while it waits for a round it also does
what the device thread asks of it (`_Handover.ask`), such as an evaluation.
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
from adloco_p2p.core.model.events import InnerResult, RunInner
from adloco_p2p.core.model.instance_plan import HostShare
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import ConfigError
from adloco_p2p.numerics.layout import gathered, scatter_
from adloco_p2p.numerics.outer_optimizer import is_sound
from adloco_p2p.training.hosted_instances import HostedInstances
from adloco_p2p.training.inner_optimizer import InnerOptimizer, State
from adloco_p2p.training.progress import IsEnough, OnProgress, never_enough

LOOK_SECONDS = 0.05
"""How often the device thread looks whether it should stop while the program computes."""
UNLIMITED_SAMPLES = 1 << 20
"""How many samples fit one pass is the program's business: the plan never asks it to accumulate."""

Parameters = Sequence[torch.nn.Parameter]
Evaluate = Callable[[], float]
"""Held-out loss of the model as it is, in nats per predicted token."""


def layout_digest(parameters: Parameters) -> str:
    """Of the shapes in their order: what peers of one run have in common."""
    return canonical.digest([list(parameter.shape) for parameter in parameters])


@dataclass(slots=True, kw_only=True)
class _Round:
    """The inner steps of one round, as far as the program has done them."""

    number: int
    share: HostShare
    start: torch.Tensor
    """Parameters [P] to begin from."""
    begun: float = 0.0
    steps: int = 0
    samples: int = 0
    tokens: int = 0
    loss_sum: torch.Tensor | float = 0.0
    """Of losses times samples; on the program's device, so that no step waits for it."""
    last_loss: torch.Tensor | float = math.nan
    seconds: float = 0.0
    is_discarded: bool = False
    """The node waits for it no longer."""
    ends_early: bool = False
    """Its next step is its last one."""
    end: torch.Tensor | None = None
    """Parameters [P] after the last step, once the program has done it."""


@dataclass(slots=True)
class _Ended:
    """No round comes any more."""

    error: BaseException | None
    outer: torch.Tensor | None
    """Outer parameters [P] at the last boundary."""


@dataclass(slots=True)
class _Handover:
    """The inputs of a round: the device thread puts them, and the program's thread takes them while it waits."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards the round under way, and is notified after each of its steps."""
    _jobs: "queue.SimpleQueue[_Round | _Ended | Callable[[], None]]" = field(default_factory=queue.SimpleQueue)

    def put(self, item: _Round | _Ended) -> None:
        self._jobs.put(item)

    def ask(self, work: Callable[[], float]) -> float:
        """Have it done by the program's thread. Not to be called from there."""
        answer: Future[float] = Future()

        def do() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:  # handed to the device thread, which ends the node with it
                answer.set_exception(error)

        self._jobs.put(do)
        return answer.result()

    def serve(self, *, timeout_seconds: float | None = None) -> _Round | _Ended:
        """Do what is asked until a round begins, or none comes any more. Rounds that were discarded before they began are
        passed over. Raises TimeoutError."""
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
    """Stands for the program's inner optimizer, which is none of ours: no state, no step."""

    def __init__(self) -> None:
        self.state: State = {}
        self.steps = 0

    def copied(self) -> State:
        return {}

    def load(self, state: Mapping[str, torch.Tensor], steps: int) -> None:  # noqa: ARG002
        self.steps = steps

    def forget(self) -> None:
        self.steps = 0

    def step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        raise AssertionError(f"the program steps, not the node ({gradient.shape}, {learning_rate})")


class OwnLoop(HostedInstances):
    """The engine of a peer whose inner steps are the program's. `step`, `wait`, `finish_early` are called from the program's
    thread; everything else from the runtime's, as of any engine."""

    def __init__(self, run: RunConfig, me: PeerId, parameters: Parameters, *, evaluate: Evaluate | None) -> None:
        """`parameters`: the program's, all fp32, in the same order and shapes on every peer."""
        super().__init__(run, me, {"cpu": torch.device("cpu")})
        self._parameters = parameters
        self._layout = layout_digest(parameters)
        self._initial = gathered(parameters)
        self._evaluate = evaluate
        self._handover = _Handover()
        self._round: _Round | None = None
        """Under way, or ended by the program."""
        self._ended: _Ended | None = None

    # --- the program's side ------------------------------------------------------------------------------------------

    @property
    def round(self) -> int | None:
        """The number of the round whose steps are to be done; none before the first one and after the last."""
        return None if self._round is None else self._round.number

    @property
    def share(self) -> HostShare | None:
        """This peer's part of the plan of that round."""
        return None if self._round is None else self._round.share

    def wait(self, *, timeout_seconds: float | None = None) -> bool:
        """Until a round begins, whose start the parameters then are, or the node has ended: False; then they are those of the
        last boundary, also where the program has done a step since. Raises what ended it, and TimeoutError."""
        if self._ended is None:
            match self._handover.serve(timeout_seconds=timeout_seconds):
                case _Round() as begun:
                    scatter_(self._parameters, begun.start)
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
        """Count one inner step that the program has done. After the last one of a round: as `wait`, for the next round."""
        return self.count(samples=samples, tokens=tokens, loss=loss) or self.wait()

    def count(self, *, samples: int, tokens: int, loss: torch.Tensor | float) -> bool:
        """The same without the wait. False where the round is over, or there is none."""
        current = self._round
        if current is None or current.is_discarded:
            self._round = None
            return False
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss
        with self._handover.changed:
            current.steps += 1
            current.samples += samples
            current.tokens += tokens
            current.loss_sum = current.loss_sum + value * samples
            current.last_loss = value
            self._handover.changed.notify_all()
        if current.steps < current.share.inner_steps and not current.ends_early:
            return True
        self._end_round(current)
        return False

    def finish_early(self) -> bool:
        """End the round with the steps that are done: a smaller contribution. False where there are none, or where the node
        waits for them no longer."""
        current = self._round
        if current is None or current.steps == 0:
            return False
        if current.is_discarded:
            self._round = None
            return False
        self._end_round(current)
        return True

    def wait_for_end(self, *, timeout_seconds: float) -> None:
        """Until the node has ended; rounds that begin are not done. Raises TimeoutError."""
        self._round = None
        while self._ended is None:
            if isinstance(item := self._handover.serve(timeout_seconds=timeout_seconds), _Ended):
                self._ended = item

    def _end_round(self, current: _Round) -> None:
        self._check_parameters()
        vector = gathered(self._parameters)
        with self._handover.changed:
            current.seconds = time.perf_counter() - current.begun
            current.end = vector
            self._handover.changed.notify_all()
        self._round = None

    def _check_parameters(self) -> None:
        """They are what they were when the run began. Raises ConfigError."""
        if layout_digest(self._parameters) != self._layout or any(one.dtype != torch.float32 for one in self._parameters):
            raise ConfigError(
                "parameters: their shapes or types have changed; accepted: resize or convert the model before Swarm(...)",
                code="E233",
            )

    # --- the node's side ---------------------------------------------------------------------------------------------

    def close(self, error: BaseException | None) -> None:
        """No round comes any more; `error`: what ended the node. Called once no other thread of the node uses the engine."""
        outer = next((hosted.outer.float() for hosted in self._instances.values()), None) if error is None else None
        self._handover.put(_Ended(error, outer))

    @property
    def num_parameters(self) -> int:
        return len(self._initial)

    @property
    def snapshot_bytes(self) -> int:
        """Of outer parameters and momentum."""
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
        """Wait until the program has done the round's inner steps, gave fewer, or has done one more than are
        enough. None where the peer stops before."""
        assert not effect.is_ahead, "combinations.py: a program's rounds wait for the outer step"
        instance = self._begin_round(effect)
        done = _Round(number=effect.round, share=effect.share, start=instance.local.clone())
        self._handover.put(done)
        with self._handover.changed:
            told = 0
            while done.end is None:
                self._handover.changed.wait(LOOK_SECONDS)
                if should_stop():
                    done.is_discarded = True
                    return None
                done.ends_early = done.steps > 0 and is_enough(done.steps)
                if done.steps > told:
                    told = done.steps
                    on_progress(told, done.last_loss, done.tokens)
        instance.local.copy_(done.end)
        instance.is_at_boundary = False
        loss = float(done.loss_sum) / done.samples
        has_diverged = not (math.isfinite(loss) and is_sound(instance.local))
        instance.has_diverged = has_diverged
        return InnerResult(
            samples=done.samples,
            tokens=done.tokens,
            inner_steps=done.steps,
            batch_samples=max(1, done.samples // done.steps),
            accumulation_steps=1,
            loss=loss,
            seconds=done.seconds,
            half_batch=None,
            micro_batch_limit=UNLIMITED_SAMPLES,
            has_diverged=has_diverged,
        )

    def evaluate(self, instance: InstanceId) -> float | None:
        """By the program's function, on the outer parameters; none where it has given none."""
        return None if self._evaluate is None else self._heldout_loss(self._get(instance).outer)

    def sample_texts(self, instance: InstanceId) -> list[tuple[str, str]]:  # noqa: ARG002
        """None: what the program trains need not write text."""
        return []

    def heldout_losses(self, instance: InstanceId) -> tuple[float, ...]:  # noqa: ARG002
        """None: the program has no data sets."""
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
        return self._initial.clone()

    def _new_optimizer(self, local: torch.Tensor) -> InnerOptimizer:  # noqa: ARG002
        return _ProgramsOptimizer()

    def _heldout_loss(self, outer: torch.Tensor) -> float:
        """0 without a function: then histories that a partition separated are merged unmeasured."""
        if self._evaluate is None:
            return 0.0
        return self._handover.ask(lambda: self._measured(outer))

    def _measured(self, outer: torch.Tensor) -> float:
        """In the program's thread. The next round scatters its own start."""
        assert self._evaluate is not None
        before = gathered(self._parameters)
        scatter_(self._parameters, outer)
        try:
            with torch.no_grad():
                loss = float(self._evaluate())
        finally:
            scatter_(self._parameters, before)
        return loss if math.isfinite(loss) else math.inf
