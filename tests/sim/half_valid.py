"""Messages that peers really sent: out of their time, or wrong in one place, with a value changed that the border accepts.

    python -m tests.sim.half_valid --seeds 0-999

As strangers (an adversary of the port) and as a member (a strategy). Nothing is aimed at a known weakness: a seed that hurts is
a finding. Each is played in the world of the table of attacks (`benchmarks/adversary/arena.py`), which compares it with the
same seed without them: no honest process ends, plans come at half the pace at least, at most half of the rounds are void, no
honest peer is off the roster for longer than a lease and the rounds of a new seat, and none applies an average that no honest
host computed.
"""

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from random import Random

from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.messages import MAX_MESSAGE_BYTES, MESSAGE_KINDS
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.decode import decode
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.sim.adversary import AdversaryPort, Liar, Sent, stranger_names
from adloco_p2p.sim.faults import Faults
from adloco_p2p.sim.identities import sign
from adloco_p2p.sim.machine import Machine
from benchmarks.adversary.arena import LOSS, Result, Setting, fight
from tests.fuzz.mutations import mutated_json

SETTING = Setting(rounds=6, round_seconds=4.0, faults=Faults(loss=LOSS, faults_end_at=12.0))
LEAST_SENT = 50
"""Messages of a seed that shows anything."""
LATE_SECONDS = 8.0
"""Two rounds: a message that is repeated comes at most so much later."""
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
    """Identities without a seat that send copies of what they receive, and of what the member under `tap` sends. Three of four
    have something changed."""

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
            is_repeated = port.random.random() < 1 / 4
            changed = message if is_repeated else half_valid(message, lender, port.random, peer=me, sign=port.sign)
            if changed is not None:
                self.num_sent += 1
                port.send(me, victim, changed)


class HalfValidMember:
    """A member whose every third message has something changed. With every sixth an older one goes out again, later."""

    def __init__(self, seed: int) -> None:
        self.num_sent = 0
        self._random = Random(f"half valid {seed}")
        self._seen: deque[object] = deque(maxlen=REMEMBERED)

    def __call__(self, machine: Machine, peer: PeerId, message: object) -> Sent:
        self._seen.append(message)
        draw, other = self._random.random(), self._random.choice(self._seen)
        if draw < 1 / 6:
            self.num_sent += 1
            return ((0.0, message), (LATE_SECONDS * self._random.random(), other))
        if draw < 2 / 3:
            return ((0.0, message),)
        changed = half_valid(message, other, self._random, peer=machine.peer, sign=sign)
        self.num_sent += changed is not None
        return ((0.0, message if changed is None else changed),)


def by_member(seed: int) -> tuple[Result, int]:
    """The fight of a seed, and how many messages were repeated or changed."""
    member = HalfValidMember(seed)
    return fight(seed, SETTING, liars={seed % SETTING.peers: Liar(sends=member)}), member.num_sent


def by_strangers(seed: int) -> tuple[Result, int]:
    strangers = HalfValidStrangers()
    return fight(seed, SETTING, liars={0: Liar(sends=strangers.tap)}, adversary=strangers), strangers.num_sent


SENDERS: dict[str, Callable[[int], tuple[Result, int]]] = {"member": by_member, "strangers": by_strangers}


def problem_of(result: Result, num_sent: int) -> str:
    """Why the promises were not kept, or nothing was shown; empty otherwise."""
    if result.problem:
        return result.problem
    wrong = result.arena.num_wrong_steps
    if wrong:
        return f"steps with an average that no honest host computed: {wrong}"
    return f"{num_sent} messages were sent" if num_sent < LEAST_SENT else ""


class Tally:
    """The worst figures of many seeds of one kind of sender."""

    def __init__(self, senders: str) -> None:
        self.senders = senders
        self.num_problems = 0
        self._num_seeds = self._num_messages = 0
        self._pace, self._void, self._eviction = 9.99, 0.0, 0.0

    def play(self, seed: int) -> None:
        """A seed with a problem is printed."""
        result, num_sent = SENDERS[self.senders](seed)
        problem = problem_of(result, num_sent)
        if problem:
            self.num_problems += 1
            print(f"{self.senders}, seed {seed}: {problem}", flush=True)
        self._num_seeds, self._num_messages = self._num_seeds + 1, self._num_messages + num_sent
        self._pace, self._void = min(self._pace, result.pace), max(self._void, result.void)
        self._eviction = max(self._eviction, result.longest_eviction)

    def __str__(self) -> str:
        return (
            f"{self.senders}: {self.num_problems} problems in {self._num_seeds} seeds, {self._num_messages} messages; "
            f"lowest pace {self._pace:.0%}, most void rounds {self._void:.0%}, longest without a seat {self._eviction:.0f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-999", help="first and last, as 0-999")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    tallies = [Tally(senders) for senders in SENDERS]
    for seed in range(int(first), int(last or first) + 1):
        for tally in tallies:  # they share the run without them
            tally.play(seed)
    print(*tallies, sep="\n")
    raise SystemExit(any(tally.num_problems for tally in tallies))


if __name__ == "__main__":
    main()
