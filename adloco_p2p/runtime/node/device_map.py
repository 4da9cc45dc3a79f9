"""The device map: which of a machine's devices trains which of its instances."""

from collections.abc import Sequence

from adloco_p2p.core.model.scalars import InstanceId

Move = tuple[InstanceId, int | None, int]
"""An instance, the device that it leaves (None if it is new), and the device to which it moves."""


class DeviceMap:
    """Assigns instances to devices, which are numbers from 0 on. Deterministic: the same calls give the same map."""

    def __init__(self, num_devices: int) -> None:
        self._num_devices = num_devices
        self._places: dict[InstanceId, int] = {}
        self._together: tuple[InstanceId, ...] = ()

    def device_of(self, instance: InstanceId) -> tuple[int, bool]:
        """Return the instance's device, and whether it was assigned just now: one without a device gets that with the fewest
        instances."""
        if is_new := instance not in self._places:
            everywhere = range(self._num_devices)
            self._places[instance] = min(everywhere, key=lambda device: (self._load(device), self._held(device), device))
        return self._places[instance], is_new

    def place_of(self, instance: InstanceId) -> int | None:
        """Return the instance's device; None if it has none."""
        return self._places.get(instance)

    def deal(self, together: Sequence[InstanceId]) -> list[Move]:
        """Assign the instances that are trained from now on, and return those that move or are new. They stay where they are as
        far as no device gets two more than another."""
        self._together = tuple(sorted(together))
        before = {instance: self._places.pop(instance) for instance in self._together if instance in self._places}
        for instance in self._together:  # it stays if there is room on its device
            device = before.get(instance)
            if device is not None and self._load(device) < self._room(device):
                self._places[instance] = device
        now = {instance: self.device_of(instance)[0] for instance in self._together}
        return [(instance, before.get(instance), now[instance]) for instance in now if before.get(instance) != now[instance]]

    def team(self, instance: InstanceId) -> tuple[int, ...]:
        """Return the instance's device, and its helpers: devices without an instance to train are dealt to those with one."""
        own, _ = self.device_of(instance)
        loads = [self._load(device) for device in range(self._num_devices)]
        busy, free = ([device for device, load in enumerate(loads) if bool(load) == is_busy] for is_busy in (True, False))
        return (own, *free[busy.index(own) :: len(busy)])

    def forget(self, instance: InstanceId) -> None:
        """Forget an instance that is not here any more."""
        self._places.pop(instance, None)
        self._together = tuple(other for other in self._together if other != instance)

    def _load(self, device: int) -> int:
        """Return the number of instances that the device trains."""
        return sum(self._places.get(instance) == device for instance in self._together)

    def _held(self, device: int) -> int:
        """Return the number of instances on the device, including those that it only holds."""
        return list(self._places.values()).count(device)

    def _room(self, device: int) -> int:
        """Return how many instances a device may keep. If they cannot be dealt evenly, devices that had one more keep it, as
        far as the remainder goes."""
        even, more = divmod(len(self._together), self._num_devices)
        has_more = sum(self._load(other) > even for other in range(self._num_devices) if other != device)
        return even + (has_more < more)
