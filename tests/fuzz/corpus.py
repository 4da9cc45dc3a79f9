"""What peers really send and write: messages and journal records of simulated swarms, by kind."""

from collections.abc import Sequence
from functools import cache

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.world import World

MAX_OF_A_KIND = 24
MAX_BYTES = 64 << 10


@cache
def swarm_values() -> tuple[dict[str, list[bytes]], dict[str, list[bytes]]]:
    """Canonical bytes of messages and of records, by the names of their kinds. A small swarm with crashes, a partition and
    peers that stand still contests its ballots; a large one passes decisions on."""
    trouble = Faults(
        loss=0.3,
        crashes=2,
        joins=1,
        leaves=1,
        pause_chance=0.05,
        pause_seconds=8.0,
        partition_at=3.0,
        partition_seconds=10.0,
        faults_end_at=16.0,
    )
    messages: dict[str, dict[bytes, None]] = {}
    records: dict[str, dict[bytes, None]] = {}
    for world in (
        World(1, peers=5, rounds=6, faults=trouble),
        World(3, peers=5, rounds=6, faults=trouble),
        World(1, peers=34, rounds=1, faults=Faults(faults_end_at=0.0)),
    ):
        _listen(world, messages)
        world.run()
        for machine in world.machines.values():
            for record in machine.disk.journal:
                _keep(records, record)
    return {kind: list(found) for kind, found in messages.items()}, {kind: list(found) for kind, found in records.items()}


def _listen(world: World, kept: dict[str, dict[bytes, None]]) -> None:
    send = world.network.send

    def heard(sender: PeerId, receivers: Sequence[PeerId], message: object, *, is_counted: bool = True) -> None:
        _keep(kept, message)
        send(sender, receivers, message, is_counted=is_counted)

    world.network.send = heard  # type: ignore[method-assign]


def _keep(kept: dict[str, dict[bytes, None]], value: object) -> None:
    of_kind = kept.setdefault(type(value).__name__, {})
    if len(of_kind) < MAX_OF_A_KIND and len(data := canonical.encode(value)) <= MAX_BYTES:
        of_kind[data] = None
