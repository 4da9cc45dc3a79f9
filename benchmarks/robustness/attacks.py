"""The contributions of liars. They are omniscient: they see the honest hosts' contributions of this round."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from adloco_p2p.numerics.codecs import codec_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The information of f liars when they choose their contributions."""

    honest: torch.Tensor
    """[n - f, P]."""
    own: torch.Tensor
    """[f, P]: what they would send if they were honest."""
    homewards: torch.Tensor
    """[P]: outer parameters minus those of the start, so a step along it undoes the training."""
    before: torch.Tensor
    """[P]: the average of the round before; zeros in the first one."""
    generator: torch.Generator
    averaged: Callable[[torch.Tensor], torch.Tensor]
    """The average [P] by the codec and the rule of the run, if the liars send these [f, P]."""

    @property
    def mean(self) -> torch.Tensor:
        return self.honest.mean(dim=0)

    @property
    def median_norm(self) -> float:
        return float(self.honest.norm(dim=1).median())

    def everywhere(self, vector: torch.Tensor) -> torch.Tensor:
        """The same vector [P] of every liar."""
        return vector.expand_as(self.own).clone()


Attack = Callable[[Scene], torch.Tensor]
EDGE_COSINES = (-1.0, -0.5, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95)


def _noise(scene: Scene) -> torch.Tensor:
    noise = torch.randn(scene.own.shape, generator=scene.generator)
    return noise * (scene.median_norm / noise.norm(dim=1, keepdim=True))


def _hidden(scene: Scene) -> torch.Tensor:
    return scene.everywhere(-scene.mean * (scene.median_norm / scene.mean.norm()))


def _replayed(scene: Scene) -> torch.Tensor:
    """The average of the round before at the median norm: it costs nothing, and leads where all led before."""
    return scene.everywhere(scene.before * (scene.median_norm / scene.before.norm().clamp_min(1e-30)))


def _little(scene: Scene) -> torch.Tensor:
    """Baruch et al., arXiv 1902.06156, with z = 1."""
    return scene.everywhere(scene.mean - scene.honest.std(dim=0))


def _minmax(scene: Scene) -> torch.Tensor:
    """Shejwalkar and Houmansadr, NDSS 2021: against the mean as far as no honest distance is exceeded."""
    farthest = float(torch.cdist(scene.honest, scene.honest).max())
    direction = -scene.mean / scene.mean.norm()
    low, high = 0.0, 10 * farthest
    for _ in range(40):
        middle = (low + high) / 2
        is_within = float((scene.mean + middle * direction - scene.honest).norm(dim=1).max()) <= farthest
        low, high = (middle, high) if is_within else (low, middle)
    return scene.everywhere(scene.mean + low * direction)


def _tilted(scene: Scene, cosine: float) -> torch.Tensor:
    """[P]: of the median norm, at this cosine to the honest mean, and otherwise straight back to the start of the run."""
    mean = scene.mean / scene.mean.norm()
    away = scene.homewards - (scene.homewards @ mean) * mean
    if float(away.norm()) == 0.0:
        return scene.mean
    return scene.median_norm * (cosine * mean + math.sqrt(1 - cosine**2) * away / away.norm())


def _drift(scene: Scene) -> torch.Tensor:
    """Back to the start, slowly: as near to the honest mean as the median honest host."""
    cosines = scene.honest @ scene.mean / (scene.honest.norm(dim=1) * scene.mean.norm())
    return scene.everywhere(_tilted(scene, float(cosines.median())))


def _edge(scene: Scene) -> torch.Tensor:
    """Made against the rule of the run: of vectors that lead back to the start, at cosines to the honest mean from -1 to 1, one
    for all liars or shared out among them, those by which the average leads back the farthest."""
    tilted = [_tilted(scene, cosine) for cosine in EDGE_COSINES]
    tried = [made for one in tilted for made in (scene.everywhere(one), _shared_out(one, len(scene.own)))]
    return max(tried, key=lambda sent: float(scene.averaged(sent) @ scene.homewards))


def _shared_out(vector: torch.Tensor, count: int) -> torch.Tensor:
    """[count, P]: its values by size, dealt in turn, each share as long as the whole: no two have a place in common, so that
    none is near to another."""
    turn = vector.abs().argsort(descending=True).argsort() % count
    shares = torch.stack([torch.where(turn == host, vector, 0.0) for host in range(count)])
    return shares * (vector.norm() / shares.norm(dim=1, keepdim=True).clamp_min(1e-30))


def _apart(scene: Scene) -> torch.Tensor:
    """Made against a mean per place: ten times the median norm, against the honest mean, at places that no honest host names,
    and each liar others."""
    codec, sent = codec_named("topk2"), torch.zeros_like(scene.own)
    honest = torch.stack([codec.decode(codec.encode(vector)) for vector in scene.honest])
    free = torch.where(honest.any(dim=0), 0.0, scene.mean)
    for liar in sent:
        named = codec.decode(codec.encode(free)) != 0
        liar[named] = -free[named].sign()
        liar.mul_(10 * float(honest.norm(dim=1).median()) / max(1.0, float(liar.norm())))
        free = torch.where(named, 0.0, free)
    return sent


ATTACKS: dict[str, Attack] = {
    "flip x10": lambda scene: -10 * scene.own,
    "scale 1e3": lambda scene: 1e3 * scene.own,
    "scale 1e12": lambda scene: 1e12 * scene.own,
    "noise": _noise,
    "zero": lambda scene: torch.zeros_like(scene.own),
    "hidden": _hidden,
    "little": _little,
    "minmax": _minmax,
    "replayed": _replayed,
    "copied": lambda scene: scene.everywhere(scene.honest[0]),
    "drift": _drift,
    "edge": _edge,
    "apart": _apart,
}
"""By name; `hidden` is the negative mean at the median norm."""
AGAINST_SPARSE = frozenset({"apart"})
"""Those that mean nothing where every place is named."""
