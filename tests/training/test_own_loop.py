"""A program's own loop as an engine: its steps become one inner round, and the outer rounds are those of the node."""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
import torch

from adloco_p2p.config.load import load_run_settings
from adloco_p2p.config.local_files import check_no_program
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.errors import ConfigError, SwarmError
from adloco_p2p.numerics.layout import gathered
from adloco_p2p.training.own_loop import OwnLoop, layout_digest
from tests.training.small_run import ME, ONE, effect

RUN = load_run_settings(
    {"mode": "diloco", "model.program": "line", "outer.learning_rate": 0.5, "outer.momentum": 0.5, "work.inner_steps": 3}
).value
STEPS = 3


class Meeting:
    """An engine whose node side runs in a thread, as the device worker's; this thread is the program's."""

    def __init__(self, *, evaluate: bool = False, sign: float = 1.0) -> None:
        """`sign`: of the loss that the program evaluates."""
        self._sign = sign
        self.parameters = [torch.nn.Parameter(torch.tensor([[1.0, 2.0]])), torch.nn.Parameter(torch.tensor([3.0]))]
        self.evaluated_in: list[threading.Thread] = []
        self.num_resets = 0
        self.engine = OwnLoop(RUN, ME, self.parameters, evaluate=self._loss if evaluate else None, on_reset=self._count_reset)
        self.engine.start([ONE])
        self.is_stopped = threading.Event()
        self.enough = STEPS
        self.asked = threading.Event()
        """The node has found the steps enough."""
        self.progress: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self.device = ThreadPoolExecutor(1)

    def _loss(self) -> float:
        self.evaluated_in.append(threading.current_thread())
        assert not torch.is_grad_enabled()
        return self._sign * float(gathered(self.parameters).sum())

    def _count_reset(self) -> None:
        self.num_resets += 1

    def is_enough(self, steps: int) -> bool:
        if steps >= self.enough:
            self.asked.set()
        return steps >= self.enough

    def run_inner(self, number: int) -> "Future[InnerResult | None]":
        return self.device.submit(
            self.engine.run_inner,
            effect(ONE, number, steps=STEPS),
            should_stop=self.is_stopped.is_set,
            is_enough=self.is_enough,
            on_progress=lambda steps, loss, tokens: self.progress.put((steps, tokens)),
        )

    def train(self, value: float, *, loss: float = 2.0, samples: int = 4, dtype: torch.dtype = torch.float32) -> None:
        """One step of the program, without the wait for the next round."""
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.sub_(value)
        self.engine.count(samples=samples, tokens=samples, loss=torch.tensor(loss, dtype=dtype))

    def train_round(self, number: int, value: float = 0.1) -> InnerResult:
        """A whole round of such steps."""
        result = self.run_inner(number)
        assert self.engine.wait() and self.engine.round == number
        for _ in range(STEPS):
            self.train(value)
        done = result.result(240)
        assert done is not None
        return done


@contextmanager
def meeting(*, evaluate: bool = False, sign: float = 1.0) -> Iterator[Meeting]:
    made = Meeting(evaluate=evaluate, sign=sign)
    try:
        yield made
    finally:
        made.is_stopped.set()
        made.device.shutdown()


def test_a_round_of_the_program_is_one_outer_step() -> None:
    """Nesterov by hand: buf = Delta, x = x - 0.5 (Delta + 0.5 Delta) at first; then buf = 0.5 buf + Delta."""
    with meeting() as made:
        done = made.train_round(0)
        assert (done.samples, done.inner_steps, done.batch_samples, done.loss) == (12, 3, 4, 2.0)
        delta = made.engine.pseudo_gradient(ONE)
        assert delta.tolist() == pytest.approx([0.3, 0.3, 0.3])
        assert made.engine.apply_outer(ONE, delta, round=0)
        made.run_inner(1)
        assert made.engine.wait() and made.engine.round == 1
        expected = [value - 0.5 * (0.3 + 0.5 * 0.3) for value in (1.0, 2.0, 3.0)]
        assert gathered(made.parameters).tolist() == pytest.approx(expected)


def test_each_token_is_told_once() -> None:
    with meeting() as made:
        result = made.run_inner(0)
        assert made.engine.wait()
        for step in range(1, STEPS):
            made.train(0.1)
            assert made.progress.get(timeout=240) == (step, 4)
        made.train(0.1)
        assert result.result(240) is not None


def test_the_mean_loss_is_weighted_by_samples() -> None:
    with meeting() as made:
        result = made.run_inner(0)
        made.engine.wait()
        made.train(0.1, loss=1.0, samples=1)
        made.train(0.1, loss=1.0, samples=1)
        made.train(0.1, loss=4.0, samples=4)
        done = result.result(240)
        assert done is not None and done.loss == pytest.approx(18 / 6) and done.samples == 6


