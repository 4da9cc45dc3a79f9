"""A process that has the address of a run and no seat in it, and floods the run: forged messages, large requests to the DHT,
and streams that send nothing.

python -m benchmarks.stranger --initial-peers ADDRESS ... --workdir DIR [--seconds 60] [--only takes_over ...]

Its messages are those of the simulated world (`benchmarks/adversary/strangers.py`), signed with a key of its own, as fast as
the others take them. It also opens streams to everything that a peer serves, and holds them half open. Every few seconds it
prints how many frames were answered so far, and at the end how many were accepted, and why the others were refused.
"""

import argparse
import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from random import Random

from hivemind.proto import dht_pb2

from adloco_p2p.config.peer_config import PeerConfig
from adloco_p2p.config.run_config import RunConfig
from adloco_p2p.core.model.messages import MESSAGE_KINDS
from adloco_p2p.core.model.scalars import PeerId
from adloco_p2p.runtime.adapters.plan_rule import decide_by, genesis_of
from adloco_p2p.sim.adversary import AdversaryPort
from adloco_p2p.swarm.allreduce import handshake
from adloco_p2p.swarm.allreduce.result_exchange import RESULT_KIND
from adloco_p2p.swarm.discovery.join import choose_run, connect_to_run
from adloco_p2p.swarm.discovery.manifest import fetch_manifest
from adloco_p2p.swarm.discovery.run_records import Discovery
from adloco_p2p.swarm.p2p.identity import signature
from adloco_p2p.swarm.p2p.swarm_node import SwarmNode
from adloco_p2p.swarm.transfer import state_transfer
from adloco_p2p.swarm.transfer.chunk_protocol import handler_name
from adloco_p2p.swarm.transport.endpoint import Endpoint
from adloco_p2p.swarm.transport.gossip import SEND_TIMEOUT_SECONDS, AdlocoGossip, GossipWire, hivemind_id
from benchmarks.adversary.paid_seats import FalseProofs
from benchmarks.adversary.records import large_requests
from benchmarks.adversary.strangers import ALL, Deed, Strangers, forges_a_history

DEEDS: dict[str, Deed] = {deed.__name__: deed for deed in (*ALL, forges_a_history)}
DEEDS["shows_false_proofs"] = FALSE_PROOFS = FalseProofs()
"""This deed does nothing where a seat costs nothing."""
HELD_STREAMS = 256
PAUSE_SECONDS = 0.02
COUNT_SECONDS = 2.0
TAKEN = "taken"
ANSWERED = re.compile(r"^(\d+) frames answered", re.MULTILINE)
PROOFS_MADE = re.compile(r", (\d+) false proofs of work made$", re.MULTILINE)


def frames_answered(output: str) -> int:
    """Return how many frames a stranger had sent and had answers to, by its output."""
    return max(map(int, ANSWERED.findall(output)), default=0)


def false_proofs_made(output: str) -> int:
    """Return how many false proofs of work it had made, by its output."""
    return max(map(int, PROOFS_MADE.findall(output)), default=0)


