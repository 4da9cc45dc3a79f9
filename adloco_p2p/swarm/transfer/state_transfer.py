"""The states of instances as blobs: served from snapshots that the runtime lends, and fetched into tensors. The agreed plan
gives the root."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from adloco_p2p.core.model.effects import FetchState
from adloco_p2p.core.model.scalars import Digest, InstanceId, PeerId
from adloco_p2p.errors import RemoteProtocolError, StateTransferFailed
from adloco_p2p.numerics.digest import blob_root, state_chunks, state_index
from adloco_p2p.swarm.transfer.chunk_fetcher import SILENCE_SECONDS, ChunkFetcher
from adloco_p2p.swarm.transfer.chunk_protocol import ChunkIndex
from adloco_p2p.swarm.transfer.chunk_server import Blob, ChunkServer
from adloco_p2p.swarm.transfer.download import Download
from adloco_p2p.swarm.transport.endpoint import Endpoint

KIND = "state"
MAX_OFFERED_ROUNDS = 2
"""The newest states of one instance that are offered. A state that hosts rewind to is offered again."""

MAX_REFUSALS = 24
"""After so many refusals in a row, some 160 s, a busy donor is asked no more. If it was the last one the fetch has failed, and
the next fetch also asks the peers that have the state by then. A member's turn (`chunk_server.TURN_SECONDS`) is shorter, so a
fetcher that lost its place to another waits for its next turn."""

PROGRESS_SECONDS = 0.5

OnProgress = Callable[[int, int], None]
"""A callback that takes the verified bytes of a state and the bytes of the whole."""

logger = logging.getLogger(__name__)


def _unseen(_verified: int, _total: int) -> None:
    """Ignore the progress."""


async def _report(download: Download, num_bytes: int, on_progress: OnProgress) -> None:
    """Report the progress again and again, until cancelled."""
    while True:
        on_progress(download.verified_bytes, num_bytes)
        await asyncio.sleep(PROGRESS_SECONDS)


class _Offer:
    """A snapshot that the runtime lends. Its index is computed at the first request."""

    def __init__(self, root: Digest, outer: torch.Tensor, momentum: torch.Tensor) -> None:
        self.root = root
        self._tensors = (outer, momentum)
        self._blob: Blob | None = None
        self._hashing = asyncio.Lock()

    async def blob(self) -> Blob | None:
        """Return the state as a blob; None if the tensors do not hash to the root."""
        async with self._hashing:
            if self._blob is None:
                index = await asyncio.to_thread(state_index, *self._tensors)
                self._blob = Blob(index, tuple(chunk.toreadonly() for chunk in state_chunks(*self._tensors)))
        if blob_root(self._blob.index) == self.root:
            return self._blob
        logger.error("the offered state does not hash to its root %s: it was written to, or offered wrongly", self.root)
        return None


class StateServer:
    """Serves the states that were offered last, and states that are being fetched."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._server = ChunkServer(endpoint, KIND, self._find)
        self._server.on_served = self._note_served
        self.start, self.stop = self._server.start, self._server.stop
        self._offers: dict[InstanceId, dict[int, _Offer]] = {}
        self._retired: dict[InstanceId, int] = {}
        """By instance that this peer hosts no longer: the newest boundary of any instance offered when that ended."""
        self._passed_on: list[Download] = []
        """Downloads in progress. Instances may share a root, as after a fork."""
        self.on_served: Callable[[InstanceId, int, PeerId], None] = lambda _instance, _round, _peer: None
        """Called when a download has ended whose peer has the whole state of an instance at the boundary before a round."""

    def offer(self, instance: InstanceId, round: int, root: Digest, outer: torch.Tensor, momentum: torch.Tensor) -> None:
        """Serve the instance's state at the boundary before `round`: parameters and momentum, both flat [P] on the CPU.

        The tensors are kept by reference and must not be written to while they are offered. The offer ends after two later
        offers of the instance, or one and then `keep_newest`, or `withdraw`, and only when the downloads that run then have
        ended. It costs nothing until a peer asks for it.
        """
        offers = self._offers.setdefault(instance, {})
        for other in [other for other, offer in offers.items() if other == round or offer.root == root]:
            del offers[other]  # a void round does not change the state
        offers[round] = _Offer(root, outer, momentum)
        for older in list(offers)[:-MAX_OFFERED_ROUNDS]:  # by age, since after a reorg rounds begin lower again
            del offers[older]
        self._retired.pop(instance, None)
        for retired in [retired for retired, since in self._retired.items() if round >= since + MAX_OFFERED_ROUNDS]:
            self.withdraw(retired)

    def keep_newest(self, instance: InstanceId) -> None:
        """Serve only the newest state of this instance, because the memory of the one before is needed. Running downloads keep
        theirs until they end."""
        offers = self._offers.get(instance, {})
        for older in list(offers)[:-1]:
            del offers[older]

    def retire(self, instance: InstanceId) -> None:
        """Note that no more states of this instance will come. Those that are here are served until others are offered two
        rounds further, because hosts that are a little behind may still need them."""
        if instance in self._offers:
            self._retired[instance] = max(max(offers) for offers in self._offers.values())

    def withdraw(self, instance: InstanceId) -> None:
        """Serve this instance no longer. Running downloads keep their snapshot until they end."""
        self._offers.pop(instance, None)
        self._retired.pop(instance, None)

    @contextmanager
    def passing_on(self, download: Download) -> Iterator[None]:
        """Serve the verified chunks of a state while it is being fetched. If the fetch fails, the streams that read it end: the
        tensors may then be filled with another state, and fetchers would drop this peer for such chunks."""
        self._passed_on.append(download)
        try:
            yield
        finally:
            self._passed_on.remove(download)
            if not download.is_complete:
                self._server.drop(download)

    async def _find(self, root: Digest) -> Blob | None:
        offers = [offer for offers in self._offers.values() for offer in offers.values() if offer.root == root]
        if offers:
            return await offers[-1].blob()
        for download in sorted(self._passed_on, key=lambda download: -download.num_verified):
            if download.root == root and (verified := download.verified()) is not None:
                return Blob(*verified, source=download)
        return None

    def _note_served(self, root: Digest, peer: PeerId) -> None:
        """Report a served state for every instance that has it, since instances may share a state, as after a fork."""
        for instance, offers in tuple(self._offers.items()):
            for round in [round for round, offer in offers.items() if offer.root == root]:
                self.on_served(instance, round, peer)