@pytest.mark.parametrize(("dtype", "samples"), [(torch.float16, 40_000), (torch.bfloat16, 1000)])
def test_losses_of_half_precision_are_summed_in_full(dtype: torch.dtype, samples: int) -> None:
    with meeting() as made:
        result = made.run_inner(0)
        made.engine.wait()
        for count in (samples, 1, samples):
            made.train(0.1, loss=1.5, samples=count, dtype=dtype)
        done = result.result(240)
        assert done is not None and done.loss == 1.5 and not done.has_diverged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_negative_loss_is_refused_at_the_end_of_its_round_even_if_the_mean_is_not(dtype: torch.dtype) -> None:
    """No peer accepts a report with one, and reading each tensor would wait for its device."""
    with meeting() as made:
        made.run_inner(0)
        made.engine.wait()
        made.train(0.1, loss=2.0, dtype=dtype)
        made.train(0.1, loss=-0.5, dtype=dtype)
        with pytest.raises(ConfigError, match=r"step\(loss=\.\.\.\): -0\.5; accepted: 0 or more") as refused:
            made.train(0.1, loss=1.0, dtype=dtype)
        assert refused.value.code == "E233"


def test_a_loss_that_only_rounding_makes_negative_is_reported_as_0() -> None:
    with meeting() as made:
        result = made.run_inner(0)
        made.engine.wait()
        for _ in range(3):
            made.train(0.1, loss=-1e-7)
        done = result.result(240)
        assert done is not None and done.loss == 0.0 and not done.has_diverged


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_has_diverged(loss: float) -> None:
    with meeting() as made:
        result = made.run_inner(0)
        made.engine.wait()
        for value in (1.0, loss, 1.0):
            made.train(0.1, loss=value)
        done = result.result(240)
        assert done is not None and done.has_diverged


def test_the_program_resets_its_optimizer_where_its_parameters_were_given_up() -> None:
    with meeting() as made:
        for number, value in ((0, 0.1), (1, math.inf), (2, 0.1), (3, 0.1)):
            assert made.train_round(number, value).has_diverged == (number == 1)
            if number == 1:
                assert made.num_resets == 0, "the round that diverged has not been given up yet"
            made.engine.apply_outer(ONE, torch.full((3,), 0.1), round=number)
        assert made.num_resets == 1, "once, at the start of round 2"
        made.engine.adopt(ONE, torch.ones(3), torch.zeros(3))
        made.train_round(4)
        assert made.num_resets == 2, "a state from others has no moments"
        made.engine.rewind(ONE, made.engine.digests(ONE)[1])
        made.train_round(5)
        assert made.num_resets == 3


def test_no_step_of_the_program_waits_for_the_progress_that_is_shown() -> None:
    """Reading a loss for it waits for the device."""
    with meeting() as made:
        went_on, seen = threading.Event(), threading.Event()

        def show(*_: object) -> None:
            seen.set()
            assert went_on.wait(60)

        result = made.device.submit(
            made.engine.run_inner,
            effect(ONE, 0, steps=STEPS),
            should_stop=made.is_stopped.is_set,
            on_progress=show,
        )
        assert made.engine.wait()
        made.train(0.1)
        assert seen.wait(240)
        made.train(0.1)
        went_on.set()
        made.train(0.1)
        assert result.result(240) is not None


def test_the_device_of_a_program_is_that_of_its_parameters() -> None:
    engine = OwnLoop(RUN, ME, [torch.nn.Parameter(torch.ones(2, device="meta"))], evaluate=None)
    assert engine.device_names == ("meta",) and engine.devices == (torch.device("meta"),)


def test_fewer_steps_are_a_smaller_contribution_and_none_are_none() -> None:
    with meeting() as made:
        result = made.run_inner(0)
        made.engine.wait()
        assert not made.engine.finish_early()
        made.train(0.1)
        assert made.engine.finish_early() and not made.engine.finish_early()
        done = result.result(240)
        assert done is not None and (done.inner_steps, done.samples) == (1, 4)
        assert made.engine.pseudo_gradient(ONE).tolist() == pytest.approx([0.1, 0.1, 0.1])


def test_a_program_whose_steps_are_enough_ends_with_its_next_one() -> None:
    with meeting() as made:
        made.enough = 1
        result = made.run_inner(0)
        made.engine.wait()
        made.train(0.1)
        assert made.asked.wait(240)
        with made.engine._handover.changed:  # the node goes on only after it has noted that
            made.train(0.1)
        done = result.result(240)
        assert done is not None and (done.inner_steps, done.samples) == (2, 8)


def test_after_a_void_round_the_program_goes_on_from_where_it_is() -> None:
    with meeting() as made:
        made.train_round(0)
        made.engine.carry_over(ONE, made.engine.pseudo_gradient(ONE), round=0)
        made.run_inner(1)
        made.engine.wait()
        assert gathered(made.parameters).tolist() == pytest.approx([0.7, 1.7, 2.7])


def test_a_node_that_stops_does_not_wait_for_the_program() -> None:
    with meeting() as made:
        result = made.run_inner(0)
        made.engine.wait()
        made.is_stopped.set()
        assert result.result(240) is None


