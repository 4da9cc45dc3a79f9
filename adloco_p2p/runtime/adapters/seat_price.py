"""The search for a proof of work, in the background, for a run whose seats have a price."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adloco_p2p.core.agreement.gossip_agreement import GossipAgreement
from adloco_p2p.core.ledger.proof_of_work import PROOF_ROUNDS, Puzzle
from adloco_p2p.core.model.ledger_entry import ProofOfWork
from adloco_p2p.core.model.scalars import LARGEST_COUNT
from adloco_p2p.core.model.telemetry import Proving
from adloco_p2p.storage.admission_files import keep_proof, read_proof

IDLE_SECONDS = 1.0
SLICE_SECONDS = 0.5
"""The time of attempts between two looks at newer plans and at the end of the node."""
SHOWN_SECONDS = 15.0
"""The time between two events about the search."""
LEAP_ROUNDS = PROOF_ROUNDS // 2
"""A peer whose newest plan moves by so many rounds between two looks is still reading the ledger."""
CALM_SECONDS = 5.0
"""The time after the last such leap until the search begins, because a solution for a plan that is over gives no seat. Heads
that strangers name are no sign, since they may lie."""


@dataclass(slots=True, kw_only=True)
class Reading:
    """Whether this peer is still reading the ledger, as it does at its start."""

    leapt_at: float
    round: int = 0

    def is_over(self, round: int, now: float) -> bool:
        """Return whether reading is over, at a look at the newest plan, which is of this round."""
        if abs(round - self.round) >= LEAP_ROUNDS:
            self.leapt_at = now
        self.round = round
        return now - self.leapt_at >= CALM_SECONDS


@dataclass(slots=True, kw_only=True)
class Search:
    """One search, from the first attempt to the solution, over all plans meanwhile."""

    shown_at: float = float("-inf")
    attempts: int = 0
    seconds: float = 0.0
    """The time spent in attempts."""

    def event(self, puzzle: Puzzle, *, is_over: bool) -> Proving:
        return Proving(price=puzzle.price, attempts=self.attempts, seconds=self.seconds, is_over=is_over)


def attempt_for_a_while(puzzle: Puzzle) -> tuple[int | None, int, float]:
    """Try nonces for SLICE_SECONDS; return the solution, if one was found, the number of attempts, and their time in seconds.
    The first nonce is random, so that nonces tried before a restart are hardly tried again."""
    began, first, count = time.monotonic(), secrets.randbelow(LARGEST_COUNT // 2), 0
    while True:
        is_solved = puzzle.attempt(first + count)
        count += 1
        seconds = time.monotonic() - began
        if is_solved or seconds >= SLICE_SECONDS:
            return (first + count - 1 if is_solved else None), count, seconds


async def earn_seat(workdir: Path, agreement: GossipAgreement, write: Callable[[Proving], None]) -> None:
    """Find a proof of work whenever the run asks this peer for one, on one core, until cancelled; return if seats are free. The
    last proof is kept on the disk, so that a restart within its rounds costs nothing."""
    if not agreement.ledger.plans[-1].price:
        return  # the peer shows its ticket
    known, search, reading = read_proof(workdir), None, Reading(leapt_at=time.monotonic())
    if known is not None:
        agreement.show(known)
    while True:
        puzzle = agreement.puzzle()
        if puzzle is None:
            search = None
        if puzzle is None or not reading.is_over(puzzle.round, time.monotonic()):
            await asyncio.sleep(IDLE_SECONDS)
            continue
        search = search or Search()
        nonce, count, seconds = await asyncio.to_thread(attempt_for_a_while, puzzle)
        search.attempts += count
        search.seconds += seconds
        now = time.monotonic()
        if nonce is not None:
            proof = ProofOfWork(round=puzzle.round, nonce=nonce)
            keep_proof(workdir, proof)
            agreement.show(proof)
        is_due = now - search.shown_at >= SHOWN_SECONDS
        if nonce is not None or (is_due and agreement.puzzle() is not None):  # no event if a plan has given it a seat meanwhile
            search.shown_at = now
            write(search.event(puzzle, is_over=nonce is not None))
