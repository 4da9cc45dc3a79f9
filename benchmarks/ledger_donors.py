"""The bytes and seconds in which a newcomer pulls the ledger of a run: whole agreements in virtual time.

    python -m benchmarks.ledger_donors [--hosts 100] [--rounds 60] [--megabits 2 20] [--liars 0] [--trickle 1.8] [--out FILE]

The newcomer knows nothing but the first plan, whose members have the whole ledger. Messages take 50 ms each way, and their
bytes (deflated, with what an envelope adds) wait for the newcomer's downlink and its senders' uplinks. `--liars` of the members
trickle: each answer of theirs has one entry, and comes `--trickle` seconds late. An entry counts as useful where the newcomer
appended it. The processor counts for nothing.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.effects import Broadcast, Send
from adloco_p2p.core.model.messages import Entries, Heartbeat
from adloco_p2p.core.model.outcomes import Outcome
from adloco_p2p.core.model.plan import roster_of
from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.sim.event_queue import EventQueue
from adloco_p2p.swarm.p2p.identity import Identity
from adloco_p2p.swarm.transport.pieces import deflated, in_pieces
from benchmarks.crowd import ENVELOPE_BYTES
from tests.swarm.large_ledger import LargeSwarm

DELAY_SECONDS = 0.05
UPLINK_BYTES_PER_SECOND = 0.5 * (1 << 20)
"""The most that one peer sends another."""
TICK_SECONDS = 1.0
END_SECONDS = 120.0


class Fetch:
    """One newcomer and the members that it asks; `played` runs until it has the ledger."""

    def __init__(self, swarm: LargeSwarm, *, downlink: float, liars: int, trickle_seconds: float) -> None:
        """`downlink`: the newcomer's, in bytes per second. `trickle_seconds`: how late the answer of a liar is."""
        self.queue = EventQueue()
        self.random = Random(1)
        self.swarm = swarm
        newcomer = Identity(Ed25519PrivateKey.from_private_bytes((1 << 32).to_bytes(32)))
        self.me = newcomer.peer_id
        joiner = swarm.agreement(self.me, identity=newcomer, knows_all=False, verify=_trusting, draw=self.random.random)
        self.peers: dict[PeerId, GossipAgreement] = {self.me: joiner}
        """The members, from the newcomer's first message to them on."""
        self.liars = frozenset(roster_of(swarm.genesis)[:liars])
        self.downlink = downlink
        self.trickle_seconds = trickle_seconds
        self.down_until = 0.0
        self.up_until: dict[PeerId, float] = {}
        self.found: Counter[str] = Counter()
        self._sizes: dict[tuple[Digest, ...], int] = {}
        self.queue.at(0.0, self._tick, self.me)

    def played(self) -> dict[str, float]:
        joiner = self.peers[self.me]
        while joiner.ledger.digests[-1] != self.swarm.ledger.digests[-1] and self.queue.now < END_SECONDS:
            self.queue.step()
        return {"seconds": round(self.queue.now, 1), **self.found}

    def _tick(self, name: PeerId) -> None:
        self._carry_out(name, self.peers[name].tick(self.queue.now))
        self.queue.after(TICK_SECONDS, self._tick, name)

    def _carry_out(self, name: PeerId, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Send):
                self._send(name, outcome.peer, outcome.message)
            elif isinstance(outcome, Broadcast):
                for other in roster_of(self.peers[name].ledger.plans[-1]):
                    if other != name:
                        self._send(name, other, outcome.message)

    def _send(self, sender: PeerId, receiver: PeerId, message: object) -> None:
        arrives_at, is_late = self.queue.now + DELAY_SECONDS, sender in self.liars and isinstance(message, Entries)
        if receiver == self.me:
            if isinstance(message, Entries) and is_late:
                message = Entries(entries=message.entries[:1])
            size = self._size(message)
            self.up_until[sender] = max(self.queue.now, self.up_until.get(sender, 0.0)) + size / UPLINK_BYTES_PER_SECOND
            self.down_until = max(self.up_until[sender] + DELAY_SECONDS, self.down_until) + size / self.downlink
            arrives_at = self.down_until + is_late * self.trickle_seconds
            self.found["bytes"] += size
            self.found["heartbeat_bytes"] += size if isinstance(message, Heartbeat) else 0
        elif sender != self.me:
            return  # messages between members change nothing here
        elif receiver not in self.peers:
            self.peers[receiver] = self.swarm.agreement(receiver, knows_all=True, verify=_trusting, draw=self.random.random)
            self.queue.after(self.random.random(), self._tick, receiver)
        self.queue.at(arrives_at, self._arrive, sender, receiver, message)

    def _size(self, message: object) -> int:
        """Return the size as the message travels. Members send the same entries again and again."""
        key = tuple(entry.value.plan for entry in message.entries) if isinstance(message, Entries) else ()
        size = self._sizes.get(key)
        if size is None:
            size = sum(ENVELOPE_BYTES + len(deflated(piece) or piece) for piece in in_pieces(canonical.encode(message)))
        if key:
            self._sizes[key] = size
        return size

    def _arrive(self, sender: PeerId, receiver: PeerId, message: object) -> None:
        peer = self.peers[receiver]
        before = len(peer.ledger.digests)
        outcomes = peer.receive(sender, message, self.queue.now)
        if receiver == self.me and isinstance(message, Entries):
            gained = len(peer.ledger.digests) - before
            self.found["messages"] += 1
            self.found["useful_messages"] += gained > 0
            self.found["entries"] += len(message.entries)
            self.found["useful_entries"] += gained
        self._carry_out(receiver, outcomes)


def _trusting(*_: object) -> bool:
    """Accept a signature unchecked: processor time does not count here."""
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60, help="fewer than 64: so many a ledger of this kind remembers")
    parser.add_argument("--megabits", type=float, nargs="+", default=[2.0, 20.0], help="the newcomer's downlink")
    parser.add_argument("--liars", type=int, default=0, help="members that trickle")
    parser.add_argument("--trickle", type=float, default=1.8, help="seconds by which their answers are late")
    parser.add_argument("--out", type=Path, help="a file for the figures as JSON")
    arguments = parser.parse_args()
    swarm = LargeSwarm(arguments.hosts, num_instances=1, votes="majority")
    while len(swarm.ledger.digests) <= arguments.rounds:
        swarm.grow()
    found = {}
    for megabits in arguments.megabits:
        fetch = Fetch(swarm, downlink=megabits * 1e6 / 8, liars=arguments.liars, trickle_seconds=arguments.trickle)
        found[f"{megabits:g} Mbit/s"] = fetch.played()
        print(f"{megabits:g} Mbit/s: {found[f'{megabits:g} Mbit/s']}", flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
