"""The ports of the runtime to the rooms, as small Protocols. Each states its caller, its thread, and what may block.

A vector is a flat tensor on the CPU, shape [P]: float32, and bfloat16 where states are kept so (`outer.state`). The runtime
only hands it on, so that it needs no torch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, SupportsFloat

from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.events import AverageFinished, Durable, FetchState, InnerResult, RunInner
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.messages import JournalRecord, WireMessage
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.task_scores import TaskClaim
from adloco_p2p.core.model.telemetry import Log

Vector = Any
"""torch.Tensor [P], CPU."""


class Engine(Protocol):
    """Trains. Called only from the threads of the device worker, on an instance from that of its device, unless stated
    otherwise; every call blocks until it is done."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices of this machine that instances train on, at once."""

    def place(self, instance: InstanceId, devices: Sequence[int]) -> None:
        """From now on the instance, here or to come, is the first of these devices', and the others help it to train."""

    def run_inner(
        self,
        effect: RunInner,
        *,
        should_stop: Callable[[], bool],
        is_enough: Callable[[int], bool],
        on_progress: Callable[[int, SupportsFloat, int], None],
    ) -> InnerResult | None:
        """H inner steps; fewer where `is_enough`, asked now and then with the steps that are done, or `should_stop` ended them
        early. After each: steps done, its loss, its tokens.

        `should_stop`, asked before each, may call `evaluate` and `snapshot` of the round before. `apply_outer`, `digests` and
        `state` of the round before may be called beside it, from another thread.
        """

    def pseudo_gradient(self, instance: InstanceId) -> Vector:
        """Of the last `run_inner`: what is to be averaged; a buffer that stays valid until the round's `apply_outer`."""

    def carry_over(self, instance: InstanceId, pseudo_gradient: Vector | None, *, round: int) -> None:
        """The round is void: no outer step; the next pseudo-gradient spans it."""

    def apply_outer(self, instance: InstanceId, averaged: Vector, *, round: int, residual: Vector | None) -> bool:
        """The local parameters follow, unless the inner steps of the next round have begun. The residual joins the next
        pseudo-gradient. False: the step leads to parameters from which training cannot go on, and nothing was changed."""

    def digests(self, instance: InstanceId) -> tuple[Digest, Digest]:
        """Of the outer parameters; of outer parameters and momentum together."""

    def state(self, instance: InstanceId) -> Sequence[Vector]:
        """Outer parameters and momentum: values that nobody writes to any more."""

    def adopt(self, instance: InstanceId, outer: Vector, momentum: Vector) -> None:
        """Keeps the vectors: nobody may write to them any more."""

    def transition(self, forks: Sequence[Fork], merges: Sequence[Merge]) -> None: ...

    def drop(self, instance: InstanceId) -> None:
        """Forget the instance, if it is here."""

    def discard(self, instance: InstanceId) -> None:
        """Forget unfinished inner steps, if the instance is here."""

    def measure_step(self, instance: InstanceId, state: Digest, *, reads: tuple[InstanceId, ...]) -> tuple[float, float]:
        """The loss before and after the last outer step, on rows drawn by the state that it led to, of the data of the
        instances `reads` (`InstancePlan.reads`)."""

    def before_step(self, instance: InstanceId, *, round: int) -> Vector | None:
        """The outer parameters before the outer step of the round, where contributions to it may be looked at; given once, and
        none where another step followed. May be called from any thread."""

    def assess(self, asked: AssessContribution, before: Vector, contribution: Vector, others: Vector) -> Iterator[float | None]:
        """Look at a contribution to the outer step from `before`: a forward pass with each `next`, which gives None, and at the
        end the score. `others`: the mean of the other contributions. Nothing but these two vectors is changed. Raises
        DeviceError where the device is short of memory."""

    def rewind(self, instance: InstanceId, state: Digest) -> bool:
        """Go back to an earlier state. False where it is not kept."""

    def probe_merge(self, merge: Merge) -> ProbeVerdict: ...

    def evaluate(self, instance: InstanceId) -> float | None:
        """Held-out loss of the outer parameters; none where there is nothing to evaluate on."""

    def heldout_losses(self, instance: InstanceId) -> tuple[float, ...]:
        """The last `evaluate` on each data set of the mixture by itself; empty unless instances have data of their own."""

    def sample_texts(self, instance: InstanceId) -> Sequence[tuple[str, str]]:
        """Prompts, and the texts with which the outer parameters continue them; empty where the run asks for none."""

    def snapshot(self, instance: InstanceId) -> tuple[dict[str, Vector], dict[str, object]]:
        """Tensors that nobody writes to any more, and JSON-able values."""