def test_a_round_that_was_discarded_before_it_began_is_not_begun() -> None:
    with meeting() as made:
        made.is_stopped.set()
        assert made.run_inner(0).result(240) is None
        with pytest.raises(TimeoutError):
            made.engine.wait(timeout_seconds=0.0)
        made.is_stopped.clear()
        made.run_inner(1)
        assert made.engine.wait() and made.engine.round == 1


def test_steps_of_a_round_that_was_discarded_count_for_nothing() -> None:
    """The next step of the program ends that round and waits for the next one, which begins from the boundary."""
    with meeting() as made:
        for number in (0, 1):
            made.is_stopped.clear()
            result = made.run_inner(number)
            assert made.engine.step(samples=4, tokens=4, loss=2.0) and made.engine.round == number
            assert gathered(made.parameters).tolist() == [1.0, 2.0, 3.0]
            made.train(0.1)
            made.is_stopped.set()
            assert result.result(240) is None
        assert not made.engine.finish_early() and made.engine.round is None


def test_parameters_that_are_not_finite_have_diverged() -> None:
    with meeting() as made:
        assert made.train_round(0, math.inf).has_diverged


def test_parameters_that_change_their_shape_or_type_are_refused_at_the_end_of_a_round() -> None:
    for changed in (torch.zeros(2, 2), torch.zeros(1, 2, dtype=torch.bfloat16)):
        with meeting() as made:
            made.run_inner(0)
            made.engine.wait()
            made.train(0.1)
            made.parameters[0].data = changed
            with pytest.raises(ConfigError, match="before Swarm") as refused:
                made.engine.finish_early()
            assert refused.value.code == "E233"


def test_the_program_evaluates_the_outer_parameters_in_its_own_thread() -> None:
    with meeting(evaluate=True) as made:
        loss = made.device.submit(made.engine.evaluate, ONE)
        made.run_inner(0)
        with torch.no_grad():
            made.parameters[0].zero_()
        made.engine.wait()
        assert loss.result(240) == pytest.approx(6.0) and made.evaluated_in == [threading.current_thread()]


def test_a_negative_loss_of_the_programs_evaluation_ends_the_node_with_the_remedy() -> None:
    with meeting(evaluate=True, sign=-1.0) as made:
        loss = made.device.submit(made.engine.evaluate, ONE)
        made.run_inner(0)
        made.engine.wait()
        with pytest.raises(ConfigError, match=r"evaluate\(\): -6; accepted: 0 or more.*cross-entropy") as refused:
            loss.result(240)
        assert refused.value.code == "E233"


def test_without_a_function_nothing_is_evaluated() -> None:
    with meeting() as made:
        assert made.engine.evaluate(ONE) is None


def test_what_ended_the_node_is_raised_in_the_program() -> None:
    with meeting() as made:
        made.engine.close(SwarmError("gone"))
        for _ in range(2):
            with pytest.raises(SwarmError, match="gone"):
                made.engine.wait()


def test_the_parameters_are_those_of_the_last_boundary_at_the_end() -> None:
    with meeting() as made:
        with torch.no_grad():
            made.parameters[0].zero_()
        made.engine.close(None)
        assert not made.engine.wait() and made.engine.round is None
        assert gathered(made.parameters).tolist() == [1.0, 2.0, 3.0]
        with torch.no_grad():
            made.parameters[0].zero_()  # a loop that steps before it asks
        assert not made.engine.step(samples=1, tokens=1, loss=0.0)
        assert gathered(made.parameters).tolist() == [1.0, 2.0, 3.0]


def test_a_round_that_does_not_begin_in_time_is_a_timeout() -> None:
    with meeting() as made, pytest.raises(TimeoutError):
        made.engine.wait(timeout_seconds=0.0)


def test_a_snapshot_resumes_at_the_boundary() -> None:
    with meeting() as made:
        made.train_round(0)
        made.engine.apply_outer(ONE, made.engine.pseudo_gradient(ONE), round=0)
        tensors, meta = made.engine.snapshot(ONE)
        again = OwnLoop(RUN, ME, [torch.nn.Parameter(torch.zeros(1, 2)), torch.nn.Parameter(torch.zeros(1))], evaluate=None)
        again.restore(ONE, tensors, meta)
        assert again.digests(ONE) == made.engine.digests(ONE)


def test_the_layout_is_shapes_in_their_order() -> None:
    wide, tall = torch.nn.Parameter(torch.zeros(1, 2)), torch.nn.Parameter(torch.zeros(2, 1))
    assert layout_digest([wide, tall]) == layout_digest([torch.nn.Parameter(torch.ones(1, 2)), tall])
    assert len({layout_digest([wide, tall]), layout_digest([tall, wide]), layout_digest([wide])}) == 3


def test_the_command_refuses_to_build_a_programs_model() -> None:
    with pytest.raises(ConfigError, match="line") as refused:
        check_no_program(RUN.model)
    assert refused.value.code == "E230"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("instances.count", 2), ("outer.overlap", "delayed"), ("averaging.fragments", 2), ("guard.enabled", True)],
)
def test_settings_that_a_program_cannot_have_are_named(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{setting}: .* a program does the inner steps"):
        load_run_settings({"mode": "diloco", "model.program": "line", setting: value})
