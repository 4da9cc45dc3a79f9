"""The ports of the runtime to other packages, as small Protocols. Each states its caller, its thread, and which calls block.

A vector is a flat tensor [P] on the CPU: float32, or bfloat16 for states that are kept so (`outer.state`). The runtime only
passes it on, so it needs no torch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, SupportsFloat

from adloco_p2p.core.model.assessments import AssessContribution, ShowContribution
from adloco_p2p.core.model.averages import Average, RepairAverage
from adloco_p2p.core.model.effects import FetchState, RunInner
from adloco_p2p.core.model.events import AverageFinished, Durable, InnerResult
from adloco_p2p.core.model.lineage import Fork, Merge, ProbeVerdict
from adloco_p2p.core.model.messages import JournalRecord, WireMessage
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.core.model.task_scores import TaskClaim
from adloco_p2p.core.model.telemetry import Log

Vector = Any
"""torch.Tensor [P], CPU."""


class Engine(Protocol):
    """Trains instances. Unless stated otherwise, it is called only from the threads of the device worker, for an instance from
    that of its device, and every call blocks until it is done."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices of this machine on which instances train at the same time."""

    def place(self, instance: InstanceId, devices: Sequence[int]) -> None:
        """Place the instance, which may come only later, on the first of these devices; the others help it to train."""

    def run_inner(
        self,
        effect: RunInner,
        *,
        should_stop: Callable[[], bool],
        is_enough: Callable[[int], bool],
        on_progress: Callable[[int, SupportsFloat, int], None],
    ) -> InnerResult | None:
        """Do the H inner steps of a round; fewer if `is_enough`, called now and then with the number of steps done, or
        `should_stop` ends them early. `on_progress` gets the steps done, the loss and the tokens after each step.

        `should_stop`, called before each step, may call `evaluate` and `snapshot` for the previous round. `apply_outer`,
        `digests` and `state` for the previous round may be called at the same time, from another thread.
        """

    def pseudo_gradient(self, instance: InstanceId) -> Vector:
        """Return the pseudo-gradient of the last `run_inner`, in a buffer that stays valid until the round's `apply_outer`."""

    def carry_over(self, instance: InstanceId, pseudo_gradient: Vector | None, *, round: int) -> None:
        """End a void round without an outer step; the next pseudo-gradient spans it."""

    def apply_outer(self, instance: InstanceId, averaged: Vector, *, round: int, residual: Vector | None) -> bool:
        """Do the outer step. The local parameters follow, unless the inner steps of the next round have begun. The residual is
        added to the next pseudo-gradient. Return False, and change nothing, if training could not continue from the result."""

    def digests(self, instance: InstanceId) -> tuple[Digest, Digest]:
        """Return the digests of the outer parameters, and of outer parameters and momentum together."""

    def state(self, instance: InstanceId) -> Sequence[Vector]:
        """Return outer parameters and momentum, which are never written to again."""

    def adopt(self, instance: InstanceId, outer: Vector, momentum: Vector) -> None:
        """Take these vectors as the instance's state; the caller must not write to them again."""

    def transition(self, forks: Sequence[Fork], merges: Sequence[Merge]) -> None: ...

    def drop(self, instance: InstanceId) -> None:
        """Forget the instance, if it is here."""

    def discard(self, instance: InstanceId) -> None:
        """Forget unfinished inner steps, if the instance is here."""

    def measure_step(self, instance: InstanceId, state: Digest, *, reads: tuple[InstanceId, ...]) -> tuple[float, float]:
        """Return the loss before and after the last outer step, on rows from the data of the instances `reads`
        (`InstancePlan.reads`), drawn by the digest of the state after the step."""

    def before_step(self, instance: InstanceId, *, round: int) -> Vector | None:
        """Return the outer parameters before the outer step of the round, if contributions to it may be looked at: once, and
        None if another step followed. May be called from any thread."""

    def assess(self, asked: AssessContribution, before: Vector, contribution: Vector, others: Vector) -> Iterator[float | None]:
        """Look at a contribution to the outer step from `before`. Each `next` does a forward pass and gives None, or at the end
        the score. `others` is the mean of the other contributions. Only `contribution` and `others` are changed. Raises
        DeviceError if the device is short of memory."""

    def rewind(self, instance: InstanceId, state: Digest) -> bool:
        """Go back to an earlier state; return False if it is not kept."""

    def probe_merge(self, merge: Merge) -> ProbeVerdict: ...

    def evaluate(self, instance: InstanceId) -> float | None:
        """Return the held-out loss of the outer parameters; None if there are no held-out rows."""

    def heldout_losses(self, instance: InstanceId) -> tuple[float, ...]:
        """Return the losses of the last `evaluate` on each data set of the mixture; empty unless instances have own data."""

    def sample_texts(self, instance: InstanceId) -> Sequence[tuple[str, str]]:
        """Return prompts, and the texts with which the outer parameters continue them; empty if the run asks for none."""

    def snapshot(self, instance: InstanceId) -> tuple[dict[str, Vector], dict[str, object]]:
        """Return a checkpoint's content: tensors that are never written to again, and JSON-able values."""