class StateFetcher:
    """Fetches states."""

    def __init__(self, endpoint: Endpoint, server: StateServer, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        """`server` serves the chunks that have come to others."""
        self._server = server
        self._fetcher = ChunkFetcher(endpoint, KIND, max_refusals=MAX_REFUSALS)
        self._silence_seconds = silence_seconds

    async def fetch(
        self,
        asked: FetchState,
        outer: torch.Tensor,
        momentum: torch.Tensor,
        *,
        timeout_seconds: float,
        on_progress: OnProgress = _unseen,
    ) -> None:
        """Fill `outer` and `momentum` (flat [P], CPU) with the state at the boundary before the round.

        Chunks that are correct already are not asked for, so after a failure it may be called again with the same tensors and
        other donors. `on_progress` is called now and then. Raises StateTransferFailed with the reasons when no donor is left or
        time is up; the content of the tensors is then undefined.
        """
        chunks = state_chunks(outer, momentum)
        num_bytes = sum(len(chunk) for chunk in chunks)

        def make_room(index: ChunkIndex) -> Sequence[memoryview]:
            if index.head or [size for size, _ in index.chunks] != [len(chunk) for chunk in chunks]:
                raise RemoteProtocolError(f"offers {index.num_bytes} bytes, the state has {num_bytes}")
            return chunks

        name = f"state of instance {asked.instance} before round {asked.round}"
        shuffle = random.SystemRandom().shuffle  # fetchers with the same order have nothing for each other
        download = Download(asked.digest, make_room, max_chunks=len(chunks), name=name, may_hold_chunks=True, shuffle=shuffle)
        watching = asyncio.create_task(_report(download, num_bytes, on_progress))
        try:
            with self._server.passing_on(download):
                problems = await self._fetcher.fetch(
                    download, asked.from_peers, timeout_seconds=timeout_seconds, silence_seconds=self._silence_seconds
                )
        finally:
            watching.cancel()
            on_progress(download.verified_bytes, num_bytes)
        if not download.is_complete:
            lines = [f"  {donor}: {why}" for donor, why in problems.items()] or ["  nobody is known to hold it"]
            came = f"{name}: {download.num_verified} of {len(chunks)} chunks came, no donor for the rest:"
            raise StateTransferFailed("\n".join((came, *lines)))
