"""A peer that is a member like any other, with a key of its own, and misbehaves as its name states.

  python -m benchmarks.bad_peer KIND STEP_SECONDS join --initial-peers ADDRESS --workdir DIR

It is the real node with one thing changed, so that it gets as far as a real one would. Kinds:
  flip      its pseudo-gradients point the other way, ten times as long
  ascent    its pseudo-gradients are its honest ones in part, and for the rest lead up the loss
  idle      its pseudo-gradients are the last average, as long as its honest ones
  hidden    shows its contributions to nobody that looks at them
  nan       its pseudo-gradients are not numbers, and it reduces to what is not a number
  shape     its vectors are longer than the model
  weight    its averages weigh 1e30, its reports claim 1e30 samples
  cut       its streams of averages and of states end in the middle of a part
  foreign   tells everybody messages of another run, of other senders, of unknown kinds, and asks for another run's state
  replay    tells everybody again what it heard from others, and what it said itself, as fast as it can
  garbage   opens streams to everything that a peer serves and writes noise, huge lengths, halves of frames, or nothing
"""

import argparse
import asyncio
import math
import os
import random
import struct
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import torch
from hivemind.p2p import P2P, PeerID

from adloco_p2p.cli import main as node
from adloco_p2p.core.averaging.outer_round import OuterRound
from adloco_p2p.core.model.averages import Average
from adloco_p2p.core.model.report import InstanceReport
from adloco_p2p.core.model.scalars import InstanceId, PeerId
from adloco_p2p.swarm.allreduce import handshake
from adloco_p2p.swarm.allreduce.averager import Averager
from adloco_p2p.swarm.allreduce.member_side import MemberSide
from adloco_p2p.swarm.allreduce.result_exchange import RESULT_KIND
from adloco_p2p.swarm.allreduce.shown_contributions import ShownContributions
from adloco_p2p.swarm.transfer import state_transfer
from adloco_p2p.swarm.transfer.chunk_protocol import handler_name
from adloco_p2p.swarm.transport import gossip
from adloco_p2p.swarm.transport.framed_stream import FramedStream
from adloco_p2p.swarm.transport.gossip import AdlocoGossip, GossipWire
from adloco_p2p.training.hosting import GUARD_ROWS, Hosting
from adloco_p2p.v1 import gossip_pb2
from benchmarks.paced import pace

HUGE = 10**30
KEPT_MESSAGES = 400
PAUSE_SECONDS = 0.05
"""The pause between two deeds against everybody."""
LARGEST_NOISE_BYTES = 1 << 16
ASCENT_COSINE = 0.3
"""The cosine of `ascent` to the liar's own honest pseudo-gradient: `robust` leaves out what is below 0.1 of the median host,
and the stricter rule after an alarm what is below half of it."""


