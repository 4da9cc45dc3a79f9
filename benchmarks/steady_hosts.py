"""Hosts of a simulated swarm that train a constant batch of one instance, each in the time that its samples take."""

from adloco_p2p.core.model.effects import RunInner
from adloco_p2p.core.model.rules import AdmissionRules, BatchRules, InstanceRules, Rules, WorkRules
from adloco_p2p.sim.device import HashDevice


def constant_rules(work: WorkRules, *, batch: int) -> Rules:
    return Rules(
        work=work,
        instances=InstanceRules(count=1),
        batch=BatchRules(initial_batch=batch, max_batch=batch, test="constant"),
        admission=AdmissionRules(kind="open"),
    )


def speed_device(round_samples: float) -> type[HashDevice]:
    """Return a device that takes about the `round_seconds` of its world for so many samples."""

    class SpeedDevice(HashDevice):
        def inner_seconds(self, effect: RunInner) -> float:
            seconds_per_sample = self._traits.round_seconds / round_samples
            return effect.share.samples * seconds_per_sample * self._random.uniform(0.97, 1.03)

    return SpeedDevice
