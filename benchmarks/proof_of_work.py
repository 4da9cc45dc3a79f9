"""The processor time of an attempt at a proof of work on one core, beside other sizes of scrypt and SHA-256.

    python -m benchmarks.proof_of_work

The line of the size in use is the basis of `ATTEMPTS_PER_MINUTE`, and the time to check one newcomer in a ledger.
"""

import hashlib
import time
from collections.abc import Callable

from adloco_p2p.core.ledger.proof_of_work import BLOCK_SIZE, MEMORY_COST, Puzzle
from adloco_p2p.core.model.rules import ATTEMPTS_PER_MINUTE
from adloco_p2p.core.model.scalars import Digest, PeerId

REPEATS = 12
"""Repetitions, of which the fastest counts, since other processes share the caches."""
SIZES = (1024, 4096, 8192, 16384)
PUZZLE = Puzzle(run=Digest("0" * 64), peer=PeerId("Q" * 52), plan=Digest("1" * 64), round=0, price=1)


def seconds_of(attempt: Callable[[int], object], times: int) -> float:
    """Return the processor time of one attempt."""
    best = float("inf")
    for repeat in range(REPEATS):
        began = time.process_time()
        for nonce in range(repeat * times, (repeat + 1) * times):
            attempt(nonce)
        best = min(best, (time.process_time() - began) / times)
    return best


def scrypt_of(size: int) -> Callable[[int], object]:
    return lambda nonce: hashlib.scrypt(b"%d" % nonce, salt=b"Q" * 52, n=size, r=BLOCK_SIZE, p=1, maxmem=1 << 28, dklen=32)


def main() -> None:
    plain = seconds_of(lambda nonce: hashlib.sha256(b"%0180d" % nonce).digest(), 20_000)
    print(f"sha256                  {plain * 1e6:8.2f} us")
    for size in SIZES:
        taken = seconds_of(scrypt_of(size), max(1, 16384 // size)) * 1e3
        print(
            f"scrypt, {128 * size * BLOCK_SIZE >> 20:3d} MiB        {taken:8.2f} ms{', in use' if size == MEMORY_COST else ''}"
        )
    attempt = seconds_of(PUZZLE.attempt, 4)
    print(f"an attempt              {attempt * 1e3:8.2f} ms, {60 / attempt:,.0f} a minute")
    print(f"ATTEMPTS_PER_MINUTE     {ATTEMPTS_PER_MINUTE:8,}")
    print(f"a ledger of 1,000 names {attempt * 1000:8.1f} s to check their proofs")


if __name__ == "__main__":
    main()
