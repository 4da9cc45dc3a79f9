"""The price of a seat in a run that asks for one (`admission.kind: work`): a nonce that is found by trial and checked at once.

The hash covers the run, the newcomer's name, the digest of a recent plan, and the nonce. So a nonce serves one name in one run;
it cannot be found before that plan exists, and it lapses `PROOF_ROUNDS` after it. Any holder of the ledger can check it.

The hash is scrypt with 4 MiB, so that machines made for a hash without memory gain less. Attempts are independent draws, so
nothing is lost when a newer plan replaces the one in the hash, or when the process restarts.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from adloco_p2p.core.model.scalars import Digest, PeerId

PROOF_ROUNDS = 16
"""The number of rounds after its plan for which a proof of work lets its name in, even again after the loss of a seat."""
MEMORY_COST, BLOCK_SIZE = 4096, 8
"""N and r of scrypt: 128 * N * r bytes. One attempt takes about 10 ms of one core (`python -m benchmarks.proof_of_work`)."""
MAX_CHECKED = 1 << 13
"""The number of others' attempts whose results are remembered, more than the names that a peer remembers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """The puzzle that one newcomer has to solve for a seat."""

    run: Digest
    peer: PeerId
    plan: Digest
    """The digest of a recent plan."""
    round: int
    """The round of that plan."""
    price: int
    """The mean number of attempts."""

    def attempt(self, nonce: int) -> bool:
        """Compute whether the nonce is a solution, which takes 10 ms."""
        return self._is_below(self._hash(nonce))

    def is_checked(self, nonce: int) -> bool:
        """Return whether `is_solved_by` knows the answer already."""
        return (self, nonce) in _checked

    def is_solved_by(self, nonce: int) -> bool:
        """Return the result of `attempt`, which is computed only once."""
        known = _checked.get((self, nonce))
        if known is None:
            known = _checked[self, nonce] = self.attempt(nonce)
            while len(_checked) > MAX_CHECKED:
                _checked.popitem(last=False)  # one atomic step, because two swarms of one process have a thread each
        return known

    def _hash(self, nonce: int) -> bytes:
        what = f"{self.run} {self.plan} {nonce}".encode("ascii")
        return hashlib.scrypt(what, salt=self.peer.encode(), n=MEMORY_COST, r=BLOCK_SIZE, p=1, maxmem=1 << 23, dklen=32)

    def _is_below(self, hashed: bytes) -> bool:
        return int.from_bytes(hashed) * self.price < 1 << 256


_checked: OrderedDict[tuple[Puzzle, int], bool] = OrderedDict()
"""The results of attempts, oldest first."""


class CheckBudget:
    """A token bucket for the nonces that others make this peer check: `per_second`, with bursts of `burst`."""

    def __init__(self, per_second: float, *, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._at = 0.0

    def try_take(self, now: float) -> bool:
        """Take one check from the budget if there is one; return whether there was. `now` is in seconds of the peer's own
        clock."""
        self._left = min(self._burst, self._left + self._per_second * max(0.0, now - self._at))
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
