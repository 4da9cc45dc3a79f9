"""The encoded results of one peer: this module holds them, serves them to other peers, fetches them and decodes them."""

import asyncio
import logging
from collections.abc import Collection
from concurrent.futures import Executor

import numpy as np
import torch

from adloco_p2p.core.model.scalars import Digest, PeerId
from adloco_p2p.errors import AveragingError
from adloco_p2p.numerics.tensor_codec import TensorCodec
from adloco_p2p.swarm.allreduce.result_store import EncodedResult, Restored, ResultDownload, ResultStore, in_file
from adloco_p2p.swarm.allreduce.topology import AveragingLimits
from adloco_p2p.swarm.transfer.chunk_fetcher import ChunkFetcher
from adloco_p2p.swarm.transfer.chunk_server import ChunkServer
from adloco_p2p.swarm.transport.endpoint import Endpoint

logger = logging.getLogger(__name__)

_DOWNLOADS_KEPT = 2
RESULT_KIND = "average"
"""The name of results among the kinds of blobs."""
MAX_REPAIRS = 64
"""Repairs that this peer serves at the same time."""
MAX_REPAIRS_PER_PEER = 4
"""Repairs that this peer serves at the same time to one peer, which may host several instances."""


class ResultExchange:
    """Holds and exchanges results. Belongs to one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        codec: TensorCodec,
        limits: AveragingLimits,
    ) -> None:
        """`codec` is that of the contributions."""
        self._own_peer = endpoint.me
        self._codec = codec
        self._folder, self._reserve_bytes = limits.folder, 2 * limits.kept_bytes
        self._store = ResultStore(kept_rounds=limits.kept_rounds, max_bytes=limits.kept_bytes)
        self._moving: asyncio.Task[None] | None = None
        self._downloads: dict[Digest, ResultDownload] = {}
        """Downloads of results that are not complete yet."""
        self._num_readers = 0
        """The number of held results that are being decoded now."""
        self._fetcher = ChunkFetcher(endpoint, RESULT_KIND, connect_seconds=limits.connect_seconds)
        self._server = ChunkServer(
            endpoint,
            RESULT_KIND,
            self._store.find_blob,
            max_downloads=MAX_REPAIRS,
            max_downloads_per_peer=MAX_REPAIRS_PER_PEER,
        )

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        if self._moving is not None:
            self._moving.cancel()
        await self._server.stop()

    def new_buffer(self, num_bytes: int) -> np.ndarray:
        """Return a buffer, uint8 [num_bytes] of any content, for the result of an average that begins."""
        return self._store.new_buffer(num_bytes)

    def find(self, digest: Digest) -> EncodedResult | None:
        return self._store.find(digest)

    def of(self, key: Digest) -> EncodedResult | None:
        """Return the result of the average with this key, if it is held."""
        return self._store.of(key)

    def hold(
        self, key: Digest, result: EncodedResult, *, round: int, busy: Collection[Digest], is_fetched: bool = False
    ) -> None:
        """Keep a result for hosts that lost theirs, until later rounds replace it. `busy` are the keys of attempts that may
        still read their buffers."""
        self._store.keep(key, result, round=round, is_fetched=is_fetched)
        for outdated in self._store.outdated():
            self.forget(outdated, busy=busy)
        if self._moving is None or self._moving.done():
            self._moving = asyncio.get_running_loop().create_task(self._move_earlier(busy))

    async def _move_earlier(self, busy: Collection[Digest]) -> None:
        """Move results of earlier rounds to files, one after the other. A result for which the disk has no room is dropped,
        since others may have it."""
        while (earlier := self._store.earlier_in_memory()) is not None:
            key, encoded = earlier
            try:
                mapped = await asyncio.to_thread(in_file, encoded, self._folder, reserve_bytes=self._reserve_bytes)
            except OSError as error:
                logger.warning("no longer serving an average of an earlier round, for want of disk: %s", error)
                self.forget(key, busy=busy)
            else:
                self._store.move(key, encoded, mapped, may_reuse=self._may_reuse(key, busy))

    def forget(self, key: Digest, *, busy: Collection[Digest]) -> None:
        """Drop a result."""
        self._store.forget(key, may_reuse=self._may_reuse(key, busy))

    def _may_reuse(self, key: Digest, busy: Collection[Digest]) -> bool:
        return key not in busy and self._num_readers + self._server.num_served_now == 0

    async def fetch(
        self, digest: Digest, from_peers: tuple[PeerId, ...], *, size: int, timeout_seconds: float, silence_seconds: float
    ) -> tuple[EncodedResult, tuple[int, int]]:
        """Fetch a result of `size` values from peers that hold it; every part is checked against the digest. Return it and the
        bytes sent and received. Raises AveragingError."""
        wanted = self._download_of(digest, size)
        download = wanted.download
        before = download.bytes_sent, download.bytes_received
        donors = tuple(peer for peer in from_peers if peer != self._own_peer)
        problems = await self._fetcher.fetch(download, donors, timeout_seconds=timeout_seconds, silence_seconds=silence_seconds)
        if not download.is_complete:
            why = "; ".join(problems.values()) or "no donor was named"
            raise AveragingError(f"the result could not be fetched: {why}", suspects=tuple(problems))
        self._downloads.pop(digest, None)
        return wanted.result, (download.bytes_sent - before[0], download.bytes_received - before[1])

    def _download_of(self, digest: Digest, size: int) -> ResultDownload:
        """Return the download that was begun, so that a slow link finishes over several tries, or a new one. Only few are
        kept."""
        wanted = self._downloads.pop(digest, None) or ResultDownload(digest, codec=self._codec, size=size)
        self._downloads[digest] = wanted
        while len(self._downloads) > _DOWNLOADS_KEPT:
            del self._downloads[next(iter(self._downloads))]
        return wanted

    async def restore(self, result: EncodedResult, own: torch.Tensor | None, executor: Executor) -> Restored:
        """Run `EncodedResult.restore` in the executor."""
        self._num_readers += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, result.restore, own)
        finally:
            self._num_readers -= 1
