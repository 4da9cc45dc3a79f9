"""One average of whole vectors in one process."""

from math import sqrt

import pytest
import torch

from adloco_p2p.core.model.gradient_statistics import PseudoGradientStatistics
from adloco_p2p.numerics import aggregate as module
from adloco_p2p.numerics.aggregate import aggregate
from adloco_p2p.numerics.aggregation.registry import RULES, rule_named
from adloco_p2p.numerics.codecs import CODECS, codec_named
from adloco_p2p.numerics.reduction import BadPart


def made(vectors: list[list[float]], weights: list[int], *, rule: str, codec: str = "float32") -> module.Aggregate:
    tensors = [torch.tensor(vector) for vector in vectors]
    return aggregate(tensors, weights, [1] * len(vectors), rule=rule_named(rule), codec=codec_named(codec))


def test_the_mean_by_hand() -> None:
    result = made([[1.0, 0.0], [4.0, 3.0]], [2, 1], rule="mean")
    assert result.vector.tolist() == pytest.approx([2.0, 1.0])
    assert result.statistics[1] is not None
    own, inner, averaged = 25.0, 11.0, 5.0
    assert result.statistics[1].own_sqnorm == pytest.approx(own)
    assert result.statistics[1].inner_product == pytest.approx(inner, rel=1e-6)
    assert result.statistics[1].averaged_sqnorm == pytest.approx(averaged, rel=1e-6)
    assert result.residuals == (None, None)


def test_a_contradicted_host_is_left_out_by_hand() -> None:
    """Three alike and one reversed: the average is theirs, and all of the fourth waits where there is a residual."""
    result = made([[3.0, 4.0]] * 3 + [[-3.0, -4.0]], [1] * 4, rule="robust", codec="int8")
    assert result.decision.left_out == (3,)
    assert result.vector.tolist() == pytest.approx([3.0, 4.0], rel=0.02)
    assert result.statistics[3] is None
    assert result.residuals[3] is not None and result.residuals[3].tolist() == [-3.0, -4.0]
    assert result.residuals[0] is not None and float(result.residuals[0].abs().max()) < 0.02


def test_clipping_by_hand_and_statistics_before_it() -> None:
    """Norms 1, 1 and 5: the third counts as one of norm 1, and the batch test sees the plain mean."""
    result = made([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]], [1, 1, 1], rule="clip")
    assert result.vector.tolist() == pytest.approx([1.6 / 3, 1.8 / 3])
    plain = PseudoGradientStatistics(own_sqnorm=25.0, inner_product=32 / 3, averaged_sqnorm=41 / 9)
    assert result.statistics[2] is not None
    for name in ("own_sqnorm", "inner_product", "averaged_sqnorm"):
        assert getattr(result.statistics[2], name) == pytest.approx(getattr(plain, name))


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
@pytest.mark.parametrize("codec", [codec.name for codec in CODECS])
def test_cutting_into_parts_changes_nothing_but_rounding(rule: str, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    common = torch.randn(20_000, generator=generator)
    vectors = [common + torch.randn(20_000, generator=generator) for _ in range(5)]
    arguments = {"rule": rule_named(rule), "codec": codec_named(codec)}
    whole = aggregate(vectors, [1, 2, 3, 2, 1], [2] * 5, **arguments)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "_PART", 4096)
    cut = aggregate(vectors, [1, 2, 3, 2, 1], [2] * 5, **arguments)  # type: ignore[arg-type]
    assert torch.allclose(whole.vector, cut.vector, rtol=1e-5, atol=1e-5)
    for one, other in zip(whole.residuals, cut.residuals, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)
    for index, (measured, again) in enumerate(zip(whole.statistics, cut.statistics, strict=True)):
        assert measured is not None and again is not None, index
        assert measured.own_sqnorm == pytest.approx(again.own_sqnorm, rel=1e-9)
        assert sqrt(measured.averaged_sqnorm) == pytest.approx(sqrt(again.averaged_sqnorm), rel=1e-5)


@pytest.mark.parametrize("num_hosts", [2, 3, 16, 17, 40])
@pytest.mark.parametrize("codec", [codec.name for codec in CODECS])
def test_the_statistics_are_those_of_the_plain_mean_of_what_was_transmitted(codec: str, num_hosts: int) -> None:
    """Whatever comes back: the batch test does not see how the mean is coded. A slow version in float64 beside it."""
    generator = torch.Generator().manual_seed(num_hosts)
    common = torch.randn(5_000, generator=generator)
    vectors = [common + torch.randn(5_000, generator=generator) for _ in range(num_hosts)]
    weights = [1 + host % 3 for host in range(num_hosts)]
    coder = codec_named(codec)
    result = aggregate(vectors, weights, [1] * num_hosts, rule=rule_named("mean"), codec=coder)
    transmitted = [coder.decode(coder.encode(vector)).double() for vector in vectors]
    mean = sum(weight * vector for weight, vector in zip(weights, transmitted, strict=True)) / sum(weights)
    assert isinstance(mean, torch.Tensor)
    for found, own in zip(result.statistics, transmitted, strict=True):
        assert found is not None
        assert found.own_sqnorm == pytest.approx(float(own @ own), rel=1e-6)
        assert found.inner_product == pytest.approx(float(own @ mean), rel=0.02)
        assert found.averaged_sqnorm == pytest.approx(float(mean @ mean), rel=0.02)


@pytest.mark.parametrize("num_hosts", [2, 3, 16, 17, 40])
@pytest.mark.parametrize("codec", [codec.name for codec in CODECS])
def test_what_comes_back_is_the_mean_or_its_signs(codec: str, num_hosts: int) -> None:
    generator = torch.Generator().manual_seed(num_hosts)
    vectors = [torch.randn(9_000, generator=generator) for _ in range(num_hosts)]
    coder = codec_named(codec)
    result = aggregate(vectors, [1] * num_hosts, [1] * num_hosts, rule=rule_named("mean"), codec=coder)
    mean = torch.stack([coder.decode(coder.encode(vector)) for vector in vectors]).mean(dim=0)
    if codec != "sign":
        assert float((result.vector - mean).norm() / mean.norm()) < 0.12
        return
    is_clear = mean.abs() > 1e-6  # rounding alone decides the sign of a tie
    assert torch.equal(result.vector[is_clear] < 0, mean[is_clear] < 0)
    for back, chunk in zip(result.vector.split(4096), mean.split(4096), strict=True):
        assert back.abs().tolist() == pytest.approx([float(chunk.abs().mean())] * len(back), rel=1e-5)


def test_what_no_codec_holds_is_refused_with_its_host() -> None:
    for rule in ("mean", "robust"):
        with pytest.raises(BadPart) as refused:
            made([[1.0], [float("nan")]], [1, 1], rule=rule)
        assert refused.value.member == 1
