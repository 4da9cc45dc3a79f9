"""Limits on requests to this node of the DHT: a few keys at once, and a budget for all senders together.

hivemind handles a request in one go, and nothing else happens in the event loop meanwhile: one of 760 kB blocked it for 88 s.
The same holds for answers to this node. Senders share one budget, because identities are free; docs/limits.md describes the
harm that a flood can still do.
"""

from collections.abc import Callable
from typing import Any

from hivemind.proto import dht_pb2
from hivemind.utils.auth import AuthorizerBase

from adloco_p2p.swarm.p2p.dht_storage import MAX_BYTES_PER_KEY, MAX_NAME_CHARS

MAX_KEYS_ASKED = 16
"""The most keys of one request. hivemind asks for so many at once, our own searches for one."""
KEYS_PER_SECOND = 300.0
BURST_KEYS = 1200.0
MAX_ANSWER_BYTES = 2 * MAX_BYTES_PER_KEY
_MAX_TAG_BYTES = 4 * MAX_NAME_CHARS
"""The most bytes of a packed name."""


class RequestGate(AuthorizerBase):  # type: ignore[misc]  # hivemind is not typed
    """Refuses requests and answers before any work is done; signs nothing. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._budget = BURST_KEYS
        self._filled_at = clock()

    async def validate_request(self, request: Any) -> bool:
        """Return whether the request may be answered."""
        num_keys = len(request.keys) if isinstance(request, dht_pb2.FindRequest | dht_pb2.StoreRequest) else 1
        if num_keys > MAX_KEYS_ASKED:
            return False
        if isinstance(request, dht_pb2.StoreRequest):
            if any(request.in_cache):  # searches would find cached records in place of stored ones
                return False
            if not all(0 < len(tag) <= _MAX_TAG_BYTES for tag in request.subkeys):  # an empty name marks a whole dictionary
                return False
        return self._has_budget(max(1, num_keys))

    async def validate_response(self, response: Any, request: Any) -> bool:
        """Return whether the answer may be read."""
        del request
        num_bytes: int = response.ByteSize()
        return num_bytes <= MAX_ANSWER_BYTES

    async def sign_request(self, request: Any, service_public_key: Any) -> None: ...

    async def sign_response(self, response: Any, request: Any) -> None: ...

    def _has_budget(self, num_keys: int) -> bool:
        now = self._clock()
        self._budget = min(BURST_KEYS, self._budget + (now - self._filled_at) * KEYS_PER_SECOND)
        self._filled_at = now
        if num_keys > self._budget:
            return False
        self._budget -= num_keys
        return True
