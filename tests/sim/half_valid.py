"""Messages that are well formed and wrong in one place: what peers really sent, with a value changed that the border accepts.

As strangers (an adversary of the port) and as a member (a strategy). Nothing is aimed at a known weakness: a seed that hurts is
a finding.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from random import Random

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES, MESSAGE_KINDS
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.sim.adversary import AdversaryPort, stranger_names
from adloco_p2p.sim.machine import Machine
from tests.fuzz.mutations import mutated_json

REMEMBERED = 200
TRIES = 12
"""Changes that are tried until one is accepted by the border."""


def half_valid(message: object, lender: object, random: Random, *, peer: PeerId, sign: object) -> object | None:
    """The message with something changed, signed by `peer` where it is about that peer; none where no change was accepted."""
    kind = MESSAGE_KINDS[type(message).__name__]
    data, other = canonical.encode(message), canonical.encode(lender)
    for _ in range(TRIES):
        try:
            changed: object = decode(kind, mutated_json(data, other, random), max_bytes=MAX_MESSAGE_BYTES)
        except (RemoteProtocolError, RecursionError):
            continue
        if changed != message:
            return _signed(changed, peer, sign)
    return None


def _signed(value: object, peer: PeerId, sign: object) -> object:
    """Own statements carry a good signature, at least at the top: the rest of a check is worth reaching."""
    is_own = is_dataclass(value) and getattr(value, "peer", None) == peer and hasattr(value, "signature")
    return replace(value, signature=sign(peer, value.payload)) if is_own else value  # type: ignore[operator,attr-defined,type-var]


class HalfValidStrangers:
    """Identities without a seat that send changed copies of what they receive, and of what the member under `tap` sends."""

    names = stranger_names(3)

    def __init__(self) -> None:
        self.num_sent = 0
        self._seen: deque[object] = deque(maxlen=REMEMBERED)

    def tap(self, machine: Machine, peer: PeerId, message: object) -> Sequence[tuple[float, object]]:
        """As a strategy of a member: it plays by the rules, and the strangers learn all that it sends."""
        del machine, peer
        self._seen.append(message)
        return ((0.0, message),)

    def received(self, port: AdversaryPort, me: PeerId, sender: PeerId, message: object) -> None:
        del port, me, sender
        self._seen.append(message)

    def wakes(self, port: AdversaryPort) -> None:
        victims = port.victims()
        for _ in range(4 if victims and self._seen else 0):
            me, victim = port.random.choice(port.names), port.random.choice(victims)
            message, lender = port.random.choice(self._seen), port.random.choice(self._seen)
            changed = half_valid(message, lender, port.random, peer=me, sign=port.sign)
            if changed is not None:
                self.num_sent += 1
                port.send(me, victim, changed)


class HalfValidMember:
    """A member whose every third message has something changed."""

    def __init__(self, seed: int, sign: object) -> None:
        self.num_sent = 0
        self._random = Random(f"half valid {seed}")
        self._sign = sign
        self._seen: deque[object] = deque(maxlen=REMEMBERED)

    def __call__(self, machine: Machine, peer: PeerId, message: object) -> Sequence[tuple[float, object]]:
        self._seen.append(message)
        if self._random.random() < 2 / 3:
            return ((0.0, message),)
        changed = half_valid(message, self._random.choice(self._seen), self._random, peer=machine.peer, sign=self._sign)
        self.num_sent += changed is not None
        return ((0.0, message if changed is None else changed),)
