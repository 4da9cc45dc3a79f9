"""The inner steps: gradients, statistics, memory running out, stopping."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from adloco_p2p.config.run_config import ModelConfig, Scalar
from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.gradient_statistics import half_batch_statistics
from adloco_p2p.errors import DeviceError
from adloco_p2p.numerics.batch import IGNORED_LABEL, Batch
from adloco_p2p.training.accumulation import accumulate_gradient
from adloco_p2p.training.evaluate import heldout_loss, perplexity
from adloco_p2p.training.hosting import Hosting
from adloco_p2p.training.inner_loop import STATISTICS_PERIOD
from adloco_p2p.training.model import build_model
from adloco_p2p.training.shell import ModelShell
from tests.numerics.gradients import gradient_noise
from tests.training.small_run import LENGTH, ONE, PEER, RUN, VOCAB_SIZE, effect, hosting, never, rows_of, silent, train_round

GPT2: dict[str, Scalar] = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
}


@pytest.fixture
def shell() -> ModelShell:
    torch.set_num_threads(1)
    module = build_model(RUN.model, vocab_size=VOCAB_SIZE, sequence_length=LENGTH, seed=3)
    return ModelShell(module, device=torch.device("cpu"), is_bfloat16=False)


def gradient(shell: ModelShell, rows: Batch, micro: int, *, is_measured: bool = False) -> torch.Tensor:
    accumulate_gradient(shell, rows, micro_batch=micro, is_measured=is_measured)
    return shell.gradient.clone()


def started() -> Hosting:
    peer = hosting()
    peer.start([ONE])
    return peer


# --- the loss ----------------------------------------------------------------------------------------------------------


def test_labels_are_shifted_once(shell: ModelShell) -> None:
    """Against a cross entropy written out token by token."""
    rows = rows_of("shift", 0, 2)
    losses = shell.token_losses(rows).detach()
    log_probabilities = shell.module(input_ids=rows.input_ids).logits.detach().log_softmax(-1)
    for row, place in itertools.product(range(2), range(LENGTH - 1)):
        following = int(rows.input_ids[row, place + 1])
        assert float(losses[row, place]) == pytest.approx(-float(log_probabilities[row, place, following]), abs=1e-5)
    assert losses[:, -1].tolist() == [0.0, 0.0]


def test_padding_never_enters_the_loss_or_the_gradient(shell: ModelShell) -> None:
    rows = rows_of("padded", 0, 4, is_padded=True)
    scribbled = rows.input_ids.clone()
    scribbled[rows.labels == IGNORED_LABEL] = 5
    other = Batch(input_ids=scribbled, labels=rows.labels)
    assert torch.equal(gradient(shell, rows, 4), gradient(shell, other, 4))
    assert float(shell.token_losses(rows).detach()[:, :-1][rows.labels[:, 1:] == IGNORED_LABEL].abs().sum()) == 0.0
    assert rows.num_predicted_tokens == 4 * (LENGTH - 1) - 3 - 6 - 9


def test_each_row_weighs_the_same_however_long(shell: ModelShell) -> None:
    rows = rows_of("padded", 0, 4, is_padded=True)
    alone = [gradient(shell, rows.rows(row, row + 1), 1) for row in range(4)]
    assert torch.allclose(gradient(shell, rows, 4), torch.stack(alone).mean(0), atol=1e-6)


def test_a_row_without_predictions_is_harmless(shell: ModelShell) -> None:
    rows = rows_of("empty", 0, 2)
    rows.labels[1] = IGNORED_LABEL
    assert torch.allclose(gradient(shell, rows, 2), gradient(shell, rows.rows(0, 1), 1) / 2, atol=1e-6)


@pytest.mark.parametrize("micro", [1, 2, 3, 6])
@pytest.mark.parametrize("is_measured", [False, True])
def test_accumulation_gives_the_step_of_one_pass(shell: ModelShell, micro: int, is_measured: bool) -> None:
    rows = rows_of("accumulate", 0, 7, is_padded=True)
    whole, parts = gradient(shell, rows, 7), gradient(shell, rows, micro, is_measured=is_measured)
    assert float((whole - parts).norm() / whole.norm()) < 1e-5


# --- the statistics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "micro", "halves"),
    [(4, 4, (2, 2)), (5, 8, (3, 2)), (6, 2, (4, 2)), (4, 1, (3, 1)), (2, 2, (1, 1)), (7, 3, (6, 1))],
)
def test_statistics_are_those_of_the_two_halves(shell: ModelShell, samples: int, micro: int, halves: tuple[int, int]) -> None:
    rows = rows_of("halves", 0, samples)
    _, measured = accumulate_gradient(shell, rows, micro_batch=micro, is_measured=True)
    assert measured is not None and measured[1] == halves
    statistics = half_batch_statistics([(measured[0].tolist(), halves)])
    first, second = gradient(shell, rows.rows(0, halves[0]), 8), gradient(shell, rows.rows(halves[0], samples), 8)
    expected = gradient_noise([first, second], halves)
    assert statistics is not None
    assert statistics.batch_samples == samples
    assert statistics.covariance_trace == pytest.approx(expected.covariance_trace, rel=1e-3)
    assert statistics.mean_sqnorm == pytest.approx(expected.mean_sqnorm, rel=1e-3)


def test_statistics_are_unbiased_for_the_model(shell: ModelShell) -> None:
    """The trace from halves, averaged over all ways to draw two rows of six, is the trace from the six gradients."""
    rows = rows_of("population", 0, 6)
    alone = [gradient(shell, rows.rows(row, row + 1), 1) for row in range(6)]
    exact = gradient_noise(alone, [1] * 6).covariance_trace
    pairs = []
    for left, right in itertools.combinations(range(6), 2):
        pair = Batch(input_ids=rows.input_ids[[left, right]], labels=rows.labels[[left, right]])
        _, measured = accumulate_gradient(shell, pair, micro_batch=2, is_measured=True)
        assert measured is not None
        pairs.append((measured[0].tolist(), measured[1]))
    statistics = half_batch_statistics(pairs)
    assert statistics is not None
    assert statistics.covariance_trace == pytest.approx(exact, rel=1e-4)


def test_every_fourth_step_is_measured() -> None:
    result = started().run_inner(effect(batch=2, micro=2, steps=9), should_stop=never, on_progress=silent)
    assert result is not None and result.half_batch is not None
    assert result.half_batch.num_steps == len(range(0, 9, STATISTICS_PERIOD)) == 3


def test_one_sample_has_no_halves() -> None:
    result = started().run_inner(effect(batch=1, micro=1, steps=5), should_stop=never, on_progress=silent)
    assert result is not None and result.half_batch is None


# --- a round -----------------------------------------------------------------------------------------------------------


def test_the_result_counts_what_was_done() -> None:
    seen: list[tuple[int, float, int]] = []
    result = started().run_inner(
        effect(batch=6, micro=4, steps=5), should_stop=never, on_progress=lambda s, loss, t: seen.append((s, float(loss), t))
    )
    assert isinstance(result, InnerResult)
    assert (result.samples, result.inner_steps, result.batch_samples, result.accumulation_steps) == (30, 5, 6, 2)
    assert result.tokens == 30 * (LENGTH - 1)
    assert [step for step, _, _ in seen] == [1, 2, 3, 4, 5]
    assert sum(tokens for _, _, tokens in seen) == result.tokens
    assert result.loss == pytest.approx(sum(loss for _, loss, _ in seen) / 5)
    assert result.loss == pytest.approx(5.5, abs=0.6)  # near ln 256 at the start


def test_the_loss_falls() -> None:
    peer = started()
    before = peer.evaluate(ONE)
    for round_number in range(4):
        train_round(peer, effect(round=round_number, batch=8, micro=8, steps=12))
    assert peer.evaluate(ONE) < before - 0.5


def test_bfloat16_trains_with_fp32_parameters() -> None:
    run = replace(RUN, model=ModelConfig(architecture=RUN.model.architecture, precision="bfloat16"))
    half, full = hosting(run), started()
    half.start([ONE])
    delta = train_round(half, effect(steps=3))
    assert delta.dtype == torch.float32
    exact = train_round(full, effect(steps=3))
    assert not torch.equal(delta, exact)
    assert float(torch.nn.functional.cosine_similarity(delta, exact, dim=0)) > 0.9


def test_stopping_keeps_the_steps_that_were_done() -> None:
    peer, short = started(), started()
    polls = itertools.count()
    result = peer.run_inner(effect(steps=5), should_stop=lambda: next(polls) >= 2, on_progress=silent)
    assert result is not None
    assert (result.inner_steps, result.samples) == (2, 8)
    whole = effect(steps=5)
    short.run_inner(
        replace(whole, progress_end=0.04, share=replace(whole.share, inner_steps=2)), should_stop=never, on_progress=silent
    )
    assert torch.allclose(peer.pseudo_gradient(ONE), short.pseudo_gradient(ONE), atol=1e-7)


def test_steps_that_are_enough_are_a_smaller_contribution() -> None:
    result = started().run_inner(effect(steps=5), should_stop=never, is_enough=lambda steps: steps >= 3, on_progress=silent)
    assert result is not None and (result.inner_steps, result.samples) == (3, 12)


def test_stopping_before_the_first_step_gives_nothing() -> None:
    peer = started()
    assert peer.run_inner(effect(), should_stop=lambda: True, on_progress=silent) is None
    assert float(peer.pseudo_gradient(ONE).abs().sum()) == 0.0


def test_diverged_steps_leave_the_outer_state_and_no_moments() -> None:
    wild = replace(RUN, inner=replace(RUN.inner, learning_rate=1e30, warmup_steps=0))
    peer = hosting(wild)
    peer.start([ONE])
    before = peer.digests(ONE)
    result = peer.run_inner(effect(), should_stop=never, on_progress=silent)
    assert result is not None and result.has_diverged
    peer.carry_over(ONE, None, round=effect().round)
    tensors, meta = peer.snapshot(ONE)
    assert peer.digests(ONE) == before and "local" not in tensors and meta["optimizer_steps"] == 0
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert not bool(peer.pseudo_gradient(ONE).any())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e9])
def test_an_average_that_explodes_is_refused_and_changes_nothing(value: float) -> None:
    peer = started()
    before = peer.digests(ONE)
    peer.run_inner(effect(), should_stop=never, on_progress=silent)
    average = torch.zeros(peer.num_parameters)
    average[3] = value
    assert not peer.apply_outer(ONE, average, round=effect().round)
    assert peer.digests(ONE) == before and not bool(peer.pseudo_gradient(ONE).any())
    peer.run_inner(effect(), should_stop=never, on_progress=silent)
    assert peer.apply_outer(ONE, peer.pseudo_gradient(ONE), round=effect().round) and peer.digests(ONE) != before


# --- activation checkpointing ------------------------------------------------------------------------------------------


def saved_bytes(peer: Hosting) -> int:
    """What autograd holds between forward and backward."""
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        peer._shell.weighted_loss(rows_of("saved", 0, 4))
    return sum(saved.values())


@pytest.mark.parametrize("architecture", [RUN.model.architecture, GPT2], ids=["llama", "gpt2 with dropout"])
def test_recomputed_activations_give_the_same_bits(architecture: dict[str, Scalar]) -> None:
    run = replace(RUN, model=ModelConfig(architecture=architecture))
    plain, sparing = hosting(run), hosting(run, peer=replace(PEER, activation_checkpointing=True))
    calls = []
    for peer in (plain, sparing):
        peer.start([ONE])
        inside = next(part for name, part in peer._shell.module.named_modules() if name.endswith(".mlp"))
        handle = inside.register_forward_pre_hook(lambda *_: calls.append(1))
        train_round(peer, effect(batch=4, micro=2, steps=2))
        handle.remove()
        calls.append(0)
    first = calls.index(0)
    assert sum(calls[:first]) < sum(calls[first:]), "the blocks run again in backward"
    assert plain.digests(ONE) == sparing.digests(ONE)
    assert saved_bytes(sparing) < saved_bytes(plain)


# --- memory running out ------------------------------------------------------------------------------------------------


@contextmanager
def small_memory(peer: Hosting, most: int, attempts: list[int]) -> Iterator[None]:
    """A device on which more than `most` samples fail, half-way through: after the model has computed."""
    module = peer._shell.module

    def hook(_module: object, _args: object, kwargs: dict[str, torch.Tensor], output: object) -> object:
        attempts.append(len(kwargs["input_ids"]))
        if attempts[-1] > most:
            raise torch.OutOfMemoryError(f"{attempts[-1]} samples")
        return output

    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def test_out_of_memory_halves_the_micro_batch_and_loses_nothing() -> None:
    peer, careful = started(), started()
    assert peer.micro_batch_limit >= 8
    attempts: list[int] = []
    with small_memory(peer, 2, attempts):
        result = peer.run_inner(effect(batch=8, micro=8, steps=3), should_stop=never, on_progress=silent)
    expected = careful.run_inner(effect(batch=8, micro=2, steps=3), should_stop=never, on_progress=silent)
    assert result is not None and expected is not None
    assert (result.samples, result.accumulation_steps, result.micro_batch_limit) == (24, 4, 2)
    # the first step is measured, so its one micro-batch is run as two of 4; then 4 fail again, then 2 hold
    assert attempts == [4, 4, *[2] * 12]
    assert peer.micro_batch_limit == 2
    assert result.loss == expected.loss
    assert torch.equal(peer.pseudo_gradient(ONE), careful.pseudo_gradient(ONE))


def test_out_of_memory_in_the_middle_of_a_step_starts_the_step_again() -> None:
    """The last micro-batch fails once: what the earlier ones gave must not count twice."""
    peer, careful = started(), started()
    assert peer.micro_batch_limit >= 4
    calls = itertools.count()

    def fail_once(*_: object) -> None:
        if next(calls) == 1:
            raise torch.OutOfMemoryError

    handle = peer._shell.module.register_forward_hook(fail_once)
    peer.run_inner(effect(batch=4, micro=2, steps=1), should_stop=never, on_progress=silent)
    handle.remove()
    careful.run_inner(effect(batch=4, micro=1, steps=1), should_stop=never, on_progress=silent)
    assert torch.equal(peer.pseudo_gradient(ONE), careful.pseudo_gradient(ONE))


def test_not_even_one_sample_is_a_device_error() -> None:
    peer = started()
    assert peer.micro_batch_limit >= 4
    with small_memory(peer, 0, []), pytest.raises(DeviceError, match="one sample of 32 tokens does not fit"):
        peer.run_inner(effect(batch=4, micro=4), should_stop=never, on_progress=silent)
    with small_memory(peer, 0, []), pytest.raises(DeviceError, match="one held-out row"):
        peer.evaluate(ONE)


# --- evaluation --------------------------------------------------------------------------------------------------------


def test_heldout_loss_is_the_mean_over_predicted_tokens(shell: ModelShell) -> None:
    rows = rows_of("held", 0, 5, is_padded=True)
    parameters = torch.cat([parameter.detach().reshape(-1) for parameter in shell.parameters])
    by_hand = [
        float(shell.module(input_ids=rows.input_ids[r : r + 1], labels=rows.labels[r : r + 1]).loss.detach()) for r in range(5)
    ]
    counts = [rows.rows(r, r + 1).num_predicted_tokens for r in range(5)]
    expected = sum(loss * count for loss, count in zip(by_hand, counts, strict=True)) / sum(counts)
    for micro in (1, 2, 5, 64):
        assert heldout_loss(shell, parameters, rows, micro_batch=micro) == pytest.approx(expected, rel=1e-5)
    assert perplexity(0.0) == 1.0


def test_evaluation_leaves_no_trace() -> None:
    peer, other = started(), started()
    train_round(peer, effect(steps=2))
    peer.evaluate(ONE)
    train_round(peer, effect(round=1, steps=2))
    for round_number in range(2):
        train_round(other, effect(round=round_number, steps=2))
    assert peer.digests(ONE) == other.digests(ONE)
