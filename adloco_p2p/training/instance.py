"""One instance on one host: what is its own while the module, the gradient and the device are shared."""

import torch

from adloco_p2p.config.run_config import InnerConfig


class Instance:
    """Parameters and optimizers of one instance, as flat fp32 vectors of P elements.

    | what | where | bytes |
    |---|---|---|
    | `local` parameters, `optimizer` moments | device | 4P + 8P |
    | `outer` parameters (pinned on a CUDA machine), outer `momentum` | host | 4P + 4P |
    | `start` of inner steps that did not wait for the last outer step, then their pseudo-gradient | host | 4P |

    AdamW works element by element, so one step on the whole vector is the step of every parameter in it.
    """

    def __init__(self, outer: torch.Tensor, *, momentum: torch.Tensor | None, inner: InnerConfig, device: torch.device) -> None:
        """`outer` [P] and `momentum` [P] (none: zeros) become the instance's own; AdamW starts from zero moments."""
        assert outer.dtype == torch.float32 and outer.device.type == "cpu" and outer.ndim == 1
        self.outer = outer.pin_memory() if device.type == "cuda" else outer
        self.momentum = torch.zeros_like(outer) if momentum is None else momentum
        assert self.momentum.shape == outer.shape and self.momentum.dtype == torch.float32
        self.is_at_boundary = True
        """Whether no round is under way: the local parameters are the outer parameters; or, where fragments are averaged in
        turn, those of the last fragment are; or the rounds before were void."""
        self.is_carried = False
        """Whether the local parameters hold the inner steps of void rounds."""
        self.start: torch.Tensor | None = None
        """Where the inner steps began, if the outer step of the round before was still to come; see `run_ahead`."""
        self.fraction = 1.0
        """Part of the last round's samples that this host trained."""
        self.round: int | None = None
        """The round whose inner steps are under way or done; none at a boundary."""
        self.adoption_steps: int | None = None
        """Inner steps since this host adopted foreign parameters; none where it never did."""
        self._parameter = torch.nn.Parameter(outer.to(device, copy=True))
        # fused: one pass and no temporaries of P elements
        self._optimizer = torch.optim.AdamW(
            [self._parameter], lr=0.0, betas=inner.betas, eps=inner.eps, weight_decay=inner.weight_decay, fused=True
        )
        # allocated now rather than in the first step, so that memory is known before training begins
        self.set_moments(torch.zeros_like(self.local), torch.zeros_like(self.local), 0)

    @property
    def local(self) -> torch.Tensor:
        """Local parameters [P], on the device."""
        return self._parameter.data

    @property
    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """AdamW's first and second moments, [P] each, on the device."""
        state = self._optimizer.state[self._parameter]
        return state["exp_avg"], state["exp_avg_sq"]

    @property
    def optimizer_steps(self) -> int:
        """Inner steps since the moments were zero: AdamW's bias correction."""
        return int(self._optimizer.state[self._parameter]["step"])

    def set_moments(self, exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor, steps: int) -> None:
        """Go on from these moments [P] on the device, which become the instance's own."""
        assert exp_avg.shape == exp_avg_sq.shape == self.local.shape
        self._optimizer.state[self._parameter] = {
            "step": torch.tensor(float(steps), device=self.local.device),
            "exp_avg": exp_avg,
            "exp_avg_sq": exp_avg_sq,
        }

    def forget_moments(self) -> None:
        """Zero the moments and warm the learning rate up again: they belong to parameters that are gone (method section 6)."""
        for moment in self.moments:
            moment.zero_()
        self.set_moments(*self.moments, 0)
        self.adoption_steps = 0

    def inner_step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        """One AdamW step on the local parameters with a gradient [P] on the device."""
        self.is_at_boundary = False
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._parameter.grad = gradient
        self._optimizer.step()
        self._parameter.grad = None
        if self.adoption_steps is not None:
            self.adoption_steps += 1

    def run_ahead(self, start: torch.Tensor) -> None:
        """Local parameters <- `start` [P], which becomes the instance's own: the next round begins while the last one, whose
        pseudo-gradient is made already, is averaged."""
        self.local.copy_(start)
        self.start = start

    def return_to_outer(self, part: slice = slice(None)) -> None:
        """Local parameters <- outer parameters, or those of a part: the boundary between two rounds."""
        self.local[part].copy_(self.outer[part])
        self.is_at_boundary, self.start, self.round = True, None, None
        self.is_carried = False

    def stay_local(self) -> None:
        """The boundary after a void round: local parameters stay where they are, and the next round goes on from there."""
        self.is_at_boundary, self.start, self.round = True, None, None
        self.is_carried = True

    def copy(self, inner: InnerConfig) -> "Instance":
        """A fork: equal in everything, sharing nothing. Taken at a boundary."""
        assert self.is_at_boundary
        twin = Instance(self.outer.clone(), momentum=self.momentum.clone(), inner=inner, device=self.local.device)
        exp_avg, exp_avg_sq = self.moments
        twin.set_moments(exp_avg.clone(), exp_avg_sq.clone(), self.optimizer_steps)
        twin.adoption_steps = self.adoption_steps
        return twin
