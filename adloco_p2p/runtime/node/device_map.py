"""Which of a machine's devices trains which of the instances that the plan gives to this peer."""

from collections.abc import Sequence

from adloco_p2p.core.model.scalars import InstanceId

Move = tuple[InstanceId, int | None, int]
"""An instance, the device that it leaves (none: it is new), and the one that it comes to."""


class DeviceMap:
    """Devices are numbers from 0 on. Deterministic: the same calls give the same map."""

    def __init__(self, num_devices: int) -> None:
        self._num_devices = num_devices
        self._places: dict[InstanceId, int] = {}
        self._together: tuple[InstanceId, ...] = ()

    def device_of(self, instance: InstanceId) -> tuple[int, bool]:
        """Where the instance is, and whether it came there just now: one that was nowhere comes to the device with the
        fewest."""
        if is_new := instance not in self._places:
            everywhere = range(self._num_devices)
            self._places[instance] = min(everywhere, key=lambda device: (self._load(device), self._held(device), device))
        return self._places[instance], is_new

    def place_of(self, instance: InstanceId) -> int | None:
        """Where the instance is; none where it is nowhere."""
        return self._places.get(instance)

    def deal(self, together: Sequence[InstanceId]) -> list[Move]:
        """From now on these instances are trained. They stay where they are as far as no device has two more than another;
        returns those that move, or are new."""
        self._together = tuple(sorted(together))
        before = {instance: self._places.pop(instance) for instance in self._together if instance in self._places}
        for instance in self._together:  # as long as there is room on its device it stays
            device = before.get(instance)
            if device is not None and self._load(device) < self._room(device):
                self._places[instance] = device
        now = {instance: self.device_of(instance)[0] for instance in self._together}
        return [(instance, before.get(instance), now[instance]) for instance in now if before.get(instance) != now[instance]]

    def team(self, instance: InstanceId) -> tuple[int, ...]:
        """The instance's device, and those without an instance to train that help it: dealt over the devices that have one."""
        own, _ = self.device_of(instance)
        loads = [self._load(device) for device in range(self._num_devices)]
        busy, free = ([device for device, load in enumerate(loads) if bool(load) == is_busy] for is_busy in (True, False))
        return (own, *free[busy.index(own) :: len(busy)])

    def forget(self, instance: InstanceId) -> None:
        """The instance is here no longer."""
        self._places.pop(instance, None)
        self._together = tuple(other for other in self._together if other != instance)

    def _load(self, device: int) -> int:
        """Instances that it trains."""
        return sum(self._places.get(instance) == device for instance in self._together)

    def _held(self, device: int) -> int:
        """With those that are only held."""
        return list(self._places.values()).count(device)

    def _room(self, device: int) -> int:
        """How many instances a device may keep: where they cannot be dealt evenly, so many devices have one more, those that
        had it."""
        even, more = divmod(len(self._together), self._num_devices)
        has_more = sum(self._load(other) > even for other in range(self._num_devices) if other != device)
        return even + (has_more < more)
