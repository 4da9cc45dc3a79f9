"""Short ways to make the values that decisions are tested on."""

from collections.abc import Iterable, Mapping, Sequence

from adloco_p2p.core.model.events import InnerResult
from adloco_p2p.core.model.gradient_statistics import HalfBatchStatistics, NoiseSample, PseudoGradientStatistics
from adloco_p2p.core.model.instance_plan import HostShare, InstancePlan
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.report_form import bits_of
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId

Vector = Sequence[float]

RUN = Digest("a" * 64)
STATE = Digest("b" * 64)

ACCEPTANCE_VECTORS: tuple[Vector, ...] = ((1, 2, -1), (2, 1, 0), (0, 1, 1), (3, 0, 2))
"""See docs/mathematics.md, 12 A."""


def peer(index: int) -> PeerId:
    return PeerId(f"p{index:03}")


PLACES = {peer(index): index for index in range(16)}
"""By which bits reports name the peers of these tests: all of the first ones are hosts."""


def named_bits(names: Iterable[PeerId]) -> int:
    return bits_of(names, list(PLACES))


def dot(u: Vector, v: Vector) -> float:
    return sum(float(a) * float(b) for a, b in zip(u, v, strict=True))


def mean(vectors: Sequence[Vector], weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [sum(w * v[i] for w, v in zip(weights, vectors, strict=True)) / total for i in range(len(vectors[0]))]


def capacity(*, speed: float = 10.0, limit: int = 16, max_instances: int = 8, is_leaving: bool = False) -> Capacity:
    return Capacity(samples_per_second=speed, micro_batch_limit=limit, max_instances=max_instances, is_leaving=is_leaving)


def half_batch(*, trace: float = 40.0, signal: float = 1.0, num_steps: int = 4, batch: int = 8) -> HalfBatchStatistics:
    return HalfBatchStatistics(
        num_steps=num_steps,
        batch_samples=batch,
        covariance_trace=trace,
        true_sqnorm=signal,
        mean_sqnorm=max(0.0, signal + trace / batch),
        inner_variance=2.0,
        orthogonal_trace=max(0.0, trace / 2),
    )


def inner_result(*, inner_steps: int = 4, batch: int = 2, tokens: int = 8, loss: float = 2.0, limit: int = 8) -> InnerResult:
    """Of a second."""
    return InnerResult(
        samples=inner_steps * batch,
        tokens=tokens,
        inner_steps=inner_steps,
        batch_samples=batch,
        accumulation_steps=1,
        loss=loss,
        seconds=1.0,
        half_batch=None,
        micro_batch_limit=limit,
    )


def instance_report(
    *,
    instance: int = 0,
    batch: int = 8,
    inner_steps: int = 32,
    contributors: Iterable[PeerId] = (),
    pseudo_gradient: PseudoGradientStatistics | None = None,
    half: HalfBatchStatistics | None = None,
    heldout_loss: float | None = None,
    loss: float | None = 3.0,
    state: Digest = STATE,
) -> InstanceReport:
    return InstanceReport(
        instance=InstanceId(instance),
        samples=batch * inner_steps,
        tokens=batch * inner_steps * 31,
        inner_steps=inner_steps,
        batch_samples=batch,
        accumulation_steps=1,
        train_seconds=1.0,
        loss=loss,
        heldout_loss=heldout_loss,
        contributors=named_bits(contributors),
        pseudo_gradient=pseudo_gradient,
        half_batch=half,
        digest=state,
        state_digest=state,
    )


def claims_of(vectors: Sequence[Vector], batches: Sequence[int], *, inner_steps: int = 32) -> dict[PeerId, InstanceReport]:
    """What honest hosts say of a round in which they transmitted `vectors`, averaged by samples."""
    names = [peer(index) for index in range(len(vectors))]
    averaged = mean(vectors, batches)
    return {
        name: instance_report(
            batch=batch,
            inner_steps=inner_steps,
            contributors=names,
            pseudo_gradient=PseudoGradientStatistics(
                own_sqnorm=dot(vector, vector), inner_product=dot(vector, averaged), averaged_sqnorm=dot(averaged, averaged)
            ),
        )
        for name, vector, batch in zip(names, vectors, batches, strict=True)
    }


def instance_plan(
    instance: int = 0, *, requested: int = 32, hosts: Mapping[PeerId, int] | None = None, inner_steps: int = 32
) -> InstancePlan:
    batches = hosts or {peer(0): requested}
    return InstancePlan(
        instance=InstanceId(instance),
        requested_batch=requested,
        effective_batch=sum(batches.values()),
        mode="single",
        reason="test",
        hosts=tuple(
            HostShare(
                peer=name,
                batch_samples=batch,
                inner_steps=inner_steps,
                micro_batch_size=batch,
                accumulation_steps=1,
                first_sample=0,
                place_before=PLACES.get(name),
            )
            for name, batch in sorted(batches.items())
        ),
        first_sample=0,
        inner_steps_before=0,
    )


def noise_sample(
    *,
    batch: int = 32,
    noise: float = 1.0,
    signal: float = 2.5,
    mean_sqnorm: float | None = None,
    inner_variance: float = 0.0,
    orthogonal: float = 0.0,
    source: str = "pseudo_gradient",
    round: int = 0,
) -> NoiseSample:
    return NoiseSample(
        round=round,
        source=source,  # type: ignore[arg-type]
        batch_samples=batch,
        mean_sqnorm=noise + signal if mean_sqnorm is None else mean_sqnorm,
        noise=noise,
        signal=signal,
        inner_variance=inner_variance,
        orthogonal_noise=orthogonal,
    )
