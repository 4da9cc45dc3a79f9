"""The port through which an attacker takes part in a simulated world.

An `Adversary` owns identities without a machine: it sees what is sent to them, and may send any message under any of them at
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
"""How often an adversary is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversaryPort:
    """The means of an adversary."""

    random: Random
    genesis: RoundPlan
    names: tuple[PeerId, ...]
    """Its own identities."""
    now: Callable[[], float]
    """Virtual seconds."""
    victims: Callable[[], tuple[PeerId, ...]]
    """Machines that can be reached now."""
    transmit: Callable[[PeerId, PeerId, object], None]
    sign_as: Callable[[PeerId, bytes], str] = sign

    def send(self, sender: PeerId, receiver: PeerId, message: object) -> None:
        """The network proves who the sender is, so only own identities can send."""
        assert sender in self.names
        self.transmit(sender, receiver, message)

    def sign(self, name: PeerId, payload: bytes) -> str:
        assert name in self.names
        return self.sign_as(name, payload)


class Adversary(Protocol):
    names: tuple[PeerId, ...]
    """Its identities; none is that of a machine."""

    def received(self, port: AdversaryPort, me: PeerId, sender: PeerId, message: object) -> None:
        """A message to one of its identities."""

    def wakes(self, port: AdversaryPort) -> None:
        """Called every WAKE_SECONDS."""


Sent = Sequence[tuple[float, object]]
"""Seconds of delay, and the message."""
Outgoing = Callable[["Machine", PeerId, object], Sent]
"""What a machine sends a peer in place of a message."""


def at_once(*messages: object) -> Sent:
    return tuple((0.0, message) for message in messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Liar:
    """How a member departs from the protocol. Nobody judges it."""

    sends: Outgoing = lambda _machine, _peer, message: at_once(message)
    alters: Callable[[Report], Report] | None = None
    """Its own reports, before it signs them."""
    hands_out: Callable[[PeerId, object], object] | None = None
    """To a host, as a reducer, in place of an average."""
    withholds: bool = False
    """Shows nobody what it sent to reducers that lie, or to assessors."""
    is_idle: bool = False
    """Trains nothing on the rows that it is given: what it sends is made up, or copied."""


def stranger_names(count: int) -> tuple[PeerId, ...]:
    """Identities as long as real ones, that sort after those of machines."""
    return tuple(PeerId(f"x{index:03d}".ljust(NAME_CHARS, "-")) for index in range(count))