class Stranger:
    """One identity among the peers of a run."""

    def __init__(self, node: SwarmNode, run: RunConfig, peers: Sequence[PeerId], *, deeds: Sequence[Deed], seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self.num_answered = 0
        """Frames that a peer accepted or refused with a reason; not those that failed on the way."""
        self._node, self._peers = node, list(peers)
        self._attack = Strangers(deeds=deeds, names=(node.me,), decide=decide_by(run.rules))
        self._pending: list[tuple[PeerId, object]] = []
        self._held: deque[asyncio.StreamWriter] = deque(maxlen=HELD_STREAMS)
        self._requests = list(large_requests().values())
        self._random = Random(seed)
        self._port = AdversaryPort(
            random=self._random,
            genesis=genesis_of(run),
            names=(node.me,),
            now=time.monotonic,
            victims=lambda: tuple(self._peers),
            transmit=lambda _, receiver, message: self._pending.append((receiver, message)),
            sign_as=lambda _, payload: signature(node.identity, payload),
        )
        self._wire = GossipWire(
            Endpoint(node.p2p),
            run=run.digest,
            kinds=MESSAGE_KINDS,
            on_message=self._on_message,
            on_refused=lambda *_: None,
        )

    async def _on_message(self, sender: PeerId, message: object) -> None:
        self._attack.received(self._port, self._node.me, sender, message)
        self._attack.answers.clear()

    async def flood(self, seconds: float) -> None:
        await self._wire.start()
        pump = asyncio.create_task(self._wire.pump())
        end, count_at = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < end:
            if now >= count_at:
                told = f"{self.num_answered} frames answered, {self.answers[TAKEN]} taken"
                print(f"{told}, {FALSE_PROOFS.num_made} false proofs of work made", flush=True)
                count_at = now + COUNT_SECONDS
            self._attack.wakes(self._port)
            pending, self._pending = self._pending, []
            await asyncio.gather(
                *(self._tell(peer, message) for peer, message in pending), self._hold_a_stream(), self._ask_the_dht()
            )
            await asyncio.sleep(PAUSE_SECONDS)
        pump.cancel()

    async def _tell(self, peer: PeerId, message: object) -> None:
        """Send without the limits that the product has for what it sends."""
        for envelope in self._wire._envelopes(message):
            try:
                stub = AdlocoGossip.get_stub(self._node.p2p, hivemind_id(peer))
                answer = await stub.rpc_gossip(envelope, timeout=SEND_TIMEOUT_SECONDS)
                self.answers[TAKEN if answer.accepted else answer.reason[:60]] += 1
                self.num_answered += 1
            except Exception as error:  # whatever the others do to it is deserved
                self.answers[type(error).__name__] += 1

    async def _ask_the_dht(self) -> None:
        stub = self._node.dht.protocol.get_stub(hivemind_id(self._random.choice(self._peers)))
        request = self._random.choice(self._requests)
        ask = stub.rpc_find if isinstance(request, dht_pb2.FindRequest) else stub.rpc_store
        try:
            await ask(request, timeout=SEND_TIMEOUT_SECONDS)
            self.answers["large requests to the DHT"] += 1
        except Exception as error:
            self.answers[f"DHT: {type(error).__name__}"] += 1

    async def _hold_a_stream(self) -> None:
        handlers = (handshake.HANDLER, handler_name(state_transfer.KIND), handler_name(RESULT_KIND))
        try:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                peer = hivemind_id(self._random.choice(self._peers))
                _, _, writer = await self._node.p2p.call_binary_stream_handler(peer, self._random.choice(handlers))
                writer.write(b"\xad\x01\x00")  # the beginning of a frame that never ends
                self._held.append(writer)
            self.answers["streams"] += 1
        except Exception as error:
            self.answers[f"stream: {type(error).__name__}"] += 1


async def attack(arguments: argparse.Namespace) -> Counter[str]:
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    config = PeerConfig(client_mode=True, use_auto_relay=False)
    node = await SwarmNode.start(workdir=arguments.workdir, config=config, initial_peers=arguments.initial_peers)
    try:
        discovery = Discovery(node.dht, node.identity)
        digest = await choose_run(discovery, wanted=None)
        announced = [record.peer for record in await discovery.find_peers(digest)]  # the attack is on all of them
        known = (await connect_to_run(node, discovery, digest, should_retry=True, members=announced)).connected
        peers = tuple(dict.fromkeys([*known, *await node.peers_connected()]))
        run = (await fetch_manifest(node.p2p, peers, digest)).verified(digest)
        deeds = [DEEDS[name] for name in arguments.only] or list(DEEDS.values())
        stranger = Stranger(node, run, peers, deeds=deeds, seed=arguments.seed)
        print(f"floods {len(peers)} peers of run {run.name}", flush=True)
        await stranger.flood(arguments.seconds)
        return stranger.answers
    finally:
        await node.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="A stranger that floods a run.")
    parser.add_argument("--initial-peers", nargs="+", required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], choices=DEEDS)
    answers = asyncio.run(attack(parser.parse_args()))
    for what, count in answers.most_common():
        print(f"{count:>8}  {what}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