class CheckpointStore(Protocol):
    """Durable state. Called only from the device worker's writing thread, in the order of the effects."""

    def save_instance(self, round: int, instance: InstanceId, tensors: dict[str, Vector], meta: dict[str, object]) -> None: ...

    def complete(self, durable: Durable) -> None: ...


class AveragedVector(Protocol):
    """The result of an averaging."""

    @property
    def vector(self) -> Vector:
        """The same bytes on every host."""

    @property
    def residual(self) -> Vector | None:
        """The part of the own vector that was lost on its way into the average, [R]; none where nothing is to be sent again."""

    @property
    def finished(self) -> AverageFinished:
        """The event for the core."""


class Averaging(Protocol):
    """Averages vectors with other peers. Called from the event loop; raises AveragingError."""

    async def average(
        self,
        effect: Average,
        vector: Vector,
        *,
        on_decided: Callable[[Digest], None],
        on_not_shown: Callable[[PeerId, PeerId], None],
    ) -> AveragedVector:
        """As the effect asks. `on_decided` is called with the decision by which a retry can complete the attempt;
        `on_not_shown`, also later, with a contributor that did not show its part to a reducer, and that reducer. The result is
        held for repairs until those of later rounds are there."""

    async def repair(self, effect: RepairAverage, vector: Vector | None) -> AveragedVector:
        """Fetch a committed average from peers that hold it, verified against its digest. `vector`: this peer's own of that
        round; where it is in the average there are statistics, as of `average`."""

    def show_contribution(self, effect: ShowContribution) -> None:
        """From now on the assessors may fetch this peer's contribution."""

    async def contribution(self, effect: AssessContribution) -> tuple[Vector, Vector]:
        """The subject's contribution, and the mean of the other ones, in the average that ended here last; both are the
        caller's. Raises ContributionNotShown where the subject is at fault, and AveragingError otherwise."""


class Messenger(Protocol):
    """Carries messages to other peers, best effort. Called from the event loop, never blocks, never raises."""

    def send(self, peer: PeerId, message: WireMessage) -> None: ...

    def broadcast(self, message: WireMessage | Report) -> None: ...


class StateExchange(Protocol):
    """State of instances between peers. `fetch` raises StateTransferFailed."""

    def offer(self, instance: InstanceId, round: int, digest: Digest, state: Sequence[Vector]) -> None:
        """From now on serve this state, of the boundary before `round`. Called from a device's thread. The vectors are kept."""

    def keep_newest(self, instance: InstanceId) -> None:
        """An average of this instance begins: of the states that are served, let all go but the newest. Called from the event
        loop."""

    def retire(self, instance: InstanceId) -> None:
        """This peer hosts the instance no longer; a peer that is a little behind may still fetch it. Called from a device's
        thread."""

    def withdraw(self, instance: InstanceId) -> None:
        """Serve nothing of this instance any more. Called from a device's thread."""

    async def fetch(self, effect: FetchState) -> Sequence[Vector]:
        """Outer parameters and momentum."""


class TaskScorer(Protocol):
    """Scores the newest checkpoint on the run's tasks. Called from the event loop; raises TaskScoringFailed."""

    async def score(self) -> TaskClaim:
        """Takes minutes, and holds nothing up. Cancelled where the node ends."""


class Journal(Protocol):
    """Append and sync before returning. Called from the event loop; records are small."""

    def append(self, record: JournalRecord) -> None: ...


class EventSink(Protocol):
    """Takes every event of the peer: the event file and the views. Called from the event loop; must be quick."""

    def write(self, event: Log) -> None: ...