def change(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a method by what `make` makes of it."""
    setattr(owner, name, make(getattr(owner, name)))


# --- members that average badly --------------------------------------------------------------------------------------


def change_vector(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def make(average: Any) -> Any:
        async def averaged(self: Averager, asked: Average, vector: torch.Tensor, **details: Any) -> Any:
            return await average(self, asked, of(vector), **details)

        return averaged

    change(Averager, "average", make)


async def skip(_: MemberSide) -> None:
    """Skip a check: a liar does not check itself."""


def nan() -> None:
    change(MemberSide, "_check_own_vector", lambda _: skip)
    change_vector(lambda vector: torch.full_like(vector, float("nan")))


def flip() -> None:
    change_vector(lambda vector: -10.0 * vector)


def idle() -> None:
    averages: dict[InstanceId, torch.Tensor] = {}

    def make(average: Any) -> Any:
        async def averaged(self: Averager, asked: Average, vector: torch.Tensor, **details: Any) -> Any:
            before = averages.get(asked.instance)
            sent = torch.zeros_like(vector) if before is None else before * (vector.norm() / before.norm())
            result = await average(self, asked, sent, **details)
            averages[asked.instance] = result.vector.clone()
            return result

        return averaged

    change(Averager, "average", make)


async def hide(_: ShownContributions, stream: FramedStream, _hello: handshake.Hello) -> None:
    stream.close()


def hidden() -> None:
    change(ShownContributions, "serve", lambda _: hide)


def ascent() -> None:
    def make(pseudo_gradient: Any) -> Any:
        def poisoned(self: Hosting, instance: InstanceId) -> torch.Tensor:
            own: torch.Tensor = pseudo_gradient(self, instance)
            away = _gradient(self, self.state(instance)[0])
            away -= (away @ own) / (own @ own) * own
            away *= own.norm() / away.norm()
            # A step subtracts what is sent from the parameters: along minus the gradient the loss rises as steeply as it can.
            return ASCENT_COSINE * own - math.sqrt(1.0 - ASCENT_COSINE**2) * away

        return poisoned

    change(Hosting, "pseudo_gradient", make)


def _gradient(hosting: Hosting, outer: torch.Tensor) -> torch.Tensor:
    """Return the gradient [P] of the loss at the outer parameters [P], on some training rows, on the CPU."""
    shell = hosting._shell
    with shell.evaluating(outer.to(shell.device)):
        shell.gradient.zero_()
        rows = hosting._feed.drawn("ascent", GUARD_ROWS)
        torch.autograd.backward(shell.weighted_loss(rows)[0] / rows.labels.numel())
        gradient = shell.gradient.to("cpu", copy=True)
        shell.gradient.zero_()
    return gradient


def shape() -> None:
    change_vector(lambda vector: torch.cat([vector, vector[:7]]))


def weight() -> None:
    def make_average(average: Any) -> Any:
        async def averaged(self: Averager, asked: Average, vector: torch.Tensor, **details: Any) -> Any:
            mine = tuple((peer, HUGE if peer == self._context.own_peer else n) for peer, n in asked.weights)
            return await average(self, replace(asked, weights=mine), vector, **details)

        return averaged

    def make_report(report: Any) -> Any:
        def claiming(self: OuterRound) -> InstanceReport:
            return replace(report(self), samples=HUGE, tokens=HUGE, inner_steps=HUGE, batch_samples=HUGE)

        return claiming

    change(Averager, "average", make_average)
    change(OuterRound, "report", make_report)


def cut() -> None:
    def make(send_data: Any) -> Any:
        async def half(self: FramedStream, data: memoryview, *rest: Any) -> None:
            await send_data(self, data[: len(data) // 2], *rest)
            await self.flushed()
            self.abort()

        return half

    change(FramedStream, "send_data", make)


# --- members that talk badly -----------------------------------------------------------------------------------------


def beside(deeds: Callable[[GossipWire], Awaitable[None]]) -> None:
    """Do this over and over while the node runs, whatever comes of it."""
    running: list[asyncio.Task[None]] = []

    async def over_and_over(wire: GossipWire) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                await deeds(wire)
            except Exception as error:  # refusals and closed streams, which it deserves
                print(f"bad peer: {type(error).__name__}: {str(error)[:120]}", flush=True)

    def make(start: Any) -> Any:
        async def started(self: GossipWire) -> None:
            await start(self)
            running.append(asyncio.create_task(over_and_over(self)))

        return started

    change(GossipWire, "start", make)


async def everybody(wire: GossipWire) -> list[PeerID]:
    return [info.peer_id for info in await wire._p2p.list_peers()]


async def tell(wire: GossipWire, peer: PeerID, envelope: gossip_pb2.Envelope) -> None:
    await AdlocoGossip.get_stub(wire._p2p, peer).rpc_gossip(envelope, timeout=gossip.SEND_TIMEOUT_SECONDS)


def foreign() -> None:
    async def deeds(wire: GossipWire) -> None:
        honest = gossip_pb2.Envelope(
            protocol_version=1, run=bytes.fromhex(wire.run), sender=wire._me, kind="Heartbeat", payload=b"{}"
        )
        envelopes = []
        for name, value in (("run", os.urandom(32)), ("sender", "somebody"), ("kind", "Coup"), ("protocol_version", 77)):
            other = gossip_pb2.Envelope()
            other.CopyFrom(honest)
            setattr(other, name, value)
            envelopes.append(other)
        for peer in await everybody(wire):
            for envelope in (*envelopes, honest):
                await tell(wire, peer, envelope)
            _, _, writer = await wire._p2p.call_binary_stream_handler(peer, handler_name(state_transfer.KIND))
            writer.write(struct.pack("<BBHI", 0xAD, 1, 0, 32) + os.urandom(32))  # asks for a blob that nobody has
            await writer.drain()
            writer.close()

    beside(deeds)


def replay() -> None:
    heard: deque[gossip_pb2.Envelope] = deque(maxlen=KEPT_MESSAGES)

    def make_accept(accept: Any) -> Any:
        def accepted(self: GossipWire, remote: PeerId, envelope: gossip_pb2.Envelope) -> str | None:
            again = gossip_pb2.Envelope()
            again.CopyFrom(envelope)
            again.sender = self._me  # otherwise the border would refuse it
            heard.append(again)
            return accept(self, remote, envelope)

        return accepted

    def make_send(send: Any) -> Any:
        async def sent(self: GossipWire, peer: PeerId, envelope: gossip_pb2.Envelope) -> bool:
            heard.append(envelope)
            return await send(self, peer, envelope)

        return sent

    async def deeds(wire: GossipWire) -> None:
        peers = await everybody(wire)
        await asyncio.gather(*(tell(wire, peer, envelope) for peer in peers for envelope in random.sample(list(heard), 8)))

    change(GossipWire, "accept", make_accept)
    change(GossipWire, "_send_envelope", make_send)
    beside(deeds)


def garbage() -> None:
    held: deque[asyncio.StreamWriter] = deque(maxlen=64)
    """Streams that send nothing, or stopped in the middle."""
    frames = (
        os.urandom(LARGEST_NOISE_BYTES),
        b"",
        struct.pack(">I", 0xFFFFFFFF) + os.urandom(64),  # a length of 4 GiB
        struct.pack("<BBHI", 0xAD, 1, 0, 84)[:5],  # half a header
        struct.pack("<BBHI", 0xAD, 3, 0, 1 << 18) + os.urandom(100),  # data that nobody asked for
        struct.pack("<BBHI", 0xAD, 1, 0, 84) + os.urandom(84),
        struct.pack("<BBHI", 0xAD, 4, 0, 4095) + os.urandom(4095),
    )

    async def open_and_write(p2p: P2P, peer: PeerID, handler: str) -> None:
        _, _, writer = await p2p.call_binary_stream_handler(peer, handler)
        writer.write(random.choice(frames))
        await writer.drain()
        if random.random() < 0.5:
            held.append(writer)
        else:
            writer.close()

    async def deeds(wire: GossipWire) -> None:
        names = [f"AdlocoGossip.{name}" for name in ("rpc_gossip", "rpc_manifest", "rpc_ping")]
        blobs = [handler_name(kind) for kind in (state_transfer.KIND, RESULT_KIND)]
        handlers = [handshake.HANDLER, *blobs, *names, "DHTProtocol.rpc_find"]
        for peer in await everybody(wire):
            async with asyncio.timeout(5.0):
                await open_and_write(wire._p2p, peer, random.choice(handlers))

    beside(deeds)


KINDS: dict[str, Callable[[], None]] = {
    "flip": flip,
    "idle": idle,
    "hidden": hidden,
    "ascent": ascent,
    "nan": nan,
    "shape": shape,
    "weight": weight,
    "cut": cut,
    "foreign": foreign,
    "replay": replay,
    "garbage": garbage,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="A member of a run that misbehaves.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("step_seconds", type=float, help="its device takes so long for an inner step; 0: as fast as it can")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of adloco-peer")
    asked = parser.parse_args()
    KINDS[asked.kind]()
    pace(asked.step_seconds)
    return node(asked.arguments)


if __name__ == "__main__":
    sys.exit(main())
