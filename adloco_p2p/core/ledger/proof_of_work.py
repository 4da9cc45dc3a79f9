"""The price of a seat where a run asks for one (`admission.kind: work`): a nonce that is found by trying, and checked at once.

The hash covers the run, the newcomer's name, the digest of a recent plan, and the nonce. So a nonce serves one name in one run;
it cannot be found before there is that plan, and it lapses `PROOF_ROUNDS` after it. Any holder of the ledger can check it.

The hash is scrypt with 4 MiB, so that machines which are made for a hash without memory gain less. No attempt brings the end of
this lottery nearer. So nothing is lost when a newer plan takes the place of the one that was tried for, or when the process
restarts.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from adloco_p2p.core.model.scalars import Digest, PeerId

PROOF_ROUNDS = 16
"""A proof of work lets its name in this many rounds after the plan that it was found for, again if it loses its seat."""
MEMORY_COST, BLOCK_SIZE = 4096, 8
"""N and r of scrypt: 128 * N * r bytes. One attempt takes about 10 ms of one core (`python -m benchmarks.proof_of_work`)."""
MAX_CHECKED = 1 << 13
"""Attempts of others whose hashes are remembered: more than a peer remembers names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """What one newcomer has to solve for a seat."""

    run: Digest
    peer: PeerId
    plan: Digest
    """A recent one, ..."""
    round: int
    """... and its round."""
    price: int
    """Attempts, on average."""

    def attempt(self, nonce: int) -> bool:
        """Whether the nonce is a solution, computed anew. Takes 10 ms."""
        return self._is_below(self._hash(nonce))

    def is_checked(self, nonce: int) -> bool:
        """Whether `is_solved_by` knows the answer already."""
        return (self, nonce) in _checked

    def is_solved_by(self, nonce: int) -> bool:
        """The same as `attempt`, computed once."""
        known = _checked.get((self, nonce))
        if known is None:
            known = _checked[self, nonce] = self.attempt(nonce)
            while len(_checked) > MAX_CHECKED:
                _checked.popitem(last=False)  # in one step: two swarms of one process have a thread each
        return known

    def _hash(self, nonce: int) -> bytes:
        what = f"{self.run} {self.plan} {nonce}".encode("ascii")
        return hashlib.scrypt(what, salt=self.peer.encode(), n=MEMORY_COST, r=BLOCK_SIZE, p=1, maxmem=1 << 23, dklen=32)

    def _is_below(self, hashed: bytes) -> bool:
        return int.from_bytes(hashed) * self.price < 1 << 256


_checked: OrderedDict[tuple[Puzzle, int], bool] = OrderedDict()
"""Oldest first."""


class CheckBudget:
    """Nonces that others make this peer check: so many per second, and at first so many at once."""

    def __init__(self, per_second: float, *, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._at = 0.0

    def try_take(self, now: float) -> bool:
        """Whether one more may be checked now, which is then taken as done. Seconds of the peer's own clock."""
        self._left = min(self._burst, self._left + self._per_second * max(0.0, now - self._at))
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
