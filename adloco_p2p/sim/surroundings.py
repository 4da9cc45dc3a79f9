"""The parts that all machines of a simulated world share, and the factories that machines use."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.agreement.membership import Timing
from adloco_p2p.core.model.plan import Decide, RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.roster_entry import Capacity
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.core.peer.agreement_port import Agreement
from adloco_p2p.core.peer.peer import Cadence, Peer
from adloco_p2p.sim.averaging import AverageBuffers, Averaging
from adloco_p2p.sim.device import Device, DeviceTraits
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.links import Links
from adloco_p2p.sim.network import Network
from adloco_p2p.sim.peer_checkers import PeerCheckers

if TYPE_CHECKING:
    from adloco_p2p.sim.machine import Machine


class MakeAgreement(Protocol):
    """A factory of agreements, in which tests plant faults."""

    def __call__(self, me: PeerId, **arguments: object) -> GossipAgreement: ...


class MakePeer(Protocol):
    """A factory of peers."""

    def __call__(self, *, me: PeerId, cadence: Cadence, agreement: Agreement) -> Peer: ...


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """The parts that all machines of a world share."""

    queue: EventQueue
    random: Random
    network: Network
    links: Links
    averaging: Averaging
    checkers: PeerCheckers
    faults: Faults
    timing: Timing
    cadence: Cadence
    capacity: Capacity
    genesis: RoundPlan
    decide: Decide
    machines: dict[PeerId, "Machine"]
    note: Callable[[PeerId, str], None]
    is_traced: bool
    on_decided: Callable[[PeerId, RoundPlan], None]
    on_reported: Callable[[PeerId, Report], None]
    on_reorg: Callable[[], None]
    on_crash: Callable[["Machine"], None]
    make_device: Callable[[DeviceTraits, Random], Device]
    make_agreement: MakeAgreement
    make_peer: MakePeer
    make_buffers: Callable[[], AverageBuffers]