class CheckpointStore(Protocol):
    """Keeps checkpoints. Called only from the device worker's writing thread, in the order of the effects."""

    def save_instance(self, round: int, instance: InstanceId, tensors: dict[str, Vector], meta: dict[str, object]) -> None: ...

    def complete(self, durable: Durable) -> None: ...


class AveragedVector(Protocol):
    """The result of an average."""

    @property
    def vector(self) -> Vector:
        """The average, the same bytes on every host."""

    @property
    def residual(self) -> Vector | None:
        """The part of the own vector that was lost on its way into the average; None if nothing has to be sent again."""

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
        """Perform one attempt. `on_decided` is called with the decision by which a retry can complete it. `on_not_shown` is
        called, also later, with a peer that did not show a part, and the part's reducer. The result is held for repairs until
        results of later rounds are there."""

    async def repair(self, effect: RepairAverage, vector: Vector | None) -> AveragedVector:
        """Fetch a committed average from peers that hold it, and verify it against its digest. `vector` is this peer's own of
        that round; if it is in the average, the result has statistics, as from `average`."""

    def show_contribution(self, effect: ShowContribution) -> None:
        """Let the assessors fetch this peer's contribution from now on."""

    async def contribution(self, effect: AssessContribution) -> tuple[Vector, Vector]:
        """Return the subject's contribution to the average, and the mean of the others; the caller may write to both. Raises
        ContributionNotShown if the subject is at fault, and AveragingError otherwise."""


class Messenger(Protocol):
    """Sends messages to other peers, best effort. Called from the event loop; never blocks, never raises."""

    def send(self, peer: PeerId, message: WireMessage) -> None: ...

    def broadcast(self, message: WireMessage | Report) -> None: ...


class StateExchange(Protocol):
    """Transfers states of instances between peers. `fetch` raises StateTransferFailed."""

    def offer(self, instance: InstanceId, round: int, digest: Digest, state: Sequence[Vector]) -> None:
        """Serve this state, of the boundary before `round`. The vectors are kept. Called from a device's thread."""

    def keep_newest(self, instance: InstanceId) -> None:
        """Serve only the newest state of this instance, because an average of it begins. Called from the event loop."""

    def retire(self, instance: InstanceId) -> None:
        """Note that this peer hosts the instance no longer; a peer that is a little behind may still fetch it. Called from a
        device's thread."""

    def withdraw(self, instance: InstanceId) -> None:
        """Serve no state of this instance any more. Called from a device's thread."""

    async def fetch(self, effect: FetchState) -> Sequence[Vector]:
        """Fetch outer parameters and momentum."""


class TaskScorer(Protocol):
    """Scores the newest checkpoint on the run's tasks. Called from the event loop; raises TaskScoringFailed."""

    async def score(self) -> TaskClaim:
        """Score in the background, which takes minutes. Cancelled when the node ends."""


class Journal(Protocol):
    """Appends records, and syncs before it returns. Called from the event loop; records are small."""

    def append(self, record: JournalRecord) -> None: ...


class EventSink(Protocol):
    """Takes every event of the peer, for the event file and the views. Called from the event loop; must be quick."""

    def write(self, event: Log) -> None: ...
