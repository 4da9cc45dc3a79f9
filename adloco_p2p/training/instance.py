"""The state of one instance on one host; instances share the module, the gradient and the device."""

from collections import deque
from collections.abc import Callable

import torch

from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.numerics.digest import state_digests
from adloco_p2p.numerics.layout import Ranges
from adloco_p2p.training.inner_optimizer import InnerOptimizer, State

STATES_KEPT = 2
"""The number of outer steps that an instance can go back: the one that an alarm is about, and the one made meanwhile."""
NewOptimizer = Callable[[torch.Tensor], InnerOptimizer]
"""Makes the run's inner optimizer, with zero state, for local parameters [P]."""


def pinned(vector: torch.Tensor) -> torch.Tensor:
    """Return the vector in page-locked memory, from which a GPU copies faster; the vector itself where it is there already, or
    where the system gives no more of that memory, which WSL limits to a part of the machine's."""
    try:
        return vector.pin_memory()
    except RuntimeError:
        return vector


class Instance:
    """Parameters and optimizers of one instance, as flat vectors of P elements: fp32, or bf16 for outer parameters and momentum
    where the run sets that (`outer.state`), at half the bytes.

    | what | where | bytes |
    |---|---|---|
    | `local` parameters, state of the inner optimizer | device, from the first inner step on | 4P + 8P with AdamW |
    | `outer` parameters (pinned on a CUDA machine), outer `momentum` | host | 4P + 4P |
    | `start` of inner steps that did not wait for the last outer step, then their pseudo-gradient | host | 4P |

    Outer parameters and momentum are never changed in place: an outer step or a merge makes new vectors. So a boundary's
    checkpoint, the states served to joiners, forks and kept states all refer to them without a copy.
    """

    def __init__(
        self, outer: torch.Tensor, *, momentum: torch.Tensor | None, device: torch.device, new_optimizer: NewOptimizer
    ) -> None:
        """`outer` [P] and `momentum` [P] (None: zeros) may be shared; nobody writes to them from now on."""
        self._device = device
        self._new_optimizer = new_optimizer
        self._trained: tuple[torch.Tensor, InnerOptimizer] | None = None
        self._waiting: tuple[torch.Tensor, State, int] | None = None
        """Local parameters, and state and steps of the optimizer, while they wait on the host; see `leave_device`."""
        self.kept: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=STATES_KEPT)
        """The states before the last outer steps, oldest first."""
        self.before: tuple[int, torch.Tensor] | None = None
        """The round of the last outer step and the outer parameters before it, where contributions to that round are looked
        at."""
        self.set_outer(outer, torch.zeros_like(outer) if momentum is None else momentum)
        self.is_at_boundary = True
        """Whether no round is under way. The local parameters then are the outer parameters, with two exceptions: where
        fragments are averaged in turn, this holds for the last fragment only, or in part; and it does not hold after void
        rounds."""
        self.is_carried = False
        """Whether the local parameters hold the inner steps of void rounds."""
        self.start: torch.Tensor | None = None
        """The start of the inner steps, where they began before the outer step of the last round; see `run_ahead`."""
        self.is_ahead = False
        """Whether the inner steps of the round under way began before the outer step of the last round."""
        self._due: tuple[Ranges, float, int] | None = None
        """The fragment whose outer parameters are still to be mixed in; see `mix_later`."""
        self.fraction = 1.0
        """The part of the last round's samples that this host trained."""
        self.round: int | None = None
        """The round whose inner steps are under way or done; None at a boundary."""
        self.has_diverged = False
        """Whether the round's inner steps diverged: its local parameters then return to the outer parameters in any case."""
        self.adoption_steps: int | None = None
        """Inner steps since this host adopted foreign parameters; None where it never did."""

    def set_outer(self, outer: torch.Tensor, momentum: torch.Tensor, *, digests: tuple[Digest, Digest] | None = None) -> None:
        """Replace outer parameters and momentum by these [P], with their `state_digests` where they are known."""
        for vector in (outer, momentum):
            assert vector.dtype in (torch.float32, torch.bfloat16) and vector.device.type == "cpu" and vector.ndim == 1
        assert outer.shape == momentum.shape
        self.outer = pinned(outer) if self._device.type == "cuda" else outer
        self.momentum = momentum
        self.before = None
        self._digests = digests

    def new_outer(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return uninitialised vectors for the next outer parameters and momentum."""
        try:
            outer = torch.empty_like(self.outer, pin_memory=self.outer.is_pinned())
        except RuntimeError:  # no page-locked memory is left, as in `pinned`
            outer = torch.empty_like(self.outer)
        return outer, torch.empty_like(self.momentum)

    @property
    def digests(self) -> tuple[Digest, Digest]:
        """The digests of the outer parameters, and of outer parameters and momentum; computed once."""
        if self._digests is None:
            self._digests = state_digests(self.outer, self.momentum)
        return self._digests

    @property
    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Outer parameters and momentum [P]."""
        return self.outer, self.momentum

    def keep_present(self) -> None:
        """Keep the state before an outer step, so that its hosts can go back to it."""
        self.kept.append(self.state)

    def _training(self) -> tuple[torch.Tensor, InnerOptimizer]:
        """Return local parameters and inner optimizer, made at the first call: instances that are only served or merged cost no
        device memory."""
        if self._trained is None and self._waiting is not None:
            parameters, state, steps = self._waiting
            local = parameters.to(self._device, copy=True)
            optimizer = self._new_optimizer(local)
            optimizer.load(state, steps)
            self._trained, self._waiting = (local, optimizer), None
        elif self._trained is None:
            local = self.outer.to(self._device, torch.float32, copy=True)
            self._trained = local, self._new_optimizer(local)
        return self._trained

    @property
    def local(self) -> torch.Tensor:
        """Local parameters [P], on the device."""
        return self._training()[0]

    @property
    def optimizer(self) -> InnerOptimizer:
        return self._training()[1]

    @property
    def optimizer_steps(self) -> int:
        return self.optimizer.steps if self._waiting is None else self._waiting[2]

    def optimizer_copy(self) -> tuple[State, int]:
        """Return a copy of the inner optimizer's state, on the host, and its steps."""
        if self._waiting is None:
            return self.optimizer.copied(), self.optimizer.steps
        _, state, steps = self._waiting
        return {name: tensor.clone() for name, tensor in state.items()}, steps

    def leave_device(self) -> None:
        """Move to the host until training needs the instance again, so that others can use the device's memory. Changes no
        value."""
        if self._trained is not None:
            self._waiting = self.local.to("cpu", copy=True), *self.optimizer_copy()
            self._trained = None

    def move_to(self, device: torch.device) -> None:
        """Train on another device from now on. Changes no value."""
        if device != self._device:
            self.leave_device()
            self._device = device

    def forget_moments(self) -> None:
        """Zero the inner optimizer's state, which belongs to parameters that are gone, and warm the learning rate up again
        (docs/mathematics.md, 6 and 9.1)."""
        if self._waiting is not None:
            parameters, state, _ = self._waiting
            self._waiting = parameters, {name: tensor.zero_() for name, tensor in state.items()}, 0
        elif self._trained is not None:
            self.optimizer.forget()
        self.adoption_steps = 0

    def inner_step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        """Do one step of the inner optimizer with a gradient [P]."""
        self.is_at_boundary = False
        self.optimizer.step(gradient, learning_rate)
        if self.adoption_steps is not None:
            self.adoption_steps += 1

    def run_ahead(self, start: torch.Tensor) -> None:
        """Begin the next round at `start` [P], which becomes the instance's own, while the last round is averaged; its
        pseudo-gradient exists already."""
        self.local.copy_(start)
        self.start = start

    def return_to_outer(self, part: Ranges = (slice(None),), *, kept: float = 0.0) -> None:
        """Set the local parameters, or those of a part, to the outer ones, of which `kept` stays local. The instance is then at
        a boundary."""
        if part == (slice(None),):
            self._due = None
        if self._waiting is not None:
            self._mix(self._waiting[0], part, kept)
        elif self._trained is not None:
            self._mix(self.local, part, kept)
        self._come_to_boundary()
        self.is_carried = self.has_diverged = False

    def mix_later(self, part: Ranges, *, kept: float, after_steps: int) -> None:
        """Note that the outer parameters of a fragment changed while the inner steps of the next round are under way. After
        `after_steps` of these, local parameters become kept * local + (1 - kept) * outer. May be called from any thread."""
        self._due = part, kept, after_steps

    def mix_in(self, steps: int | None = None) -> None:
        """Do what `mix_later` noted, if so many inner steps of the round are enough for it; None: in any case."""
        if self._due is not None and (steps is None or steps >= self._due[2]):
            (part, kept, _), self._due = self._due, None
            self._mix(self.local, part, kept)

    def mixed_local(self) -> torch.Tensor:
        """Return a copy of the local parameters [P] on the host, with what is still to be mixed in."""
        local = self.local.to("cpu", copy=True)
        if self._due is not None:
            part, kept, _ = self._due
            self._mix(local, part, kept)
        return local

    def _mix(self, local: torch.Tensor, part: Ranges, kept: float) -> None:
        for where in part:
            if kept == 0.0:
                local[where].copy_(self.outer[where])
            else:
                local[where].mul_(kept).add_(self.outer[where].to(local.device, local.dtype).mul(1.0 - kept))

    def _come_to_boundary(self) -> None:
        self.is_at_boundary, self.is_ahead, self.start, self.round = True, False, None, None

    def stay_local(self) -> None:
        """Come to the boundary after a void round: local parameters stay where they are, and the next round continues from
        there."""
        self._come_to_boundary()
        self.is_carried = True

    def copy(self) -> "Instance":
        """Return an independent copy, for a fork at a boundary."""
        assert self.is_at_boundary
        twin = Instance(self.outer, momentum=self.momentum, device=self._device, new_optimizer=self._new_optimizer)
        if self._waiting is not None:
            _, state, steps = self._waiting
            twin.optimizer.load(state, steps)
        elif self._trained is not None:
            twin.optimizer.load(self.optimizer.state, self.optimizer.steps)
        twin.adoption_steps = self.adoption_steps
        return twin
