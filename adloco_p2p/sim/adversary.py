"""The port through which an attacker takes part in a simulated world.

An `Adversary` owns identities without a machine: it sees all messages to them, and may send any message under any of them at
any time. A member that departs from the protocol is a machine with a `Liar`. Nobody can sign in the name of others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

from adloco_p2p.core.model.plan import RoundPlan
from adloco_p2p.core.model.report import Report
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.sim.identities import NAME_CHARS, sign

if TYPE_CHECKING:
    from adloco_p2p.sim.machine import Machine

WAKE_SECONDS = 0.5
"""The time between two calls of an adversary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversaryPort:
    """The means of an adversary."""

    random: Random
    genesis: RoundPlan
    names: tuple[PeerId, ...]
    """The identities of the adversary."""
    now: Callable[[], float]
    """Returns the virtual time in seconds."""
    victims: Callable[[], tuple[PeerId, ...]]
    """Returns the machines that can be reached now."""
    transmit: Callable[[PeerId, PeerId, object], None]
    sign_as: Callable[[PeerId, bytes], str] = sign

    def send(self, sender: PeerId, receiver: PeerId, message: object) -> None:
        """Send a message under an own identity: the network proves the sender, so no other one can be used."""
        assert sender in self.names
        self.transmit(sender, receiver, message)

    def sign(self, name: PeerId, payload: bytes) -> str:
        assert name in self.names
        return self.sign_as(name, payload)


class Adversary(Protocol):
    """An attacker with identities of its own."""

    names: tuple[PeerId, ...]
    """The identities of the adversary; none is that of a machine."""

    def received(self, port: AdversaryPort, me: PeerId, sender: PeerId, message: object) -> None:
        """Receive a message to `me`, one of its identities."""

    def wakes(self, port: AdversaryPort) -> None:
        """Act; called every WAKE_SECONDS."""


Sent = Sequence[tuple[float, object]]
"""Messages, each with its delay in seconds."""
Outgoing = Callable[["Machine", PeerId, object], Sent]
"""Returns the messages that a machine sends a peer in place of a message."""


def at_once(*messages: object) -> Sent:
    return tuple((0.0, message) for message in messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Liar:
    """How a member departs from the protocol. Its acts are not judged."""

    sends: Outgoing = lambda _machine, _peer, message: at_once(message)
    alters: Callable[[Report], Report] | None = None
    """Alters its own reports before it signs them."""
    hands_out: Callable[[PeerId, object], object] | None = None
    """Returns the vector that it sends a host, as a reducer, in place of an average."""
    withholds: bool = False
    """Whether it shows its contribution to no member that makes a part again, and to no assessor."""
    is_idle: bool = False
    """Whether it does not train on its rows, so that its contribution is made up or copied."""


def stranger_names(count: int) -> tuple[PeerId, ...]:
    """Return identities as long as real ones, which sort after those of machines."""
    return tuple(PeerId(f"x{index:03d}".ljust(NAME_CHARS, "-")) for index in range(count))
