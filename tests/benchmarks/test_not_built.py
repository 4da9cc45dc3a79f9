"""The parts of `python -m benchmarks.not_built`."""

import pytest
import torch

from benchmarks.not_built import (
    BYTES,
    HOSTS,
    LONG_STEPS,
    MASK,
    STEPS,
    WAYS,
    AdaGradNorm,
    Averaging,
    Change,
    Way,
    lengths,
    run_of,
    table,
)
from benchmarks.robustness.training import Trainees

SIZE = 2 * 4096


def vectors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(SIZE, generator=generator)
    return [common + torch.randn(SIZE, generator=generator) for _ in range(HOSTS)]


def averaging(preset: str, change: Change) -> Averaging:
    return Averaging(run_of(Way(preset=preset), 1), change, sizes=[4096, 1024, 3072])


def test_all_ways_take_as_many_inner_steps_and_late_ones_average_rarely_at_first() -> None:
    assert all(sum(lengths(way)) == way.steps and min(lengths(way)) > 0 for way in WAYS.values())
    assert {way.steps for name, way in WAYS.items() if name.startswith("long")} == {LONG_STEPS}
    assert lengths(Way()) == [32] * 32
    assert lengths(Way(averages=1)) == [STEPS]
    late = lengths(Way(late=16.0))
    assert len(late) == 32 and late == sorted(late, reverse=True) and late[0] / late[-1] == pytest.approx(16, rel=0.15)


def test_without_a_change_it_is_the_mean_of_the_codec() -> None:
    found = vectors(1)
    assert torch.allclose(averaging("dense", "none").average(found), torch.stack(found).mean(dim=0), atol=1e-6)


def test_a_mask_is_shared_and_what_it_hides_waits() -> None:
    way, found = averaging("int8", "mask"), vectors(2)
    back = way.average(found)
    hidden = torch.stack([residual == own for residual, own in zip(way._residuals, found, strict=True)]).all(dim=0)
    assert float(hidden.float().mean()) == pytest.approx(1 - 1 / MASK, rel=0.02)
    assert not back[hidden].any()
    assert all(float(residual[~hidden].abs().max()) < 0.05 for residual in way._residuals)


@pytest.mark.parametrize("change", ["thinned", "carried"])
def test_of_a_thinned_mean_few_values_come_back_and_the_rest_is_dropped_or_carried(change: Change) -> None:
    way, found = averaging("sparse", change), vectors(3)
    back = way.average(found)
    assert int(back.count_nonzero()) == 2 * 64
    whole = averaging("sparse", "none").average(found)
    assert torch.equal(way._rest, whole - back if change == "carried" else torch.zeros(SIZE))


def test_a_majority_decides_each_sign_and_not_the_scales() -> None:
    """Three long hosts are outvoted by five short ones, which the mean does not follow."""
    found = [torch.full((SIZE,), 9.0)] * 3 + [torch.full((SIZE,), -1.0)] * 5
    assert float(averaging("sign", "none").average(found).max()) > 0
    assert float(averaging("sign", "majority").average(found).max()) < 0


def test_a_residual_against_what_came_back_is_that() -> None:
    way, found = averaging("sign", "returned"), vectors(4)
    back = way.average(found)
    for vector, residual in zip(found, way._residuals, strict=True):
        assert torch.equal(residual, vector - back)


def test_one_scale_for_each_tensor_and_the_residual_is_what_it_lost() -> None:
    way, found = averaging("sign", "tensors"), vectors(5)
    sent = [
        torch.cat([part.sign() * part.abs().mean() for part in (vector[:4096], vector[4096:5120], vector[5120:])])
        for vector in found
    ]
    back = way.average(found)
    mean = torch.stack(sent).mean(dim=0)
    assert torch.allclose(back[:4096], mean[:4096].sign() * mean[:4096].abs().mean())
    assert back[4096:5120].abs().unique().numel() == 1
    for vector, part, residual in zip(found, sent, way._residuals, strict=True):
        assert torch.allclose(residual, vector - part)


def test_a_step_of_adagrad_norm_by_hand() -> None:
    """Two hosts: squared norms 25 and 4, then 25 + 144 and 4 + 0; the rate is 2."""
    hosts = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = AdaGradNorm([hosts])
    optimizer.param_groups[0]["lr"] = 2.0
    hosts.grad = torch.tensor([[3.0, 4.0], [2.0, 0.0]])
    optimizer.step()
    assert torch.allclose(hosts.data, torch.tensor([[-1.2, -1.6], [-2.0, 0.0]]))
    hosts.grad = torch.tensor([[0.0, 12.0], [0.0, 0.0]])
    optimizer.step()
    assert torch.allclose(hosts.data, torch.tensor([[-1.2, -1.6 - 24 / 13], [-2.0, 0.0]]))


def test_averaged_moments_are_equal_on_all_hosts_and_others_stay() -> None:
    run = run_of(Way(), 1)
    trainees = Trainees(run, vocab_size=257, num_hosts=2)
    state = trainees._optimizer.state[trainees._parameter]
    trainees._parameter.grad = torch.stack([torch.ones_like(trainees.start), 3 * torch.ones_like(trainees.start)])
    trainees._optimizer.step()
    first = state["exp_avg"].clone()
    trainees.share_moments(["exp_avg_sq"])
    assert torch.allclose(state["exp_avg_sq"], torch.tensor(5.0 * (1 - run.inner.betas[1])))
    assert torch.equal(state["exp_avg"], first)


def test_losses_are_paired_with_those_of_the_way_that_was_changed() -> None:
    records = [
        {"way": way, "seed": seed, "loss": loss}
        for way, losses in {"sign": (2.0, 3.0), "sign, by majority": (2.5, 3.5)}.items()
        for seed, loss in enumerate(losses)
    ]
    first, second = table(BYTES, records)[2:]
    assert first.endswith("| |") and second == "| sign, by majority | 2 | 3.000 +- 6.353 | sign | +0.500 +- 0.000 |"
