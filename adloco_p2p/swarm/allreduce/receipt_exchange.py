"""The exchange of receipts between members, so that a reducer cannot give different receipts to different members.

Every member shows the receipts that it got to one other reducer, drawn at random after the average is made. If a reducer splits
n members into two halves, with as many reducers in each, the probability that no member shows its receipts to the other half is
about 2 ** -n.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from adloco_p2p.background import BackgroundTasks
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.ledger_entry import Pledge
from adloco_p2p.core.model.scalars import MAX_HOSTS, Digest, PeerId
from adloco_p2p.errors import RemoteProtocolError
from adloco_p2p.swarm.allreduce.allreduce_spec import AllReduceSpec
from adloco_p2p.swarm.allreduce.early_messages import keep_bounded
from adloco_p2p.swarm.allreduce.handshake import Hello, Purpose
from adloco_p2p.swarm.allreduce.pledges import Notary, Pledges, decode_pledges
from adloco_p2p.swarm.transport.framed_stream import FramedStream, FrameKind, StreamLost

logger = logging.getLogger(__name__)
_CONNECT_SECONDS = 5.0
_ATTEMPTS_KEPT = 16
_SHOWN_KEPT = 256
"""Lists of receipts kept of all senders about attempts that have not ended here."""
_SHOWN_KEPT_PER_SENDER = 4


class ReceiptExchange:
    """Keeps, shows and compares the receipts of one peer's last attempts."""

    def __init__(self, own_peer: PeerId, notary: Notary, connect: Callable[[PeerId, float], Awaitable[FramedStream]]) -> None:
        self._own_peer = own_peer
        self._notary = notary
        self._connect = connect
        self._random = random.Random()
        self._held: OrderedDict[Digest, tuple[Pledge, ...]] = OrderedDict()
        """Checked receipts, by key."""
        self.tasks = BackgroundTasks()
        """The tasks that show receipts; nothing waits for them."""
        self._compared: set[tuple[Digest, PeerId]] = set()
        """The members whose receipts of a held attempt were compared; each may show them once."""
        self._shown: OrderedDict[tuple[Digest, PeerId], tuple[Pledge, ...]] = OrderedDict()

    def hold(self, spec: AllReduceSpec, receipts: tuple[Pledge, ...]) -> None:
        """Keep the checked receipts of an attempt that has ended here; compare them with those that others showed before."""
        self._held[spec.key] = receipts
        while len(self._held) > _ATTEMPTS_KEPT:
            self._held.popitem(last=False)
        self._compared = {(key, sender) for key, sender in self._compared if key in self._held}
        for key, sender in tuple(self._shown):
            if key == spec.key:
                self._compared.add((key, sender))
                self._notary.compare(receipts, self._shown.pop((key, sender)))

    def on_shown(self, sender: PeerId, key: Digest, payload: bytes) -> None:
        """Handle the receipts that another member shows. Raises RemoteProtocolError."""
        if (key, sender) in self._compared:
            raise RemoteProtocolError(f"{sender} shows its receipts of one average again")
        shown = decode_pledges(payload, MAX_HOSTS)
        held = self._held.get(key)
        if held is not None:
            self._compared.add((key, sender))
            self._notary.compare(held, shown)
            return
        keep_bounded(self._shown, (key, sender), shown, per_reporter=_SHOWN_KEPT_PER_SENDER, in_all=_SHOWN_KEPT)

    async def show(self, spec: AllReduceSpec, receipts: tuple[Pledge, ...]) -> None:
        """Show receipts to one other reducer, drawn at random. One that cannot be reached is not replaced."""
        others = [spec.members[reducer] for reducer in spec.reducers if spec.members[reducer] != self._own_peer]
        if not others:
            return
        peer = self._random.choice(others)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                stream = await self._connect(peer, _CONNECT_SECONDS)
            stream.send(FrameKind.HELLO, Hello(purpose=Purpose.RECEIPTS, key=spec.key, spec=spec.digest).encode())
            stream.send(FrameKind.PLEDGES, canonical.encode(Pledges(pledges=receipts)))
            await stream.until_closed(_CONNECT_SECONDS)  # closing a stream drops the bytes that are on their way
            stream.close()
        except (StreamLost, TimeoutError) as error:
            logger.debug("averaging.receipts_not_shown peer=%s error=%s", peer, error)
